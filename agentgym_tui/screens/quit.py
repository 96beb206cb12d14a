"""Leaving while episodes run on one's own node."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import BindingType

from agentgym_tui.clean import line, own
from agentgym_tui.keymap import bindings
from agentgym_tui.orders import Orders, targets, waiting
from agentgym_tui.screens.ask import Ask
from agentgym_tui.sessions.session import Session
from agentgym_tui.views.cells import Cell, Line


class Quit(Ask):
    """Asks what is to become of what runs: ``stop``, ``leave`` or ``stay``.

    Args:
        session: whose node plays.
    """

    BINDINGS: ClassVar[list[BindingType]] = [*bindings("quit")]

    def __init__(self, session: Session) -> None:
        super().__init__(own("Leave the console?"), list(_question(session)), place="quit", default="leave")


def stays_behind(session: Session) -> bool:
    """Whether something would go on that this console may stop."""
    return not session.read_only and session.control is not None and bool(waiting(session.store))


async def stop_all(session: Session) -> None:
    """Cancel what is played and what waits; raises ``ControlFailed``."""
    await Orders(session).cancel(targets(waiting(session.store)))


def _question(session: Session) -> list[Line]:
    batches = waiting(session.store)
    n_running = sum(not episode.node_lost for episode in session.store.running())
    n_left = sum(max(batch.n_planned - batch.n_done, 0) for batch in batches)
    running = "1 episode is" if n_running == 1 else f"{n_running} episodes are"
    first: Line = [Cell(own(f"{running} being played, {n_left} in all are still to be done:"))]
    lines: list[Line] = [first]
    for batch in batches[:4]:
        done = own(f"  {batch.n_done}/{batch.n_planned} ")
        lines.append([Cell(done, "accent"), Cell(line(batch.env, 40)), Cell(line(f" {batch.status}", 20), "dim")])
    if len(batches) > len(lines) - 1:
        lines.append([Cell(own(f"  and {len(batches) - 4} batches more"), "dim")])
    return lines
