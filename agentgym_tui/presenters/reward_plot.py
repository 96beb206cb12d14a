"""Rewards of an environment's newest episodes as a plot of characters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from agentgym_tui.presenters import braille as plot
from agentgym_tui.presenters.cells import Cell, Line, Tone
from agentgym_tui.presenters.number_format import counted, percent, reward, share
from agentgym_tui.presenters.segments import joined
from agentgym_tui.safe_text import Safe, own
from agentgym_tui.state.rewards import RewardPoint, rated

RECENT: Final = 20
"""Episodes that a success rate over time is made of."""

_LABEL_WIDTH: Final = 8


def reward_lines(points: Sequence[RewardPoint], width: int, height: int) -> list[Line]:
    """Rewards of the newest episodes as columns, below them the success rate of the last ``RECENT``, and how many."""
    all_rated = rated(points)
    shown = all_rated[-max(width - _LABEL_WIDTH, 1) :]
    if not shown or height < 1 or width <= _LABEL_WIDTH:
        return [joined([[Cell(own("no rated episode yet"), "dim")]], width)][:height]
    rewards = [point.reward for point in shown]
    low, high = plot.extent(rewards)
    columns = plot.columns(rewards, width - _LABEL_WIDTH, max(height - 2, 1), low, high)
    labels = [reward(high), *[own("")] * (len(columns) - 2), reward(low)][: len(columns)]
    lines: list[Line] = [_labelled(label, column) for label, column in zip(labels, columns, strict=True)]
    shares = plot.moving_share([point.success for point in shown], RECENT)
    spark = plot.columns(shares, width - _LABEL_WIDTH, 1, 0.0, 1.0)
    lines.append(_labelled(percent(100 * shares[-1]), spark[0], "good"))
    return [*lines, _legend(shown, len(all_rated), width)][:height]


def _labelled(label: Safe, columns: str, tone: Tone = "accent") -> list[Cell]:
    return [Cell(own(f"{label[: _LABEL_WIDTH - 1]:>{_LABEL_WIDTH - 1}} "), "dim"), Cell(own(columns), tone)]


def _legend(shown: Sequence[RewardPoint], n_rated: int, width: int) -> Line:
    n, baseline = len(shown), "baseline " if shown[-1].baseline else ""
    several = counted(n, f"{baseline}episode") if n == n_rated else own(f"newest {n} {baseline}".rstrip())
    successes = sum(point.success for point in shown[-RECENT:])
    rate = share(successes, min(n, RECENT))
    return joined([[Cell(several, "dim")], [Cell(own(f"success {rate} of last {min(n, RECENT)}"))]], width)
