"""Library of the episodes stored in a state directory, and conversion of episode files to ``Episode`` objects."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec.json import encode as json_encode

from agentgym_tui.sessions.curation import Curation
from agentgym_tui.sessions.text_search import TextSearch, TextSource
from agentgym_tui.state.data_model import Episode, StepState
from agentgym_tui.state.episode_content import DecodedMessages, Spans, as_messages
from agentgym_tui.state.episode_list import UnreadableFile
from agentgym_tui.state.steps import clamp_phases
from runner.events.live import LiveAction

if TYPE_CHECKING:
    from agentgym_tui.sessions.row_pages import RowPages
    from runner.events.control import BatchState
    from runner.query.fields import Lookup
    from runner.store import EpisodeIndex, EpisodeRecord, EpisodeRow, EpisodeStore
    from runner.store.episode_file import Origin
    from runner.store.notes import Notes
    from runner.store.text_index import Stamped, Summary, TextIndex
    from runner.types import PackedCells, TimeStep
    from runner.types.notes import Note

MAX_ROWS: Final = 100_000
"""Largest number of episodes listed; older episodes are left out."""

RECONCILE_EVERY_S: Final = 5.0
"""Seconds between comparisons of the episode index with the episode files."""


def episode_from_record(record: EpisodeRecord) -> Episode:
    """Convert the record of an episode file to an ``Episode``."""
    from runner.store.flags import find_flags

    error = record.error
    return Episode(
        **{name: getattr(record, name) for name in _SHARED_FIELDS},
        outcome=str(record.outcome),
        currency=record.currency or "",
        error_type=error.type if error else None,
        error_message=error.message if error else None,
        error_traceback=error.traceback if error else None,
        reset_observation=as_messages(record.reset_observation),
        reset_world=_packed(record.reset_world),
        steps=[_step_from_record(step) for step in record.timesteps],
        spans=Spans(record.spans),
        found_flags=tuple((flag.name, flag.step) for flag in find_flags(record, record.timesteps)),
        imported=_origin_text(record.origin),
    )


def _origin_text(origin: Origin | None) -> str:
    if origin is None:
        return ""
    return f"{origin.format}, which lacks: {', '.join(origin.missing)}" if origin.missing else origin.format


def episode_from_bytes(data: bytes, path: Path) -> Episode:
    """Decode the content of an episode file to an ``Episode``; ``path`` is only named in errors.

    Raises:
        StoreError: the content is not an episode of the current schema.
    """
    return episode_from_record(record_from_bytes(data, path))


def record_from_bytes(data: bytes, path: Path) -> EpisodeRecord:
    """Decode the content of an episode file to a record; ``path`` is only named in errors.

    The file may have been moved or renamed: its path need not contain the ids of the episode.

    Raises:
        StoreError: the content is not an episode of the current schema.
    """
    from msgspec.json import Decoder

    from runner.errors import StoreError
    from runner.store import EpisodeRecord
    from runner.store.episode_file import check_header, decode

    record = decode(data, Decoder(EpisodeRecord), path)
    try:
        check_header(record, Path(record.batch_id, f"{record.episode_id}.json"))
    except StoreError as exc:
        raise StoreError(f"{path} is not an episode of this version: {exc}") from exc
    return record


class StateDirLibrary:
    """Library of the episodes in a state directory, listed from the index of episodes; see ``Library``.

    The node of the state directory also updates the index.

    Args:
        find: returns the state directory; called at the first read, in the thread of the reader. May raise
            ``ConfigError``.
    """

    def __init__(self, find: Callable[[], Path]) -> None:
        self.first_rows: Sequence[EpisodeRow] = ()
        self.texts = TextSearch(
            TextSource(self._open_texts, self._stamps, self._summary, self._version, lambda id: self._read(id)[0])
        )
        self.curation = Curation(self._open)
        self.notes_state: object = None
        self._n_rows = 0
        self._find = find
        self._lock, self._rows_lock = threading.Lock(), threading.Lock()
        self._pages: RowPages | None = None
        self._opened: tuple[EpisodeStore, EpisodeIndex] | None = None
        self._reconciled = 0.0

    def rows(self, *, check_files: bool = True) -> list[EpisodeRow]:
        """Return the index rows of up to ``MAX_ROWS`` episodes, the newest first; raises ``StoreError``.

        Rows that have not changed are the same objects as before.
        """
        from agentgym_tui.sessions.row_pages import RowPages

        _, index = self._open()
        if check_files and time.monotonic() - self._reconciled > RECONCILE_EVERY_S:
            index.reconcile()
            self._reconciled = time.monotonic()
        self._n_rows = _count(index)
        with self._rows_lock:
            self._pages = self._pages or RowPages(index)
            return self._pages.rows(MAX_ROWS)

    @property
    def unreadable(self) -> Sequence[UnreadableFile]:
        """Files, archives and folders that the last look at the files could not read; none before it."""
        damaged = self._opened[1].damaged if self._opened else ()
        return [UnreadableFile(file.path, file.reason) for file in damaged]

    def has_changed(self) -> bool:
        """Return whether another process has added or deleted episodes since the last call, or since ``rows``."""
        before, self._n_rows = self._n_rows, _count(self._open()[1])
        return before != self._n_rows

    def lookups(self) -> Mapping[str, Lookup]:
        """Return what finds the ids of episodes by their notes and texts; raises ``StoreError``."""
        from runner.query.episodes import note_lookups

        return {**note_lookups(self._open()[0].data_dir), "text": self.texts.lookup}

    def result_source(self) -> EpisodeIndex:
        """Return the index of episodes; raises ``StoreError``."""
        return self._open()[1]

    def load(self, episode_id: str) -> tuple[Episode, bytes]:
        """Return an episode and the content of its file; raises ``StoreError``."""
        from runner.store.episode_file import decode_episode

        data, path = self._read(episode_id)
        if path is None:
            return episode_from_bytes(data, Path(episode_id)), data
        self._open()[1].check_file(path)
        return episode_from_record(decode_episode(data, path)), data

    def _read(self, episode_id: str) -> tuple[bytes, Path | None]:
        """Return the content of an episode's file, and its path where the index has it; raises ``StoreError``."""
        store, _ = self._open()
        path = self._file(episode_id)
        return (store.read_bytes(episode_id) if path is None else store.read(path)), path

    def _open_texts(self) -> TextIndex:
        from runner.store.text_index import TextIndex

        return TextIndex.of(self._open()[0])

    def _stamps(self) -> tuple[Collection[Stamped], bool]:
        from runner.store.text_index import STAMPS

        return self._open()[1].select(STAMPS), True

    def _summary(self) -> Summary | None:
        from runner.store.text_index import SUMMARY

        (summary,) = self._open()[1].select(SUMMARY)
        return summary

    def _version(self) -> object:
        from runner.store.index import FILE_NAME
        from runner.util.sqlite import file_state

        return file_state(self._open()[0].data_dir / FILE_NAME)

    def path(self, episode_id: str) -> Path | None:
        """Return the path of an episode's file or archive; None if it is not listed. Raises ``StoreError``."""
        path, store = self._file(episode_id), self._open()[0]
        is_archived = path is not None and not path.exists() and store.is_archived(path)
        return store.archive_path(path.parent.name) if path is not None and is_archived else path

    def _file(self, episode_id: str) -> Path | None:
        store, index = self._open()
        known = index.select("SELECT batch_id FROM episodes WHERE episode_id = ? LIMIT 1", (episode_id,))
        return store.path(known[0][0], episode_id) if known else None

    def tags(self) -> dict[str, tuple[str, ...]]:
        """Return the tags of the tagged episodes; raises ``StoreError``."""
        from runner.util.sqlite import file_state

        notes = self._notes()
        self.notes_state = file_state(notes.path)
        return notes.tags()

    def notes(self, episode_id: str) -> Sequence[Note]:
        """Return the tags and notes of an episode and its steps, the oldest first; raises ``StoreError``."""
        return self._notes().of_episode(episode_id)

    def _notes(self) -> Notes:
        from runner.store.notes import Notes

        return Notes(self._open()[0].data_dir)

    def unlisted_batches(self, known: Collection[str]) -> list[BatchState]:
        """Return the newest ended batches that are not ``known``, the newest first; raises ``StoreError``."""
        from agentgym_tui.sessions.stored_batches import read_unlisted_batches

        store, index = self._open()
        return read_unlisted_batches(index, store, known)

    def n_unlisted(self, known: Collection[str]) -> int:
        """Return the number of batches with stored episodes that are not ``known``; raises ``StoreError``."""
        query = "SELECT count(DISTINCT batch_id) FROM episodes WHERE batch_id NOT IN (SELECT value FROM json_each(?))"
        ((count,),) = self._open()[1].select(query, (json_encode([*known]).decode(),))
        return int(count)

    def read_journals(self, batch_ids: Iterable[str]) -> list[Episode]:
        """Return the running episodes of the given batches, each with all steps that its journal contains."""
        from runner.errors import StoreError
        from runner.store.journal import JOURNAL_SUFFIX, read_journal
        from runner.util.clock import is_ulid

        store, _ = self._open()
        episodes: list[Episode] = []
        for batch_id in filter(is_ulid, batch_ids):
            for path in (store.runs / batch_id).glob(f"*{JOURNAL_SUFFIX}"):
                try:
                    episodes.append(_running_episode(read_journal(path)))
                except StoreError:  # the episode has ended, or its journal is damaged, which the node reports
                    continue
        return episodes

    def close(self) -> None:
        """Close the indexes."""
        self.texts.close()
        with self._lock:
            if self._opened is not None:
                self._opened[1].close()
                self._opened = self._pages = None

    def _open(self) -> tuple[EpisodeStore, EpisodeIndex]:
        from runner.errors import ConfigError, StoreError
        from runner.store import EpisodeStore, open_index_to_read

        with self._lock:
            if self._opened is None:
                try:
                    store = EpisodeStore(self._find())
                except ConfigError as exc:
                    raise StoreError(str(exc)) from exc
                self._opened = store, open_index_to_read(store)
                self._reconciled = time.monotonic()
            return self._opened


