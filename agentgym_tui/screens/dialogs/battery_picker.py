"""Which tier of environments to play."""

from __future__ import annotations

from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType

from agentgym_tui.commands.keymap import bindings
from agentgym_tui.presenters.cells import Cell, FixedLines, Line
from agentgym_tui.presenters.number_format import counted
from agentgym_tui.presenters.segments import told_rows
from agentgym_tui.presenters.text_width import wrapped
from agentgym_tui.safe_text import join, line, own
from agentgym_tui.screens.base import DialogScreen
from agentgym_tui.sessions.run_commands import Player, Tier, tiers
from agentgym_tui.state.run_store import RunStore
from agentgym_tui.widgets.dialog import Dialog
from agentgym_tui.widgets.line_list import LineView
from agentgym_tui.widgets.static_lines import Heading


class Battery(DialogScreen[list[str]]):
    """Chooses a tier; the result is those of its environments that can be played.

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
        with Dialog(own("Battery"), keys="{list.choose} plays · {dialog.close} closes"):
            yield Heading(self._about, id="about")
            yield LineView(FixedLines([_tier(tier) for tier in self._tiers]), id="tiers")
            yield Heading(self._left_out, id="left-out")

    def action_close(self) -> None:
        """Play nothing."""
        self.leave()

    @on(LineView.Chosen)
    def _chosen(self, chosen: LineView.Chosen) -> None:
        if self._tiers and (envs := self._tiers[chosen.index].envs):
            self.leave(envs)

    @on(LineView.Moved)
    def _moved(self) -> None:
        self.query_one("#left-out", Heading).show(self._left_out)

    def _about(self, width: int) -> list[Line]:
        if not self._tiers:
            return [[Cell(own("The node has not said yet which environments it has."), "warn")]]
        if self._player.trouble:
            rows = wrapped(told_rows(self._player.trouble), width, 2)
            return [[Cell(own("Choose a tier, and then who plays it."))], *([Cell(row, "warn")] for row in rows)]
        agent = f"{self._player.agent} {self._player.model or ''}".strip()
        return [[Cell(line(agent, 60), "head"), Cell(own(" plays each environment once, one after the other."))]]

    def _left_out(self, width: int) -> list[Line]:
        """Of the tier of the cursor; and all its environments where its line has no room for them."""
        if not self._tiers:
            return []
        tier = self._tiers[self.query_one("#tiers", LineView).cursor]
        envs = join([own(f"{counted(len(tier.envs), 'environment')}: "), line(", ".join(tier.envs), 1_000)])
        rows: list[Line] = [[Cell(row, "dim")] for row in wrapped(envs, width, 2)]
        causes = ", ".join(f"{env.name} ({env.cause or env.status})" for env in tier.left_out)
        left = join([own("left out: "), told_rows(causes)]) if causes else own("")
        return [*rows, *([Cell(row, "warn")] for row in wrapped(left, width, 3))]


def _tier(tier: Tier) -> Line:
    n_all = len(tier.envs) + len(tier.left_out)
    n_played = own(f"{len(tier.envs)} of {n_all}" if tier.left_out else str(n_all))
    return [Cell(line(f"{tier.name[:20]:<21}", 30), "accent"), Cell(n_played)]
