"""The ``agentgym-tui`` command."""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import signal
import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from agentgym_tui.safe_text import sanitize_message, sanitize_text
from runner import __version__
from runner.util.argument_parser import SafeArgumentParser, describe_completion
from runner.util.files import (
    default_data_dir,
    deleted_folder_problem,
    exists,
    resolve_path,
    unwritable_reason,
    xdg_folder,
)

if TYPE_CHECKING:
    from agentgym_tui.sessions.session import Session
    from runner.client.node_folder import LaunchOptions

EPILOG = """exit codes:
  0  normal exit
  1  the console crashed; its last line names the crash report
  2  usage error, or unsupported terminal
  128+N  ended by signal N; the terminal is restored and the node keeps running"""

CREDENTIALS = """Credentials come from NATS_USER and NATS_PASSWORD, NATS_TOKEN, NATS_NKEY or NATS_CREDS (files), and
NATS_CA, NATS_CERT, NATS_KEY, NATS_TLS_FIRST, never from the command line."""

MIN_OPEN_FILES = 32
"""Estimate of the open files of the console, with a margin for log files, exports and reconnections."""


def main(argv: Sequence[str] | None = None) -> int:
    parser = _parser()
    args = parser.parse_args(argv)
    if args.command is None:
        parser.print_help()
        return 0
    if args.command == "config":
        return _config(write=args.write)
    if args.command == "completion":
        from runner.cli.completion import completion_script

        sys.stdout.write(completion_script(args.shell, parser))
        return 0
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback while Textual is being imported
    from agentgym_tui.terminal import unsupported_reason

    reason = (
        deleted_folder_problem(os.environ) or _place_error(args) or unsupported_reason(os.environ) or _limit_error()
    )
    return _usage_error(reason) if reason is not None else _run_console(args)


def _usage_error(reason: str) -> int:
    sys.stderr.write(f"agentgym-tui: {sanitize_message(reason)}\n")
    return 2


def _run_console(args: argparse.Namespace) -> int:
    gc.disable()  # until the first paint: collecting imported objects takes a sixth of the start-up time
    from agentgym_tui.app import Console
    from agentgym_tui.config import config_path, read_settings, read_ui_state, state_path, write_ui_state
    from agentgym_tui.terminal import run_console

    path = state_path(os.environ)
    settings = read_settings(config_path(os.environ))
    session = _session(args, settings.keys.key("node.start"))
    console = Console(session, settings, read_ui_state(path, place := _place(args)))
    code = run_console(console, session)
    if code != 1:
        with contextlib.suppress(OSError):  # an unwritable home directory is not worth an error at every exit
            write_ui_state(path, console.ui_state, place)
    return code


def _place(args: argparse.Namespace) -> str:
    """Return what the session shows, for the UI state; reading a profile would delay the first paint."""
    if args.command == "open":
        return "\n".join(["files", *(str(path.absolute()) for path in args.paths)])
    if getattr(args, "nats", None):
        return f"bus\n{args.nats}"
    is_chosen = args.data_dir or os.environ.get("AGENTGYM_DATA_DIR")
    return f"{_folder_without_profile(args)}\n{'' if is_chosen else args.config or ''}"


def _config(*, write: bool) -> int:
    """Print or write the default settings file; if the existing file has problems, report them and return 2."""
    from agentgym_tui.config import config_path, default_settings_text, read_settings, write_default_settings

    path = config_path(os.environ)
    try:
        written = write and write_default_settings(path)
    except OSError as exc:
        return _usage_error(f"{path} cannot be written: {exc.strerror}")
    sys.stdout.write(sanitize_text(f"{path}\n" if write else default_settings_text(path)))
    problems = [*(["already exists; not changed"] if write and not written else []), *read_settings(path).problems]
    for problem in problems:
        _usage_error(problem)
    return 2 if problems else 0


def _limit_error() -> str | None:
    """Raise the limit of open files; return why the console cannot run if it is too low."""
    from runner.errors import ConfigError
    from runner.util.resources import require_open_files

    try:
        require_open_files(MIN_OPEN_FILES, "The console")
    except ConfigError as exc:
        return str(exc)
    return None


