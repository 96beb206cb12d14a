"""The ``agentgym-tui`` command."""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from agentgym_tui.safe_text import sanitize_message
from runner import __version__
from runner.util.argument_parser import SafeArgumentParser, describe_completion
from runner.util.files import default_data_dir, deleted_folder_problem, resolve_path, unwritable_reason, xdg_folder

if TYPE_CHECKING:
    from agentgym_tui.sessions.node_launcher import LaunchOptions
    from agentgym_tui.sessions.protocols import Session
    from runner.store.index_schema import EpisodeRow

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
    """Run the command and return its exit code."""
    parser = _parser()
    args = parser.parse_args(argv)
    if args.command is None:
        parser.print_help()
        return 0
    if args.command == "config":
        return _config(write=args.write)
    if args.command == "completion":
        return _completion(args.shell, parser)
    from agentgym_tui.terminal.encoding import replace_unknown_characters
    from agentgym_tui.terminal.run import unsupported_reason

    reason = (
        deleted_folder_problem(os.environ)
        or _location_error(args)
        or unsupported_reason(os.environ)
        or _folder_error(args)
        or _limit_error()
    )
    if reason is not None:
        sys.stderr.write(f"agentgym-tui: {reason}\n")
        return 2
    replace_unknown_characters()
    return _run_console(args)


def _run_console(args: argparse.Namespace) -> int:
    gc.disable()  # until the first paint: collecting imported objects takes a sixth of the start-up time
    from agentgym_tui.terminal.alternate_screen import preview_screen
    from agentgym_tui.terminal.run import run_console

    with preview_screen(first := _preview(args)):
        from agentgym_tui.app.console import Console
        from agentgym_tui.config.settings import config_path, read_settings
        from agentgym_tui.config.ui_state import read_ui_state, state_path, write_ui_state

        path = state_path(os.environ)
        settings = read_settings(config_path(os.environ))
        session = _session(args, settings.keys.key("node.start"))
        console = Console(session, settings, read_ui_state(path, place := _place(args)))
    code = run_console(console, session, prepared=bool(first))
    if code != 1:
        with contextlib.suppress(OSError):  # an unwritable home directory is not worth an error at every exit
            write_ui_state(path, console.ui_state, place)
    return code


def _preview(args: argparse.Namespace) -> list[str]:
    """Return the lines to show before Textual is imported, because this import takes most of the start-up time."""
    from agentgym_tui.terminal.run import is_served, terminal_size

    if args.command == "watch" or is_served(os.environ):
        return []
    if args.command == "launch":
        from agentgym_tui.terminal.startup_preview import launch_preview

        return launch_preview(str(_state_folder(args)), terminal_size()[0])
    from agentgym_tui.logs.path_kind import is_log
    from agentgym_tui.terminal.startup_preview import log_preview

    if (path := next(filter(is_log, args.paths), None)) is None:
        return _episode_preview(args.paths, _place(args))
    from agentgym_tui.logs.log_file import LogFile

    log = LogFile(path)
    log.advance(0.0)
    lines = log_preview(log, *terminal_size())
    log.close()
    return lines


def _episode_preview(paths: Sequence[Path], place: str) -> list[str]:
    """Return the newest cached episodes below the paths, or the first ones of a file of another tool.

    There are no lines if a filter would hide some of them.
    """
    from agentgym_tui.config.ui_state import read_ui_state, state_path
    from agentgym_tui.sessions.file_library import FileLibrary
    from agentgym_tui.state.episode_list import LIST_KEY
    from agentgym_tui.terminal.run import terminal_size
    from agentgym_tui.terminal.startup_preview import episode_preview

    ui_state = read_ui_state(state_path(os.environ), place)
    if ui_state.filters.get(LIST_KEY):
        return []
    rows = FileLibrary(paths, _cache_folder()).first_rows or _foreign_rows(paths)
    return episode_preview(rows, ui_state.sorting.get(LIST_KEY), *terminal_size())


