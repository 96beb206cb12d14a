"""The palette: every command that can be given, found by its name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar, Final

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.widgets import Input

from agentgym_tui.commands.availability import Reachable
from agentgym_tui.commands.keymap import Keys, bindings, keys_of
from agentgym_tui.presenters.cells import Cell, FixedLines, Line
from agentgym_tui.safe_text import own
from agentgym_tui.screens.base import DialogScreen
from agentgym_tui.widgets.dialog import Dialog
from agentgym_tui.widgets.line_list import LineView
from agentgym_tui.widgets.words import MAX_WORDS, WordsInput

if TYPE_CHECKING:
    from textual.app import App

_TITLE: Final = 14
_KEY: Final = 6


class Palette(DialogScreen[Reachable]):
    """Chooses a command.

    Args:
        commands: those that can be given.
    """

    BINDINGS: ClassVar[list[BindingType]] = [*bindings("palette")]
    AUTO_FOCUS = "#words"

    def __init__(self, commands: Sequence[Reachable]) -> None:
        super().__init__()
        self._commands = list(commands)
        self._found = self._commands
        self._list = LineView(id="commands")

    def compose(self) -> ComposeResult:
        """What to look for, and what there is."""
        with Dialog(own("Commands"), keys="{palette.up} {palette.down} enter · {palette.close} closes"):
            yield WordsInput(placeholder="type a part of its name", id="words", compact=True, max_length=MAX_WORDS)
            yield self._list

    def on_mount(self) -> None:
        """Show all."""
        self._show()

    def action_close(self) -> None:
        """Do nothing."""
        self.leave()

    def action_down(self) -> None:
        """The next one."""
        self._list.action_down()

    def action_up(self) -> None:
        """The one before."""
        self._list.action_up()

    @on(Input.Changed)
    def _searched(self, event: Input.Changed) -> None:
        self._found = search(self._commands, event.value)
        self._show()

    @on(Input.Submitted)
    @on(LineView.Chosen)
    def _chosen(self) -> None:
        """The one that is shown under the cursor: what was chosen before may not be among those found any more."""
        if self._found:
            self.leave(self._found[min(self._list.cursor, len(self._found) - 1)])

    def _show(self) -> None:
        keys = keys_of(self.app)
        self._list.show(FixedLines([_line(each, keys) for each in self._found]))
        self._list.move_to(0)


def search(commands: Sequence[Reachable], text: str) -> list[Reachable]:
    """Those in whose name or help all words are, those with all of them in the name first."""
    words = text.casefold().split()
    found = [each for each in commands if all(word in _text(each) for word in words)]
    return sorted(found, key=lambda each: not all(word in each.command.title.casefold() for word in words))


def run_chosen(app: App[None]) -> Callable[[Reachable | None], None]:
    """What to do with the result."""

    def run(chosen: Reachable | None) -> None:
        if chosen is not None:
            app.call_later(app.run_action, chosen.command.action, chosen.node)

    return run


def _line(each: Reachable, keys: Keys) -> Line:
    command = each.command
    key = keys.shown(command)[0]
    return [
        Cell(own(f"{key:<{_KEY}}"), "accent"),
        Cell(own(f"{command.title:<{_TITLE}}")),
        Cell(own(command.help), "dim"),
    ]


def _text(each: Reachable) -> str:
    command = each.command
    return f"{command.title} {command.help} {command.id}".casefold()
