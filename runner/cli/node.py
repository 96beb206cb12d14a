"""``agentgym-runner node``: the worker service in the foreground."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import socket
from collections.abc import Sequence
from pathlib import Path

from runner.bus.egress import egress_of
from runner.cli.arguments import seconds
from runner.cli.logs import log_to
from runner.cli.terminal import err
from runner.config import load_profile, resolve_data_dir, resolve_node
from runner.errors import RunnerError
from runner.node.node import Node
from runner.node.state_lock import NodeFile


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

    node = Node(profile, data_dir, name, egress=egress_of(profile), idle_exit_s=given.idle_exit, on_serving=say)
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
