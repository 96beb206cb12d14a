"""Batches as the stored episodes show them: sums of those of a node, and those that ran without one."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from agentgym_tui.state.batches import BatchTotals
from runner.events.control import BatchState
from runner.types import Tokens, split_models

if TYPE_CHECKING:
    from runner.results.summary import ResultSource
    from runner.store import EpisodeStore

MAX_TIMED: Final = 50
"""Number of the newest batches whose times are read; these are in no index."""
MAX_UNLISTED: Final = 50
"""Number of the newest stored batches among which those are found that no node lists."""


def read_batch_totals(source: ResultSource, batch_ids: Sequence[str]) -> list[BatchTotals]:
    """Return the sums of the batches, the newest batch last in ``batch_ids``; raises ``StoreError``."""
    from runner.results.summary import IS_RATED

    kinds = ", ".join(f"CAST(total(tokens_{kind}) AS INTEGER)" for kind in Tokens.__struct_fields__)
    columns = (
        f"count(*) FILTER (WHERE {IS_RATED}), count(*) FILTER (WHERE {IS_RATED} AND success), "
        f"count(*) FILTER (WHERE outcome = 'error'), avg(reward) FILTER (WHERE {IS_RATED}), sum(cost), "
        f"json_group_array(DISTINCT models), {kinds}"
    )
    times = {row[0]: row[1:] for row in _grouped(source, "min(started_at), max(ended_at)", batch_ids[-MAX_TIMED:])}
    totals: list[BatchTotals] = []
    for batch_id, n_rated, n_success, n_errors, reward, cost, models, *tokens in _grouped(source, columns, batch_ids):
        started_at, ended_at = map(_time, times.get(batch_id, (None, None)))
        counts = (n_rated, n_success, n_errors)
        answered = [name for each in json.loads(models) for name in split_models(each)]
        totals.append(BatchTotals(batch_id, *counts, reward, Tokens(*tokens), cost, answered, started_at, ended_at))
    return totals


def _grouped(source: ResultSource, columns: str, batch_ids: Sequence[str]) -> list[tuple[Any, ...]]:
    condition = "batch_id IN (SELECT value FROM json_each(?))"
    query = f"SELECT batch_id, {columns} FROM episodes WHERE {condition} GROUP BY batch_id"
    return source.select(query, (json.dumps(list(batch_ids)),))


def _time(value: object) -> datetime | None:
    try:
        return datetime.fromisoformat(str(value)) if value else None
    except ValueError:
        return None


def read_unlisted_batches(source: ResultSource, store: EpisodeStore, known: Collection[str]) -> list[BatchState]:
    """Return the newest batches that have ended and that no node lists, the newest first; raises ``StoreError``.

    They were played by a command without a node. A batch with a journal is still running, and its events follow.

    Args:
        source: the index of the episodes.
        store: the episode files.
        known: ids of the batches that are listed.
    """
    columns = "batch_id, battery_id, env, agent, model, count(*), max(episode_id)"
    newest = f"SELECT DISTINCT batch_id FROM episodes ORDER BY batch_id DESC LIMIT {MAX_UNLISTED}"
    query = f"SELECT {columns} FROM episodes WHERE batch_id IN ({newest}) GROUP BY batch_id ORDER BY batch_id DESC"
    rows = [row for row in source.select(query) if row[0] not in known]
    found = [_ended_batch(store, row) for row in rows if not store.has_journal(row[0])]
    return [state for state in found if state is not None]


def _ended_batch(store: EpisodeStore, row: Sequence[Any]) -> BatchState | None:
    from runner.errors import StoreError

    batch_id, battery_id, env, agent, model, n_done, episode_id = row
    try:
        n_planned = store.load(store.path(batch_id, episode_id)).n_planned or n_done
    except StoreError:  # the list of episodes shows the damaged file
        return None
    return BatchState(
        batch_id=batch_id,
        battery_id=battery_id,
        env=env,
        agent=agent,
        model=model,
        status="completed" if n_done >= n_planned else "interrupted",
        n_done=n_done,
        n_planned=max(n_done, n_planned),
    )