def _place_error(args: argparse.Namespace) -> str | None:
    """Return why the paths, the options or the state directory cannot be used; most often without a profile."""
    if args.command == "open":
        missing = f"there is no file or folder {args.paths[0]}; give episode files, log files or folders of them"
        return None if any(map(exists, args.paths)) else missing
    folder = _folder_without_profile(args)
    if args.config is not None or getattr(args, "node", None) is not None:
        from runner.client.node_folder import StateLocator
        from runner.errors import ConfigError

        try:
            folder = StateLocator(_launch_options(args)).find().data_dir
        except ConfigError as exc:
            return str(exc)
    if getattr(args, "nats", None):
        return None
    if args.command == "watch":
        no_node = f"no node has run in {folder}; start one with `agentgym-tui launch`, or name a bus with --nats"
        return None if exists(folder / "node.json") else no_node
    if not (reason := unwritable_reason(folder)):
        return None
    from runner.node.state_lock import is_node_alive

    unusable = f"the state directory {folder} cannot be used: {reason}; choose another folder with --data-dir"
    return None if is_node_alive(folder) else unusable


def _folder_without_profile(args: argparse.Namespace) -> Path:
    chosen = args.data_dir or os.environ.get("AGENTGYM_DATA_DIR")
    cwd = Path.cwd()
    return resolve_path(chosen, os.environ, cwd) if chosen else default_data_dir(os.environ, cwd).path


def _launch_options(args: argparse.Namespace) -> LaunchOptions:
    from runner.client.node_folder import LaunchOptions

    return LaunchOptions(*(getattr(args, name, None) for name in ("config", "data_dir", "node")))


def _session(args: argparse.Namespace, start_key: str) -> Session:
    if args.command == "open":
        from agentgym_tui.sessions.session import FileSession

        return FileSession(args.paths, xdg_folder(os.environ, "XDG_CACHE_HOME", ".cache"))
    from agentgym_tui.sessions.bus_session import BusSession, NodeSession

    if args.command == "watch":
        remote = args.remote_command
        return BusSession(_launch_options(args), url=args.nats, since=args.since, remote_command=remote)
    return NodeSession(_launch_options(args), start_key)


def _parser() -> argparse.ArgumentParser:
    parser = SafeArgumentParser(
        prog="agentgym-tui",
        description="Run and watch AgentGym episodes from a terminal.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"agentgym-tui {__version__}")
    add = partial(parser.add_subparsers(dest="command", metavar="COMMAND").add_parser, allow_abbrev=False)
    _add_sessions(add)
    config = add(
        "config",
        help="print the path of the settings file and all defaults",
        description="Print the path of the settings file and all settings as comments; "
        "report invalid settings in the existing file.",
    )
    config.add_argument("--write", action="store_true", help="create the file unless it exists")
    describe_completion(add("completion", help="print the completion script of a shell"))
    return parser


def _add_sessions(add: Callable[..., SafeArgumentParser]) -> None:
    launch = add(
        "launch",
        help="show this machine's node; start one if none is running",
        description="Show the node of the state directory; if none is running, start one in the background. "
        "The node keeps running when the console ends, and exits when it is idle.",
    )
    watch = add(
        "watch",
        help="watch a bus, read-only",
        description="Show any bus, or the bus of the state directory's node, read-only.",
        epilog=CREDENTIALS,
    )
    for command in (launch, watch):
        command.add_argument("--config", metavar="NAME|PATH", help="the profile (default field-runner-4090)")
        place = "the state directory (default: ./data in a checkout, else the platform's data folder)"
        command.add_argument("--data-dir", metavar="DIR", help=place)
    launch.add_argument("--node", metavar="NAME", help="name of this machine, used when a node is started")
    watch.add_argument("--nats", metavar="URL", help="the bus, such as nats://HOST:4222 or ssh://[user@]host[/folder]")
    remote = "the runner on the machine of ssh:// (default agentgym-runner)"
    watch.add_argument("--remote-command", metavar="CMD", help=remote)
    since, day = "start this far back, or at the beginning (default 24h)", timedelta(hours=24)
    watch.add_argument("--since", type=parse_since, default=day, metavar="1h|all", help=since)
    opened = add(
        "open",
        help="show stored episodes and logs, without a node or a bus",
        description="Show episode files, batch folders, run folders or state directories, and logs. "
        "Files of other tools are recognised by content, such as ATIF, verifiers traces or Harbor jobs. "
        "Any other file is a log, such as events in JSON Lines; it is shown line by line, even while it is written. "
        "The first log is shown first; the last line names the keys for the next log and for the episodes.",
    )
    opened.add_argument("paths", type=Path, nargs="+", metavar="PATH", help="a file or folder; it is not modified")


def parse_since(text: str) -> timedelta | Literal["all"]:
    """Parse ``--since``: ``all``, or a number followed by s, m, h or d; else raise ``argparse.ArgumentTypeError``."""
    from agentgym_tui.state.event_log import parse_age

    if text == "all":
        return "all"
    if (age := parse_age(text)) is None:
        raise argparse.ArgumentTypeError(f"{text!r} must be all, or a time such as 30s")
    return age
