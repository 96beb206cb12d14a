"""What the episodes of the index come to, per environment, agent and model."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from runner.store.index import EpisodeIndex
from runner.store.safe_json import finite
from runner.types import UNRATED, Outcome, Tokens

_Z = 1.959963984540054
"""The 97.5% quantile of the normal distribution: intervals of 95%."""


class ResultRow(msgspec.Struct, frozen=True, kw_only=True):
    """The episodes of one environment, data and mode that one agent played with one model.

    ``n`` counts all of them, ``n_rated`` those that rates and means are made of; these are None when there is none.

    Attributes:
        baseline: no model played, so it is not to be compared with models.
        success_interval: the 95% Wilson interval of ``success_rate``.
        score: the mean reward.
        completion_time_sec: the mean duration, with pauses.
        token_count: the mean number of prompt and completion tokens.
        tokens: the sums over all episodes.
        cost: the sum over all episodes, None when none is known.
        latency_s: the mean seconds that a model took for an answer, None when none answered.
    """

    env: str
    data_label: str
    mode: str
    agent: str
    model: str | None
    baseline: bool
    n: int
    n_rated: int
    n_success: int
    outcomes: dict[str, int]
    success_rate: float | None
    success_interval: tuple[float, float] | None
    score: float | None
    avg_rounds: float | None
    completion_time_sec: float | None
    token_count: float | None
    tokens: Tokens
    cost: float | None
    latency_s: float | None


def wilson_interval(successes: int, n: int) -> tuple[float, float]:
    """The 95% Wilson score interval of a success rate; the whole range when ``n`` is 0."""
    if n == 0:
        return 0.0, 1.0
    rate, spread = successes / n, _Z * _Z / n
    centre = rate + spread / 2
    half = _Z * math.sqrt(rate * (1 - rate) / n + spread / (4 * n))
    return max(0.0, (centre - half) / (1 + spread)), min(1.0, (centre + half) / (1 + spread))


def summarize_results(index: EpisodeIndex, *, env: str | None = None) -> list[ResultRow]:
    """One row per environment (only ``env``, in any case, if given), data, mode, agent and model; models come first.

    Raises:
        StoreError: when the index cannot be read.
    """
    return [_result(values) for values in index.select(_QUERY, {"env": env})]


_NOT_RATED = ", ".join(f"'{outcome}'" for outcome in sorted(UNRATED))
_RATED = f"FILTER (WHERE outcome NOT IN ({_NOT_RATED}))"
_COUNTS = ", ".join(f"count(*) FILTER (WHERE outcome = '{outcome}')" for outcome in Outcome)
_TOKENS = ", ".join(f"CAST(total(tokens_{kind}) AS INTEGER)" for kind in Tokens.__struct_fields__)
_QUERY = f"""
    SELECT env, data_label, mode, agent, model,
        count(*), count(*) {_RATED}, total(success) {_RATED},
        avg(reward) {_RATED}, avg(rounds) {_RATED}, avg(duration_s) {_RATED},
        avg(tokens_prompt + tokens_completion) {_RATED}, sum(cost),
        sum(model_s) / sum(rounds) FILTER (WHERE model_s IS NOT NULL),
        {_TOKENS}, {_COUNTS}
    FROM episodes
    WHERE :env IS NULL OR env = :env COLLATE NOCASE
    GROUP BY env, data_label, mode, agent, model
    ORDER BY env, model IS NULL, data_label, mode, agent, model
"""


def _result(values: tuple[Any, ...]) -> ResultRow:
    env, data_label, mode, agent, model, n, n_rated, n_success, *means = values
    score, rounds, duration_s, tokens, cost, latency_s, *sums = means
    successes = int(n_success)
    n_kinds = len(Tokens.__struct_fields__)
    summed, counts = sums[:n_kinds], sums[n_kinds:]
    return ResultRow(
        env=env,
        data_label=data_label,
        mode=mode,
        agent=agent,
        model=model,
        baseline=model is None,
        n=n,
        n_rated=n_rated,
        n_success=successes,
        outcomes={outcome.value: count for outcome, count in zip(Outcome, counts, strict=True) if count},
        success_rate=successes / n_rated if n_rated else None,
        success_interval=wilson_interval(successes, n_rated) if n_rated else None,
        score=_mean(score),
        avg_rounds=_mean(rounds),
        completion_time_sec=_mean(duration_s),
        token_count=_mean(tokens),
        tokens=Tokens(*summed),
        cost=_mean(cost),
        latency_s=_mean(latency_s),
    )


def _mean(value: float | None) -> float | None:
    return None if value is None else finite(value)
