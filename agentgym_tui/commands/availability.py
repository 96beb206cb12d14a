"""Which commands of ``keymap`` can be given right now, and to whom."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from textual.binding import Binding

from agentgym_tui.commands.keymap import COMMANDS, OF_BUS, OF_LOGS, ORDERS, Command

if TYPE_CHECKING:
    from textual.app import App
    from textual.dom import DOMNode

    from agentgym_tui.sessions.protocols import Session

_BY_ID: Final = {command.id: command for command in COMMANDS}


class Reachable(NamedTuple):
    """A command, and what takes it."""

    command: Command
    node: DOMNode


def hidden(session: Session) -> frozenset[str]:
    """Ids of commands that a session has no use for."""
    lacking = ((session.read_only, ORDERS), (session.events is None, OF_BUS), (not session.logs, OF_LOGS))
    return frozenset[str]().union(*(commands for lacks, commands in lacking if lacks))


def reachable(app: App[None], *, without: Collection[str] = ()) -> list[Reachable]:
    """Those of the screen, of the focused list, and those that work everywhere; but for some ids."""
    screen, focused = app.screen, app.focused
    nodes: list[DOMNode] = [screen, *([focused] if focused is not None else []), app]
    found = [Reachable(command, node) for node in nodes for command in _commands(node)]
    return [each for each in found if each.command.id not in without]


def _commands(node: DOMNode) -> Iterator[Command]:
    ids = dict.fromkeys(binding.id or "" for binding in type(node).BINDINGS if isinstance(binding, Binding))
    for command in map(_BY_ID.get, ids):
        if command is not None and node.check_action(command.action, ()) is not False:
            yield command
