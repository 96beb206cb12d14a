"""``agentgym-runner node`` and ``nats-info``: a node in the foreground, and the address of its broker."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from runner.batch.spec import NODE_FILES, SLOT_FILES
from runner.bus.address import egress_reader, read_credential
from runner.cli.arguments import Options, add_state_options, positive_seconds, subcommand_parser
from runner.cli.reports import log_to_file
from runner.cli.run_session import RunSession, read_state
from runner.cli.terminal import ascii_json, output_stream, print_json, print_stderr, print_text
from runner.client.ssh import MARKER
from runner.errors import ConfigError, RunnerError
from runner.node.state_lock import NodeFile, is_node_alive
from runner.util.files import world_writable_problem
from runner.util.resources import require_open_files

if TYPE_CHECKING:
    from runner.node.node import Node

logger = logging.getLogger(__name__)


def main_node(argv: Sequence[str]) -> int:
    """Run the node until SIGTERM or SIGINT, then return 0; a second signal skips waiting for running steps."""
    from runner.node.node import Node  # imported late: most of the runner, which nats-info does not need

    options = node_parser().parse_args(argv)
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


def node_parser() -> argparse.ArgumentParser:
    parser = subcommand_parser("node", "Run the node of a state directory: it runs batches on request over the bus.")
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


def main_nats_info(argv: Sequence[str]) -> int:
    options = nats_info_parser().parse_args(argv)
    _, data_dir = read_state(options, creates=True)
    path = data_dir / "node.json"
    try:
        node = msgspec.json.decode(path.read_bytes(), type=NodeFile)
    except FileNotFoundError:
        raise ConfigError(f"No node has run in {data_dir}; start one with `agentgym-runner node`") from None
    except (OSError, ValueError) as exc:
        raise ConfigError(f"{path} cannot be read: {exc}; start the node again") from exc
    running = is_node_alive(data_dir)
    if options.credential:
        return _print_credential(node)
    if options.json:
        fields = {"url": node.url, "credential_file": node.credential_file, "node": node.node, "running": running}
        print_json(fields)
    else:
        print_text(f"url              {node.url}\ncredential file  {node.credential_file}")
    if not running:
        print_stderr("The node is not running.")
    return 0


def _print_credential(node: NodeFile) -> int:
    """Write address and credential for the client that runs this over SSH, never to a terminal."""
    if output_stream().isatty():
        raise ConfigError("--credential prints a password and is meant for a pipe, as ssh:// addresses use it")
    credential = read_credential(Path(node.credential_file))
    fields = {"url": node.url, "user": credential.user, "password": credential.password, "node": node.node}
    output_stream().write(f"{MARKER.decode()}{ascii_json(fields)}\n")
    return 0


def nats_info_parser() -> argparse.ArgumentParser:
    parser = subcommand_parser(
        "nats-info", "Print the URL of the node's broker and the file with its user and password."
    )
    add_state_options(parser, json="print JSON")
    parser.add_argument("--credential", action="store_true", help="print the password, too, to a pipe, as ssh:// does")
    return parser
