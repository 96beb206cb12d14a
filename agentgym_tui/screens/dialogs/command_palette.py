"""The command palette: a list of all available commands, which can be searched by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from textual import on
from textual.app import ComposeResult
from textual.widgets import Input

from agentgym_tui.commands.keymap import AvailableCommand, Keymap, keymap_of
from agentgym_tui.presenters.cells import Cell, FixedLines, Line
from agentgym_tui.screens.base import DialogFrame, DialogScreen
from agentgym_tui.state.query import MAX_CHARS
from agentgym_tui.widgets.inputs import SearchInput
from agentgym_tui.widgets.line_list import LineList

_TITLE_WIDTH: Final = 14
_KEY_WIDTH: Final = 6


class CommandPalette(DialogScreen[AvailableCommand]):
    """A dialog to choose a command.

    Args:
        commands: the available commands.
    """

    SCOPE = "palette"
    AUTO_FOCUS = "#words"

    def __init__(self, commands: Sequence[AvailableCommand]) -> None:
        super().__init__()
        self._commands = list(commands)
        self._matches = self._commands
        self._list = LineList(id="commands")

    def compose(self) -> ComposeResult:
        with DialogFrame("Commands", keys="{palette.up} {palette.down} {field.submit} · {palette.close} closes"):
            yield SearchInput(placeholder="type part of a command name", id="words", compact=True, max_length=MAX_CHARS)
            yield self._list

    def on_mount(self) -> None:
        """Show all commands."""
        self._show()

    def action_move(self, by: int) -> None:
        """Move to the command ``by`` lines further down."""
        self._list.action_move(by)

    @on(Input.Changed)
    def _query_changed(self, event: Input.Changed) -> None:
        self._matches = search(self._commands, event.value)
        self._show()

    @on(Input.Submitted)
    @on(LineList.Selected)
    def _chosen(self) -> None:
        # the cursor may lag behind a shorter list
        if self._matches:
            self.leave(self._matches[min(self._list.cursor, len(self._matches) - 1)])

    def _show(self) -> None:
        keys = keymap_of(self.app)
        self._list.show(FixedLines([_line(each, keys) for each in self._matches]))
        self._list.move_to(0)


def search(commands: Sequence[AvailableCommand], text: str) -> list[AvailableCommand]:
    """Return the commands whose name or help contains all words of ``text``; matches in the name come first."""
    words = text.casefold().split()
    matches = [each for each in commands if _has_all(words, _text(each))]
    return sorted(matches, key=lambda each: not _has_all(words, each.command.title.casefold()))


def _has_all(words: Sequence[str], text: str) -> bool:
    return all(word in text for word in words)


def _line(each: AvailableCommand, keys: Keymap) -> Line:
    command = each.command
    key = keys.display(command)[0]
    return [
        Cell(f"{key:<{_KEY_WIDTH}}", "accent"),
        Cell(f"{command.title:<{_TITLE_WIDTH}}"),
        Cell(command.help, "dim"),
    ]


def _text(each: AvailableCommand) -> str:
    command = each.command
    return f"{command.title} {command.help} {command.id}".casefold()
