"""The dialog in which the user chooses a tier of environments to run."""

from __future__ import annotations

from textual import on
from textual.app import ComposeResult

from agentgym_tui.presenters.cells import Cell, FixedLines, Line
from agentgym_tui.presenters.live import no_environments
from agentgym_tui.presenters.number_format import pluralize
from agentgym_tui.presenters.text_width import wrap_text
from agentgym_tui.safe_text import masked_rows
from agentgym_tui.screens.base import DialogFrame, DialogScreen
from agentgym_tui.sessions.run_commands import AgentChoice, EnvironmentBattery, list_batteries
from agentgym_tui.state.run_store import RunStore
from agentgym_tui.widgets.line_list import LineList
from agentgym_tui.widgets.static_lines import StaticLines


class BatteryPicker(DialogScreen[list[str]]):
    """A dialog to choose a tier; its result is the list of the tier's available environments.

    Args:
        store: provides the tiers.
        agent: the agent that will run the environments.
    """

    SCOPE = "dialog"

    def __init__(self, store: RunStore, agent: AgentChoice) -> None:
        super().__init__()
        self._tiers, self._no_tiers = list_batteries(store), no_environments(store)
        self._agent = agent

    def compose(self) -> ComposeResult:
        with DialogFrame("Battery", keys="{list.choose} runs · {dialog.close} closes"):
            yield StaticLines(self._about, id="about")
            yield LineList(FixedLines([_tier(tier) for tier in self._tiers]), id="tiers")
            yield StaticLines(self._left_out, id="left-out")

    @on(LineList.Selected)
    def _chosen(self, chosen: LineList.Selected) -> None:
        if self._tiers and (envs := self._tiers[chosen.index].envs):
            self.leave(envs)

    @on(LineList.CursorMoved)
    def _moved(self) -> None:
        self.show_lines("left-out")

    def _about(self, width: int) -> list[Line]:
        if not self._tiers:
            return [[Cell(self._no_tiers, "warn")]]
        if self._agent.problem:
            rows = wrap_text(masked_rows(self._agent.problem), width, 2)
            return [[Cell("Choose a tier, then an agent.")], *([Cell(row, "warn")] for row in rows)]
        agent = f"{self._agent.agent} {self._agent.model or ''}".strip()
        name = Cell(agent, "head")
        return [[name, Cell(" runs each environment once, in order.")]]

    def _left_out(self, width: int) -> list[Line]:
        """Return the available environments of the selected tier, and each unavailable environment with the cause."""
        if not self._tiers:
            return []
        tier = self._tiers[self.query_one("#tiers", LineList).cursor]
        title = f"{pluralize(len(tier.envs), 'environment')}: "
        envs = f"{title}{', '.join(tier.envs)}"
        rows: list[Line] = [[Cell(row, "dim")] for row in wrap_text(envs, width, 2)]
        causes = ", ".join(f"{env.name} ({env.cause or env.status})" for env in tier.excluded)
        left = f"left out: {masked_rows(causes)}" if causes else ""
        return [*rows, *([Cell(row, "warn")] for row in wrap_text(left, width, 3))]


def _tier(tier: EnvironmentBattery) -> Line:
    n_all = len(tier.envs) + len(tier.excluded)
    n_available = f"{len(tier.envs)} of {n_all}" if tier.excluded else str(n_all)
    return [Cell(f"{tier.name[:20]:<21}", "accent"), Cell(n_available)]
