"""The live screen's tables as lines of safe text; what is above and below them is in ``status`` and ``live``."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from agentgym_tui.presenters.cells import Cell, Column, Line, Tone
from agentgym_tui.presenters.model_answer import FELL
from agentgym_tui.presenters.number_format import UNKNOWN, duration, quantity, reward, share
from agentgym_tui.presenters.segments import flagged, hostile, told
from agentgym_tui.presenters.sorting import Rank, Sorting, number, ordered, text
from agentgym_tui.presenters.text_width import cells, cut_start
from agentgym_tui.safe_text import Safe, join, line, own
from agentgym_tui.state.models import Environment, Episode, Step, Streaming
from agentgym_tui.state.run_store import RunStore
from runner.types import Action

ENV_COLUMNS: Final = (
    Column("environment", 12),
    Column("health", None, least=24),
    Column("success", 14, rank=1),
    Column("running", 7, right=True, rank=2),
    Column("last", 8, right=True, rank=3),
    Column("latency", 7, right=True, rank=4),
    Column("over", 8, rank=5),
    Column("memory", 8, right=True, rank=6),
    Column("tier", 11, rank=7),
)
STEP_COLUMNS: Final = (
    Column("#", 4, right=True),
    Column("action", None, least=24),
    Column("reward", 8, right=True, rank=1),
    Column("done", 4, rank=3),
    Column("model", 7, right=True, rank=2),
    Column("env", 7, right=True, rank=4),
    Column("tokens", 11, right=True, rank=5),
)

_NUMBER: Final = 8
"""Columns of a step's number, between it and its action, and of the sign of hostile bytes."""

_HEALTH: Final[dict[str, tuple[Safe, Tone]]] = {
    "up": (own("● up"), "good"),
    "embedded": (own("● embedded"), "good"),
    "slow": (own("◐ slow"), "warn"),
    "wrong": (own("✗ wrong"), "bad"),
    "down": (own("✗ down"), "bad"),
    "unknown": (own("? unknown"), "warn"),
}

ENV_RANKS: Final[Mapping[str, Callable[[Environment], Rank | None]]] = {
    "environment": lambda env: text(env.name),
    "health": lambda env: text(env.status),
    "success": lambda env: number(env.n_success / env.n_rated) if env.n_rated else None,
    "running": lambda env: number(env.n_running or None),
    "last": lambda env: number(env.last_reward),
    "latency": lambda env: number(env.latency_s),
    "over": lambda env: text(env.transport),
    "memory": lambda env: _bytes(env.ram),
    "tier": lambda env: text(env.tier),
}
"""By the titles of columns."""

_MEMORY: Final = re.compile(r"\D{0,3}(\d{1,9}(?:\.\d{1,3})?) ?([KMGT]?)i?B?", re.ASCII)


class EnvRows:
    """The environments as rows of ``ENV_COLUMNS``; the key is the name."""

    def __init__(self, store: RunStore, sorting: Sorting | None = None) -> None:
        """As they are now, in the order of the profile or in another one."""
        self._envs = list(store.envs.values())
        if sorting is not None and (rank := ENV_RANKS.get(sorting.column)) is not None:
            self._envs = ordered(self._envs, rank, descending=sorting.descending)

    def __len__(self) -> int:
        """How many there are."""
        return len(self._envs)

    def key(self, index: int) -> str:
        """The name."""
        return self._envs[index].name

    def line(self, index: int, width: int) -> Line:
        """A cell per column."""
        env = self._envs[index]
        return [
            Cell(flagged(line(env.name, 60), environment_text(env))),
            _health(env),
            _success(env),
            Cell(quantity(env.n_running), "accent") if env.n_running else Cell(UNKNOWN, "dim"),
            Cell(reward(env.last_reward)),
            Cell(duration(env.latency_s)),
            Cell(line(env.transport, 20) or UNKNOWN, "dim"),
            Cell(line(env.ram, 20) or UNKNOWN, "dim"),
            Cell(line(env.tier, 20) or UNKNOWN, "dim"),
        ]


