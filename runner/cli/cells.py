"""Texts in the tables of results."""

from __future__ import annotations

from collections.abc import Mapping

from runner.types import Tokens
from runner.util.amounts import format_amount

USAGE_COLUMNS = ("tokens", "latency", "cost")
"""Names of the cells of ``usage_cells``."""


def environment_cell(env: str, mode: str, data_label: str, shape: str = "", limits: str = "") -> str:
    labels = mode if mode != "strict" else "", data_label, shape, limits
    return " · ".join(filter(None, (env, *labels)))


def outcomes_cell(outcomes: Mapping[str, int], n_unscored: int = 0) -> str:
    counts = [f"{count} {outcome}" for outcome, count in outcomes.items()]
    reasons = "idle play can succeed, or an import has no result"
    return ", ".join([*counts, f"{n_unscored} unscored: {reasons}"] if n_unscored else counts)


def usage_cells(
    tokens: Tokens, latency_s: float | None, cost: float | None, currency: str = ""
) -> tuple[str, str, str]:
    parts = [
        f"{tokens.prompt} in" + (f" ({tokens.cached} cached)" if tokens.cached else ""),
        f"{tokens.completion} out" + (f" ({tokens.reasoning} reasoning)" if tokens.reasoning else ""),
    ]
    latency = "-" if latency_s is None else f"{latency_s:.3g} s"
    return ", ".join(parts) if tokens.total else "-", latency, "-" if cost is None else format_amount(cost, currency)


def format_success(rate: float | None, n_rated: int, n_episodes: int) -> str:
    """Format a success rate (0 to 1), with the number of scored episodes if not all are; None becomes ``-``."""
    if rate is None:
        return "-"
    return f"{rate:.1%}" if n_rated == n_episodes else f"{rate:.1%} of {n_rated}"


def format_interval(bounds: tuple[float, float] | None) -> str:
    return "-" if bounds is None else f"{bounds[0]:.1%} to {bounds[1]:.1%}"


def format_number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}".rstrip("0").rstrip(".")
