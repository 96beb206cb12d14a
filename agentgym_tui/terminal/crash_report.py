"""Crash reports: the location of the error and the state of the session, without any untrusted text."""

from __future__ import annotations

import os
import platform
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from agentgym_tui.safe_text import sanitize_line
from runner import __version__

if TYPE_CHECKING:
    from agentgym_tui.sessions.protocols import Session

LIBRARIES: Final = ("textual", "rich", "msgspec", "nats-py")
MAX_FRAMES: Final = 60
MAX_CHAIN_DEPTH: Final = 8


def write_report(error: BaseException | None, session: Session) -> Path | str:
    """Write a crash report with mode 0600; return its path, or a message if no file could be written.

    Args:
        error: the error that ended the console; None if Textual ended without an error.
        session: the session whose state is reported.
    """
    text = "\n".join(report_lines(error, session)) + "\n"
    for folder in _report_folders(session):
        try:
            descriptor, name = tempfile.mkstemp(prefix="agentgym-tui-crash-", suffix=".txt", dir=folder)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
        except (OSError, ValueError):  # ValueError: the folder name contains a null byte
            continue
        return Path(name)
    return "no report could be written"


def report_lines(error: BaseException | None, session: Session) -> Iterator[str]:
    """Yield the lines of a crash report; the arguments are those of ``write_report``."""
    yield f"agentgym-tui {__version__}, Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    yield ", ".join(f"{name} {_version(name)}" for name in LIBRARIES)
    yield f"TERM {sanitize_line(os.environ.get('TERM', ''), 40)}, size {_terminal_size()}"
    store = session.store
    yield f"{len(store.nodes)} nodes, {len(store.batches)} batches, {len(store.episodes)} episodes"
    yield f"link {store.link.status}, {type(session).__name__}"
    yield ""
    if error is None:
        yield "Textual ended without an error, for example because terminal input could not be read"
    else:
        yield from _stack_lines(error, MAX_CHAIN_DEPTH)


def _stack_lines(error: BaseException, depth: int) -> Iterator[str]:
    """Yield the types and stack frames of an error and its causes.

    Error messages are omitted because they may contain untrusted text.

    Args:
        error: the error.
        depth: how many levels of causes to include.
    """
    yield f"{type(error).__module__}.{type(error).__qualname__}"
    frames = traceback.extract_tb(error.__traceback__, limit=-MAX_FRAMES)
    yield from (f"  {frame.filename}:{frame.lineno} {frame.name}" for frame in frames)
    if depth == 0:
        return
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield "in group:"
            yield from _stack_lines(inner, depth - 1)
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if cause is not None:
        yield "caused by:"
        yield from _stack_lines(cause, depth - 1)


def _report_folders(session: Session) -> list[str]:
    logs = [] if session.data_dir is None else [str(session.data_dir / "logs")]
    return [*logs, tempfile.gettempdir()]


def _version(name: str) -> str:
    from importlib.metadata import PackageNotFoundError, version  # slow import, needed only here

    try:
        return version(name)
    except PackageNotFoundError:
        return "?"


def _terminal_size() -> str:
    try:
        return "x".join(map(str, os.get_terminal_size(2)))
    except OSError:
        return "unknown"
