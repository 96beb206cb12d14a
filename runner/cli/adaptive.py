"""``--until-width``: the parts of a batch, with a line about the interval after each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from runner.batch.adaptive import budget_left, first_part, is_used_up, next_part
from runner.batch.resolve import ResolvedBatch
from runner.batch.result import BatchResult
from runner.batch.spec import BatchSpec
from runner.cli.report import batch_label
from runner.cli.terminal import print_stderr
from runner.results.statistics import wilson_interval


def adaptive_parts(
    batch: ResolvedBatch, width: float | None, results: Sequence[BatchResult]
) -> Iterator[ResolvedBatch]:
    """Yield the parts of a batch, each with the tasks up to the next look, until the interval is narrow enough.

    ``batch`` has the maximum number of tasks, and one attempt for each. With ``width`` None it is the only part. The
    caller adds the result of each part to ``results`` before it requests the next one.
    """
    if width is None:
        yield batch
        return
    part: BatchSpec | None = first_part(batch.spec, width)
    while part is not None:
        n_played = len(results)
        yield msgspec.structs.replace(batch, spec=part)
        successes, n = sum(result.n_success for result in results), sum(result.n_rated for result in results)
        _report(part, successes, n)
        played = results[n_played:]
        cost, n_tokens = sum(each.cost or 0.0 for each in played), sum(each.tokens.total for each in played)
        budget = budget_left(part.budget, cost, n_tokens)
        following = next_part(part, successes, n, budget)
        if is_used_up(budget) and following is None and next_part(part, successes, n, None) is not None:
            print_stderr(f"{batch_label(part.env, part.model)}: stopped, because its budget is used up")
        part = following


def _report(part: BatchSpec, successes: int, n: int) -> None:
    low, high = wilson_interval(successes, n)
    rate = f"{successes / n:.1%}, {low:.1%} to {high:.1%}" if n else "no scored episode"
    first, n_max = (part.adaptive.task_index, part.adaptive.repeat) if part.adaptive else (part.task_index, part.repeat)
    n_played = part.task_index + part.repeat - first
    print_stderr(f"{batch_label(part.env, part.model)}: {rate}, after {n_played} of at most {n_max} episodes")