class StepRows:
    """The steps of an episode as rows of ``STEP_COLUMNS``; where steps are missing a row says so.

    The last row of an episode that runs is the step that is being played, once a model has begun to answer.
    """

    def __init__(self, episode: Episode) -> None:
        """As it is now."""
        self._rows: list[Step | tuple[int, int]] = []
        following = 0
        for step in episode.steps:
            if step.index > following:
                self._rows.append((following, step.index))
            self._rows.append(step)
            following = step.index + 1
        if self._rows and not episode.running and episode.rounds > following:
            self._rows.append((following, episode.rounds))
            following = episode.rounds
        self._streaming = episode.streaming if episode.running else None
        self._following = following

    def __len__(self) -> int:
        """Steps, gaps, and the step that is being played."""
        return len(self._rows) + (self._streaming is not None)

    def key(self, index: int) -> str:
        """The step's number; another kind of text for a gap."""
        row = self._rows[index] if index < len(self._rows) else None
        return str(self._following if row is None else row.index) if not isinstance(row, tuple) else f"gap{row[0]}"

    def step(self, index: int) -> Step | None:
        """The step of a row; None for a gap and for the step that is being played."""
        row = self._rows[index] if 0 <= index < len(self._rows) else None
        return row if isinstance(row, Step) else None

    def line(self, index: int, width: int) -> Line:
        """A cell per column."""
        row = self._rows[index] if index < len(self._rows) else None
        match row:
            case Step():
                return _step(row, step_text(row))
            case (first, after):
                return _only(own(f"{first}…"), own(f"{quantity(after - first)} rounds did not get here"), "warn")
            case _:
                return _only(own(str(self._following)), _coming(self._streaming or Streaming(), width), "accent")


def action_text(action: Action) -> str:
    """What an agent did, in short, hostile text: its text, else the calls it made."""
    if action.text and action.text.strip():
        return action.text.strip()
    return ", ".join(f"{call.name} {call.arguments[:200]}" for call in action.tool_calls[:5])


def environment_text(env: Environment) -> str | None:
    """What is shown of an environment, as it came, where cleaning changes it."""
    return hostile([env.name, env.cause or "", env.transport, env.ram, env.tier])


def step_text(step: Step) -> str | None:
    """What is shown of a step, as it came, where cleaning changes it."""
    return hostile([action_text(step.action)])


def episode_text(episode: Episode) -> str | None:
    """What is shown of an episode beside its steps, as it came, where cleaning changes it."""
    return hostile([episode.env, episode.agent, episode.model or "", episode.data_label, episode.error_type or ""])


def _bytes(memory: str) -> Rank | None:
    """What a profile says of memory, such as ``110 MiB``; what is no such thing comes after those that are."""
    found = _MEMORY.match(memory)
    return number(float(found[1]) * 1024 ** " KMGT".index(found[2] or " ")) if found else None


def _health(env: Environment) -> Cell:
    if env.status is None:
        return Cell(join([UNKNOWN, own(" not checked")]), "dim")
    text, tone = _HEALTH.get(env.status, _HEALTH["unknown"])
    return Cell(join([text, own(": "), told(env.cause, 120)]) if env.cause else text, tone)


def _success(env: Environment) -> Cell:
    if not env.n_rated:
        return Cell(UNKNOWN, "dim")
    rate = share(env.n_success, env.n_rated)
    return Cell(own(f"{rate} baseline"), "dim") if env.baseline else Cell(own(f"{rate} of {env.n_rated}"))


def _step(step: Step, hostile: str | None) -> Sequence[Cell]:
    text = flagged(line(action_text(step.action)) or own("(nothing)"), hostile)
    text = join([FELL, own(" "), text]) if step.passed_over else text
    action = Cell(text) if step.valid else Cell(join([own("✗ invalid: "), text]), "bad")
    tokens = own(f"{quantity(step.tokens.prompt)}+{quantity(step.tokens.completion)}") if step.tokens else UNKNOWN
    return [
        Cell(quantity(step.index), "dim"),
        action,
        Cell(reward(step.reward), _sign(step.reward)),
        Cell(own("done"), "accent") if step.done else Cell(own("")),
        Cell(duration(step.model_s)),
        Cell(duration(step.env_s)),
        Cell(tokens, "dim"),
    ]


def _coming(answer: Streaming, width: int) -> Safe:
    """The newest of an answer that comes; before there is any, who is asked for it."""
    call = answer.calls[-1] if answer.calls else None
    newest = answer.text or answer.reasoning if call is None else f"{call.tool} {call.arguments}"
    newest = newest[-2 * width :].strip().replace("\n", " ")
    if not newest:
        newest = f"asking {answer.endpoint}" if answer.endpoint else ""
    thinks = own("thinks: " if answer.reasoning and not answer.text and call is None else "")
    before = join([*[FELL, own(" ")] * bool(answer.passed_over), thinks])
    text = cut_start(join([own("… "), line(newest, 1_000)]), max(width - _NUMBER - cells(before), 0))
    return flagged(join([before, text]), hostile([newest]))


def _sign(value: float) -> Tone:
    return "good" if value > 0 else "bad" if value < 0 else "dim"


def _only(number: Safe, text: Safe, tone: Tone) -> list[Cell]:
    """The text takes the whole of the line."""
    return [Cell(number, "dim"), Cell(text, tone)]
