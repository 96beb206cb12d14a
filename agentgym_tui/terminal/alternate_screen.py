"""Enter and leave the terminal's alternate screen, and show a startup preview on it."""

from __future__ import annotations

import os
import signal
import termios
import threading
import tty
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from agentgym_tui.terminal.encoding import output_encoding

SIGNALS: Final = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
"""Signals that end the console."""

RESTORE_MODES: Final = (
    "\x1b[<u\x1b[?1000l\x1b[?1003l\x1b[?1015l\x1b[?1006l\x1b[?2004l\x1b[?1004l\x1b[?7h\x1b[?1049l\x1b[?25h\x1b[0m"
)
"""Resets the modes set by Textual: keyboard, mouse, paste, focus, wrapping, alternate screen, cursor, colors."""

ENTER_ALTERNATE_SCREEN: Final = "\x1b[?1049h"
HIDE_CURSOR: Final = "\x1b[?25l"


@contextmanager
def preview_screen(lines: Sequence[str]) -> Iterator[None]:
    """Show lines of safe text on the alternate screen while Textual is being imported inside the ``with`` block.

    Typed keys are not echoed; they stay queued for Textual. Without lines, the terminal is not changed.
    """
    if not lines:
        yield
        return
    attributes, no_echo = termios.tcgetattr(0), termios.tcgetattr(0)
    no_echo[tty.LFLAG] &= ~termios.ECHO
    for number in SIGNALS:
        signal.signal(number, lambda number, _: exit_after_signal(number, attributes))
    signal.signal(signal.SIGTSTP, signal.SIG_IGN)  # ignored until Textual can release the terminal
    try:
        termios.tcsetattr(0, termios.TCSANOW, no_echo)
        os.write(
            2,
            "".join(
                (ENTER_ALTERNATE_SCREEN, HIDE_CURSOR, *(f"\x1b[{row};1H{text}" for row, text in enumerate(lines, 1)))
            ).encode(*output_encoding()),
        )
        yield
        termios.tcsetattr(0, termios.TCSANOW, attributes)
    except BaseException:
        restore_terminal(attributes)
        raise


def exit_after_signal(number: int, attributes: list[Any]) -> None:
    """Restore the terminal and exit with 128 + the signal number, even if the terminal does not respond.

    Args:
        number: the signal number.
        attributes: terminal attributes to restore, as returned by ``termios.tcgetattr``.
    """
    restoring = threading.Thread(target=restore_terminal, args=(attributes,), daemon=True)  # writing may block
    restoring.start()
    restoring.join(1.0)
    os._exit(128 + number)


def is_terminal_open() -> bool:
    """Return whether standard input is still connected to a terminal."""
    try:
        termios.tcgetattr(0)
    except termios.error:
        return False
    return True


def restore_terminal(attributes: list[Any]) -> None:
    """Restore modes and attributes of the terminal in case Textual could not; calling this twice is harmless.

    Args:
        attributes: terminal attributes, as returned by ``termios.tcgetattr``.
    """
    if is_terminal_open():
        os.write(2, RESTORE_MODES.encode())
        termios.tcsetattr(0, termios.TCSADRAIN, attributes)
