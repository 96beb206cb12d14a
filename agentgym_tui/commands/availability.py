"""Determine which commands are available, and which node of the Textual DOM executes each command."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from agentgym_tui.commands.keymap import COMMANDS, commands_of
from agentgym_tui.commands.registry import Command
from agentgym_tui.textual_compat import binding_ids

if TYPE_CHECKING:
    from textual.app import App
    from textual.dom import DOMNode

    from agentgym_tui.sessions.protocols import Session


class AvailableCommand(NamedTuple):
    """A command, and the app, screen or widget that executes it."""

    command: Command
    node: DOMNode


def available_commands(app: App[None], session: Session) -> list[AvailableCommand]:
    """Return the commands of the screen, the focused widget and the app that the session supports."""
    nodes: list[DOMNode] = [app.screen, *([app.focused] if app.focused is not None else []), app]
    commands = [AvailableCommand(command, node) for node in nodes for command in _commands_of(node)]
    return [each for each in commands if each.command.available.is_met(session)]


def _commands_of(node: DOMNode) -> Iterator[Command]:
    bound = [command for id in binding_ids(node) if (command := COMMANDS.get(id)) is not None]
    for scope in dict.fromkeys(command.scope for command in bound):
        for command in commands_of(scope):
            if command in bound and node.check_action(command.action, ()) is not False:
                yield command
