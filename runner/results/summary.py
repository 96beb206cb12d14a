"""Results aggregated from the index, per environment, data, mode, agent and model."""

from __future__ import annotations

from typing import Any

import msgspec

from runner.results.statistics import wilson_interval
from runner.store.index import EpisodeIndex
from runner.store.safe_json import finite
from runner.types import UNRATED, Outcome, Tokens

_UNRATED_LIST = ", ".join(f"'{outcome}'" for outcome in sorted(UNRATED))

IS_RATED = f"outcome NOT IN ({_UNRATED_LIST}) AND NOT unscored"
"""SQL condition of the episodes that count in rates and means."""


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """Which episodes to aggregate; a field that is None restricts nothing.

    Attributes:
        env: name of the environment, ignoring case.
        batch: id of a batch or a battery.
        excluded_batch: id of a batch or a battery whose episodes are left out.
    """

    env: str | None = None
    agent: str | None = None
    model: str | None = None
    batch: str | None = None
    excluded_batch: str | None = None

    def condition(self) -> tuple[str, dict[str, object]]:
        """Return the SQL condition of the selection and its parameters."""
        given = {name: value for name, value in msgspec.structs.asdict(self).items() if value is not None}
        return " AND ".join(_CONDITIONS[name] for name in given) or "TRUE", given


_CONDITIONS = {
    "env": "env = :env COLLATE NOCASE",
    "agent": "agent = :agent",
    "model": "model = :model",
    "batch": ":batch IN (batch_id, battery_id)",
    "excluded_batch": "NOT (batch_id = :excluded_batch OR battery_id IS :excluded_batch)",
}


EVERYTHING = Selection()
"""All stored episodes."""


class ResultRow(msgspec.Struct, frozen=True, kw_only=True):
    """Aggregated results of one agent and model in one environment, with one data set and mode.

    Rates and means cover the rated episodes and are None if there is none.

    Attributes:
        baseline: whether no model was used; a baseline is not comparable with the rows of models.
        n: number of episodes.
        n_rated: number of episodes with an outcome outside ``UNRATED`` that are not unscored.
        n_unscored: number of episodes that their evaluation leaves unscored, because idle play can succeed.
        n_errors: number of episodes that ended with an error; they are not rated.
        success_interval: 95% Wilson score interval of ``success_rate``.
        score: mean reward.
        completion_time_sec: mean duration in seconds, pauses included.
        token_count: mean number of prompt and completion tokens.
        tokens: token sums over all episodes.
        cost: sum of the costs of all episodes; None if no episode has a cost.
        latency_s: mean duration of a model answer in seconds; None if no model answered.
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
    n_errors: int
    n_unscored: int = 0
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


def summarize_results(index: EpisodeIndex, selection: Selection = EVERYTHING) -> list[ResultRow]:
    """Return one row per environment, data, mode, agent and model; within an environment, baselines come last.

    Raises:
        StoreError: the index cannot be read, or has values that no episode has.
    """
    condition, parameters = selection.condition()
    rows = index.select(_QUERY.format(condition=condition), parameters)
    try:
        return [_result_row(values) for values in rows]
    except (ValueError, OverflowError) as exc:
        raise index.unusable(exc) from exc


_RATED = f"FILTER (WHERE {IS_RATED})"
_COUNTS = ", ".join(f"count(*) FILTER (WHERE outcome = '{outcome}')" for outcome in Outcome)
_TOKENS = ", ".join(f"CAST(total(tokens_{kind}) AS INTEGER)" for kind in Tokens.__struct_fields__)
_QUERY = f"""
    SELECT env, data_label, mode, agent, model,
        count(*), total(unscored), count(*) {_RATED}, total(success) {_RATED},
        avg(reward) {_RATED}, avg(rounds) {_RATED}, avg(duration_s) {_RATED},
        avg(tokens_prompt + tokens_completion) {_RATED}, sum(cost),
        sum(model_s) / sum(rounds) FILTER (WHERE model_s IS NOT NULL),
        {_TOKENS}, {_COUNTS}
    FROM episodes
    WHERE {{condition}}
    GROUP BY env, data_label, mode, agent, model
    ORDER BY env, model IS NULL, data_label, mode, agent, model
"""


def _result_row(values: tuple[Any, ...]) -> ResultRow:
    env, data_label, mode, agent, model, n, n_unscored, n_rated, n_success, *rest = values
    score, rounds, duration_s, tokens, cost, latency_s, *sums = rest
    successes = int(n_success)
    n_kinds = len(Tokens.__struct_fields__)
    token_sums, outcome_counts = sums[:n_kinds], dict(zip(Outcome, sums[n_kinds:], strict=True))
    row = ResultRow(
        env=env,
        data_label=data_label,
        mode=mode,
        agent=agent,
        model=model,
        baseline=model is None,
        n=n,
        n_rated=n_rated,
        n_success=successes,
        n_errors=outcome_counts[Outcome.ERROR],
        n_unscored=int(n_unscored),
        outcomes={outcome.value: count for outcome, count in outcome_counts.items() if count},
        success_rate=successes / n_rated if n_rated else None,
        success_interval=wilson_interval(successes, n_rated) if n_rated else None,
        score=_finite_or_none(score),
        avg_rounds=_finite_or_none(rounds),
        completion_time_sec=_finite_or_none(duration_s),
        token_count=_finite_or_none(tokens),
        tokens=Tokens(*token_sums),
        cost=_finite_or_none(cost),
        latency_s=_finite_or_none(latency_s),
    )
    return msgspec.convert(msgspec.structs.asdict(row), ResultRow)  # a column may hold values of any type


def _finite_or_none(value: float | None) -> float | None:
    return None if value is None else finite(value)
