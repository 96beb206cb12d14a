"""Determine which commands are available, and which node of the Textual DOM executes each command."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from textual.binding import Binding

from agentgym_tui.commands.keymap import BUS_COMMANDS, COMMANDS, LOG_COMMANDS, NODE_COMMANDS, Command

if TYPE_CHECKING:
    from textual.app import App
    from textual.dom import DOMNode

    from agentgym_tui.sessions.protocols import Session

_BY_ID: Final = {command.id: command for command in COMMANDS}


class AvailableCommand(NamedTuple):
    """A command, and the app, screen or widget that executes it."""

    command: Command
    node: DOMNode


def hidden_commands(session: Session) -> frozenset[str]:
    """Return the ids of the commands that a session does not support."""
    requirements = (
        (session.read_only, NODE_COMMANDS),
        (session.events is None, BUS_COMMANDS),
        (not session.logs, LOG_COMMANDS),
    )
    return frozenset[str]().union(*(commands for is_missing, commands in requirements if is_missing))


def available_commands(app: App[None], *, without: Collection[str] = ()) -> list[AvailableCommand]:
    """Return the commands of the screen, the focused widget and the app, except the command ids in ``without``."""
    screen, focused = app.screen, app.focused
    nodes: list[DOMNode] = [screen, *([focused] if focused is not None else []), app]
    commands = [AvailableCommand(command, node) for node in nodes for command in _commands_of(node)]
    return [each for each in commands if each.command.id not in without]


def _commands_of(node: DOMNode) -> Iterator[Command]:
    ids = dict.fromkeys(binding.id or "" for binding in type(node).BINDINGS if isinstance(binding, Binding))
    for command in map(_BY_ID.get, ids):
        if command is not None and node.check_action(command.action, ()) is not False:
            yield command
