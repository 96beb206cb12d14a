"""The console in its terminal: refused where it cannot be shown, and restored whatever happens."""

from __future__ import annotations

import io
import logging
import os
import signal
import sys
import termios
import threading
import tty
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from runner.errors import boundary

if TYPE_CHECKING:
    from types import FrameType

    from textual.app import App
    from textual.driver import Driver

    from agentgym_tui.sessions.protocols import Session

SMALLEST: Final = (60, 20)
SIGNALS: Final = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
LEAVE_S: Final = 3.0
"""Seconds that it may take to end after a signal."""
LEAVE: Final = (
    "\x1b[<u\x1b[?1000l\x1b[?1003l\x1b[?1015l\x1b[?1006l\x1b[?2004l\x1b[?1004l\x1b[?7h\x1b[?1049l\x1b[?25h\x1b[0m"
)
"""What undoes what the framework asks of a terminal: keyboard, mouse, paste, focus, wrapping, screen, cursor."""

ENTER: Final = "\x1b[?1049h"
"""Gives a screen of its own."""

HIDE: Final = "\x1b[?25l"
"""Hides the cursor."""


def refusal(environ: Mapping[str, str]) -> str | None:
    """Why the console cannot be shown here, None when it can."""
    if not all(os.isatty(number) for number in (0, 1, 2)):
        return "input and output have to be a terminal; for pipes there is agentgym-runner watch --json"
    if environ.get("TERM", "") in ("", "dumb", "unknown"):
        return "this terminal cannot show it (TERM is not set, or dumb); set TERM, e.g. to xterm-256color"
    columns, lines = os.get_terminal_size(0)
    if columns < SMALLEST[0] or lines < SMALLEST[1]:
        return (
            f"the terminal has {columns}x{lines} characters, {SMALLEST[0]}x{SMALLEST[1]} is the least; make it larger"
        )
    return None


@contextmanager
def taken(lines: Sequence[str]) -> Iterator[None]:
    """Show lines of safe text while the framework is loaded; a terminal that gets none stays as it is.

    What is typed meanwhile is not seen, and waits for the framework.
    """
    if not lines:
        yield
        return
    before, quiet = termios.tcgetattr(0), termios.tcgetattr(0)
    quiet[tty.LFLAG] &= ~termios.ECHO
    for number in SIGNALS:
        signal.signal(number, lambda number, _: _end(number, before))
    signal.signal(signal.SIGTSTP, signal.SIG_IGN)  # until the framework is there, which can give the terminal back
    try:
        termios.tcsetattr(0, termios.TCSANOW, quiet)
        os.write(2, "".join((ENTER, HIDE, *(f"\x1b[{row};1H{text}" for row, text in enumerate(lines, 1)))).encode())
        yield
        termios.tcsetattr(0, termios.TCSANOW, before)
    except BaseException:
        _restore(before)
        raise


def run(app: App[Any], session: Session, *, entered: bool = False) -> int:
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
    app.driver_class = _driver(entered=entered)
    crashes: list[BaseException] = []
    import asyncio  # with what comes next: until then its own start would be waited for

    with boundary(crashes.append):
        asyncio.run(_run(app, before))
    if not crashes and app._exception is not None:  # public only as a printed traceback, which quotes variables
        crashes.append(_cause(app._exception))
    if crashes or silenced.getvalue():
        _restore(before)
        from agentgym_tui.terminal.crash_report import write_report  # what it takes is not needed otherwise

        path = write_report(crashes[0] if crashes else None, session)
        sys.stderr.write(f"agentgym-tui: the console failed, which harms no episode; report: {path}\n")
        return 1
    return app.return_code or 0


def _cause(error: BaseException) -> BaseException:
    """A failure in a worker is told by another error, which does not link to it."""
    from textual.worker import WorkerFailed

    return error.error if isinstance(error, WorkerFailed) else error


def _driver(*, entered: bool) -> type[Driver]:
    from agentgym_tui.terminal.driver import EnteredDriver, TerminalDriver

    return EnteredDriver if entered else TerminalDriver


async def _run(app: App[Any], before: list[Any]) -> None:
    import asyncio

    loop = asyncio.get_running_loop()

    def leave(number: int, _: FrameType | None) -> None:
        """Runs even while the loop waits for the terminal to take what is written, which it may never do."""
        _leave_for_sure(number, before)
        loop.call_soon_threadsafe(partial(app.exit, return_code=128 + number))

    for number in SIGNALS:
        signal.signal(number, leave)
    await app.run_async()


def _leave_for_sure(number: int, before: list[Any]) -> None:
    """End the process in a few seconds if it has not ended by then; a terminal that is gone is done without."""
    if number == signal.SIGHUP and not _answers():
        signal.signal(signal.SIGCONT, signal.SIG_IGN)  # comes with a hang-up, and would make the framework start anew
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        os.close(null)

    timer = threading.Timer(LEAVE_S, _end, (number, before))
    timer.daemon = True
    timer.start()


def _end(number: int, before: list[Any]) -> None:
    restoring = threading.Thread(target=_restore, args=(before,), daemon=True)  # may wait for the terminal, too
    restoring.start()
    restoring.join(1.0)
    os._exit(128 + number)


def _answers() -> bool:
    try:
        termios.tcgetattr(0)
    except termios.error:
        return False
    return True


def _restore(attributes: list[Any]) -> None:
    """For a crash that kept the framework from doing it; doing it twice does no harm."""
    if _answers():
        os.write(2, LEAVE.encode())
        termios.tcsetattr(0, termios.TCSADRAIN, attributes)
