"""Runs: batteries, batches and episodes in a tree, the batches of one run in its summary, and the lines around them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from agentgym_tui.presenters.cells import (
    NO_VALUE,
    RUN_ENV_WIDTH,
    Cell,
    Column,
    Field,
    Line,
    Listing,
    TextSource,
    Tone,
    cost_cell,
    cost_part,
    count_cell,
    display_width,
    environment_text,
    join_parts,
    match_cells,
    tokens_part,
)
from agentgym_tui.presenters.number_format import (
    UNKNOWN,
    format_count,
    format_duration,
    format_interval,
    format_rate,
    format_reward,
    format_share,
    format_time_left,
    pluralize,
)
from agentgym_tui.presenters.status_line import outcome_cell, time_left
from agentgym_tui.safe_text import masked_line, player_text
from agentgym_tui.state.batches import ACTIVE, batch_currency, sum_costs
from agentgym_tui.state.normalize import as_aware
from runner.results.statistics import wilson_interval
from runner.types import Tokens, WorkerCounts

if TYPE_CHECKING:
    from agentgym_tui.state.batches import BatchRun
    from agentgym_tui.state.episode import Episode
    from agentgym_tui.state.run_store import RunStore
    from agentgym_tui.state.run_tree import RunRow, RunTree

_STATE_WIDTH: Final = 13

RUN_COLUMNS: Final = (
    Column("run", None, min_width=20),
    Column("state", _STATE_WIDTH, most=44),
    Column("done", 9, right=True),
    Column("success", 7, right=True, rank=1),
    Column("errors", 6, right=True, rank=2),
    Column("time left", 9, right=True),
    Column("agent", 18, rank=3, most=40),
    Column("ep/min", 6, right=True, rank=4),
    Column("tokens", 6, right=True, rank=5),
    Column("cost", 14, right=True, rank=6),
    Column("workers", 18, rank=7),
    Column("id", 26, rank=8),
)

STATES: Final[dict[str, tuple[str, Tone]]] = {
    "running": ("▶ running", "accent"),
    "paused": ("‖ paused", "warn"),
    "queued": ("… queued", "plain"),
    "interrupted": ("! interrupted", "warn"),
    "completed": ("✓ completed", "good"),
    "cancelled": ("○ cancelled", "dim"),
}
HELD: Final = Cell("‖ queued", "warn")
"""State of a waiting batch that was paused, so that it does not start."""


class RunRows(TextSource):
    def __init__(self, tree: RunTree, store: RunStore) -> None:
        self._tree, self._store = tree, store

    def __len__(self) -> int:
        return len(self._tree.rows)

    def key(self, index: int) -> str:
        return self._tree.rows[index].key

    def row_of(self, key: str) -> int | None:
        return self._tree.place_of(key)

    def line(self, index: int, width: int) -> Line:
        row = self._tree.rows[index]
        if row.episode is not None:
            return _episode_cells(row, row.episode, self._store.currency)
        batches, (tokens, cost) = row.batches, _usage(self._store, row)
        n_errors, (n_success, n_rated) = sum(each.n_errors for each in batches), _rated(batches)
        rate = format_share(n_success, n_rated) if n_rated else UNKNOWN
        n_planned = sum(max(each.n_planned, each.n_done) for each in batches)
        return [
            Cell(_name(row, self._store), "head" if row.depth == 0 else "plain"),
            state_cell(row),
            Cell(f"{_n_done(batches):,}/{n_planned:,}" if n_planned else f"{_n_done(batches):,}/{UNKNOWN}"),
            Cell(rate),
            count_cell(n_errors, "bad"),
            Cell(_time_left(row, self._store.now())),
            Cell(_agent(row)),
            _rate_cell(batches),
            count_cell(tokens),
            cost_cell(cost, batch_currency(batches, self._store.currency)),
            _workers(row),
            Cell(row.run_id, "dim"),
        ]


def state_cell(row: RunRow) -> Cell:
    status = row.status
    text, tone = STATES.get(status, (status, "plain"))
    if status == "queued" and all(batch.is_held for batch in row.batches if batch.status == "queued"):
        text, tone = HELD
    n_cancelled = sum(batch.status == "cancelled" for batch in row.batches)
    if status == "cancelled" and n_cancelled < len(row.batches):
        text, tone = f"○ {n_cancelled} cancelled", "warn"
    positions = [batch.position for batch in row.batches if batch.position is not None]
    if status == "queued" and positions:
        text = f"{text} #{min(positions) + 1}"
    return Cell(text, tone)


def runs_summary(store: RunStore, tree: RunTree, key: str, width: int) -> Line:
    counts = Counter(batch.status for batch in store.batches.values())
    named = (("running", "running"), ("paused", "paused"), ("queued", "waiting"), ("interrupted", "interrupted"))
    n_batches = pluralize(len(store.batches), "batch", "batches")
    n_runs = len({batch.battery_id or batch.batch_id for batch in store.batches.values()})
    listed = n_batches if n_runs == len(store.batches) else f"{pluralize(n_runs, 'run')} of {n_batches}"
    parts: list[Line] = [[Cell("Runs", "head")], [Cell(listed)]]
    parts.append(match_cells(len(tree.batches.shown), tree.batches.query_text, key, width))
    n_unlisted = max(store.batch_registry.n_waiting - counts["queued"], 0)
    counts["queued"] += n_unlisted
    parts += [[Cell(f"{counts[status]:,} {name}", STATES[status][1])] for status, name in named if counts[status]]
    parts += [[Cell(f"the last {n_unlisted:,} of them are not listed", "dim")]] if n_unlisted else []
    if store.n_unlisted:
        older = pluralize(store.n_unlisted, "older batch", "older batches")
        parts.append([Cell(f"{older} not listed; Episodes has theirs", "dim")])
    return join_parts(parts, width)


def run_detail(row: RunRow | None, store: RunStore, width: int) -> Line:
    """Return why a run waits or was interrupted, else what the columns have no room for."""
    return [] if row is None else _problem(row, store) or join_parts(list(_details(row, store)), width)


def _details(row: RunRow, store: RunStore) -> Iterator[Line]:
    if (episode := row.episode) is not None:
        yield [Cell(player_text(episode.agent, episode.models) or UNKNOWN)]
        yield [Cell(f"reward {format_reward(episode.reward)}")]
        yield [Cell(episode.episode_id, "dim")]
        return
    (tokens, cost), rate, workers = _usage(store, row), _rate_cell(row.batches), _workers(row)
    yield _states(row.batches) if len(row.batches) > 1 else []
    yield [Cell(_agent(row))]
    if len(row.batches) == 1 and (reward := row.batches[0].mean_reward) is not None:
        yield [Cell(f"mean reward {format_reward(reward)}")]
    yield [Cell(f"{rate.text} episodes/min")] if rate.text != UNKNOWN else []
    yield tokens_part(tokens)
    yield cost_part(cost, batch_currency(row.batches, store.currency))
    yield [workers] if workers.text != UNKNOWN else []
    yield [Cell(row.run_id, "dim")]


def _problem(row: RunRow, store: RunStore) -> Line:
    for batch in row.batches:
        if batch.is_held and batch.status == "queued":
            return [Cell("paused: it does not start before it is resumed", "warn")]
        if batch.interruption:
            return [Cell(f"interrupted: {masked_line(batch.interruption, 300)}", "warn")]
        if batch.waiting_for:
            return [Cell(f"waits: {masked_line(batch.waiting_for, 300)}", "warn")]
        paused = (each for each in store.batches.values() if each.node == batch.node and each.status == "paused")
        if batch.status == "queued" and any(paused):
            return [Cell("waits for a paused run: resume or cancel that one", "warn")]
    return []


def _time_left(row: RunRow, now: float) -> str:
    active = [left for batch in row.batches if (left := time_left(batch, now)) is not None]
    if not active:
        return UNKNOWN
    shown = format_time_left(active[0])
    waits = any(batch.status == "queued" for batch in row.batches)
    return f"> {shown}" if waits else shown


def episodes_per_minute(batch: BatchRun) -> float | None:
    """Return the rate of a batch at its last report, or up to its end."""
    is_active = batch.status in ACTIVE
    n, seconds = (batch.n_planned - batch.n_done, batch.eta_s) if is_active else (batch.n_done, batch.duration_s)
    return 60 * n / seconds if n > 0 and seconds else None


def _rate_cell(batches: Sequence[BatchRun]) -> Cell:
    shown = [batch for batch in batches if batch.status == "running"] or (batches if len(batches) == 1 else [])
    rates = [rate for batch in shown if (rate := episodes_per_minute(batch)) is not None]
    return Cell(format_rate(sum(rates))) if rates else NO_VALUE


def _name(row: RunRow, store: RunStore) -> str:
    first = row.batches[0]
    name = environment_text(first.env, RUN_ENV_WIDTH) if row.battery_id is None else _run_text(row.batches)
    node = f" · {first.node}" if row.depth == 0 and first.node and len(store.nodes) > 1 else ""
    return f"{'  ' * row.depth}{'▾' if row.is_open else '▸'} {name}{node}"


def _run_text(batches: Sequence[BatchRun]) -> str:
    env, n = environment_text(batches[0].env, RUN_ENV_WIDTH), len(batches)
    return f"{env}, {pluralize(n, 'part')}" if _is_extended(batches) else f"battery of {n}"


def _is_extended(batches: Sequence[BatchRun]) -> bool:
    """Return whether these are a batch and what extends it, whose battery has its id."""
    return bool({each.battery_id for each in batches} & {each.batch_id for each in batches})


def _rated(batches: Sequence[BatchRun]) -> tuple[int, int]:
    """Return successes and rated episodes; none for a battery, as environments are never mixed in one rate."""
    counted = batches if len(batches) == 1 or _is_extended(batches) else ()
    return sum(each.n_success for each in counted), sum(each.n_rated or 0 for each in counted)


def _episode_cells(row: RunRow, episode: Episode, currency: str) -> Line:
    attempt = f", attempt {format_count(episode.attempt + 1)}" if episode.attempt else ""
    name = f"{'  ' * row.depth}· task {format_count(episode.task_index)}{attempt}"

    def shorter(width: int) -> str:
        text = outcome_cell(episode, width).text
        return "… at limit" if episode.outcome == "truncated" and display_width(text) > width else text

    outcome = Cell(*outcome_cell(episode)).or_shorter(shorter)
    return [
        Cell(name),
        outcome,
        Cell(pluralize(episode.rounds, "step")),
        *[NO_VALUE] * 3,
        Cell(player_text(episode.agent, episode.models) or UNKNOWN),
        NO_VALUE,
        count_cell(episode.tokens.total),
        cost_cell(episode.cost, episode.currency or currency),
        Cell(episode.worker.id if episode.worker else UNKNOWN, "dim"),
        Cell(episode.episode_id, "dim"),
    ]


def _agent(row: RunRow) -> str:
    names = dict.fromkeys((batch.agent, batch.models) for batch in row.batches)
    if len(names) > 1:
        return f"{len(names)} agents or models"
    return player_text(*next(iter(names))) or UNKNOWN


def _usage(store: RunStore, row: RunRow) -> tuple[int, float | None]:
    usages = [store.usage_of(batch) if batch.status in ACTIVE else (batch.tokens, batch.cost) for batch in row.batches]
    return sum(tokens.total for tokens, _ in usages if tokens), sum_costs(cost for _, cost in usages)


def _workers(row: RunRow) -> Cell:
    active = [batch.workers for batch in row.batches if batch.workers and batch.status in ACTIVE]
    if not active:
        return NO_VALUE
    n, starting, lost = (sum(counts) for counts in zip(*((w.n, w.starting, w.lost) for w in active), strict=True))
    return Cell(WorkerCounts(n=n, starting=starting, lost=lost).text, "warn" if lost else "plain")


# fmt: off
def summary_listing(store: RunStore) -> Listing[BatchRun]:
    """Return the listing of the batches of a run: environments, agents and models are never mixed."""
    return Listing(lambda batch: batch.batch_id, lambda batch: batch.env, [
        Field("environment", None, min_width=14,
              cell=lambda batch: Cell(environment_text(batch.env, RUN_ENV_WIDTH), "head")),
        Field("agent", 12, lambda batch: batch.agent),
        Field("episodes", 9, lambda batch: f"{batch.n_done:,}/{max(batch.n_planned, batch.n_done):,}", right=True),
        Field("success", 7, lambda batch: format_share(batch.n_success, batch.n_rated), right=True),
        Field("95% CI", 9, lambda batch: format_interval(success_interval(batch.n_success, batch.n_rated)),
              right=True, tone="dim"),
        Field("errors", 6, cell=lambda batch: count_cell(batch.n_errors, "bad"), right=True),
        Field("reward", 7, lambda batch: format_reward(batch.mean_reward), right=True, rank=1),
        Field("model", 16, rank=2,
              cell=lambda batch: Cell(player_text(None, batch.models)) if batch.models else NO_VALUE),
        Field("duration", 8, lambda batch: format_duration(batch.duration_s), right=True, rank=3),
        Field("cost", 14, right=True, rank=4,
              cell=lambda batch: cost_cell(store.usage_of(batch)[1], batch_currency([batch], store.currency))),
        Field("tokens", 6, cell=lambda batch: count_cell(store.usage_of(batch)[0].total), right=True, rank=5),
        Field("state", 13, cell=lambda batch: Cell(*STATES.get(batch.status, (batch.status, "plain"))), rank=6),
    ])
# fmt: on


def success_interval(n_success: int, n_rated: int) -> tuple[float, float] | None:
    return wilson_interval(min(n_success, n_rated), n_rated) if n_rated > 0 else None


def summary_heading(batches: Sequence[BatchRun], store: RunStore, width: int) -> Line:
    return join_parts([[Cell("Summary", "head")], *_total_parts(batches, store)], width)


def ended_line(store: RunStore, key: str, width: int) -> Line:
    if not (batches := store.run(store.newest_ended_run())):
        return []
    hint: Line = [Cell(f"{key} shows the summary", "accent")]
    first, *more = _total_parts(batches, store)
    return join_parts([first, hint, *more], width)


def ended_run_text(batches: Sequence[BatchRun], key: str) -> str:
    parts = [f"{_run_text(batches)} ended: {_n_done(batches):,} episodes"] if len(batches) > 1 else []
    if parts and (n_cancelled := sum(batch.status == "cancelled" for batch in batches)):
        parts.append(f"{n_cancelled} of {len(batches)} cancelled")
    if parts and (n_errors := sum(batch.n_errors for batch in batches)):
        parts.append(pluralize(n_errors, "error"))
    return ", ".join([*parts, f"{key} shows the summary"])


def _total_parts(batches: Sequence[BatchRun], store: RunStore) -> Iterator[Line]:
    name = environment_text(batches[0].env, RUN_ENV_WIDTH) if batches else UNKNOWN
    yield [Cell(f"{_run_text(batches)}: " if len(batches) > 1 else f"{name} ", "head"), *_states(batches)]
    yield [Cell(pluralize(_n_done(batches), "episode"))]
    n_success, n_rated = _rated(batches)
    if n_rated:
        interval = format_interval(success_interval(n_success, n_rated))
        yield [Cell(f"success {format_share(n_success, n_rated)} ({interval})")]
    if n_errors := sum(batch.n_errors for batch in batches):
        yield [Cell(pluralize(n_errors, "error"), "bad")]
    if (seconds := _duration_s(batches)) is not None:
        yield [Cell(format_duration(seconds))]
    usages = [store.usage_of(batch) for batch in batches]
    yield tokens_part(sum((tokens for tokens, _ in usages), Tokens()).total)
    yield cost_part(sum_costs(cost for _, cost in usages), batch_currency(batches, store.currency))


def _states(batches: Sequence[BatchRun]) -> Line:
    counts = Counter(batch.status for batch in batches)
    return [
        Cell(
            ("", ", ")[place > 0] + (f"{n} {status}" if len(counts) > 1 else status),
            STATES.get(status, (UNKNOWN, "plain"))[1],
        )
        for place, (status, n) in enumerate(counts.items())
    ]


def _n_done(batches: Sequence[BatchRun]) -> int:
    return sum(batch.n_done for batch in batches)


def _duration_s(batches: Sequence[BatchRun]) -> float | None:
    """Return the seconds from the first start to the last end; None while a batch runs."""
    starts = [as_aware(batch.started_at) for batch in batches if batch.started_at is not None]
    ends = [as_aware(batch.ended_at) for batch in batches if batch.ended_at is not None]
    if not starts or len(ends) < len(batches):
        return None
    return max((max(ends) - min(starts)).total_seconds(), 0.0)
