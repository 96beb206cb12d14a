"""The help dialog: all keys of a screen, the mouse actions, and the meaning of the symbols."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Final

from textual.app import ComposeResult

from agentgym_tui.commands.keymap import AvailableCommand, Keymap, keymap_of
from agentgym_tui.commands.registry import Command, Scope
from agentgym_tui.presenters.cells import Cell, Line, line_width
from agentgym_tui.presenters.number_format import UNKNOWN
from agentgym_tui.presenters.query_note import describe_field, syntax_rows
from agentgym_tui.presenters.text_width import wrap_text
from agentgym_tui.screens.base import DialogFrame, DialogScreen
from agentgym_tui.widgets.static_lines import WrappedText

if TYPE_CHECKING:
    from runner.query.fields import Field

_SCOPE_TITLES: Final[dict[Scope, str]] = {
    "everywhere": "Everywhere",
    "run": "Start a run",
    "form": "This form",
    "checks": "In the list of environments",
    "choice": "In a choice",
    "list": "In lists",
    "table": "In sorted tables",
}
_SIGNS: Final = (
    ("▸", "cursor line"),
    ("▌", "focused pane; {focus.next} moves to the next"),
    (UNKNOWN, "unknown"),
    ("baseline", "an agent without a model: oracle or random"),
    ("⚠", "unsafe bytes: control characters were made visible"),
    ("following", "shows the newest step; scroll up to stop, {list.bottom} to resume"),
)
_MOUSE: Final = (
    ("click", "selects; on a column title, sorts"),
    ("double click", "opens"),
    ("wheel", "scrolls; with shift, sideways"),
)
_KEY_WIDTH: Final = 17
_TITLE_WIDTH: Final = 15
_MAX_ROWS: Final = 4
"""Rows of one explanation."""


class HelpDialog(DialogScreen[None]):
    """A dialog that lists the available commands with their keys.

    Args:
        commands: the available commands.
        fields: the fields of the screen's filter, if it has one.
    """

    SCOPE = "dialog"

    def __init__(self, commands: Sequence[AvailableCommand], fields: Sequence[Field] = ()) -> None:
        super().__init__()
        self._fields = fields
        self._commands = [each.command for each in commands]

    async def action_help(self) -> None:
        self.action_close()

    def compose(self) -> ComposeResult:
        with DialogFrame("Help", keys="{dialog.close} closes · {list.down} {list.up} scroll"):
            keys = keymap_of(self.app)
            yield WrappedText(lambda width: list(help_lines(self._commands, keys, width, self._fields)), id="help")


def help_lines(commands: Sequence[Command], keys: Keymap, width: int, fields: Sequence[Field] = ()) -> Iterator[Line]:
    """Yield the commands by scope, the fields of the filter, the mouse actions and the meaning of the symbols."""
    for scope, group in groupby(commands, key=lambda command: command.scope):
        yield _title(_SCOPE_TITLES.get(scope, "This screen"))
        yield from (row for command in group for row in _command(command, keys, width))
        yield ()
    if fields:
        yield _title("Queries in the filter")
        described = ((field.name, describe_field(field)) for field in fields)
        yield from (row for label, meaning in (*syntax_rows(), *described) for row in _sign(label, meaning, width))
        yield ()
    yield _title("Mouse")
    yield from (row for label, meaning in _MOUSE for row in _sign(label, meaning, width))
    yield ()
    yield _title("Signs")
    yield from (row for sign, meaning in _SIGNS for row in _sign(sign, keys.expand(meaning), width))


def _command(command: Command, keys: Keymap, width: int) -> Iterator[Line]:
    shown = f"  {' or '.join(keys.display(command)):<{_KEY_WIDTH}}"
    title = f"{command.title:<{_TITLE_WIDTH}}"
    return _with_explanation([Cell(shown, "accent"), Cell(title)], command.help, width)


def _sign(label: str, meaning: str, width: int) -> Iterator[Line]:
    return _with_explanation([Cell(f"  {label:<{_KEY_WIDTH}}", "accent")], meaning, width)


def _with_explanation(label: list[Cell], meaning: str, width: int) -> Iterator[Line]:
    indent = line_width(label)
    first, *more = wrap_text(meaning, max(width - indent, 10), _MAX_ROWS)
    yield [*label, Cell(first, "dim")]
    yield from ([Cell(" " * indent), Cell(row, "dim")] for row in more)


def _title(text: str) -> Line:
    return [Cell(text, "head")]
