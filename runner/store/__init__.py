"""What was played: episode files as the truth, journals against sudden death, an index for lists and results."""

from runner.store.episode_file import ActionRecord, EpisodeRecord, TimestepRecord, is_id
from runner.store.episode_store import EpisodeFile, EpisodeStore
from runner.store.files import Damaged
from runner.store.index import EpisodeIndex, open_index
from runner.store.index_schema import EpisodeRow
from runner.store.recorder import EpisodeRecorder, SpanSource
from runner.store.results import UNRATED, ResultRow, summarise, wilson

__all__ = [
    "UNRATED",
    "ActionRecord",
    "Damaged",
    "EpisodeFile",
    "EpisodeIndex",
    "EpisodeRecord",
    "EpisodeRecorder",
    "EpisodeRow",
    "EpisodeStore",
    "ResultRow",
    "SpanSource",
    "TimestepRecord",
    "is_id",
    "open_index",
    "summarise",
    "wilson",
]
