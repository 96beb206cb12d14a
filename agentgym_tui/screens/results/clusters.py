"""The failure clusters of some episodes: how they failed, how many, and the shortest of each."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from agentgym_tui.presenters.cells import Line
from agentgym_tui.presenters.cluster_rows import CLUSTER_COLUMNS, ClusterRows, cluster_heading, cluster_lines
from agentgym_tui.screens.base import ScreenContext
from agentgym_tui.screens.results.base import TaskTableScreen
from agentgym_tui.sessions.library import ResultLibrary
from agentgym_tui.state.episode_list import exact_terms, select_rows
from agentgym_tui.state.query import MAX_CHARS
from agentgym_tui.state.result_list import cluster_list
from agentgym_tui.widgets.table import SortableTable
from runner.errors import StoreError

if TYPE_CHECKING:
    from runner.results.clusters import Cluster


class ClustersScreen(TaskTableScreen["Cluster"]):
    """Failed episodes in groups of the same environment, cause, action and answer, the largest group first.

    Args:
        context: see ``ScreenContext``.
        query: which episodes; an empty query means all.
    """

    SCOPE = "clusters"
    FILTER_HINT = "words and fields, such as: env:maze cause:loop episodes>=10"
    NO_MATCH = "No cluster matches the filter."
    NO_ROW = "No failed episode."

    def __init__(self, context: ScreenContext, query: str) -> None:
        super().__init__(context, "clusters", cluster_list())
        self._query = query
        rows = ClusterRows(self.tasks)
        self.table = self.open_from(SortableTable(CLUSTER_COLUMNS, rows, sorting=self.tasks.sorting, id="results"))

    def selected_env(self) -> str:
        cluster = self._selected
        return "" if cluster is None else cluster.env

    def action_open(self) -> None:
        if (cluster := self._selected) is not None:
            query = self._query_of(cluster)
            self.post_message(self.EpisodesRequested(query if len(query) <= MAX_CHARS else _terms(cluster)))

    def action_shortest(self) -> None:
        """Open the shortest episode of the selected cluster."""
        if (cluster := self._selected) is not None:
            self.post_message(self.OpenEpisode(cluster.representative, self._query_of(cluster)))

    async def read(self, library: ResultLibrary) -> None:
        clusters = await asyncio.to_thread(_clusters, library, self._query, dict(self.session.store.tags))
        self.tasks.set_rows(clusters)

    def heading_lines(self, width: int) -> list[Line]:
        lines = cluster_heading(self.tasks, self._n_failed, self._query, self.clear_key, width)
        return [*lines, self.failure_line]

    def detail_lines(self, width: int) -> Sequence[Line]:
        return cluster_lines(self._selected, width)

    def _query_of(self, cluster: Cluster) -> str:
        """Return the query that selects the episodes of a cluster."""
        return f"({self._query}) {_terms(cluster)}" if self._query else _terms(cluster)

    @property
    def _selected(self) -> Cluster | None:
        return self.tasks.get(self.table.key)

    @property
    def _n_failed(self) -> int:
        return sum(cluster.n for cluster in self.tasks.all_rows)


def _terms(cluster: Cluster) -> str:
    return exact_terms(env=cluster.env, failure=cluster.failure)


def _clusters(library: ResultLibrary, query: str, tags: Mapping[str, Sequence[str]]) -> list[Cluster]:
    from runner.query.syntax import QueryError
    from runner.results.clusters import find_clusters

    oldest_first = reversed(library.rows(check_files=False))
    try:
        return find_clusters(select_rows(oldest_first, query, library.lookups(), tags))
    except QueryError as exc:
        raise StoreError(f"the query of the episodes is invalid: {exc}") from exc
