"""Results aggregated from the index, per environment, player and rules, and histograms of rewards."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Final, Literal, Protocol, TypeAlias

import msgspec

from runner.errors import StoreError
from runner.results.statistics import wilson_interval
from runner.store.index_schema import TIME_COLUMNS
from runner.types import IMPORTED, MIX, UNKNOWN_OUTCOME, UNRATED, Outcome, Tokens, is_result_unknown
from runner.types.time_shares import Cause, TimeShares
from runner.util.safe_values import finite

_UNRATED_LIST = ", ".join(f"'{outcome}'" for outcome in sorted(UNRATED))

IS_RATED = f"outcome NOT IN ({_UNRATED_LIST}) AND NOT unscored"
"""SQL condition of the episodes that count in rates and means."""

MAX_LAST_RATES = 12
"""Number of batches whose success rates a row has."""
N_BINS = 20
MAX_LISTED = 5  # number of rewards that are listed as they are


class ResultSource(Protocol):
    """A table ``episodes`` with the columns of the index: the index itself, or rows in memory."""

    def select(
        self, query: str, parameters: tuple[object, ...] | Mapping[str, object] = ()
    ) -> list[tuple[Any, ...]]: ...

    def unusable(self, exc: Exception) -> StoreError: ...


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """Which episodes to aggregate; a field that is None restricts nothing.

    Attributes:
        model: a model that was requested, or that has answered.
        models: all models that answered, as ``join_models`` returns them.
        limits: as ``Limits.label`` returns them; "" for the usual ones.
        batches: JSON array of the ids of batches.
        has_model: whether the agent used a model; False for baselines, which ``model`` cannot select.
    """

    env: str | None = None
    agent: str | None = None
    model: str | None = None
    models: str | None = None
    requested: str | None = None
    batch: str | None = None
    batches: str | None = None
    excluded_batch: str | None = None
    data_label: str | None = None
    mode: str | None = None
    shape: str | None = None
    limits: str | None = None
    has_model: bool | None = None

    def condition(self) -> tuple[str, dict[str, object]]:
        given = {name: value for name, value in msgspec.structs.asdict(self).items() if value is not None}
        return " AND ".join(_CONDITIONS[name] for name in given) or "TRUE", given


def selection_of(row: ResultRow, within: Selection | None = None) -> Selection:
    """Return the selection of the episodes of a row of ``within``; it ignores the environment's case (``same_env``)."""
    return msgspec.structs.replace(
        within or Selection(batch=row.batch_id),
        env=row.env,
        agent=row.agent,
        models=row.model,
        has_model=row.model is not None,
        data_label=row.data_label,
        mode=row.mode,
        shape=row.shape,
        limits=row.limits,
    )


_CONDITIONS = {
    "env": "env = :env COLLATE NOCASE",
    "agent": "agent = :agent",
    "model": f"(model = :model OR instr('{MIX}' || models || '{MIX}', '{MIX}' || :model || '{MIX}') > 0)",
    "models": "models = :models",
    "requested": "model = :requested",
    "batch": ":batch IN (batch_id, battery_id)",
    "batches": "batch_id IN (SELECT value FROM json_each(:batches))",
    "data_label": "data_label = :data_label",
    "mode": "mode = :mode",
    "shape": "shape = :shape",
    "limits": "limits = :limits",
    "has_model": "(models IS NOT NULL) = :has_model",
    "excluded_batch": "NOT (batch_id = :excluded_batch OR battery_id IS :excluded_batch)",
}

EVERYTHING = Selection()

Score: TypeAlias = Literal["reward", "agentgym"]
"""Whose score and success count: the sum of the rewards with the environment's verdict, or ``AgentGymScore``."""

SUCCESS_COLUMNS: Final[Mapping[Score, tuple[str, str]]] = {
    "reward": ("success", "reward"),
    "agentgym": ("(agentgym_score IS iif(env = 'SciWorld' COLLATE NOCASE, 100.0, 1.0))", "agentgym_score"),
}
"""SQL of the success and of the score."""


class AgentGymMeans(msgspec.Struct, frozen=True):
    """Mean score and success rate over the rated episodes, see ``AgentGymScore``."""

    score: float | None
    success_rate: float | None


