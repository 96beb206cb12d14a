"""Flags of a stored episode: pathologies that are found without a model, each with the step where it begins."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import eq
from typing import Any, Final, Literal, Protocol, TypeAlias

import msgspec

from runner.types import Action, ErrorInfo, Outcome, TimeStep, skipped_endpoints

FlagName: TypeAlias = Literal["loop", "invalid", "refused", "truncated", "unearned", "diverged", "fallback"]

FLAGS: Final[Mapping[FlagName, str]] = {
    "loop": "the same steps three times in a row: up to four actions with the same observations",
    "invalid": "three invalid actions in a row",
    "refused": "three actions in a row that the environment refused",
    "truncated": "stopped at the limit of rounds",
    "unearned": "reward without success",
    "diverged": "the observation differs from the one that the oracle expected",
    "fallback": "an endpoint answered for one that failed",
}
LOOP_REPEATS: Final = 3
"""Number of times in a row that the same steps are a loop."""
MAX_PERIOD: Final = 4
"""Maximum number of steps that a loop repeats."""
INVALID_STREAK: Final = 3
"""Number of invalid actions, or of refused ones, in a row that are flagged."""
DIVERGED: Final = "oracle_diverged"
"""Type of the error of an oracle whose environment returned another observation than expected."""


class StepOutline(msgspec.Struct):
    """Decoded several times as fast as the whole step, because it has no chats."""

    index: int
    action: Action
    observation: msgspec.Raw
    reward: float
    endpoint: str | None = None
    model: str | None = None
    warnings: tuple[str, ...] = ()


PlayedStep: TypeAlias = TimeStep | StepOutline
_DECODER = msgspec.json.Decoder(StepOutline)
_MESSAGES = msgspec.json.Decoder(list[Any])


class EndedEpisode(Protocol):
    """How an episode ended; an ``EpisodeRecord``, among others."""

    outcome: Outcome
    success: bool
    reward: float | None
    error: ErrorInfo | None

    @property
    def unscored(self) -> bool: ...


class Flag(msgspec.Struct, frozen=True):
    """A flag; ``step`` is the index of the step where it begins, None for the whole episode."""

    name: FlagName
    step: int | None = None


def find_flags(
    episode: EndedEpisode, steps: Sequence[PlayedStep], keys: Sequence[int] | None = None
) -> tuple[Flag, ...]:
    """Return the flags of an episode, each at most once, in the order of ``FLAGS``."""
    return tuple(_flags(episode, steps, step_keys(steps) if keys is None else keys))


def _flags(episode: EndedEpisode, steps: Sequence[PlayedStep], keys: Sequence[int]) -> Iterator[Flag]:
    if (start := loop_start(keys)) is not None:
        yield Flag("loop", steps[start].index)
    if (start := invalid_start(steps)) is not None:
        yield Flag("invalid", steps[start].index)
    if (start := refused_start(steps)) is not None:
        yield Flag("refused", steps[start].index)
    if episode.outcome is Outcome.TRUNCATED:
        yield Flag("truncated")
    if (episode.reward or 0.0) > 0 and episode.outcome in (Outcome.FAILURE, Outcome.TRUNCATED, Outcome.TIMEOUT):
        yield Flag("unearned", next((step.index for step in steps if step.reward > 0), None))
    if episode.error is not None and episode.error.type == DIVERGED:
        yield Flag("diverged", steps[-1].index if steps else None)
    answered = (step.index for step in steps if step.endpoint and skipped_endpoints(step.endpoint, step.warnings))
    if (step := next(answered, None)) is not None:
        yield Flag("fallback", step)


def step_keys(steps: Iterable[PlayedStep]) -> list[int]:
    """Return a number for each step; equal steps, whose action and observation are the same, have equal numbers."""
    numbers: dict[tuple[Any, ...], int] = {}
    return [numbers.setdefault(_key(step), len(numbers)) for step in steps]


def loop_start(keys: Sequence[int], *, at_end: bool = False) -> int | None:
    """Return the position of the first step of the first loop, or of one that lasts until the end; None without one."""
    if len(keys) - len(set(keys)) < LOOP_REPEATS - 1:
        return None
    starts = (
        _first_run(map(eq, keys, keys[period:]), period * (LOOP_REPEATS - 1), at_end=at_end)
        for period in range(1, MAX_PERIOD + 1)
    )
    return min((start for start in starts if start is not None), default=None)


def invalid_start(steps: Iterable[PlayedStep], *, at_end: bool = False) -> int | None:
    """Return the position of the first step of the first streak of invalid actions, like ``loop_start``."""
    return _first_run((not step.action.valid for step in steps), INVALID_STREAK, at_end=at_end)


def refused_start(steps: Iterable[PlayedStep], *, at_end: bool = False) -> int | None:
    """Return the position of the first step of the first streak of refused actions, like ``loop_start``."""
    return _first_run((step.action.refused is True for step in steps), INVALID_STREAK, at_end=at_end)


def _first_run(values: Iterable[bool], length: int, *, at_end: bool) -> int | None:
    """Return where the first run of at least ``length`` true values begins; ``at_end``: only one at the end counts."""
    n = end = 0
    for value in values:
        end += 1
        n = n + 1 if value else 0
        if n == length and not at_end:
            break
    return end - n if n >= length else None


def _key(step: PlayedStep) -> tuple[Any, ...]:
    calls = tuple([(call.name, call.arguments) for call in step.action.tool_calls])
    observation = step.observation
    return calls or step.action.text, (
        bytes(observation) if isinstance(observation, msgspec.Raw) else msgspec.json.encode(observation)
    )


def played_steps(steps: Iterable[PlayedStep | msgspec.Raw]) -> list[PlayedStep]:
    """Return steps, decoded without their chats; raises ``ValueError`` or ``RecursionError`` for a damaged one."""
    return [_DECODER.decode(step) if isinstance(step, msgspec.Raw) else step for step in steps]


def messages(step: PlayedStep) -> list[Any]:
    """Return the messages of a step's observation; any JSON values."""
    observation = step.observation
    return _MESSAGES.decode(observation) if isinstance(observation, msgspec.Raw) else observation
