"""Storage of episodes: episode files as source of truth, journals for crash safety, an index for lists and results."""

from runner.store.episode_file import EpisodeRecord as EpisodeRecord
from runner.store.episode_store import EpisodeFile as EpisodeFile
from runner.store.episode_store import EpisodeStore as EpisodeStore
from runner.store.index import EpisodeIndex as EpisodeIndex
from runner.store.index import open_index as open_index
from runner.store.index import open_index_to_read as open_index_to_read
from runner.store.index_schema import EpisodeRow as EpisodeRow
from runner.store.recorder import EpisodeRecorder as EpisodeRecorder
from runner.util.files import DamagedFile as DamagedFile