class ResultRow(msgspec.Struct, frozen=True, kw_only=True):
    """Aggregated results of one agent, its models, a shape of requests and limits in one environment and mode.

    Rates and means cover the rated episodes and are None if there is none. Where none is rated, the means of rewards,
    rounds, durations and tokens cover the episodes of unknown outcome.

    Attributes:
        model: the models that answered, see ``join_models``: no row of the first one has answers of a fallback.
        shape: what of the usual shape of requests the server refused, see ``join_shapes``; "" for nothing.
        limits: the limits of the episodes that differ from the usual ones, see ``Limits.label``.
        baseline: whether no model was used; a baseline is not comparable with the rows of models. An import that names
            no model is none.
        n_rated: number of episodes with an outcome outside ``UNRATED`` that are not unscored.
        n_unscored: number of episodes that their evaluation leaves unscored, because idle play can succeed.
        outcomes: number of episodes by outcome, or ``UNKNOWN_OUTCOME``.
        n_errors: number of episodes that ended with an error; they are not rated.
        batch_id: the batch, where each batch has rows of its own; else None.
        last_rates: success rates of the newest batches with rated episodes, the oldest first.
        completion_time_sec: mean duration in seconds, pauses included.
        token_count: mean number of prompt and completion tokens.
        cost: sum of the costs of all episodes.
        latency_s: mean duration of a model answer in seconds.
        energy_j: mean energy of the GPUs per measured episode, in joules.
        gpu_s: mean seconds during which GPUs were busy, per measured episode.
        energy_shared: whether both are estimates, because episodes shared the GPUs.
        time_shares: share of the steps' time by what it was spent on, from 0 to 1: ``queue``, ``prefill``, ``decode``,
            ``model`` (answers that are not split), ``environment``, ``endpoint`` (failed requests) and ``own``; None if
            no step has a split.
        times_about: whether the shares of the model's phases are estimates from its server's metrics.
    """

    env: str
    data_label: str
    mode: str
    agent: str
    model: str | None
    shape: str = ""
    limits: str = ""
    baseline: bool
    n: int
    n_rated: int
    n_success: int
    n_errors: int
    n_unscored: int = 0
    outcomes: dict[str, int]
    success_rate: float | None
    success_interval: tuple[float, float] | None
    batch_id: str | None = None
    last_rates: list[float] = []
    score: float | None
    agentgym: AgentGymMeans | None = None
    avg_rounds: float | None
    completion_time_sec: float | None
    token_count: float | None
    tokens: Tokens
    cost: float | None
    latency_s: float | None
    energy_j: float | None = None
    gpu_s: float | None = None
    energy_shared: bool = False
    time_shares: dict[Cause, float] | None = None
    times_about: bool = False

    @property
    def time_text(self) -> str:
        return TimeShares(seconds=self.time_shares or {}, about=self.times_about).text()


def summarize_results(
    source: ResultSource, selection: Selection = EVERYTHING, *, by_batch: bool = False, score: Score = "reward"
) -> list[ResultRow]:
    """Return one row per environment, data, mode, agent, models, shape and limits; baselines come last in each.

    With ``by_batch``, each batch has rows of its own, the newest batch first within its environment and player.
    ``score`` is whose score and success the rows have; ``agentgym`` of a row is always there. Raises ``StoreError`` if
    the index cannot be read, or has values that no episode has.
    """
    condition, parameters = selection.condition()
    success, reward = SUCCESS_COLUMNS[score]
    found = source.select(_QUERY.format(condition=condition, success=success, reward=reward), parameters)
    groups: defaultdict[tuple[str | bool, ...], list[_Group]] = defaultdict(list)
    try:
        for values in found:
            group = msgspec.convert((*values[:_N_VALUES], values[_N_VALUES:]), _Group)
            player = (group.agent, group.model or "", group.shape, group.limits)
            key = (group.env, group.baseline, group.data_label, group.mode, *player)
            groups[*key, group.batch_id if by_batch else ""].append(group)
        newest_first = sorted(groups, key=lambda key: key[-1], reverse=True)
        return [_result_row(groups[key], by_batch=by_batch) for key in sorted(newest_first, key=lambda key: key[:-1])]
    except (ValueError, OverflowError) as exc:
        raise source.unusable(exc) from exc


