"""The configuration as it is without one, with what could be changed as comments."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from textwrap import fill
from typing import Final

from agentgym_tui.commands.keymap import COMMANDS
from agentgym_tui.config.settings import DEFAULT_THEME, Notify
from agentgym_tui.safe_text import Safe, join, line, own

_ABOUT: Final = """\
# The console reads this file when it starts. What cannot be used is told there, and stays as it is here.

# How the end of a batch is told: above the screen, by the terminal's bell, as a message on the desktop (OSC 9 or 777).
# Bell and message wait for the end of a battery.
"""


def default_settings(path: Path) -> Safe:
    """A file of settings that changes nothing, and names where it belongs."""
    return join([own("# "), line(path, 500), own("\n"), own("\n".join(_lines()) + "\n")])


def write_default(path: Path) -> bool:
    """Write it for this user alone; False where there is a file already.

    Raises:
        OSError: when it cannot be written.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(default_settings(path))
        return True
    return False


def _lines() -> Iterator[str]:
    from textual.theme import BUILTIN_THEMES

    yield _ABOUT + "# notify:"
    yield from (f"#   {name}: {str(value).lower()}" for name, value in Notify()._asdict().items())
    themes = ", ".join(sorted(BUILTIN_THEMES))
    yield "\n" + fill(f"One of {themes}.", 110, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False)
    yield f"# theme: {DEFAULT_THEME}"
    yield "\n# Keys by command: one, or some with commas; characters as such or by name."
    yield "# keymap:"
    for place, commands in groupby(COMMANDS, key=lambda command: command.place):
        yield f"#   # {place}"
        yield from (f"#   {command.id}: {command.keys}" for command in commands)
