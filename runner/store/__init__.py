"""Storage of episodes: episode files as source of truth, journals for crash safety, an index for lists and results."""

from runner.store.episode_file import EpisodeRecord
from runner.store.episode_store import EpisodeFile, EpisodeStore
from runner.store.index import EpisodeIndex, open_index, open_index_to_read
from runner.store.index_schema import EpisodeRow
from runner.store.recorder import EpisodeRecorder
from runner.util.files import DamagedFile

__all__ = [
    "DamagedFile",
    "EpisodeFile",
    "EpisodeIndex",
    "EpisodeRecord",
    "EpisodeRecorder",
    "EpisodeRow",
    "EpisodeStore",
    "open_index",
    "open_index_to_read",
]