class _Group(msgspec.Struct, frozen=True, array_like=True):
    """Sums over the episodes of a batch, environment, data, mode, agent, models, shape and limits that count alike."""

    batch_id: str
    env: str
    data_label: str
    mode: str
    agent: str
    model: str | None
    shape: str
    limits: str
    outcome: Outcome
    unscored: Annotated[int, msgspec.Meta(ge=0, le=1)]
    transport: str
    n: int
    n_success: float
    reward: float
    n_rewards: int
    agentgym_success: float
    agentgym_score: float
    n_agentgym: int
    rounds: float
    duration_s: float
    prompt: int
    completion: int
    reasoning: int
    cached: int
    cost: float | None
    model_s: float | None
    model_rounds: float
    energy_j: float | None
    n_energy: int
    gpu_s: float | None
    n_gpu: int
    n_shared: float
    n_about: float
    times_s: tuple[float | None, ...]

    @property
    def baseline(self) -> bool:
        return self.model is None and self.transport != IMPORTED

    @property
    def rated(self) -> bool:
        return self.outcome not in UNRATED and not self.unscored

    @property
    def unknown(self) -> bool:
        return is_result_unknown(self.transport, self.outcome, unscored=bool(self.unscored))


_N_VALUES = len(_Group.__struct_fields__) - 1
_SUMS = ", ".join(
    [
        "count(*), total({success}), total({reward}), count({reward})",
        "total({0}), total({1}), count({1})".format(*SUCCESS_COLUMNS["agentgym"]),
        "total(rounds), total(duration_s)",
        *(f"CAST(total(tokens_{kind}) AS INTEGER)" for kind in Tokens.__struct_fields__),
        "sum(cost), sum(model_s), total(rounds) FILTER (WHERE model_s IS NOT NULL)",
        "sum(energy_j), count(energy_j), sum(gpu_s), count(gpu_s), total(energy_shared), total(times_about)",
        *(f"sum({column})" for column in TIME_COLUMNS.values()),
    ]
)
_GROUPED = "batch_id, env, data_label, mode, agent, models, shape, limits, outcome, unscored, transport"
_QUERY = f"SELECT {_GROUPED}, {_SUMS} FROM episodes WHERE {{condition}} GROUP BY {_GROUPED}"
"""One pass over all rows; the few groups are added here, because conditions in SQL would take longer."""


def _result_row(groups: Sequence[_Group], *, by_batch: bool) -> ResultRow:
    first, rated = groups[0], [group for group in groups if group.rated]
    n_rated, n_success = sum(group.n for group in rated), int(sum(group.n_success for group in rated))
    averaged = rated or [group for group in groups if group.unknown]
    outcomes: Counter[str] = Counter()
    for group in groups:
        outcomes[UNKNOWN_OUTCOME if group.unknown else group.outcome] += group.n

    def mean(values: Iterable[float]) -> float | None:
        return _quotient(sum(values), sum(group.n for group in averaged))

    row = ResultRow(
        env=first.env,
        data_label=first.data_label,
        mode=first.mode,
        agent=first.agent,
        model=first.model,
        shape=first.shape,
        limits=first.limits,
        baseline=first.baseline,
        batch_id=first.batch_id if by_batch else None,
        n=sum(group.n for group in groups),
        n_rated=n_rated,
        n_success=n_success,
        n_errors=outcomes[Outcome.ERROR],
        n_unscored=sum(group.n for group in groups if group.unscored and not group.unknown),
        outcomes={outcome: outcomes[outcome] for outcome in (*map(str, Outcome), UNKNOWN_OUTCOME) if outcomes[outcome]},
        success_rate=n_success / n_rated if n_rated else None,
        success_interval=wilson_interval(n_success, n_rated) if n_rated else None,
        last_rates=_last_rates(rated),
        score=_quotient(sum(group.reward for group in averaged), sum(group.n_rewards for group in averaged)),
        agentgym=_agentgym_means(averaged, n_rated),
        avg_rounds=mean(group.rounds for group in averaged),
        completion_time_sec=mean(group.duration_s for group in averaged),
        token_count=mean(float(group.prompt + group.completion) for group in averaged),
        tokens=Tokens(*(sum(getattr(group, kind) for group in groups) for kind in Tokens.__struct_fields__)),
        cost=_sum([group.cost for group in groups]),
        latency_s=_quotient(_sum([group.model_s for group in groups]), sum(group.model_rounds for group in groups)),
        energy_j=_quotient(_sum([group.energy_j for group in groups]), sum(group.n_energy for group in groups)),
        gpu_s=_quotient(_sum([group.gpu_s for group in groups]), sum(group.n_gpu for group in groups)),
        energy_shared=any(group.n_shared for group in groups),
        time_shares=_time_shares(groups),
        times_about=any(group.n_about for group in groups),
    )
    return msgspec.convert(msgspec.structs.asdict(row), ResultRow)  # a column may hold values of any type


