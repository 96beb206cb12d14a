"""The command ``agentgym-runner node``: runs the node in the foreground."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
from collections.abc import Sequence
from pathlib import Path

from runner.batch.spec import NODE_FILES, SLOT_FILES
from runner.bus.address import egress_reader
from runner.cli.arguments import Options, add_state_options, positive_seconds
from runner.cli.reports import log_to_file
from runner.cli.run_session import RunSession
from runner.cli.terminal import print_stderr
from runner.errors import RunnerError
from runner.node.node import Node
from runner.node.state_lock import NodeFile
from runner.util.argument_parser import SafeArgumentParser
from runner.util.files import world_writable_problem
from runner.util.resources import require_open_files

logger = logging.getLogger(__name__)


def main_node(argv: Sequence[str]) -> int:
    """Run the node until SIGTERM or SIGINT, then return 0; a second signal skips waiting for running steps."""
    options = build_parser().parse_args(argv)
    require_open_files(NODE_FILES + SLOT_FILES, "A node")
    session = RunSession.open(Options(config=options.config, data_dir=options.data_dir, node=options.node))

    def print_address(node_file: NodeFile) -> None:
        text = f"{node_file.node}, pid {node_file.pid}, serves {session.data_dir} at {node_file.url}"
        print_stderr(f"agentgym-runner node: {text}")

    node = Node(
        session.profile,
        session.data_dir,
        session.node,
        egress=egress_reader(session.profile),
        idle_exit_s=options.idle_exit,
        on_ready=print_address,
        profile_file=session.profile_file,
    )
    asyncio.run(_run(node, session.data_dir))
    return 0


def build_parser() -> argparse.ArgumentParser:
    parser = SafeArgumentParser(
        prog="agentgym-runner node",
        description="Run the node of a state directory: it runs batches on request over the bus.",
    )
    add_state_options(parser)
    parser.add_argument("--node", metavar="NAME", help="name of this machine (default: profile, then host name)")
    parser.add_argument("--idle-exit", type=positive_seconds, metavar="SEC", help="exit after SEC idle seconds")
    return parser


async def _run(node: Node, data_dir: Path) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, node.interrupt)
    log_to_file(data_dir)
    if (problem := world_writable_problem(data_dir)) is not None:
        logger.warning("%s", problem)
    try:
        await node.run()
    except* RunnerError as group:
        raise _first_error(group) from group
    print_stderr("agentgym-runner node: stopped")


def _first_error(group: BaseExceptionGroup[RunnerError]) -> RunnerError:
    first = group.exceptions[0]
    return _first_error(first) if isinstance(first, BaseExceptionGroup) else first
