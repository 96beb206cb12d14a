"""Rows of the environments table."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

from agentgym_tui.presenters.cells import Cell, Column, Line, Tone, count_cell
from agentgym_tui.presenters.number_format import UNKNOWN, format_duration, format_reward, format_share
from agentgym_tui.presenters.text_width import environment_text
from agentgym_tui.safe_text import masked_line
from agentgym_tui.state.query import Rank, Sorting, number_rank, sort_by_rank, text_rank
from agentgym_tui.state.run_store import RunStore
from agentgym_tui.state.servers import EnvironmentState

NAME_WIDTH: Final = 12
ENV_COLUMNS: Final = (
    Column("environment", NAME_WIDTH),
    Column("health", None, min_width=24),
    Column("success", 14, rank=1),
    Column("errors", 6, right=True, rank=2),
    Column("running", 7, right=True, rank=3),
    Column("last", 8, right=True, rank=4),
    Column("latency", 7, right=True, rank=5),
    Column("transport", 9, rank=6),
    Column("memory", 8, right=True, rank=7),
    Column("tier", 11, rank=8),
)

MAX_DETAIL: Final = 160
MAX_AGENT: Final = 9
"""Largest width of the name of a baseline agent behind its success rate, in cells."""
"""Maximum number of characters shown of the cause of a problem, or of a note."""

_HEALTH: Final[dict[str, tuple[str, Tone]]] = {
    "up": ("● up", "good"),
    "embedded": ("● embedded", "good"),
    "slow": ("◐ slow", "warn"),
    "wrong": ("✗ wrong", "bad"),
    "down": ("✗ down", "bad"),
    "unknown": ("? unknown", "warn"),
}

ENV_SORT_KEYS: Final[Mapping[str, Callable[[EnvironmentState], Rank | None]]] = {
    "environment": lambda env: text_rank(env.name),
    "health": lambda env: text_rank(env.status),
    "success": lambda env: number_rank(env.n_success / env.n_rated) if env.n_rated else None,
    "errors": lambda env: number_rank(env.n_errors or None),
    "running": lambda env: number_rank(env.n_running or None),
    "last": lambda env: number_rank(env.last_reward),
    "latency": lambda env: number_rank(env.latency_s),
    "transport": lambda env: text_rank(env.transport),
    "memory": lambda env: _memory_rank(env.ram),
    "tier": lambda env: text_rank(env.tier),
}
"""Function that returns the sort key of an environment, by column title."""

_MEMORY: Final = re.compile(r"\D{0,3}(\d{1,9}(?:\.\d{1,3})?) ?([KMGT]?)i?B?", re.ASCII)


class EnvironmentRows:
    """Environments as rows of ``ENV_COLUMNS``; the key of a row is the environment's name."""

    def __init__(self, store: RunStore, sorting: Sorting | None = None) -> None:
        self._envs = list(store.envs.values())
        if sorting is not None and (rank := ENV_SORT_KEYS.get(sorting.column)) is not None:
            self._envs = sort_by_rank(self._envs, rank, descending=sorting.descending)

    def __len__(self) -> int:
        """Return the number of environments."""
        return len(self._envs)

    def key(self, index: int) -> str:
        """Return the name of the environment in a row."""
        return self._envs[index].name

    def line(self, index: int, width: int) -> Line:
        """Return the cells of a row, one per table column."""
        env = self._envs[index]
        return [
            Cell(environment_text(env.name, NAME_WIDTH)),
            _health(env),
            _success(env),
            count_cell(env.n_errors, "bad"),
            count_cell(env.n_running, "accent"),
            Cell(format_reward(env.last_reward)),
            Cell(format_duration(env.latency_s)),
            Cell(env.transport or UNKNOWN, "dim"),
            Cell(env.ram or UNKNOWN, "dim"),
            Cell(env.tier or UNKNOWN, "dim"),
        ]


def _memory_rank(memory: str) -> Rank | None:
    size = _MEMORY.match(memory)  # free text of the profile, such as "110 MiB"
    return number_rank(float(size[1]) * 1024 ** " KMGT".index(size[2] or " ")) if size else None


def no_environments(store: RunStore) -> str:
    """Return why there is no environment to run."""
    is_loaded = bool(store.agents)  # a node that has answered lists at least the agents of the package
    return "the node's profile has no environments; add them" if is_loaded else "environments not loaded yet"


def health_label(status: str | None) -> tuple[str, Tone]:
    """Return the label and the tone of the health of an environment."""
    return _HEALTH.get(status or "", _HEALTH["unknown"])


def _health(env: EnvironmentState) -> Cell:
    if env.status is None:
        return Cell(f"{UNKNOWN} not checked", "dim")
    text, tone = health_label(env.status)
    detail = env.cause or env.note
    return Cell(f"{text}: {masked_line(detail, MAX_DETAIL)}" if detail else text, tone)


def _success(env: EnvironmentState) -> Cell:
    if not env.n_rated:
        return Cell("unscored", "warn") if env.unscored else Cell(UNKNOWN, "dim")
    rate = format_share(env.n_success, env.n_rated)
    if env.baseline is not None:
        return Cell(f"{rate} {masked_line(env.baseline, MAX_AGENT)}", "dim")
    return Cell(f"{rate} mixed" if env.n_players > 1 else f"{rate} of {env.n_rated}")
