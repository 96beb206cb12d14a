"""Run the console in the terminal, and restore the terminal however the console ends; or run it without a terminal."""

from __future__ import annotations

import io
import logging
import os
import signal
import sys
import termios
import threading
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from agentgym_tui.terminal.alternate_screen import SIGNALS, exit_after_signal, is_terminal_open, restore_terminal
from runner.errors import catch_foreign

if TYPE_CHECKING:
    from types import FrameType

    from textual.app import App
    from textual.driver import Driver

    from agentgym_tui.sessions.protocols import Session

MIN_SIZE: Final = (60, 20)
"""Minimum size of the terminal: columns and lines."""
EXIT_TIMEOUT_S: Final = 3.0
"""Time between a signal and the forced exit of the process, in seconds."""


def is_served(environ: Mapping[str, str]) -> bool:
    """Return whether a program such as textual-serve draws the console in place of a terminal."""
    return bool(environ.get("TEXTUAL_DRIVER"))


def terminal_size() -> os.terminal_size:
    """Return the columns and lines of the terminal on standard input."""
    return os.get_terminal_size(0)


def unsupported_reason(environ: Mapping[str, str]) -> str | None:
    """Return why the console cannot be shown in this terminal; None if it can, or if no terminal is needed."""
    if is_served(environ):
        return None
    if not all(os.isatty(number) for number in (0, 1, 2)):
        return "the console needs a terminal; for pipes use agentgym-runner watch --json"
    if environ.get("TERM", "") in ("", "dumb", "unknown"):
        return "unsupported terminal (TERM is unset or dumb); set TERM, for example to xterm-256color"
    columns, lines = terminal_size()
    if columns < MIN_SIZE[0] or lines < MIN_SIZE[1]:
        return f"the terminal has {columns}x{lines} characters; enlarge it to at least {MIN_SIZE[0]}x{MIN_SIZE[1]}"
    return None


def run_console(app: App[Any], session: Session, *, prepared: bool = False) -> int:
    """Run the console and return its exit code. If it crashes, no untrusted text is printed.

    Args:
        app: the console.
        session: the session that the console shows.
        prepared: whether the startup preview has already entered the alternate screen.
    """
    logging.getLogger().addHandler(logging.NullHandler())  # otherwise library warnings would be printed at exit
    silenced = io.StringIO()
    app.error_console.file = silenced
    attributes = termios.tcgetattr(0) if is_terminal_open() else []
    if not is_served(os.environ):
        app.driver_class = _driver_class(prepared=prepared)
    crashes: list[BaseException] = []
    import asyncio  # imported late, so that it does not delay the start

    from agentgym_tui.textual_compat import crash_of

    with catch_foreign(crashes.append):
        asyncio.run(_run_app(app, attributes))
    if not crashes and (crash := crash_of(app)) is not None:
        crashes.append(_original_error(crash))
    if crashes or silenced.getvalue():
        restore_terminal(attributes)
        from agentgym_tui.terminal.crash_report import write_report  # its imports are needed only here

        path = write_report(crashes[0] if crashes else None, session)
        sys.stderr.write(f"agentgym-tui: the console crashed; episodes are not affected; report: {path}\n")
        return 1
    return app.return_code or 0


def _original_error(error: BaseException) -> BaseException:
    from textual.worker import WorkerFailed

    return error.error if isinstance(error, WorkerFailed) else error  # it does not link to the original error


def _driver_class(*, prepared: bool) -> type[Driver]:
    from agentgym_tui.terminal.driver import PreparedTerminalDriver, TerminalDriver

    return PreparedTerminalDriver if prepared else TerminalDriver


async def _run_app(app: App[Any], attributes: list[Any]) -> None:
    import asyncio

    loop = asyncio.get_running_loop()

    def leave(number: int, _: FrameType | None) -> None:
        # a plain signal handler runs even while the event loop is blocked by a write to the terminal
        _force_exit_later(number, attributes)
        loop.call_soon_threadsafe(partial(app.exit, return_code=128 + number))

    for number in SIGNALS:
        signal.signal(number, leave)
    await app.run_async()


def _force_exit_later(number: int, attributes: list[Any]) -> None:
    """Force the process to exit after ``EXIT_TIMEOUT_S`` if it is still running; detach from a terminal that hung up.

    Args:
        number: number of the received signal.
        attributes: terminal attributes to restore, as returned by ``termios.tcgetattr``.
    """
    if number == signal.SIGHUP and not is_terminal_open():
        signal.signal(signal.SIGCONT, signal.SIG_IGN)  # sent with a hang-up; Textual would resume
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        os.close(null)

    timer = threading.Timer(EXIT_TIMEOUT_S, exit_after_signal, (number, attributes))
    timer.daemon = True
    timer.start()
