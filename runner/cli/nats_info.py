"""The command ``agentgym-runner nats-info``: prints the address of the node's broker."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import msgspec

from runner.cli.arguments import add_state_options, subcommand_parser
from runner.cli.run_session import read_state
from runner.cli.terminal import print_json, print_stderr, print_text
from runner.errors import ConfigError
from runner.node.state_lock import NodeFile, is_node_alive


def main_nats_info(argv: Sequence[str]) -> int:
    options = build_parser().parse_args(argv)
    _, data_dir = read_state(options, creates=True)
    path = data_dir / "node.json"
    try:
        node = msgspec.json.decode(path.read_bytes(), type=NodeFile)
    except FileNotFoundError:
        raise ConfigError(f"No node has run in {data_dir}; start one with `agentgym-runner node`") from None
    except (OSError, ValueError) as exc:
        raise ConfigError(f"{path} cannot be read: {exc}; start the node again") from exc
    running = is_node_alive(data_dir)
    if options.json:
        fields = {"url": node.url, "credential_file": node.credential_file, "node": node.node, "running": running}
        print_json(fields)
    else:
        print_text(f"url              {node.url}\ncredential file  {node.credential_file}")
    if not running:
        print_stderr("The node is not running.")
    return 0


def build_parser() -> argparse.ArgumentParser:
    parser = subcommand_parser(
        "nats-info", "Print the URL of the node's broker and the file with its user and password."
    )
    add_state_options(parser, json="print JSON")
    return parser
