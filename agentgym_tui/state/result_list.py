"""List of results, one row per group that ``ResultRow`` describes, or batch, with sorting and search."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from agentgym_tui.state.episode_query import exact_terms, model_runs
from agentgym_tui.state.filtered_list import FilteredList
from agentgym_tui.state.query import FieldSet, search_text
from agentgym_tui.state.sorting import Rank, number_rank, text_rank
from runner.types import SHAPES

if TYPE_CHECKING:
    from runner.results.summary import ResultRow, Selection

RESULTS_KEY: Final = "results"
"""Id of the table of results; also the key of its filter and order in the UI state."""

BASELINE: Final = "baseline"
"""Stands for the model of an agent that used none."""

RANK_BY_COLUMN: Final[Mapping[str, Callable[[ResultRow], Rank | None]]] = {
    "environment": lambda row: text_rank(row.env),
    "agent": lambda row: text_rank(row.agent),
    "model": lambda row: text_rank(row.model),
    "episodes": lambda row: number_rank(row.n),
    "success": lambda row: number_rank(row.success_rate),
    "interval": lambda row: number_rank(row.success_interval[0] if row.success_interval else None),
    "errors": lambda row: number_rank(row.n_errors),
    "reward": lambda row: number_rank(row.score),
    "last runs": lambda row: number_rank(row.last_rates[-1] if row.last_rates else None),
    "rounds": lambda row: number_rank(row.avg_rounds),
    "cost": lambda row: number_rank(row.cost),
    "time": lambda row: number_rank(row.completion_time_sec),
    "tokens": lambda row: number_rank(row.tokens.total),
    "data": lambda row: text_rank(row.data_label),
    "batch": lambda row: text_rank(row.batch_id),
}
"""Function that returns the sort key of a row, by column title."""


RESULT_FIELDS: Final[FieldSet[ResultRow]] = FieldSet(
    ("env", "text", "environment", lambda row: row.env),
    ("agent", "text", "agent", lambda row: row.agent),
    ("model", "text", "model that answered; none for baselines", lambda row: model_runs(row.model)),
    ("data", "text", "label of the environment's data", lambda row: row.data_label),
    ("mode", "text", "rules", lambda row: row.mode),
    ("shape", "text", "how requests differ, as the server refused the usual", lambda row: row.shape),
    ("limits", "text", "limits that are not 15 rounds and 300 s", lambda row: row.limits),
    ("batch", "id", "beginning of the id of the batch", lambda row: row.batch_id),
    ("episodes", "number", "number of episodes", lambda row: row.n),
    ("success", "number", "success rate from 0 to 1", lambda row: row.success_rate),
    ("errors", "number", "number of episodes that ended with an error", lambda row: row.n_errors),
    ("reward", "number", "mean reward", lambda row: row.score),
    ("rounds", "number", "mean number of steps", lambda row: row.avg_rounds),
    ("cost", "number", "sum of the costs", lambda row: row.cost),
    ("time", "duration", "mean duration, such as 90s or 2m", lambda row: row.completion_time_sec),
    ("tokens", "number", "sum of the tokens", lambda row: row.tokens.total),
    values={"mode": ("strict", "compat"), "shape": SHAPES},
)
"""The fields of a result in a query."""


class ResultList(FilteredList["ResultRow"]):
    """Results that are shown.

    Attributes:
        by_batch: whether each batch has rows of its own.
        marked: the row that is compared with the next one that is marked; None for none.
    """

    def __init__(self) -> None:
        super().__init__(result_key, _search_text, RANK_BY_COLUMN, RESULT_FIELDS)
        self.by_batch = False
        self.marked: ResultRow | None = None

    @property
    def n_episodes(self) -> int:
        """Number of episodes of all rows, also of those that the filter hides."""
        return sum(row.n for row in self._rows)

    def is_marked(self, row: ResultRow) -> bool:
        """Return whether a row is the marked one."""
        return self.marked is not None and result_key(row) == result_key(self.marked)


def result_key(row: ResultRow) -> str:
    """Return the key of a row, which stays the same when its numbers change."""
    return repr((row.env, row.data_label, row.mode, row.agent, row.model, row.shape, row.limits, row.batch_id))


def selection_of(row: ResultRow) -> Selection:
    """Return the selection of the row's episodes. It ignores the case of the environment; see ``same_env``."""
    from runner.results.summary import Selection

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
    from msgspec.structs import replace

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


def _search_text(row: ResultRow) -> str:
    names = row.env, row.agent, row.model or BASELINE, row.data_label, row.mode, row.shape, row.limits, row.batch_id
    return search_text(names)
