"""The episode files of a state directory, and the journals that died before they became one."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from runner.errors import StoreError
from runner.store.episode_file import EpisodeRecord, decode_episode, is_ulid
from runner.store.journal import JOURNAL_SUFFIX, TraceDelta, read_journal, unfinished_record
from runner.store.safe_json import encode
from runner.types import ErrorInfo, Outcome
from runner.util.clock import Clock
from runner.util.files import TEMPORARY_SUFFIX, DamagedFile, file_lock, make_folder, read_file, replace_file

logger = logging.getLogger(__name__)

STALE_S = 60.0
"""Age at which a half-written file is taken to be nobody's any more."""


class EpisodeFile(msgspec.Struct, frozen=True):
    """An episode file as the folder shows it; ``size`` and ``mtime_ns`` change when its content does."""

    batch_id: str
    episode_id: str
    size: int
    mtime_ns: int


class EpisodeStore:
    """Reads and writes ``<data_dir>/runs/<batch_id>/<episode_id>.json``; usable from several threads and processes.

    ``damaged`` names the journals that the last ``recover`` could not use, or not wholly.
    """

    def __init__(self, data_dir: Path) -> None:
        """Create the folders, for this user alone.

        Raises:
            StoreError: when they cannot be created.
        """
        self.data_dir = data_dir.absolute()
        self.runs = self.data_dir / "runs"
        self.damaged: list[DamagedFile] = []
        try:
            make_folder(self.runs)
        except OSError as exc:
            raise StoreError(f"{self.runs} cannot be created: {exc}; name another folder with --data-dir") from exc

    def path(self, batch_id: str, episode_id: str) -> Path:
        """Where an episode's file is or will be.

        Raises:
            StoreError: when one of the ids is not a ULID.
        """
        if not (is_ulid(batch_id) and is_ulid(episode_id)):
            raise StoreError(f"episode {episode_id!r} of batch {batch_id!r}: an id has to be a ULID of 26 characters")
        return self.runs / batch_id / f"{episode_id}.json"

    def journal_path(self, batch_id: str, episode_id: str) -> Path:
        """Where an episode's journal is while it is played; raises like ``path``."""
        return self.path(batch_id, episode_id).with_name(episode_id + JOURNAL_SUFFIX)

    def save(self, record: EpisodeRecord) -> Path:
        """Write an episode file durably, then remove its journal.

        Raises:
            StoreError: when it cannot be written; the journal is then still there.
        """
        path = self._write(record)
        self._remove(path.with_name(record.episode_id + JOURNAL_SUFFIX))
        return path

    def _write(self, record: EpisodeRecord) -> Path:
        path = self.path(record.batch_id, record.episode_id)
        try:
            make_folder(path.parent)
            replace_file(path, encode(record))
        except OSError as exc:
            raise StoreError(
                f"{path} could not be written: {exc}; make room or check the permissions, "
                "the next start turns its journal into an episode"
            ) from exc
        return path

    def _remove(self, journal: Path) -> None:
        try:
            journal.unlink(missing_ok=True)
        except OSError as exc:  # harmless: the next recovery finds the episode's file and tries again
            logger.warning("%s could not be removed: %s", journal, exc)

    def load(self, source: Path | str) -> EpisodeRecord:
        """An episode by its file or its id.

        Raises:
            StoreError: when there is none, or the file cannot be used.
        """
        path = source if isinstance(source, Path) else self._find(source)
        return decode_episode(read_file(path), path)

    def read_bytes(self, episode_id: str) -> bytes:
        """The file of an episode as it is; raises a ``StoreError`` when there is none."""
        return read_file(self._find(episode_id))

    def _find(self, episode_id: str) -> Path:
        for batch in self._folders():
            path = batch / f"{episode_id}.json"
            if is_ulid(episode_id) and path.exists():
                return path
        raise StoreError(f"there is no episode {episode_id!r} under {self.runs}; check the id and the state directory")

    def files(self, damaged: list[DamagedFile] | None = None) -> Iterator[EpisodeFile]:
        """All episode files, in no order; files whose names are no episode id are added to ``damaged``."""
        for batch in self._folders():
            for entry in _entries(batch):
                stem, _, suffix = entry.name.partition(".")
                if suffix != "json":
                    continue
                if is_ulid(stem):
                    with contextlib.suppress(FileNotFoundError):
                        yield _episode_file(batch.name, stem, entry.stat(follow_symlinks=False))
                elif damaged is not None:
                    damaged.append(DamagedFile(Path(entry.path), "its name is not the id of an episode; move it away"))

    def file(self, record: EpisodeRecord) -> EpisodeFile:
        """The file of a saved episode; raises a ``StoreError`` when it is gone."""
        path = self.path(record.batch_id, record.episode_id)
        try:
            return _episode_file(record.batch_id, record.episode_id, path.stat(follow_symlinks=False))
        except OSError as exc:
            raise StoreError(f"{path} cannot be found any more: {exc}") from exc

    def _folders(self) -> Iterator[Path]:
        for entry in _entries(self.runs):
            if is_ulid(entry.name) and entry.is_dir(follow_symlinks=False):
                yield self.runs / entry.name

    def recover(self, clock: Clock | None = None) -> list[EpisodeRecord]:
        """Turn each journal whose process is gone into an ``interrupted`` episode, and remove half-written files.

        Journals of living processes, this one included, are left alone.
        """
        self.damaged = []
        recovered: list[EpisodeRecord] = []
        now = (clock or Clock()).now()
        for batch in self._folders():
            for entry in list(_entries(batch)):
                path = batch / entry.name
                if entry.name.endswith(JOURNAL_SUFFIX):
                    with file_lock(path, wait=False) as held:
                        if held and (record := self._settle(path)) is not None:
                            recovered.append(record)
                elif entry.name.endswith(TEMPORARY_SUFFIX):
                    _remove_stale(path, now)
        return recovered

    def _settle(self, journal: Path) -> EpisodeRecord | None:
        try:
            if journal.with_name(journal.name.removesuffix(JOURNAL_SUFFIX) + ".json").exists():
                self._remove(journal)
                return None
            return self.close_journal(journal, Outcome.INTERRUPTED, ended_at=_last_written(journal))
        except StoreError as exc:
            self._report(journal, str(exc))
            return None

    def close_journal(
        self,
        path: Path,
        outcome: Outcome,
        *,
        ended_at: datetime,
        error: ErrorInfo | None = None,
        traces: TraceDelta | None = None,
        duration_s: float | None = None,
    ) -> EpisodeRecord:
        """Make an episode file of a journal that nobody will write to any more; ``traces`` came after its last line.

        A damaged journal gives the steps before the damage; it is then kept as ``….journal.jsonl.damaged``.

        Raises:
            StoreError: when the journal cannot be used or the episode not be written.
        """
        journal = read_journal(path)
        record = unfinished_record(
            journal, outcome, ended_at=ended_at, error=error, traces=traces, duration_s=duration_s
        )
        self._write(record)
        if journal.damage is None:
            self._remove(path)
        else:
            self._set_aside(path, journal.damage)
        return record

    def _set_aside(self, journal: Path, reason: str) -> None:
        aside = journal.with_name(journal.name + ".damaged")
        try:
            journal.rename(aside)
        except OSError as exc:
            logger.warning("%s could not be renamed: %s", journal, exc)
            aside = journal
        self._report(aside, reason)

    def _report(self, path: Path, reason: str) -> None:
        logger.warning("%s: %s", path, reason)
        self.damaged.append(DamagedFile(path, reason))


def _episode_file(batch_id: str, episode_id: str, status: os.stat_result) -> EpisodeFile:
    return EpisodeFile(batch_id, episode_id, status.st_size, status.st_mtime_ns % 2**63)


def _entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            yield from entries
    except FileNotFoundError:
        return
    except OSError as exc:
        raise StoreError(f"{folder} cannot be read: {exc}; check its permissions") from exc


def _last_written(path: Path) -> datetime:
    try:
        return datetime.fromtimestamp(path.stat().st_mtime, UTC)
    except (OSError, ValueError, OverflowError) as exc:
        raise StoreError(f"{path} has no usable time of its last change: {exc}; touch it") from exc


def _remove_stale(path: Path, now: datetime) -> None:
    with contextlib.suppress(OSError):
        if now.timestamp() - path.stat(follow_symlinks=False).st_mtime > STALE_S:
            path.unlink()
