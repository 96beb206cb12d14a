"""TODO."""

from __future__ import annotations

import os
import signal
import termios
import threading
import tty
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

SIGNALS: Final = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


RESTORE_MODES: Final = (
    "\x1b[<u\x1b[?1000l\x1b[?1003l\x1b[?1015l\x1b[?1006l\x1b[?2004l\x1b[?1004l\x1b[?7h\x1b[?1049l\x1b[?25h\x1b[0m"
)
"""What undoes what the framework asks of a terminal: keyboard, mouse, paste, focus, wrapping, screen, cursor."""


ENTER_ALTERNATE_SCREEN: Final = "\x1b[?1049h"
"""Gives a screen of its own."""


HIDE_CURSOR: Final = "\x1b[?25l"
"""Hides the cursor."""


@contextmanager
def preview_screen(lines: Sequence[str]) -> Iterator[None]:
    """Show lines of safe text while the framework is loaded; a terminal that gets none stays as it is.

    What is typed meanwhile is not seen, and waits for the framework.
    """
    if not lines:
        yield
        return
    before, quiet = termios.tcgetattr(0), termios.tcgetattr(0)
    quiet[tty.LFLAG] &= ~termios.ECHO
    for number in SIGNALS:
        signal.signal(number, lambda number, _: exit_after_signal(number, before))
    signal.signal(signal.SIGTSTP, signal.SIG_IGN)  # until the framework is there, which can give the terminal back
    try:
        termios.tcsetattr(0, termios.TCSANOW, quiet)
        os.write(
            2,
            "".join(
                (ENTER_ALTERNATE_SCREEN, HIDE_CURSOR, *(f"\x1b[{row};1H{text}" for row, text in enumerate(lines, 1)))
            ).encode(),
        )
        yield
        termios.tcsetattr(0, termios.TCSANOW, before)
    except BaseException:
        restore_terminal(before)
        raise


def exit_after_signal(number: int, before: list[Any]) -> None:
    restoring = threading.Thread(target=restore_terminal, args=(before,), daemon=True)  # may wait for the terminal, too
    restoring.start()
    restoring.join(1.0)
    os._exit(128 + number)


def is_terminal_open() -> bool:
    try:
        termios.tcgetattr(0)
    except termios.error:
        return False
    return True


def restore_terminal(attributes: list[Any]) -> None:
    """For a crash that kept the framework from doing it; doing it twice does no harm."""
    if is_terminal_open():
        os.write(2, RESTORE_MODES.encode())
        termios.tcsetattr(0, termios.TCSADRAIN, attributes)
