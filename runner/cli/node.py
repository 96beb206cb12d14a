"""``agentgym-runner node``: the worker service in the foreground."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from runner.bus.address import egress_reader
from runner.cli.arguments import seconds
from runner.cli.logs import log_to
from runner.cli.terminal import err, print_json, safe
from runner.config import load_profile, resolve_data_dir, resolve_node
from runner.errors import ConfigError, RunnerError
from runner.node.node import Node
from runner.node.state_lock import NodeFile, is_node_alive


def main_node(argv: Sequence[str]) -> int:
    """Serve until SIGTERM or SIGINT, a second one ends it at once; returns 0, or 2 when the node cannot start."""
    parser = argparse.ArgumentParser(
        prog="agentgym-runner node", description="Own a state directory and play what is asked for over the bus."
    )
    parser.add_argument("--config", metavar="NAME|PATH", help="the profile (default field-runner-4090)")
    parser.add_argument("--data-dir", metavar="DIR", help="the state directory (default ./data)")
    parser.add_argument("--node", metavar="NAME", help="this machine's name on the bus")
    parser.add_argument("--idle-exit", type=seconds, metavar="SEC", help="leave after so long without anything to do")
    given = parser.parse_args(argv)
    cwd = Path.cwd()
    profile = load_profile(given.config, environ=os.environ, cwd=cwd)
    data_dir = resolve_data_dir(given.data_dir, os.environ, profile, cwd)
    name = resolve_node(given.node, os.environ, profile, socket.gethostname())

    def say(served: NodeFile) -> None:
        err(f"agentgym-runner node: {served.node}, pid {served.pid}, serves {data_dir} at {served.url}")

    node = Node(profile, data_dir, name, egress=egress_reader(profile), idle_exit_s=given.idle_exit, on_ready=say)
    asyncio.run(_run(node, data_dir))
    return 0


async def _run(node: Node, data_dir: Path) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, node.interrupt)
    log_to(data_dir)
    try:
        await node.run()
    except* RunnerError as group:
        raise _first(group) from group
    err("agentgym-runner node: stopped")


def _first(group: BaseExceptionGroup[RunnerError]) -> RunnerError:
    first = group.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first


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
    return NatsInfo(url=node.url, credential_file=node.credential_file, node=node.node, running=is_node_alive(data_dir))


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
