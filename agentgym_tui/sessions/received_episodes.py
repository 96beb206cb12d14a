"""The ended episodes that a bus has reported, for the screens of results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from agentgym_tui.sessions.protocols import ResultLibrary
from agentgym_tui.state.data_model import Episode
from agentgym_tui.state.run_store import RunStore

if TYPE_CHECKING:
    from runner.query.fields import Lookup
    from runner.results.summary import ResultSource
    from runner.store.index_schema import EpisodeRow


class ReceivedEpisodes(ResultLibrary):
    """The ended episodes of a store; see ``ResultLibrary``."""

    def __init__(self, store: RunStore) -> None:
        self._store = store

    def rows(self, *, check_files: bool = True) -> Sequence[EpisodeRow]:
        return [_row(episode) for episode in [*self._store.episodes.values()][::-1] if not episode.running]

    def lookups(self) -> Mapping[str, Lookup]:
        return {}

    def result_source(self) -> ResultSource:
        from agentgym_tui.sessions.row_table import RowTable

        return RowTable(self.rows())


def _row(episode: Episode) -> EpisodeRow:
    """Return the row of an episode; like an imported one where its outcome is unknown."""
    from runner.store.episode_file import shared_fields
    from runner.store.index_schema import EpisodeRow
    from runner.types import IMPORTED, UNKNOWN_OUTCOME, Outcome

    is_unknown = episode.outcome == UNKNOWN_OUTCOME
    values = shared_fields(episode, EpisodeRow) | {
        "transport": IMPORTED if is_unknown else episode.transport,
        "outcome": Outcome.INTERRUPTED if is_unknown else episode.outcome,
        "success": bool(episode.success),
        "unscored": episode.unscored or episode.success is None,
        "models": episode.models if episode.agent else episode.models or "",  # without models, an agent is a baseline
        "shape": episode.shape,
    }
    tokens = {f"tokens_{kind}": getattr(episode.tokens, kind) for kind in episode.tokens.__struct_fields__}
    return EpisodeRow(**values, **tokens, ended_at=episode.started_at)
