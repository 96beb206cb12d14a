"""Flags of a stored episode: pathologies that are found without a model, each with the step where it begins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Final, Literal, TypeAlias

import msgspec

from runner.store.episode_file import EpisodeRecord
from runner.types import Outcome, TimeStep, skipped_endpoints

FlagName: TypeAlias = Literal["loop", "invalid", "truncated", "unearned", "diverged", "fallback"]

FLAGS: Final[Mapping[FlagName, str]] = {
    "loop": "the same steps three times in a row: up to four actions with the same observations",
    "invalid": "three invalid actions in a row",
    "truncated": "stopped at the limit of rounds",
    "unearned": "reward without success",
    "diverged": "the environment answered otherwise than its oracle expected",
    "fallback": "an endpoint answered for one that failed",
}
"""What each flag of an episode means."""

LOOP_REPEATS: Final = 3
"""Number of times in a row that the same steps are a loop."""
MAX_PERIOD: Final = 4
"""Maximum number of steps that a loop repeats."""
INVALID_STREAK: Final = 3
"""Number of invalid actions in a row that are flagged."""
DIVERGED: Final = "oracle_diverged"
"""Type of the error of an oracle whose environment answered otherwise than expected."""


class Flag(msgspec.Struct, frozen=True):
    """A flag; ``step`` is the index of the step where it begins, None for the whole episode."""

    name: FlagName
    step: int | None = None


def find_flags(episode: EpisodeRecord) -> tuple[Flag, ...]:
    """Return the flags of an episode, each at most once, in the order of ``FLAGS``."""
    return tuple(_flags(episode))


def _flags(episode: EpisodeRecord) -> Iterator[Flag]:
    steps = episode.timesteps
    if (start := loop_start(steps)) is not None:
        yield Flag("loop", steps[start].index)
    if (start := invalid_start(steps)) is not None:
        yield Flag("invalid", steps[start].index)
    if episode.outcome is Outcome.TRUNCATED:
        yield Flag("truncated")
    if episode.reward > 0 and episode.outcome in (Outcome.FAILURE, Outcome.TRUNCATED, Outcome.TIMEOUT):
        yield Flag("unearned", next((step.index for step in steps if step.reward > 0), None))
    if episode.error is not None and episode.error.type == DIVERGED:
        yield Flag("diverged", steps[-1].index if steps else None)
    answered = (step.index for step in steps if step.endpoint and skipped_endpoints(step.endpoint, step.warnings))
    if (step := next(answered, None)) is not None:
        yield Flag("fallback", step)


def loop_start(steps: Sequence[TimeStep], *, at_end: bool = False) -> int | None:
    """Return the position of the first step of the first loop, or of one that lasts until the end; None without one."""
    keys = [_key(step) for step in steps]
    starts = (_loop_of(keys, period, at_end=at_end) for period in range(1, MAX_PERIOD + 1))
    return min((start for start in starts if start is not None), default=None)


def invalid_start(steps: Sequence[TimeStep], *, at_end: bool = False) -> int | None:
    """Return the position of the first step of the first streak of invalid actions, like ``loop_start``."""
    return _first_run([not step.action.valid for step in steps], INVALID_STREAK, at_end=at_end)


def _loop_of(keys: Sequence[object], period: int, *, at_end: bool) -> int | None:
    """Return where equal periods begin: where enough steps in a row equal the one a period later."""
    equal = [key == later for key, later in zip(keys, keys[period:], strict=False)]
    return _first_run(equal, period * (LOOP_REPEATS - 1), at_end=at_end)


def _first_run(values: Sequence[bool], length: int, *, at_end: bool) -> int | None:
    """Return where the first run of at least ``length`` true values begins; ``at_end``: only one at the end counts."""
    start, runs = 0, []
    for is_true, group in groupby(values):
        n = len(list(group))
        if is_true and n >= length:
            runs.append((start, start + n))
        start += n
    return next((first for first, end in runs if not at_end or end == len(values)), None)


def _key(step: TimeStep) -> tuple[Any, ...]:
    calls = tuple((call.name, call.arguments) for call in step.action.tool_calls)
    return calls or step.action.text, msgspec.json.encode(step.observation)
