"""What rows of results select: their keys, their selections, and the queries of their episodes."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from agentgym_tui.state.episode_list import exact_terms
from runner.results.summary import ResultRow, Selection


def result_key(row: ResultRow) -> str:
    return repr((row.env, row.data_label, row.mode, row.agent, row.model, row.shape, row.limits, row.batch_id))


def selection_of(row: ResultRow) -> Selection:
    """Return the selection of the row's episodes. It ignores the case of the environment; see ``same_env``."""
    return Selection(
        env=row.env,
        agent=row.agent,
        models=row.model,
        has_model=row.model is not None,
        data_label=row.data_label,
        mode=row.mode,
        shape=row.shape,
        limits=row.limits,
        batch=row.batch_id,
    )


def comparable_selections(row: ResultRow, baseline: ResultRow) -> tuple[Selection, Selection]:
    """Return the selections of two rows; a batch is compared with the other batches of the same agent and model."""
    selected, other = selection_of(row), selection_of(baseline)
    if replace(selected, batch=None) == replace(other, batch=None):
        if other.batch is None:
            other = replace(other, excluded_batch=selected.batch)
        elif selected.batch is None:
            selected = replace(selected, excluded_batch=other.batch)
    return selected, other


def episodes_filter(rows: Sequence[ResultRow], **terms: object) -> str:
    """Return the query that selects exactly the episodes of some rows.

    Args:
        rows: the rows, of one environment.
        terms: further exact values, such as the outcome.
    """
    first = rows[0]
    batches = tuple(row.batch_id for row in rows if row.batch_id is not None)
    named = {
        "env": first.env,
        "agent": tuple(dict.fromkeys(row.agent for row in rows)),
        "models": tuple(dict.fromkeys(row.model or "" for row in rows)),
        **terms,
    }
    if len(batches) == len(rows):
        named["batch"] = batches
    if first.mode != "strict":
        named["mode"] = first.mode
    if any(shapes := tuple(dict.fromkeys(row.shape for row in rows))):
        named["shape"] = shapes
    if any(limits := tuple(dict.fromkeys(row.limits for row in rows))):
        named["limits"] = limits
    return exact_terms(**named, **({"data": first.data_label} if first.data_label else {}))
