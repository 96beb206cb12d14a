"""The command ``agentgym-tui``."""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import re
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from runner import __version__

if TYPE_CHECKING:
    from agentgym_tui.sessions.node_launcher import LaunchOptions
    from agentgym_tui.sessions.protocols import Session

EPILOG = """exit codes:
  0  left by the person
  1  the console failed; what it says last names a report
  2  usage, or a terminal that cannot show it
  128+N  ended by signal N; the terminal is restored and the node goes on"""

CREDENTIALS = """Credentials come from NATS_USER and NATS_PASSWORD, NATS_TOKEN, NATS_NKEY or NATS_CREDS (files), and
NATS_CA, NATS_CERT, NATS_KEY, NATS_TLS_FIRST, never from the command line."""

_SINCE_PATTERN = re.compile(r"(\d{1,6})([smhd])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = _parser()
    given = parser.parse_args(argv)
    if given.command is None:
        parser.print_help()
        return 0
    if given.command == "config":
        return _config(write=given.write)
    from agentgym_tui.terminal.run import unsupported_reason

    reason = unsupported_reason(os.environ) or _location_error(given)
    if reason is not None:
        sys.stderr.write(f"agentgym-tui: {reason}\n")
        return 2
    return _run_console(given)


def _run_console(given: argparse.Namespace) -> int:
    gc.disable()  # until the first paint: what is imported stays, looking through it takes a sixth of the start
    from agentgym_tui.terminal.alternate_screen import preview_screen
    from agentgym_tui.terminal.run import run_console

    with preview_screen(first := _preview(given)):
        from agentgym_tui.app.console import console_of
        from agentgym_tui.config.settings import config_path, read_settings
        from agentgym_tui.config.ui_state import read_ui_state, state_path, write_ui_state

        path = state_path(os.environ)
        settings = read_settings(config_path(os.environ))
        session = _session(given, settings.keys.key("node.start"))
        console = console_of(session)(session, settings, read_ui_state(path))
    code = run_console(console, session, prepared=bool(first))
    if code != 1:
        with contextlib.suppress(OSError):  # a home that cannot be written to is no reason to complain at each end
            write_ui_state(path, console.ui_state)
    return code


def _preview(given: argparse.Namespace) -> list[str]:
    """What can be shown before the framework is loaded, which takes most of the start."""
    if given.command != "open":
        return []
    from agentgym_tui.logs.file_types import is_log

    if (path := next(filter(is_log, given.paths), None)) is None:
        return []
    from agentgym_tui.logs.log_file import LogFile
    from agentgym_tui.terminal.startup_preview import preview_lines

    log = LogFile(path)
    log.advance(0.0)
    shown = preview_lines(log, *os.get_terminal_size(0))
    log.close()
    return shown


def _config(*, write: bool) -> int:
    """Print a configuration to begin with, or write it; what is wrong with the one there is goes to standard error."""
    from agentgym_tui.config.settings import config_path, default_settings_text, read_settings, write_default_settings
    from agentgym_tui.safe_text import sanitize_message

    path = config_path(os.environ)
    try:
        written = write and write_default_settings(path)
    except OSError as exc:
        sys.stderr.write(f"agentgym-tui: {sanitize_message(str(path))} cannot be written: {exc.strerror}\n")
        return 2
    sys.stdout.write(f"{sanitize_message(str(path))}\n" if write else default_settings_text(path))
    if write and not written:
        sys.stderr.write("agentgym-tui: it is there already, and stays as it is\n")
    problems = read_settings(path).problems
    sys.stderr.writelines(f"agentgym-tui: {complaint}\n" for complaint in problems)
    return 2 if problems else 0


def _location_error(given: argparse.Namespace) -> str | None:
    """What is wrong with a profile or a name that is given; without these the first paint waits for no profile."""
    if getattr(given, "config", None) is None and getattr(given, "node", None) is None:
        return None
    from agentgym_tui.sessions.node_launcher import StateLocator
    from runner.errors import ConfigError

    try:
        StateLocator(_launch_options(given)).find()
    except ConfigError as exc:
        from agentgym_tui.safe_text import sanitize_message

        return sanitize_message(str(exc))
    return None


def _launch_options(given: argparse.Namespace) -> LaunchOptions:
    from agentgym_tui.sessions.node_launcher import LaunchOptions

    return LaunchOptions(*(getattr(given, name, None) for name in ("config", "data_dir", "node")))


def _session(given: argparse.Namespace, start_key: str) -> Session:
    if given.command == "open":
        from agentgym_tui.sessions.file_session import FileSession

        return FileSession(given.paths)
    from agentgym_tui.sessions.bus_session import BusSession
    from agentgym_tui.sessions.node_session import NodeSession

    match given.command:
        case "watch":
            return BusSession(_launch_options(given), url=given.nats, since=given.since)
    return NodeSession(_launch_options(given), start_key)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="agentgym-tui",
        description="Run and watch AgentGym episodes from a terminal.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"agentgym-tui {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    _add_launch(commands)
    _add_watch(commands)
    _add_open(commands)
    _add_config(commands)
    return parser


def _add_launch(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    launch = commands.add_parser(
        "launch",
        help="the console of this machine's node, which is started when there is none",
        description="Show the node of the state directory, starting one in the background when there is none. "
        "It goes on when the console ends, and leaves by itself when nothing is left to do.",
        allow_abbrev=False,
    )
    _add_location_options(launch)
    launch.add_argument("--node", metavar="NAME", help="this machine's name, for a node that is started")


def _add_watch(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    watch = commands.add_parser(
        "watch",
        help="look at what is said on a bus, without touching it",
        description="The console, read-only, on somebody else's bus, or on that of the state directory's node.",
        epilog=CREDENTIALS,
        allow_abbrev=False,
    )
    _add_location_options(watch)
    watch.add_argument("--nats", metavar="URL", help="the bus, such as nats://HOST:4222")
    watch.add_argument(
        "--since", type=parse_since, default=timedelta(hours=24), metavar="1h|all", help="history (default 24h)"
    )


def _add_open(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    opened = commands.add_parser(
        "open",
        help="look at stored episodes and at logs, without a node or a bus",
        description="Show episode files, the folders of batches, folders of runs, or state directories; and logs: "
        "any other file, such as JSON Lines of events, line by line, also while it is written. "
        "With logs it begins with the first of them, n goes to the next one and 2 to the episodes.",
        allow_abbrev=False,
    )
    opened.add_argument("paths", type=Path, nargs="+", metavar="PATH", help="a file or folder; nothing is written")


def _add_config(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    config = commands.add_parser(
        "config",
        help="where keys, theme and notifications are set, and with what to begin",
        description="Print the path of your configuration, with all that can be set as comments; "
        "say what is wrong with the one there is.",
        allow_abbrev=False,
    )
    config.add_argument("--write", action="store_true", help="write it there, unless there is one")


def _add_location_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", metavar="NAME|PATH", help="the profile (default field-runner-4090)")
    parser.add_argument("--data-dir", metavar="DIR", help="the state directory (default ./data)")


def parse_since(text: str) -> timedelta | Literal["all"]:
    """How far back, for argparse: ``all``, or a number with s, m, h or d."""
    if text == "all":
        return "all"
    if (ago := _SINCE_PATTERN.fullmatch(text)) is None:
        raise argparse.ArgumentTypeError(f"{text!r} is none of all, 30s, 10m, 1h, 2d")
    return timedelta(**{_UNITS[ago[2]]: int(ago[1])})