def _count(index: EpisodeIndex) -> int:
    (count,) = index.select("SELECT count(*) FROM episodes")[0]
    return int(count)


_SHARED_FIELDS = (
    *("episode_id", "batch_id", "env", "started_at", "battery_id", "node", "transport", "data_label", "mode", "limits"),
    *("task_index", "seed", "attempt", "agent", "model", "profile", "worker"),
    *("success", "reward", "rounds", "duration_s", "tokens", "cost", "unscored", "evaluation", "gpu"),
)
"""Names of the fields that ``EpisodeRecord`` and ``Episode`` have in common."""


def _running_episode(journal: Any) -> Episode:  # noqa: ANN401
    from runner.store.journal import unfinished_record
    from runner.types import Outcome

    record = unfinished_record(journal, Outcome.INTERRUPTED, ended_at=journal.header.started_at)
    episode = episode_from_record(record)
    episode.outcome = episode.duration_s = None
    return episode


def _step_from_record(record: TimeStep) -> StepState:
    names = StepState.__struct_fields__
    same = {name: getattr(record, name) for name in names if hasattr(record, name)}
    return StepState(
        **{
            **same,
            "shape": record.shape or "",
            "phases": None if record.phases is None else clamp_phases(record.phases),
            "content": DecodedMessages([as_messages(chat) for chat in record.chats], as_messages(record.observation)),
            "action": LiveAction(record.action.text, record.action.tool_calls),
            "world": _packed(record.world),
        }
    )


def _packed(world: PackedCells | None) -> bytes:
    return json_encode(world) if world else b""
