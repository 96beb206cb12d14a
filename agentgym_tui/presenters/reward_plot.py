"""Rewards of an environment's newest episodes as a plot of characters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from agentgym_tui.presenters.cells import Cell, Line, Tone, join_parts
from agentgym_tui.presenters.number_format import format_percent, format_reward, format_share, pluralize
from agentgym_tui.safe_text import SafeText, trusted
from agentgym_tui.state.rewards import RewardPoint, rated_points

_EIGHTHS: Final = " ▁▂▃▄▅▆▇█"


def column_chart(values: Sequence[float], width: int, height: int, low: float, high: float) -> list[str]:
    """``height`` lines, the top one first, with a column for each of the newest ``width`` values, the newest right.

    The lowest value still has an eighth of a line: there is an episode. Without room there are no lines.
    """
    if width < 1 or height < 1:
        return []
    levels = [_level(value, low, high, height) for value in values[-width:]]
    below = 8 * (height - 1)
    filled = " " * below + _EIGHTHS + _EIGHTHS[-1] * below
    return ["".join([filled[level + 8 * row] for level in levels]) for row in range(height)]


def value_range(values: Sequence[float]) -> tuple[float, float]:
    """The range to show: from 0 or below to 1 or above."""
    return min(0.0, *values, 0.0), max(1.0, *values, 1.0)


def moving_success_rate(successes: Sequence[bool], k: int) -> list[float]:
    """For each place the share of successes among the ``k`` up to it."""
    shares: list[float] = []
    recent = 0
    for place, success in enumerate(successes):
        recent += success - (successes[place - k] if place >= k else 0)
        shares.append(recent / min(place + 1, k))
    return shares


def _level(value: float, low: float, high: float, height: int) -> int:
    """Eighths of a line; halves, as a difference may leave the range of numbers."""
    span = high / 2 - low / 2
    share = (value / 2 - low / 2) / span if span > 0 else 0.0
    return max(1, min(round(share * height * 8), height * 8))


SUCCESS_RATE_WINDOW: Final = 20
"""Episodes that a success rate over time is made of."""

_LABEL_WIDTH: Final = 8


def reward_lines(points: Sequence[RewardPoint], width: int, height: int) -> list[Line]:
    """Rewards of the newest episodes as columns, below them the success rate of the last ``SUCCESS_RATE_WINDOW``, and how many."""
    all_rated = rated_points(points)
    shown = all_rated[-max(width - _LABEL_WIDTH, 1) :]
    if not shown or height < 1 or width <= _LABEL_WIDTH:
        return [join_parts([[Cell(trusted("no rated episode yet"), "dim")]], width)][:height]
    rewards = [point.reward for point in shown]
    low, high = value_range(rewards)
    columns = column_chart(rewards, width - _LABEL_WIDTH, max(height - 2, 1), low, high)
    labels = [format_reward(high), *[trusted("")] * (len(columns) - 2), format_reward(low)][: len(columns)]
    lines: list[Line] = [_labeled(label, column) for label, column in zip(labels, columns, strict=True)]
    shares = moving_success_rate([point.success for point in shown], SUCCESS_RATE_WINDOW)
    spark = column_chart(shares, width - _LABEL_WIDTH, 1, 0.0, 1.0)
    lines.append(_labeled(format_percent(100 * shares[-1]), spark[0], "good"))
    return [*lines, _legend_line(shown, len(all_rated), width)][:height]


def _labeled(label: SafeText, columns: str, tone: Tone = "accent") -> list[Cell]:
    return [Cell(trusted(f"{label[: _LABEL_WIDTH - 1]:>{_LABEL_WIDTH - 1}} "), "dim"), Cell(trusted(columns), tone)]


def _legend_line(shown: Sequence[RewardPoint], n_rated: int, width: int) -> Line:
    n, baseline = len(shown), "baseline " if shown[-1].baseline else ""
    several = pluralize(n, f"{baseline}episode") if n == n_rated else trusted(f"newest {n} {baseline}".rstrip())
    successes = sum(point.success for point in shown[-SUCCESS_RATE_WINDOW:])
    rate = format_share(successes, min(n, SUCCESS_RATE_WINDOW))
    return join_parts(
        [[Cell(several, "dim")], [Cell(trusted(f"success {rate} of last {min(n, SUCCESS_RATE_WINDOW)}"))]], width
    )
