"""Leaving while episodes run on one's own node."""

from __future__ import annotations

from typing import ClassVar, Final

from textual.binding import BindingType

from agentgym_tui.commands.keymap import bindings
from agentgym_tui.presenters.cells import Cell, Line
from agentgym_tui.safe_text import sanitize_line, trusted
from agentgym_tui.screens.dialogs.confirm import ConfirmDialog
from agentgym_tui.sessions.protocols import Session
from agentgym_tui.sessions.run_commands import RunCommands, command_targets, unfinished_batches
from agentgym_tui.state.models import BatchRun
from agentgym_tui.state.run_store import RunStore

_SHOWN: Final = 4


class QuitDialog(ConfirmDialog):
    """Asks what is to become of what runs: ``stop``, ``leave`` or ``stay``.

    Args:
        session: whose node plays.
    """

    BINDINGS: ClassVar[list[BindingType]] = [*bindings("quit")]

    def __init__(self, session: Session) -> None:
        super().__init__(trusted("Leave the console?"), place="quit", default="leave")
        self._session = session

    def question(self) -> list[Line]:
        """What is played and what waits."""
        return _question(self._session.store)

    def draw(self, store: RunStore) -> None:
        """The store changed."""
        if self.query("#question"):
            self.ask()


def stays_behind(session: Session) -> bool:
    """Whether something would go on that this console may stop."""
    return not session.read_only and session.control is not None and bool(_played(session.store))


async def stop_all(session: Session) -> None:
    """Cancel what is played and what waits; raises ``ControlFailed``."""
    await RunCommands(session).cancel(command_targets(_played(session.store)))


def _played(store: RunStore) -> list[BatchRun]:
    """Batches that are played or will be; a node that is lost plays nothing that could be stopped."""
    return [] if store.all_nodes_lost else unfinished_batches(store)


def _question(store: RunStore) -> list[Line]:
    batches = _played(store)
    if not batches:
        return [[Cell(trusted("Nothing is played any more."))]]
    n_running = sum(episode.is_active for episode in store.running_episodes())
    n_left = sum(max(batch.n_planned - batch.n_done, 0) for batch in batches)
    running = "1 episode is" if n_running == 1 else f"{n_running or 'no'} episodes are"
    lines: list[Line] = [[Cell(trusted(f"Just now {running} being played, {n_left} in all are still to be done:"))]]
    for batch in batches[:_SHOWN]:
        done = trusted(f"  {batch.n_done}/{batch.n_planned} ")
        lines.append(
            [
                Cell(done, "accent"),
                Cell(sanitize_line(batch.env, 40)),
                Cell(sanitize_line(f" {batch.status}", 20), "dim"),
            ]
        )
    if len(batches) > _SHOWN:
        lines.append([Cell(trusted(f"  and {len(batches) - _SHOWN} more"), "dim")])
    return lines
