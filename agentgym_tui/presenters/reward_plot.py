"""Plot rewards and moving success rate of an environment's newest episodes with block characters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from agentgym_tui.presenters.cells import Cell, Line, Tone, join_parts
from agentgym_tui.presenters.number_format import format_percent, format_reward, format_share, pluralize
from agentgym_tui.safe_text import masked_line
from agentgym_tui.state.servers import RewardPoint, rated_points

SUCCESS_RATE_WINDOW: Final = 20
"""Number of episodes that the moving success rate covers."""

MAX_AGENT: Final = 20
"""Largest width of the name of a baseline agent in the legend, in cells."""

_LABEL_WIDTH: Final = 8
_EIGHTHS: Final = " ▁▂▃▄▅▆▇█"


def column_chart(values: Sequence[float], width: int, height: int, low: float, high: float) -> list[str]:
    """Draw the newest ``width`` values as columns, with the newest value on the right.

    Every column is at least an eighth of a line high, so that each episode is visible.

    Args:
        values: the values, from the oldest to the newest.
        width: the number of columns.
        height: the number of lines.
        low: the value of the shortest column.
        high: the value of a column of full height.

    Returns:
        ``height`` lines from top to bottom; no lines if ``width`` or ``height`` is less than 1.
    """
    if width < 1 or height < 1:
        return []
    levels = [_level(value, low, high, height) for value in values[-width:]]
    below = 8 * (height - 1)
    filled = " " * below + _EIGHTHS + _EIGHTHS[-1] * below
    return ["".join([filled[level + 8 * row] for level in levels]) for row in range(height)]


def value_range(values: Sequence[float]) -> tuple[float, float]:
    """Return the lowest and the highest value to plot. The range includes all values, 0 and 1."""
    return min(0.0, *values, 0.0), max(1.0, *values, 1.0)


def moving_success_rate(successes: Sequence[bool], window: int) -> list[float]:
    """Return one success rate per episode: the rate of the ``window`` episodes that end with this episode."""
    rates: list[float] = []
    n_recent = 0
    for index, success in enumerate(successes):
        n_recent += success - (successes[index - window] if index >= window else 0)
        rates.append(n_recent / min(index + 1, window))
    return rates


def _level(value: float, low: float, high: float, height: int) -> int:
    span = high / 2 - low / 2  # halves: the difference of the limits may overflow
    share = (value / 2 - low / 2) / span if span > 0 else 0.0
    return max(1, min(round(share * height * 8), height * 8))


def reward_lines(points: Sequence[RewardPoint], width: int, height: int) -> list[Line]:
    """Plot the rewards and the moving success rate of the newest scored episodes, with a legend below the plot."""
    scored = [point for point in rated_points(points) if point.reward is not None]
    shown = scored[-max(width - _LABEL_WIDTH, 1) :]
    if not shown or height < 1 or width <= _LABEL_WIDTH:
        return [join_parts([[Cell("no scored episodes yet", "dim")]], width)][:height]
    rewards = [point.reward for point in shown if point.reward is not None]
    low, high = value_range(rewards)
    columns = column_chart(rewards, width - _LABEL_WIDTH, max(height - 2, 1), low, high)
    labels = [format_reward(high), *[""] * (len(columns) - 2), format_reward(low)][: len(columns)]
    lines: list[Line] = [_labeled(label, column) for label, column in zip(labels, columns, strict=True)]
    if rates := moving_success_rate(_successes(shown), SUCCESS_RATE_WINDOW):
        spark = column_chart(rates, width - _LABEL_WIDTH, 1, 0.0, 1.0)
        lines.append(_labeled(format_percent(100 * rates[-1]), spark[0], "good"))
    return [*lines, _legend_line(shown, len(scored), width)][:height]


def _successes(points: Sequence[RewardPoint]) -> list[bool]:
    return [point.success for point in points if point.success is not None]


def _labeled(label: str, columns: str, tone: Tone = "accent") -> list[Cell]:
    return [Cell(f"{label[: _LABEL_WIDTH - 1]:>{_LABEL_WIDTH - 1}} ", "dim"), Cell(columns, tone)]


def _kind(points: Sequence[RewardPoint]) -> str:
    """Return the agent of the points of a baseline, that several agents or models are mixed, or nothing."""
    if points[-1].model is None:
        return masked_line(points[-1].agent, MAX_AGENT)
    return "mixed" if len({(point.agent, point.model) for point in points}) > 1 else ""


def _legend_line(shown: Sequence[RewardPoint], n_scored: int, width: int) -> Line:
    n, kind = len(shown), _kind(shown)
    count = pluralize(n, "episode") if n == n_scored else f"newest {n}"
    episodes = f"{count} · {kind}" if kind else count
    newest = _successes(shown)[-SUCCESS_RATE_WINDOW:]
    rate = f"success {format_share(sum(newest), len(newest))} of last {len(newest)}" if newest else "success unknown"
    return join_parts([[Cell(episodes, "dim")], [Cell(rate)]], width)
