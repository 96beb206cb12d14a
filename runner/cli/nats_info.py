"""``nats-info``: where the broker of a node is, for other NATS tools."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from runner.cli.terminal import err, print_json, safe
from runner.config import load_profile, resolve_data_dir
from runner.errors import ConfigError
from runner.node.state_lock import NodeFile, node_lives


class NatsInfo(msgspec.Struct, kw_only=True):
    """What ``nats-info`` prints; the password is only in the file."""

    url: str
    credential_file: str
    node: str
    running: bool


def main_nats_info(argv: Sequence[str]) -> int:
    """Print where the broker is and which file lets one in; returns 0.

    Raises:
        ConfigError: when there is no node, or its file cannot be read.
    """
    options = _parser().parse_args(argv)
    profile = load_profile(options.config, environ=os.environ, cwd=Path.cwd())
    info = _info(resolve_data_dir(options.data_dir, os.environ, profile, Path.cwd()))
    if options.json:
        print_json(info)
    else:
        sys.stdout.write(f"url              {safe(info.url)}\ncredential file  {safe(info.credential_file)}\n")
    if not info.running:
        err("The node does not run at present.")
    return 0


def _info(data_dir: Path) -> NatsInfo:
    path = data_dir / "node.json"
    try:
        node = msgspec.json.decode(path.read_bytes(), type=NodeFile)
    except FileNotFoundError:
        raise ConfigError(f"There is no node in {data_dir}; start one with `agentgym-runner node`") from None
    except (OSError, ValueError) as exc:
        raise ConfigError(f"{path} cannot be read: {exc}; start the node again") from exc
    return NatsInfo(url=node.url, credential_file=node.credential_file, node=node.node, running=node_lives(data_dir))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="agentgym-runner nats-info",
        description="Show the URL of the node's broker and the file with its user and password.",
        allow_abbrev=False,
    )
    parser.add_argument("--data-dir", metavar="DIR", help="the state directory (default ./data)")
    parser.add_argument("--config", metavar="NAME|PATH", help="the profile")
    parser.add_argument("--json", action="store_true", help="as JSON")
    return parser