def _foreign_rows(paths: Sequence[Path]) -> list[EpisodeRow]:
    """Return the first episodes of a file or folder of another tool; none for several paths or anything else."""
    from agentgym_tui.logs.path_kind import foreign_format
    from agentgym_tui.sessions.foreign_files import ForeignFiles

    if len(paths) != 1 or (form := foreign_format(paths[0])) is None:
        return []
    return next(ForeignFiles([]).scan([(paths[0], form)]), [])[::-1]


def _place(args: argparse.Namespace) -> str:
    """Return what the session shows, for the UI state. No profile is read, because that would delay the first paint."""
    if args.command == "open":
        return "\n".join(["files", *(str(path.absolute()) for path in args.paths)])
    if getattr(args, "nats", None):
        return f"bus\n{args.nats}"
    is_chosen = args.data_dir or os.environ.get("AGENTGYM_DATA_DIR")
    return f"{_folder_without_profile(args)}\n{'' if is_chosen else args.config or ''}"


def _cache_folder() -> Path:
    return xdg_folder(os.environ, "XDG_CACHE_HOME", ".cache")


def _config(*, write: bool) -> int:
    """Print or write the default settings file; report problems of the existing file on standard error.

    The exit code is 2 if there is a problem, else 0.
    """
    from agentgym_tui.config.settings import config_path, default_settings_text, read_settings, write_default_settings

    path = config_path(os.environ)
    try:
        written = write and write_default_settings(path)
    except OSError as exc:
        sys.stderr.write(f"agentgym-tui: {sanitize_message(str(path))} cannot be written: {exc.strerror}\n")
        return 2
    sys.stdout.write(f"{sanitize_message(str(path))}\n" if write else default_settings_text(path))
    if write and not written:
        sys.stderr.write("agentgym-tui: already exists; not changed\n")
    problems = read_settings(path).problems
    sys.stderr.writelines(f"agentgym-tui: {problem}\n" for problem in problems)
    return 2 if problems else 0


def _completion(shell: str, parser: argparse.ArgumentParser) -> int:
    """Print the completion script of a shell; return 0."""
    from runner.cli.completion import completion_script

    sys.stdout.write(completion_script(shell, parser))
    return 0


def _limit_error() -> str | None:
    """Raise the limit of open files; return why the console cannot run if it is too low."""
    from runner.errors import ConfigError
    from runner.util.resources import require_open_files

    try:
        require_open_files(MIN_OPEN_FILES, "The console")
    except ConfigError as exc:
        return str(exc)
    return None


def _location_error(args: argparse.Namespace) -> str | None:
    """Return that no path to open exists, or why ``--config`` or ``--node`` is invalid; None if all are valid.

    Without these options no profile is read before the first paint.
    """
    if args.command == "open" and args.paths and not any(path.exists() for path in args.paths):
        shown = sanitize_message(str(args.paths[0]))
        return f"there is no file or folder {shown}; give episode files, log files or folders of them"
    if getattr(args, "config", None) is None and getattr(args, "node", None) is None:
        return None
    from agentgym_tui.sessions.node_launcher import StateLocator
    from runner.errors import ConfigError

    try:
        StateLocator(_launch_options(args)).find()
    except ConfigError as exc:
        return sanitize_message(str(exc))
    return None


def _folder_error(args: argparse.Namespace) -> str | None:
    """Return why the state directory cannot be used; None if it can, or if the session has none."""
    if args.command == "open" or getattr(args, "nats", None):
        return None
    folder = _state_folder(args)
    shown = sanitize_message(str(folder))
    if args.command == "watch":
        no_node = f"no node has run in {shown}; start one with `agentgym-tui launch`, or name a bus with --nats"
        return None if (folder / "node.json").exists() else no_node
    if not (reason := unwritable_reason(folder)):
        return None
    from runner.node.state_lock import is_node_alive

    if is_node_alive(folder):
        return None
    shown_reason = sanitize_message(reason)
    return f"the state directory {shown} cannot be used: {shown_reason}; choose another folder with --data-dir"


def _state_folder(args: argparse.Namespace) -> Path:
    """Return the state directory; without ``--config`` no profile is read."""
    if args.config:
        from agentgym_tui.sessions.node_launcher import StateLocator

        return StateLocator(_launch_options(args)).find().data_dir
    return _folder_without_profile(args)


