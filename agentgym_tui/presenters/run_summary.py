"""Summary of a run, a battery or a batch: one row per environment, agent and model, the line above, and the toast."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from agentgym_tui.presenters.cells import (
    NO_VALUE,
    Cell,
    Column,
    Line,
    TextSource,
    cost_cell,
    cost_part,
    count_cell,
    join_parts,
    score_cells,
    tokens_part,
)
from agentgym_tui.presenters.number_format import (
    UNKNOWN,
    format_duration,
    format_interval,
    format_share,
    pluralize,
)
from agentgym_tui.presenters.run_rows import STATES
from agentgym_tui.presenters.text_width import RUN_ENV_WIDTH, environment_text
from agentgym_tui.state.batches import batch_currency
from agentgym_tui.state.normalize import as_aware
from runner.results.statistics import wilson_interval
from runner.types import Tokens

if TYPE_CHECKING:
    from agentgym_tui.state.batches import BatchRun
    from agentgym_tui.state.run_store import RunStore

SUMMARY_COLUMNS: Final = (
    Column("environment", None, min_width=14),
    Column("agent", 12),
    Column("episodes", 9, right=True),
    Column("success", 7, right=True),
    Column("interval", 9, right=True),
    Column("errors", 6, right=True),
    Column("reward", 7, right=True, rank=1),
    Column("model", 16, rank=2),
    Column("duration", 8, right=True, rank=3),
    Column("cost", 14, right=True, rank=4),
    Column("tokens", 6, right=True, rank=5),
    Column("state", 13, rank=6),
)


class SummaryRows(TextSource):
    """Rows of ``SUMMARY_COLUMNS`` over the batches of a run: environments, agents and models are never mixed.

    Args:
        store: the run state.
        run_id: id of the battery or batch.
    """

    def __init__(self, store: RunStore, run_id: str) -> None:
        self._store, self._run_id = store, run_id
        self.batches: Sequence[BatchRun] = ()
        self.update()

    def update(self) -> None:
        """Take the batches from the store."""
        self.batches = self._store.run(self._run_id)

    def __len__(self) -> int:
        return len(self.batches)

    def key(self, index: int) -> str:
        return self.batches[index].batch_id

    def get(self, key: str) -> BatchRun | None:
        """Return the batch with this id; None if there is none."""
        return next((batch for batch in self.batches if batch.batch_id == key), None)

    def line(self, index: int, width: int) -> Line:
        batch = self.batches[index]
        tokens, cost = self._store.usage_of(batch)
        rate = batch.n_success / batch.n_rated if batch.n_rated > 0 else None
        state, tone = STATES.get(batch.status, (batch.status, "plain"))
        return [
            Cell(environment_text(batch.env, RUN_ENV_WIDTH), "head"),
            Cell(batch.agent or UNKNOWN),
            Cell(f"{batch.n_done:,}/{max(batch.n_planned, batch.n_done):,}"),
            *score_cells(rate, success_interval(batch.n_success, batch.n_rated), batch.n_errors, batch.mean_reward),
            Cell(batch.models) if batch.models else NO_VALUE,
            Cell(format_duration(batch.duration_s)),
            cost_cell(cost, batch_currency([batch], self._store.currency)),
            count_cell(tokens.total),
            Cell(state, tone),
        ]


def success_interval(n_success: int, n_rated: int) -> tuple[float, float] | None:
    """Return the 95% interval of a success rate; None without a scored episode."""
    return wilson_interval(min(n_success, n_rated), n_rated) if n_rated > 0 else None


def summary_heading(batches: Sequence[BatchRun], store: RunStore, width: int) -> Line:
    """Describe the whole run: what ended, errors apart, duration, tokens and cost."""
    return join_parts([[Cell("Summary", "head")], *_total_parts(batches, store)], width)


def ended_line(store: RunStore, key: str, width: int) -> Line:
    """Describe the run that ended last, and name the key that shows its summary; an empty line if there is none."""
    if not (batches := store.run(store.newest_ended_run())):
        return []
    hint: Line = [Cell(f"{key} shows the summary", "accent")]
    first, *more = _total_parts(batches, store)
    return join_parts([first, hint, *more], width)


def ended_run_text(batches: Sequence[BatchRun], key: str) -> str:
    """Return the end of a run in one line, and the key that shows its summary."""
    hint = f"{key} shows the summary"
    if len(batches) < 2:
        return hint
    counts = [f"battery of {len(batches)} ended: {_n_done(batches):,} episodes"]
    n_errors = sum(batch.n_errors for batch in batches)
    return ", ".join([*counts, *([pluralize(n_errors, "error")] if n_errors else []), hint])


def _total_parts(batches: Sequence[BatchRun], store: RunStore) -> Iterator[Line]:
    yield [Cell(_title(batches), "head"), *_states(batches)]
    yield [Cell(pluralize(_n_done(batches), "episode"))]
    if len(batches) == 1 and (rated := batches[0].n_rated):
        n_success = batches[0].n_success
        interval = format_interval(success_interval(n_success, rated))
        yield [Cell(f"success {format_share(n_success, rated)} ({interval})")]
    if n_errors := sum(batch.n_errors for batch in batches):
        yield [Cell(pluralize(n_errors, "error"), "bad")]
    if (seconds := _duration_s(batches)) is not None:
        yield [Cell(format_duration(seconds))]
    usages = [store.usage_of(batch) for batch in batches]
    costs = [cost for _, cost in usages if cost is not None]
    yield tokens_part(sum((tokens for tokens, _ in usages), Tokens()).total)
    yield cost_part(sum(costs) if costs else None, batch_currency(batches, store.currency))


def _title(batches: Sequence[BatchRun]) -> str:
    if len(batches) > 1:
        return f"battery of {len(batches)}:"
    return environment_text(batches[0].env, RUN_ENV_WIDTH) if batches else UNKNOWN


def _states(batches: Sequence[BatchRun]) -> Iterator[Cell]:
    """Yield how many batches have each status; only the status if all have the same."""
    statuses = [batch.status for batch in batches]
    for status in dict.fromkeys(statuses):
        count = "" if len(set(statuses)) == 1 else f" {statuses.count(status)}"
        text = f"{count} {status}"
        yield Cell(text, STATES.get(status, (UNKNOWN, "plain"))[1])


def _n_done(batches: Sequence[BatchRun]) -> int:
    return sum(batch.n_done for batch in batches)


def _duration_s(batches: Sequence[BatchRun]) -> float | None:
    """Return the seconds from the first start to the last end; None while a batch runs, or if they are not known."""
    starts = [as_aware(batch.started_at) for batch in batches if batch.started_at is not None]
    ends = [as_aware(batch.ended_at) for batch in batches if batch.ended_at is not None]
    if not starts or len(ends) < len(batches):
        return None
    return max((max(ends) - min(starts)).total_seconds(), 0.0)
