"""The key bar at the bottom of a screen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from textual import events

from agentgym_tui.commands.keymap import HELP, commands_of, keymap_of
from agentgym_tui.commands.registry import APP_SCOPES, Command, Scope
from agentgym_tui.presenters.cells import Cell, Line
from agentgym_tui.presenters.text_width import display_width
from agentgym_tui.sessions.protocols import Session
from agentgym_tui.widgets.static_lines import StaticLines

ALWAYS_SHOWN: Final = (HELP, "app.palette", "app.quit")
"""Commands that are shown however narrow the screen is; the first two lead to all others."""

MORE: Final = "More"
"""Title of the help while keys of the screen do not fit."""

_GAP: Final = "  "


class _Key(NamedTuple):
    command: Command
    key: str

    @property
    def width(self) -> int:
        return display_width(self.key) + 1 + display_width(self.command.title)

    def named(self, title: str) -> _Key:
        return _Key(self.command._replace(title=title), self.key)


class KeyBar(StaticLines):
    """The keys of the available commands; a click on a key runs its command. The help lists the keys that do not fit.

    Args:
        scope: scope of the commands at the left; the commands that work on every screen are at the right.
        session: the session; commands that it does not support are left out.
        first: scope of commands that stand before those of ``scope``; "" for none.
    """

    def __init__(self, scope: Scope, session: Session, *, first: Scope = "") -> None:
        super().__init__(self._make_lines)
        self._scope, self._session, self._first = scope, session, first
        self._local_keys: list[_Key] = []
        self._preferred = ""
        self._everywhere: list[_Key] = []

    def on_mount(self) -> None:
        self.set_first(self._first)

    def set_first(self, first: Scope) -> None:
        """Replace the scope of the commands that stand before the others; "" for none."""
        self._first = first
        scopes = filter(None, (self._first, self._scope))
        by_key: dict[str, _Key] = {}
        for each in (key for scope in scopes for key in self._footer_keys(scope)):
            by_key.setdefault(each.key, each)  # the commands of ``first`` replace others with the same key
        self._local_keys = list(by_key.values())
        shown = f"app.{self._scope}"
        self._everywhere = [key for key in self._footer_keys("everywhere") if key.command.id != shown]
        self.show(self._make_lines)

    def put_first(self, ids: str) -> None:
        """Show the commands whose ids begin with ``ids`` right after the first key; "" restores the usual order."""
        self._preferred = ids
        self.show(self._make_lines)

    async def on_click(self, event: events.Click) -> None:
        """Run the command under the pointer."""
        for start, key in self._positions(max(self.size.width - 2, 0)):
            if start <= event.x - 1 < start + key.width:
                await self.app.run_action(
                    key.command.action, self.app if key.command.scope in APP_SCOPES else self.screen
                )

    def _footer_keys(self, scope: Scope) -> Iterator[_Key]:
        keys = keymap_of(self.app)
        for command in commands_of(scope):
            if command.footer and command.available.is_met(self._session):
                yield _Key(command, keys.display(command)[0])

    def _make_lines(self, width: int) -> Sequence[Line]:
        line: list[Cell] = []
        at = 0
        for start, key in self._positions(width):
            name = Cell(f" {key.command.title}", "dim")
            line += [Cell(" " * (start - at)), Cell(key.key, "accent"), name]
            at = start + key.width
        return [line]

    def _positions(self, width: int) -> Iterator[tuple[int, _Key]]:
        """Yield each key with its column: the screen's keys at the left, ``ALWAYS_SHOWN`` at the right.

        If there is room, the keys of the other screens are added at the right. If there is none for some of the
        screen's keys, the help has the title ``MORE``.
        """
        always_shown = [key for key in self._everywhere if key.command.id in ALWAYS_SHOWN]
        local_keys = self._local_keys
        if self._preferred:  # sorting keeps the order of the others
            rest = sorted(local_keys[1:], key=lambda key: not key.command.id.startswith(self._preferred))
            local_keys = [*local_keys[:1], *rest]
        local_keys = _fit_keys(local_keys, width - _total_width(always_shown) - 2 * len(_GAP))
        room = width - _total_width(local_keys) - 2 * len(_GAP)
        right_ids = {key.command.id for key in _fit_keys([*always_shown, *self._everywhere], room)}
        right_keys = [key for key in self._everywhere if key.command.id in right_ids]
        if len(local_keys) < len(self._local_keys):
            right_keys = [key.named(MORE) if key.command.id == HELP else key for key in right_keys]
        yield from _row(local_keys, 0)
        yield from _row(right_keys, width - _total_width(right_keys))


def _fit_keys(keys: Sequence[_Key], width: int) -> list[_Key]:
    fitting: list[_Key] = []
    for key in keys:
        if key not in fitting and _total_width([*fitting, key]) <= width:
            fitting.append(key)
    return fitting


def _row(keys: Sequence[_Key], start: int) -> Iterator[tuple[int, _Key]]:
    for key in keys:
        yield start, key
        start += key.width + len(_GAP)


def _total_width(keys: Sequence[_Key]) -> int:
    return sum(key.width for key in keys) + len(_GAP) * max(len(keys) - 1, 0)
