"""The console in its terminal: refused where it cannot be shown, and restored whatever happens."""

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

from runner.errors import catch_foreign

if TYPE_CHECKING:
    from types import FrameType

    from textual.app import App
    from textual.driver import Driver

    from agentgym_tui.sessions.protocols import Session
from agentgym_tui.terminal.alternate_screen import SIGNALS, exit_after_signal, is_terminal_open, restore_terminal

MIN_SIZE: Final = (60, 20)
EXIT_TIMEOUT_S: Final = 3.0
"""Seconds that it may take to end after a signal."""


def unsupported_reason(environ: Mapping[str, str]) -> str | None:
    """Why the console cannot be shown here, None when it can."""
    if not all(os.isatty(number) for number in (0, 1, 2)):
        return "input and output have to be a terminal; for pipes there is agentgym-runner watch --json"
    if environ.get("TERM", "") in ("", "dumb", "unknown"):
        return "this terminal cannot show it (TERM is not set, or dumb); set TERM, e.g. to xterm-256color"
    columns, lines = os.get_terminal_size(0)
    if columns < MIN_SIZE[0] or lines < MIN_SIZE[1]:
        return (
            f"the terminal has {columns}x{lines} characters, {MIN_SIZE[0]}x{MIN_SIZE[1]} is the least; make it larger"
        )
    return None


def run_console(app: App[Any], session: Session, *, entered: bool = False) -> int:
    """Show the console until it is left; returns the exit code. Nothing that outside text is part of is printed.

    Args:
        app: the console.
        session: what it looks at.
        entered: the terminal is taken already.
    """
    logging.getLogger().addHandler(logging.NullHandler())  # else warnings of libraries would be printed at the end
    silenced = io.StringIO()
    app.error_console.file = silenced
    before = termios.tcgetattr(0)
    app.driver_class = _driver_class(entered=entered)
    crashes: list[BaseException] = []
    import asyncio  # with what comes next: until then its own start would be waited for

    with catch_foreign(crashes.append):
        asyncio.run(_run_app(app, before))
    if not crashes and app._exception is not None:  # public only as a printed traceback, which quotes variables
        crashes.append(_original_error(app._exception))
    if crashes or silenced.getvalue():
        restore_terminal(before)
        from agentgym_tui.terminal.crash_report import write_report  # what it takes is not needed otherwise

        path = write_report(crashes[0] if crashes else None, session)
        sys.stderr.write(f"agentgym-tui: the console failed, which harms no episode; report: {path}\n")
        return 1
    return app.return_code or 0


def _original_error(error: BaseException) -> BaseException:
    """A failure in a worker is told by another error, which does not link to it."""
    from textual.worker import WorkerFailed

    return error.error if isinstance(error, WorkerFailed) else error


def _driver_class(*, entered: bool) -> type[Driver]:
    from agentgym_tui.terminal.driver import PreparedTerminalDriver, TerminalDriver

    return PreparedTerminalDriver if entered else TerminalDriver


async def _run_app(app: App[Any], before: list[Any]) -> None:
    import asyncio

    loop = asyncio.get_running_loop()

    def leave(number: int, _: FrameType | None) -> None:
        """Runs even while the loop waits for the terminal to take what is written, which it may never do."""
        _force_exit_later(number, before)
        loop.call_soon_threadsafe(partial(app.exit, return_code=128 + number))

    for number in SIGNALS:
        signal.signal(number, leave)
    await app.run_async()


def _force_exit_later(number: int, before: list[Any]) -> None:
    """End the process in a few seconds if it has not ended by then; a terminal that is gone is done without."""
    if number == signal.SIGHUP and not is_terminal_open():
        signal.signal(signal.SIGCONT, signal.SIG_IGN)  # comes with a hang-up, and would make the framework start anew
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        os.close(null)

    timer = threading.Timer(EXIT_TIMEOUT_S, exit_after_signal, (number, before))
    timer.daemon = True
    timer.start()
