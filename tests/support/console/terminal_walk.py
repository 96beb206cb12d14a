"""Walk through a console in a pseudo-terminal key by key, and check that only its own escapes were written."""

from __future__ import annotations

import signal
from functools import partial

from tests.support.escapes import foreign_escapes, mark_stacks
from tests.support.terminal import CTRL_P, ESCAPE, Terminal

DIALOG = "╰"
"""Part of the frame of every dialog and of nothing else."""

NO_BYTES = "no unsafe bytes"
"""The message of the hex dump key where there are no unsafe bytes."""

DIALOG_KEYS = {"?": DIALOG, "b": DIALOG, "R": DIALOG, CTRL_P: "╭─ Commands "}
"""Keys that open a dialog, each with a text of the dialog."""
EPISODE_VIEWS = {"t": "● Transcript", "w": "● Trace", "d": "● Data"}


def walk(terminal: Terminal, *keys: str) -> None:
    """Send keys one by one, each once the screen shows the effect of the one before."""
    for key in keys:
        before = terminal.text
        terminal.send(key)
        terminal.wait_for(partial(_shows_effect, terminal, key, before))
        terminal.wait_until_quiet(0.06, 5)
        assert terminal.process.poll() is None, f"ended after {key!r}\n{terminal.text}"
        if key == "X":
            terminal.wait_until_quiet(0.2 * (NO_BYTES in before), 5)
            walk(terminal, *[ESCAPE] * (DIALOG in terminal.text))


def _shows_effect(terminal: Terminal, key: str, before: str) -> bool:
    """Return whether the screen shows the known effect of a key."""
    text = terminal.text
    if key == "X":
        return DIALOG in text or NO_BYTES in text
    if key in DIALOG_KEYS:
        return DIALOG_KEYS[key] in text
    closes = DIALOG not in before or text != before  # below a dialog may be another one
    return (key != ESCAPE or closes) and ("○ JSON" not in before or EPISODE_VIEWS.get(key, "") in text)


def terminate_and_check(terminal: Terminal, *, bells: bool = False) -> None:
    """End the console with SIGTERM and check all of its output; see ``check_output``."""
    terminal.wait_until_quiet()
    terminal.kill(signal.SIGTERM)
    assert terminal.process.returncode == 128 + signal.SIGTERM, terminal.text
    check_output(terminal.raw, bells=bells)


def check_output(raw: bytes, *, bells: bool = False) -> None:
    """Fail on escapes that the console does not write itself; ``bells``: text fields may ring the bell."""
    assert [escape for escape in foreign_escapes(raw) if not (bells and escape[1:5] == "\\x07")] == []
    assert mark_stacks(raw.decode("utf-8", "surrogateescape")) == []
    for restored in (
        b"\x1b[?1049l",
        b"\x1b[?25h",
        b"\x1b[<u",
    ):  # also in the hostile text; here from the exit of the console
        assert raw.count(restored) == 1
    assert b"\x1b[31m" not in raw
    assert b"\x1b]22;text" not in raw
