"""``agentgym-runner node`` runs the node in the foreground; ``nats-info`` shows the address of its broker."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from runner.bus.address import egress_reader
from runner.cli.arguments import positive_seconds
from runner.cli.logging_setup import log_to_file
from runner.cli.terminal import print_json, print_stderr, safe_text
from runner.config import load_profile, resolve_data_dir, resolve_node
from runner.errors import ConfigError, RunnerError
from runner.node.state_lock import NodeFile, is_node_alive

if TYPE_CHECKING:
    from runner.node.node import Node


def main_node(argv: Sequence[str]) -> int:
    """Run the node until SIGTERM or SIGINT, then return 0; a second signal skips waiting for running steps.

    Raises:
        RunnerError: the node cannot start.
    """
    parser = argparse.ArgumentParser(
        prog="agentgym-runner node",
        description="Run the node of a state directory: it runs batches on request over the bus.",
    )
    parser.add_argument("--config", metavar="NAME|PATH", help="profile (default field-runner-4090)")
    parser.add_argument("--data-dir", metavar="DIR", help="state directory (default ./data)")
    parser.add_argument("--node", metavar="NAME", help="name of this machine on the bus (default: host name)")
    parser.add_argument("--idle-exit", type=positive_seconds, metavar="SEC", help="exit after SEC idle seconds")
    options = parser.parse_args(argv)
    cwd = Path.cwd()
    profile = load_profile(options.config, environ=os.environ, cwd=cwd)
    data_dir = resolve_data_dir(options.data_dir, os.environ, profile, cwd)
    name = resolve_node(options.node, os.environ, profile, socket.gethostname())

    from runner.node.node import Node  # not needed by nats-info, which should start fast

    def print_address(node_file: NodeFile) -> None:
        text = f"{node_file.node}, pid {node_file.pid}, serves {data_dir} at {node_file.url}"
        print_stderr(f"agentgym-runner node: {text}")

    node = Node(
        profile, data_dir, name, egress=egress_reader(profile), idle_exit_s=options.idle_exit, on_ready=print_address
    )
    asyncio.run(_run(node, data_dir))
    return 0


async def _run(node: Node, data_dir: Path) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, node.interrupt)
    log_to_file(data_dir)
    try:
        await node.run()
    except* RunnerError as group:
        raise _first_error(group) from group
    print_stderr("agentgym-runner node: stopped")


def _first_error(group: BaseExceptionGroup[RunnerError]) -> RunnerError:
    first = group.exceptions[0]
    return _first_error(first) if isinstance(first, BaseExceptionGroup) else first


class NatsInfo(msgspec.Struct, kw_only=True):
    """The output of ``nats-info``: the address of a broker, and the path of the file with its password."""

    url: str
    credential_file: str
    node: str
    running: bool


def main_nats_info(argv: Sequence[str]) -> int:
    """Print the URL of the node's broker and the path of its credential file; return 0.

    Raises:
        ConfigError: no node is running, or its file ``node.json`` cannot be read.
    """
    options = _nats_info_parser().parse_args(argv)
    profile = load_profile(options.config, environ=os.environ, cwd=Path.cwd())
    info = _read_nats_info(resolve_data_dir(options.data_dir, os.environ, profile, Path.cwd()))
    if options.json:
        print_json(info)
    else:
        sys.stdout.write(
            f"url              {safe_text(info.url)}\ncredential file  {safe_text(info.credential_file)}\n"
        )
    if not info.running:
        print_stderr("The node is not running.")
    return 0


def _read_nats_info(data_dir: Path) -> NatsInfo:
    path = data_dir / "node.json"
    try:
        node = msgspec.json.decode(path.read_bytes(), type=NodeFile)
    except FileNotFoundError:
        raise ConfigError(f"No node has run in {data_dir}; start one with `agentgym-runner node`") from None
    except (OSError, ValueError) as exc:
        raise ConfigError(f"{path} cannot be read: {exc}; start the node again") from exc
    return NatsInfo(url=node.url, credential_file=node.credential_file, node=node.node, running=is_node_alive(data_dir))


def _nats_info_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="agentgym-runner nats-info",
        description="Print the URL of the node's broker and the file with its user and password.",
        allow_abbrev=False,
    )
    parser.add_argument("--data-dir", metavar="DIR", help="state directory (default ./data)")
    parser.add_argument("--config", metavar="NAME|PATH", help="profile (default field-runner-4090)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser
