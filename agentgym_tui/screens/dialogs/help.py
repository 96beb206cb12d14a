"""What can be done on a screen: the help, which lists all keys, and the palette, which searches all commands."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from textual import on
from textual.app import ComposeResult
from textual.widgets import Input

from agentgym_tui.commands import (
    COMMANDS,
    PALETTE,
    AvailableCommand,
    Command,
    Keymap,
    display_keys,
    keymap_of,
    scope_of,
)
from agentgym_tui.config import Settings, config_path
from agentgym_tui.presenters.cells import SYNTAX_ROWS, Cell, FixedLines, Line, describe_field, line_width, wrap_text
from agentgym_tui.presenters.number_format import UNKNOWN
from agentgym_tui.safe_text import masked_line
from agentgym_tui.screens.base import DialogFrame, DialogScreen
from agentgym_tui.screens.dialogs.texts import TextDialog
from agentgym_tui.state.query import MAX_CHARS
from agentgym_tui.widgets.inputs import SearchInput
from agentgym_tui.widgets.lists import LineList

if TYPE_CHECKING:
    from runner.query.fields import Field

_SIGNS: Final = (
    ("▸", "cursor line"),
    ("▌", "focused pane; {focus.next} moves to the next"),
    (UNKNOWN, "unknown"),
    ("⚑1", "flags of the episode, such as a loop; their number where their names have no room"),
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
_PALETTE_KEY: Final = 8
_MAX_ROWS: Final = 4


class HelpDialog(TextDialog):
    """The keys that apply; its own key closes it, too."""

    def __init__(self, commands: Sequence[AvailableCommand], keys: Keymap, fields: Sequence[Field] = ()) -> None:
        listed = [each.command for each in commands]
        super().__init__("Help", lambda width: help_lines(listed, keys, width, fields))

    async def action_help(self) -> None:
        self.action_close()


def help_lines(commands: Sequence[Command], keys: Keymap, width: int, fields: Sequence[Field] = ()) -> Iterator[Line]:
    """Yield the commands by scope, the fields of the filter, the mouse actions and the meaning of the symbols.

    Commands without a key come last.
    """
    sections: dict[str, list[Command]] = {}
    by_name = f"By name, after {keys.key(PALETTE)}"
    for command in sorted(commands, key=lambda command: not keys.display(command)):
        heading = scope_of(command.scope).title if keys.display(command) else by_name
        sections.setdefault(heading, []).append(command)
    for heading, group in sections.items():
        yield [Cell(heading, "head")]
        for command in group:
            title = Cell(f"{command.title + ' ':<{_TITLE_WIDTH}}")
            yield from _explained(" or ".join(keys.display(command)), [title], command.help, width)
        yield ()
    described = [(field.name, describe_field(field)) for field in fields]
    signs = [(sign, keys.expand(meaning)) for sign, meaning in _SIGNS]
    queries = [("Queries in the filter", [*SYNTAX_ROWS, *described])] if fields else []
    for heading, rows in [*queries, ("Mouse", [*_MOUSE]), ("Signs", signs)]:
        yield [Cell(heading, "head")]
        for label, meaning in rows:
            yield from _explained(label, [], meaning, width)
        if heading != "Signs":
            yield ()


def _explained(label: str, more: Line, meaning: str, width: int) -> Iterator[Line]:
    first = [Cell(f"  {label:<{_KEY_WIDTH}}", "accent"), *more]
    indent = line_width(first)
    for row in wrap_text(meaning, max(width - indent, 10), _MAX_ROWS):
        yield [*first, Cell(row, "dim")]
        first = [Cell(" " * indent)]


def settings_lines(settings: Settings, theme: str, width: int) -> Iterator[Line]:
    for label, text in _settings_rows(settings, config_path(os.environ), theme):
        yield from _explained(label, [], text, width)


def _settings_rows(settings: Settings, path: Path, theme: str) -> Iterator[tuple[str, str]]:
    yield "file", f"{masked_line(path, 4_096)}{'' if path.exists() else ', which does not exist yet'}"
    yield "theme", theme if settings.sets_theme else f"{theme}; the palette has all themes"
    yield "notify", ", ".join(f"{name} {'on' if on else 'off'}" for name, on in settings.notify._asdict().items())
    for id, keys in settings.keys.overrides.items():
        yield f"key {' '.join(display_keys(keys))}", f"{COMMANDS[id].title} ({id})"
    yield from (("ignored", problem) for problem in settings.problems)
    write = "agentgym-tui config --write writes the file with all defaults as comments, those of keys, too"
    yield "to change", f"{write}; edit it, and start the console again"


class CommandPalette(DialogScreen[AvailableCommand]):
    """Finds commands; its result is the chosen one. One that cannot run now is dim and stays, with the reason."""

    SCOPE = "palette"
    AUTO_FOCUS = "#words"

    def __init__(self, commands: Sequence[AvailableCommand]) -> None:
        super().__init__()
        self._commands = self._matches = list(commands)
        self._list = LineList(id="commands")

    def compose(self) -> ComposeResult:
        keys = "{palette.up} {palette.down} {field.submit} · {palette.close} closes"
        with DialogFrame("Commands", keys=keys):
            yield SearchInput(placeholder="type part of a command name", id="words", compact=True, max_length=MAX_CHARS)
            yield self._list

    def on_mount(self) -> None:
        self._show()

    def action_move(self, by: int) -> None:
        self._list.action_move(by)

    @on(Input.Changed)
    def _query_changed(self, event: Input.Changed) -> None:
        self._matches = search(self._commands, event.value)
        self._show()

    @on(Input.Submitted)
    @on(LineList.Selected)
    def _chosen(self) -> None:
        # the cursor may lag behind a shorter list
        if not self._matches:
            return
        chosen = self._matches[min(self._list.cursor, len(self._matches) - 1)]
        if chosen.reason:
            self.toast(f"{chosen.command.title}: {chosen.reason}")
        else:
            self.leave(chosen)

    def _show(self) -> None:
        keys = keymap_of(self.app)
        lines = [_palette_line(each, keys) for each in self._matches]
        self._list.show(FixedLines(lines or [[Cell("No command has these words", "dim")]]))
        self._list.move_to(0)


def search(commands: Sequence[AvailableCommand], text: str) -> list[AvailableCommand]:
    """Return the commands with all words of ``text``; those that can run, and matches in the name, come first."""

    def has_all(name: str) -> bool:
        return all(word in name.casefold() for word in text.casefold().split())

    matches = [each for each in commands if has_all(f"{each.command.title} {each.command.help} {each.command.id}")]
    return sorted(matches, key=lambda each: (bool(each.reason), not has_all(each.command.title)))


def _palette_line(shown: AvailableCommand, keys: Keymap) -> Line:
    command, key = shown.command, f"{''.join(keys.display(shown.command)[:1]):<{_PALETTE_KEY}}"
    title = f"{command.title + ' ':<{_TITLE_WIDTH}}"
    if shown.reason:
        return [Cell(f"{key}{title}{shown.reason}", "dim")]
    return [Cell(key, "accent"), Cell(title), Cell(command.help, "dim")]
