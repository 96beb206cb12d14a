"""Form controls: a list with check marks, and a field that steps through a few options."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual import events
from textual.binding import BindingType
from textual.message import Message

from agentgym_tui.commands.keymap import bindings
from agentgym_tui.presenters.cells import Cell, Line, TextSource
from agentgym_tui.presenters.text_width import cut_middle, shorten_environment
from agentgym_tui.widgets.line_list import LineList
from agentgym_tui.widgets.static_lines import StaticLines


class CheckRows(TextSource):
    """Rows that each consist of a check mark and a name.

    Args:
        names: the names, in the order of the rows.
        chosen: indices of the checked rows.
    """

    def __init__(self, names: Sequence[str], chosen: set[int]) -> None:
        self._names = names
        self._chosen = chosen

    def __len__(self) -> int:
        return len(self._names)

    def line(self, index: int, width: int) -> Line:
        is_chosen = index in self._chosen
        return [
            Cell("[x] " if is_chosen else "[ ] ", "accent" if is_chosen else "dim"),
            Cell(cut_middle(shorten_environment(self._names[index], width - 4), width - 4)),
        ]


class CheckList(LineList):
    """Lets the user check any number of names.

    Args:
        names: the names, in the order of the rows.
        chosen: indices of the rows that are checked at first.
    """

    BINDINGS: ClassVar[list[BindingType]] = [*bindings("checks")]

    def __init__(self, names: Sequence[str], chosen: set[int], *, id: str) -> None:
        self.chosen = chosen
        super().__init__(CheckRows(names, chosen), id=id)

    def on_mount(self) -> None:
        super().on_mount()
        self.move_to(min(self.chosen, default=0))

    def action_check(self) -> None:
        """Toggle the row under the cursor."""
        if len(self.source):
            self.chosen ^= {self.cursor}
            self.refresh()

    def action_all(self) -> None:
        """Check all rows; uncheck all rows if all are checked."""
        everything = set(range(len(self.source)))
        self.chosen ^= everything if self.chosen in (everything, set()) else everything - self.chosen
        self.refresh()

    def on_click(self, event: events.Click) -> None:
        if event.chain == 1:
            super().on_click(event)
            self.action_check()


class OptionStepper(StaticLines, can_focus=True):
    """A field that shows one of a few options; the keys left and right step through the options.

    Args:
        names: the options.
        index: index of the option that is selected at first.
    """

    BINDINGS: ClassVar[list[BindingType]] = [*bindings("choice")]

    class Changed(Message):
        """Another option was selected."""

    def __init__(self, names: Sequence[str], index: int = 0, *, id: str) -> None:
        super().__init__(self._lines, id=id)
        self._names = names
        self.index = index

    def set_options(self, names: Sequence[str]) -> None:
        """Replace the options; if the new options differ from the old options, select the first option."""
        if list(names) != list(self._names):
            self._names, self.index = names, 0
            self.show(self._lines)

    def mark(self, index: int) -> str:
        return "▌" if self.has_focus and index == 0 else " "

    def on_click(self) -> None:
        """Select the next option."""
        self.action_step(1)

    def action_step(self, by: int) -> None:
        """Select the option ``by`` positions further, wrapping around."""
        self.index = (self.index + by) % len(self._names)
        self.show(self._lines)
        self.post_message(self.Changed())

    def _lines(self, width: int) -> list[Line]:
        name = cut_middle(self._names[self.index], width - 4)
        if len(self._names) < 2:
            return [[Cell(name)]]
        return [[Cell("◂ ", "accent"), Cell(name), Cell(" ▸", "accent")]]
