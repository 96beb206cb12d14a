"""All keys of a screen, and what its signs mean."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import ClassVar, Final

from textual.app import ComposeResult
from textual.binding import BindingType

from agentgym_tui.clean import own
from agentgym_tui.keymap import Command, Place, bindings, shown_keys
from agentgym_tui.reach import Reachable
from agentgym_tui.screens.leaving import DialogScreen
from agentgym_tui.views.cells import Cell, FixedLines, Line
from agentgym_tui.views.numbers import UNKNOWN
from agentgym_tui.widgets.dialog import Dialog
from agentgym_tui.widgets.lines import LineView

_HEADS: Final[dict[Place, str]] = {"everywhere": "Everywhere", "list": "In lists"}
_SIGNS: Final = (
    ("▸", "the line of the cursor"),
    ("▌", "the pane the keys go to; tab goes to the next one"),
    (UNKNOWN, "not known"),
    ("baseline", "played without a model: oracle or random"),
    ("⚠ hostile bytes", "something was made visible that a terminal must not get"),
    ("following", "the newest step is shown; scrolling up ends it, G goes back"),
)
_MOUSE: Final = (
    ("click", "selects"),
    ("double click", "opens"),
    ("wheel", "scrolls, with shift sideways"),
)
_KEYS: Final = 17
_TITLE: Final = 15


class Help(DialogScreen[None]):
    """Shows what can be done.

    Args:
        commands: those that can be given.
    """

    BINDINGS: ClassVar[list[BindingType]] = [*bindings("dialog")]

    def __init__(self, commands: Sequence[Reachable]) -> None:
        super().__init__()
        self._lines = list(help_lines([each.command for each in commands]))

    def compose(self) -> ComposeResult:
        """The keys."""
        with Dialog(own("Help"), keys=own("esc closes · j k scroll")):
            yield LineView(FixedLines(self._lines), cursor_type="none", id="help")

    def action_close(self) -> None:
        """Back."""
        self.leave()


def help_lines(commands: Sequence[Command]) -> Iterator[Line]:
    """The commands by where they work, mouse and signs."""
    for place, group in groupby(commands, key=lambda command: command.place):
        yield _head(_HEADS.get(place, "This screen"))
        yield from (_command(command) for command in group)
        yield ()
    yield _head("Mouse")
    yield from (_pair(what, meaning) for what, meaning in _MOUSE)
    yield ()
    yield _head("Signs")
    yield from (_pair(sign, meaning) for sign, meaning in _SIGNS)


def _command(command: Command) -> Line:
    keys = " or ".join(shown_keys(command.keys))
    return [
        Cell(own(f"  {keys:<{_KEYS}}"), "accent"),
        Cell(own(f"{command.title:<{_TITLE}}")),
        Cell(own(command.help), "dim"),
    ]


def _pair(what: str, meaning: str) -> Line:
    return [Cell(own(f"  {what:<{_KEYS}}"), "accent"), Cell(own(meaning), "dim")]


def _head(text: str) -> Line:
    return [Cell(own(text), "head")]
