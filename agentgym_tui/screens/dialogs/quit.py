"""The dialog shown when the user quits while episodes run on the console's own node."""

from __future__ import annotations

from typing import Final

from agentgym_tui.presenters.cells import Cell, Line
from agentgym_tui.presenters.number_format import pluralize
from agentgym_tui.safe_text import sanitize_line, trusted
from agentgym_tui.screens.dialogs.confirm import ConfirmDialog
from agentgym_tui.sessions.protocols import Session
from agentgym_tui.sessions.run_commands import RunCommands, command_targets, reachable_batches
from agentgym_tui.state.run_store import RunStore

_MAX_BATCHES: Final = 4


class QuitDialog(ConfirmDialog):
    """A dialog for quitting while episodes run; its result is ``stop``, ``leave`` or ``stay``.

    Args:
        session: the session whose node runs the episodes.
    """

    SCOPE = "quit"

    def __init__(self, session: Session) -> None:
        super().__init__(trusted("Leave the console?"), default="leave")
        self._session = session

    def question(self) -> list[Line]:
        """Return lines that describe the running and the waiting batches."""
        return unfinished_lines(self._session.store)

    def draw(self, store: RunStore) -> None:
        """Redraw after the store changed."""
        if self.query("#question"):
            self.ask()


def unfinished_lines(store: RunStore) -> list[Line]:
    """Return lines that describe the running and the waiting batches."""
    batches = reachable_batches(store)
    if not batches:
        return [[Cell(trusted("Nothing is running."))]]
    n_running = sum(episode.is_active for episode in store.running_episodes())
    n_left = sum(max(batch.n_planned - batch.n_done, 0) for batch in batches)
    lines: list[Line] = [[Cell(trusted(f"{pluralize(n_running, 'episode')} running, {n_left} remaining"))]]
    for batch in batches[:_MAX_BATCHES]:
        done = Cell(trusted(f"  {batch.n_done}/{batch.n_planned} "), "accent")
        lines.append([done, Cell(sanitize_line(batch.env, 40)), Cell(sanitize_line(f" {batch.status}", 20), "dim")])
    if len(batches) > _MAX_BATCHES:
        lines.append([Cell(trusted(f"  and {len(batches) - _MAX_BATCHES} more"), "dim")])
    return lines


async def stop_all(session: Session) -> None:
    """Cancel all running and waiting batches.

    Raises:
        ControlRequestError: the node rejected the request or did not reply.
    """
    await RunCommands(session).cancel(command_targets(reachable_batches(session.store)))
