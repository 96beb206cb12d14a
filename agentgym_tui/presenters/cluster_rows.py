"""Rows of failure clusters, the lines above them, and the details of one. Names and templates are untrusted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from agentgym_tui.presenters.cells import Cell, Column, FilteredRows, Line, join_parts, match_cells, sorting_cells
from agentgym_tui.presenters.number_format import UNKNOWN, pluralize
from agentgym_tui.presenters.text_width import ENV_WIDTH, environment_text, wrap_text
from agentgym_tui.state.query import FilteredList

if TYPE_CHECKING:
    from runner.results.clusters import Cluster

MAX_AGENTS: Final = 6
CLUSTER_COLUMNS: Final = (
    Column("episodes", 8, right=True),
    Column("environment", ENV_WIDTH),
    Column("cause", 7),
    Column("action", 20),
    Column("answer", None, min_width=36),
    Column("flags", 18, rank=1),
    Column("representative", 26, rank=2),
)


class ClusterRows(FilteredRows["Cluster"]):
    """Rows of ``CLUSTER_COLUMNS`` over a list of clusters."""

    def line(self, index: int, width: int) -> Line:
        cluster = self.rows.shown[index]
        return [
            Cell(f"{cluster.n:,}", "head"),
            Cell(environment_text(cluster.env)),
            Cell(cluster.cause, "bad"),
            Cell(cluster.action or UNKNOWN),
            Cell(cluster.observation or UNKNOWN),
            Cell(_counts(cluster.flags), "dim"),
            Cell(cluster.representative, "dim"),
        ]


def cluster_heading(clusters: FilteredList[Cluster], n_failed: int, query: str, key: str, width: int) -> list[Line]:
    """Return two lines: the numbers of episodes and clusters with filter and order, and which episodes these are.

    Args:
        clusters: the list.
        n_failed: number of the failed episodes.
        query: the query that selects the episodes; untrusted text.
        key: label of the key that clears the filter.
        width: columns available.
    """
    counts = [
        [Cell(pluralize(n_failed, "failed episode"), "head")],
        [Cell(pluralize(clusters.n_rows, "cluster"))],
        match_cells(len(clusters.shown), clusters.query.text, key, width),
        sorting_cells(clusters.sorting),
    ]
    selected = f"of {query}" if query else "of all episodes"
    return [join_parts(counts, width), [Cell(selected, "dim")]]


def cluster_lines(cluster: Cluster | None, width: int) -> list[Line]:
    """Return the whole failure of a cluster, who failed, and its shortest episode; nothing without one."""
    if cluster is None:
        return []
    step = "" if cluster.step is None else f", step {cluster.step:,}"
    shortest = f"shortest: {cluster.representative}{step}"
    agents = dict(list(cluster.agents.items())[:MAX_AGENTS])
    rows = wrap_text(cluster.text, width, 2)
    return [*([Cell(row, "head")] for row in rows), [Cell(_counts(agents))], [Cell(shortest, "dim")]]


def _counts(numbers: dict[str, int]) -> str:
    return ", ".join(f"{name} {n:,}" for name, n in numbers.items()) or UNKNOWN
