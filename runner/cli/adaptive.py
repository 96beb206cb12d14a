"""Adaptive repeats: a batch is played in parts until the interval of its success rate is narrow enough.

The interval is looked at only after 32, 64, 128, … episodes, and the rule depends on nothing else. A rule that looked
after each episode would stop at lucky moments, and its interval would miss the true rate more often than it promises.
With these few looks the 95% interval keeps a coverage of 95% on average over the true rates from 1% to 99%, and of 92%
for the worst of them that a test computes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from runner.batch.resolve import ResolvedBatch
from runner.batch.result import BatchResult
from runner.cli.terminal import print_stderr
from runner.results.statistics import wilson_interval
from runner.types import Budget

FIRST_LOOK = 32
"""Episodes until the interval is looked at for the first time; each further look comes after twice as many."""


def planned_looks(n_max: int) -> list[int]:
    """Return the numbers of episodes after which the interval is looked at; the last one is ``n_max``."""
    looks = [FIRST_LOOK << i for i in range(n_max.bit_length()) if FIRST_LOOK << i < n_max]
    return [*looks, n_max]


def is_narrow(successes: int, n: int, width: float) -> bool:
    """Return whether the interval of a success rate, from 0 to 1, is at most as wide as requested."""
    low, high = wilson_interval(successes, n)
    return high - low <= width


def adaptive_parts(
    batch: ResolvedBatch, width: float | None, results: Sequence[BatchResult]
) -> Iterator[ResolvedBatch]:
    """Yield the parts of a batch, each with the tasks up to the next look, until the interval is narrow enough.

    Args:
        batch: the batch with the maximum number of tasks, and one attempt for each.
        width: requested width of the interval; None: the batch is its only part.
        results: the results of the parts; the caller adds each before it requests the next part.
    """
    if width is None:
        yield batch
        return
    spec, start = batch.spec, 0
    for look in planned_looks(spec.repeat):
        if (budget := _budget_left(spec.budget, results)) is not None and _is_used_up(budget):
            print_stderr(f"{spec.env}: stopped, because its budget is used up")
            return
        part = msgspec.structs.replace(spec, task_index=spec.task_index + start, repeat=look - start, budget=budget)
        yield msgspec.structs.replace(batch, spec=part)
        successes, n = sum(result.n_success for result in results), sum(result.n_rated for result in results)
        _report(spec.env, successes, n, look, spec.repeat)
        if is_narrow(successes, n, width):
            return
        start = look


def _report(env: str, successes: int, n: int, n_played: int, n_max: int) -> None:
    low, high = wilson_interval(successes, n)
    rate = f"{successes / n:.1%}, {low:.1%} to {high:.1%}" if n else "no scored episode"
    print_stderr(f"{env}: {rate}, after {n_played} of at most {n_max} episodes")


def _budget_left(budget: Budget | None, results: Sequence[BatchResult]) -> Budget | None:
    if budget is None:
        return None
    cost, tokens = sum(result.cost or 0.0 for result in results), sum(result.tokens.total for result in results)
    return msgspec.structs.replace(
        budget,
        cost=None if budget.cost is None else budget.cost - cost,
        tokens=None if budget.tokens is None else budget.tokens - tokens,
    )


def _is_used_up(budget: Budget) -> bool:
    return any(left is not None and left <= 0 for left in (budget.cost, budget.tokens))