def _agentgym_means(averaged: Sequence[_Group], n_rated: int) -> AgentGymMeans | None:
    if not (n := sum(group.n_agentgym for group in averaged)):
        return None
    rate = _quotient(sum(group.agentgym_success for group in averaged if group.rated), n_rated)
    return AgentGymMeans(_quotient(sum(group.agentgym_score for group in averaged), n), rate)


def _last_rates(rated: Sequence[_Group]) -> list[float]:
    """Return those of the newest ``MAX_LAST_RATES`` batches, the oldest first."""
    counts: dict[str, tuple[int, float]] = {}
    for group in rated:
        n, n_success = counts.get(group.batch_id, (0, 0.0))
        counts[group.batch_id] = n + group.n, n_success + group.n_success
    return [counts[batch][1] / counts[batch][0] for batch in sorted(counts)[-MAX_LAST_RATES:]]


def _time_shares(groups: Sequence[_Group]) -> dict[Cause, float] | None:
    seconds = {cause: _sum([group.times_s[place] for group in groups]) for place, cause in enumerate(TIME_COLUMNS)}
    known = {cause: value for cause, value in seconds.items() if value is not None}
    total = finite(sum(known.values()))
    return {cause: value / total for cause, value in known.items()} if total > 0 else None


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return finite(sum(known)) if known else None


def _quotient(value: float | None, by: float) -> float | None:
    return finite(value / by) if value is not None and by else None


_BIN = "max(0, min(CAST((reward / 2 - :low / 2) / (:high / 2 - :low / 2) * :n AS INTEGER), :n - 1))"
"""Number of a reward's bin; the rewards are halved because their difference may overflow."""


class Histogram(msgspec.Struct, frozen=True):
    """Numbers of episodes by reward, in bins of equal width from ``low`` to ``high``.

    The range includes all rewards, 0 and 1. A reward on the border of two bins is in the upper one.
    """

    low: float
    high: float
    counts: list[int]
    rewards: list[float] = []
    """All of them, the newest last, if there are at most ``MAX_LISTED``."""


def reward_histogram(source: ResultSource, selection: Selection) -> Histogram | None:
    """Return the histogram of a selection; None if no rated episode of it has a reward."""
    condition, parameters = selection.condition()
    rated = f"FROM episodes WHERE {condition} AND {IS_RATED} AND reward IS NOT NULL"
    ((least, most),) = source.select(f"SELECT min(reward), max(reward) {rated}", parameters)
    if least is None:
        return None
    counts, rewards = [0] * N_BINS, list[float]()
    try:
        low, high = min(_reward(least), 0.0), max(_reward(most), 1.0)
        query = f"SELECT {_BIN} AS bin, count(*) {rated} GROUP BY bin"
        for number, count in source.select(query, {**parameters, "low": low, "high": high, "n": N_BINS}):
            counts[msgspec.convert(number, int)] = count
        if sum(counts) <= MAX_LISTED:
            listed = source.select(f"SELECT reward {rated} ORDER BY episode_id", parameters)
            rewards = [_reward(each) for (each,) in listed]
    except (ValueError, OverflowError) as exc:
        raise source.unusable(exc) from exc
    return Histogram(low, high, counts, rewards)


def _reward(value: object) -> float:
    return finite(msgspec.convert(value, float))