def _folder_without_profile(args: argparse.Namespace) -> Path:
    chosen = args.data_dir or os.environ.get("AGENTGYM_DATA_DIR")
    cwd = Path.cwd()
    return resolve_path(chosen, os.environ, cwd) if chosen else default_data_dir(os.environ, cwd).path


def _launch_options(args: argparse.Namespace) -> LaunchOptions:
    from agentgym_tui.sessions.node_launcher import LaunchOptions

    return LaunchOptions(*(getattr(args, name, None) for name in ("config", "data_dir", "node")))


def _session(args: argparse.Namespace, start_key: str) -> Session:
    if args.command == "open":
        from agentgym_tui.sessions.file_session import FileSession

        return FileSession(args.paths, _cache_folder())
    from agentgym_tui.sessions.bus_session import BusSession
    from agentgym_tui.sessions.node_session import NodeSession

    if args.command == "watch":
        return BusSession(_launch_options(args), url=args.nats, since=args.since)
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
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    _add_launch(commands)
    _add_watch(commands)
    _add_open(commands)
    _add_config(commands)
    describe_completion(
        commands.add_parser("completion", help="print the completion script of a shell", allow_abbrev=False)
    )
    return parser


def _add_launch(commands: argparse._SubParsersAction[SafeArgumentParser]) -> None:
    launch = commands.add_parser(
        "launch",
        help="show this machine's node; start one if none is running",
        description="Show the node of the state directory; if none is running, start one in the background. "
        "The node keeps running when the console ends, and exits when it is idle.",
        allow_abbrev=False,
    )
    _add_location_options(launch)
    launch.add_argument("--node", metavar="NAME", help="name of this machine, used when a node is started")


def _add_watch(commands: argparse._SubParsersAction[SafeArgumentParser]) -> None:
    watch = commands.add_parser(
        "watch",
        help="watch a bus, read-only",
        description="Show any bus, or the bus of the state directory's node, read-only.",
        epilog=CREDENTIALS,
        allow_abbrev=False,
    )
    _add_location_options(watch)
    watch.add_argument("--nats", metavar="URL", help="the bus, such as nats://HOST:4222")
    watch.add_argument(
        "--since",
        type=parse_since,
        default=timedelta(hours=24),
        metavar="1h|all",
        help="start this far back, or at the beginning (default 24h)",
    )


def _add_open(commands: argparse._SubParsersAction[SafeArgumentParser]) -> None:
    opened = commands.add_parser(
        "open",
        help="show stored episodes and logs, without a node or a bus",
        description="Show episode files, batch folders, run folders or state directories, and logs. "
        "Files of other tools are recognised by content, such as ATIF, verifiers traces or Harbor jobs. "
        "Any other file is a log, such as events in JSON Lines; it is shown line by line, even while it is written. "
        "The first log is shown first; the last line names the keys for the next log and for the episodes.",
        allow_abbrev=False,
    )
    opened.add_argument("paths", type=Path, nargs="+", metavar="PATH", help="a file or folder; it is not modified")


def _add_config(commands: argparse._SubParsersAction[SafeArgumentParser]) -> None:
    config = commands.add_parser(
        "config",
        help="print the path of the settings file and all defaults",
        description="Print the path of the settings file and all settings as comments; "
        "report invalid settings in the existing file.",
        allow_abbrev=False,
    )
    config.add_argument("--write", action="store_true", help="create the file unless it exists")


def _add_location_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", metavar="NAME|PATH", help="the profile (default field-runner-4090)")
    parser.add_argument(
        "--data-dir",
        metavar="DIR",
        help="the state directory (default: ./data in a checkout, else the platform's data folder)",
    )


def parse_since(text: str) -> timedelta | Literal["all"]:
    """Parse the value of ``--since``: ``all``, or a number followed by s, m, h or d.

    Raises:
        argparse.ArgumentTypeError: the value has a different form.
    """
    from agentgym_tui.state.event_query import parse_age

    if text == "all":
        return "all"
    if (age := parse_age(text)) is None:
        raise argparse.ArgumentTypeError(f"{text!r} must be all, or a time such as 30s")
    return age
