"""The key bar at the bottom of a screen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from textual import events
from textual.widgets import Input

from agentgym_tui.commands import APP_SCOPES, HELP, Command, commands_of, keymap_of
from agentgym_tui.presenters.cells import Cell, Line, display_width
from agentgym_tui.sessions.session import Session
from agentgym_tui.widgets.lists import StaticLines

ALWAYS_SHOWN: Final = (HELP, "app.palette", "app.quit")
"""Commands that are shown however narrow the screen is; the first two lead to all others."""

MORE: Final = "More"

_GAP: Final = 2


class _Key(NamedTuple):
    command: Command
    label: str
    title: str

    @property
    def width(self) -> int:
        return display_width(f"{self.label} {self.title}")


class KeyBar(StaticLines):
    """The keys of the available commands of ``scope``, and at the right those of every screen; each can be clicked."""

    def __init__(self, scope: str, session: Session, *, first: str = "") -> None:
        super().__init__(self._make_lines)
        self._scope, self._session, self._first, self._preferred = scope, session, first, ""
        self._hidden = ""

    def on_mount(self) -> None:
        self.watch(self.screen, "focused", lambda: self.show(), init=False)

    def set_first(self, first: str) -> None:
        self._first = first
        self.show()

    def hide(self, id: str) -> None:
        """Leave out a command; "" for none."""
        if id != self._hidden:
            self._hidden = id
            self.show()

    def put_first(self, ids: str) -> None:
        """Show the commands whose ids begin with ``ids`` right after the first key; "" restores the usual order."""
        self._preferred = ids
        self.show()

    async def on_click(self, event: events.Click) -> None:
        for start, key in self._positions(max(self.size.width - 2, 0)):
            if start <= event.x - 1 < start + key.width:
                node = self.app if key.command.scope in APP_SCOPES else self.screen
                await self.app.run_action(key.command.action, node)

    def _make_lines(self, width: int) -> Sequence[Line]:
        line, at = list[Cell](), 0
        for start, key in self._positions(width):
            line += [Cell(" " * (start - at)), Cell(key.label, "accent"), Cell(f" {key.title}", "dim")]
            at = start + key.width
        return [line]

    def _positions(self, width: int) -> Iterator[tuple[int, _Key]]:
        """Yield each key with its column: the screen's keys at the left, ``ALWAYS_SHOWN`` and others at the right.

        What few need (``Command.footer``) comes last. If there is no room for some of the screen's keys, the help has
        the title ``MORE``.
        """
        by_label: dict[str, _Key] = {}
        field = self.screen.focused
        typed_in = field.id if isinstance(field, Input) and field.id in ("filter", "entry") else None
        scopes = [typed_in] if typed_in else filter(None, (self._first, self._scope))
        for each in (key for scope in scopes for key in self._keys(scope)):
            by_label.setdefault(each.label, each)  # the commands of ``first`` replace others with the same key
        own = list(by_label.values())
        own[1:] = sorted(own[1:], key=lambda key: not key.command.id.startswith(self._preferred))
        own[1:] = sorted(own[1:], key=lambda key: not key.command.footer)
        everywhere = [key for key in self._keys("everywhere") if key.command.footer]
        everywhere = [key for key in everywhere if key.command.id != f"app.{self._scope}"]
        everywhere = [key for key in everywhere if not typed_in or key.label.startswith("^")]  # others are text there
        always = [key for key in everywhere if key.command.id in ALWAYS_SHOWN]
        left = _fit_keys(own, width - _total_width(always) - 2 * _GAP)
        fitting = _fit_keys([*always, *everywhere], width - _total_width(left) - 2 * _GAP)
        right = [key for key in everywhere if key in fitting]
        if len(left) < len(own):
            right = [key._replace(title=MORE) if key.command.id == HELP else key for key in right]
        for keys, start in ((left, 0), (right, width - _total_width(right))):
            for key in keys:
                yield start, key
                start += key.width + _GAP

    def _keys(self, scope: str) -> list[_Key]:
        keymap = keymap_of(self.app)
        commands = [each for each in commands_of(scope) if each.available.is_met(self._session)]
        commands = [each for each in commands if each.id != self._hidden]
        return [_Key(each, shown[0], each.title) for each in commands if (shown := keymap.display(each))]


def _fit_keys(keys: Sequence[_Key], width: int) -> list[_Key]:
    fitting: list[_Key] = []
    for key in keys:
        if key not in fitting and _total_width([*fitting, key]) <= width:
            fitting.append(key)
    return fitting


def _total_width(keys: Sequence[_Key]) -> int:
    return sum(key.width for key in keys) + _GAP * max(len(keys) - 1, 0)
