"""Which tier of environments to play."""

from __future__ import annotations

from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType

from agentgym_tui.clean import line, message, own
from agentgym_tui.keymap import bindings
from agentgym_tui.orders import Player, tiers
from agentgym_tui.screens.leaving import DialogScreen
from agentgym_tui.store.run_store import RunStore
from agentgym_tui.views.cells import Cell, FixedLines, Line
from agentgym_tui.widgets.dialog import Dialog
from agentgym_tui.widgets.heading import Heading
from agentgym_tui.widgets.lines import LineView


class Battery(DialogScreen[list[str]]):
    """Chooses a tier; the result is its environments.

    Args:
        store: what can be played.
        player: who will.
    """

    BINDINGS: ClassVar[list[BindingType]] = [*bindings("dialog")]

    def __init__(self, store: RunStore, player: Player) -> None:
        super().__init__()
        self._tiers = tiers(store)
        self._player = player

    def compose(self) -> ComposeResult:
        """Who plays, and the tiers."""
        with Dialog(own("Battery"), keys=own("enter plays · esc closes")):
            yield Heading(self._about, id="about")
            yield LineView(FixedLines([_tier(name, envs) for name, envs in self._tiers]), id="tiers")

    def action_close(self) -> None:
        """Play nothing."""
        self.leave()

    @on(LineView.Chosen)
    def _chosen(self, chosen: LineView.Chosen) -> None:
        self.leave(self._tiers[chosen.index][1])

    def _about(self, width: int) -> list[Line]:
        if not self._tiers:
            return [[Cell(own("The node has not said yet which environments it has."), "warn")]]
        agent = f"{self._player.agent} {self._player.model or ''}".strip()
        told: list[Line] = [
            [Cell(line(agent, 60), "head"), Cell(own(" plays each environment once, one after the other."))]
        ]
        if self._player.trouble:
            told.append([Cell(message(self._player.trouble, 200), "warn")])
        return told


def _tier(name: str, envs: list[str]) -> Line:
    return [Cell(line(f"{name[:14]:<14} ", 16), "accent"), Cell(line(", ".join(envs), 200))]
