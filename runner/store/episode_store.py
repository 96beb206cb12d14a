"""The episode files of a state directory, and recovery of the journals of crashed processes."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Final

import msgspec

from runner.errors import StoreError
from runner.store.archive import NAME as ARCHIVE_NAME
from runner.store.archive import episode_member, read_directory, read_member, tokens_member
from runner.store.episode_file import EpisodeRecord, decode_episode
from runner.store.journal import (
    JOURNAL_SUFFIX,
    episode_path,
    journal_path,
    read_journal,
    tokens_path,
    unfinished_record,
)
from runner.store.token_file import TOKENS_SUFFIX, TokenizedEpisode, split_tokens, with_sequences
from runner.types import Outcome
from runner.util.clock import Clock, is_ulid
from runner.util.files import (
    LOCK_TICK_S,
    TEMPORARY_SUFFIX,
    DamagedFile,
    file_lock,
    make_folder,
    read_file,
    replace_file,
    sync_folder,
)
from runner.util.resources import file_advice
from runner.util.safe_values import encode

logger = logging.getLogger(__name__)

STALE_S = 60.0
"""Age in seconds from which a partially written file counts as abandoned."""

ORPHANS_S = 5.0
"""Maximum seconds that a recovery waits for the workers of a driver that has died."""
PLAYING_LOCK_S = 1.0
"""Maximum seconds that a batch waits for the lock of its folder, which each recovery holds for a moment."""

NO_BATCH: Final = "it is no folder of a batch; move it away"
NO_EPISODE: Final = "its name is not an episode id; move it away"
FOREIGN: Final = "it has no episode of this batch; move it away, and open it with agentgym-tui open"
LOST_AND_FOUND: Final = "lost+found"


class EpisodeFile(msgspec.Struct, frozen=True):
    """An episode file, or a member of the archive of its batch.

    ``size`` (bytes), or ``mtime_ns`` of a file and the checksum of a member, changes whenever its content changes.
    """

    batch_id: str
    episode_id: str
    size: int
    mtime_ns: int
    is_archived: bool = False


class EpisodeStore:
    """Reads and writes ``<data_dir>/runs/<batch_id>/<episode_id>.json``; safe for threads and processes.

    Creates the folders with mode 0700; raises ``StoreError`` if that fails. An episode without a file is read from the
    archive of its batch, ``<data_dir>/runs/<batch_id>/archive.zip``. ``damaged`` lists the journals that the last
    ``recover`` could not read, or could read only in part.
    """

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir.absolute()
        self.runs = self.data_dir / "runs"
        self.damaged: list[DamagedFile] = []
        try:
            make_folder(self.runs)
        except OSError as exc:
            raise StoreError(f"{self.runs} cannot be created: {exc.strerror}; name another --data-dir") from exc

    @property
    def is_writable(self) -> bool:
        return os.access(self.runs, os.W_OK)

    def path(self, batch_id: str, episode_id: str) -> Path:
        """The file need not exist; raises ``StoreError`` if an id is not a ULID."""
        return episode_path(self.runs, batch_id, episode_id)

    def journal_path(self, batch_id: str, episode_id: str) -> Path:
        return journal_path(self.runs, batch_id, episode_id)

    def tokens_path(self, batch_id: str, episode_id: str) -> Path:
        return tokens_path(self.runs, batch_id, episode_id)

    def archive_path(self, batch_id: str) -> Path:
        return self.runs / batch_id / ARCHIVE_NAME

    def create_batch_folder(self, batch_id: str) -> None:
        """Create the folder of a batch durably; a failure is left to the first episode that is stored.

        Call it before several threads use the folder: a thread that finds the folder does not wait until it is synced.
        """
        with contextlib.suppress(OSError):
            make_folder(self.runs / batch_id)
            for folder in (self.runs, self.data_dir):  # a killed process may have created them without a sync
                sync_folder(folder)

    @contextlib.contextmanager
    def playing(self, batch_id: str) -> Iterator[None]:
        """Create the folder of a batch, and keep other processes from pruning the batch until the block ends."""
        self.create_batch_folder(batch_id)
        with file_lock(self.runs / batch_id, wait_s=PLAYING_LOCK_S):
            yield

    def save(self, record: EpisodeRecord) -> Path:
        """Write an episode file durably, after its token ids if it has them, then remove its journal.

        Raises ``StoreError`` if the file cannot be written; the journal is kept.
        """
        path = self._write(record)
        self._remove(self.journal_path(record.batch_id, record.episode_id))
        return path

    def _write(self, record: EpisodeRecord) -> Path:
        path = self.path(record.batch_id, record.episode_id)
        try:
            make_folder(path.parent)
            if isinstance(record, TokenizedEpisode):
                record, tokens = split_tokens(record)
                replace_file(path.with_suffix(TOKENS_SUFFIX), tokens)
            replace_file(path, encode(record))
        except OSError as exc:
            advice = f"{exc.strerror}; {file_advice(exc, 'free disk space or check the permissions')}"
            raise StoreError(
                f"{path} could not be written: {advice}. The next start recovers the episode from its journal"
            ) from exc
        return path

    def _remove(self, journal: Path) -> None:
        try:
            journal.unlink(missing_ok=True)
        except OSError as exc:  # harmless: the next recovery finds the episode file and removes the journal
            logger.warning("%s could not be removed: %s", journal, exc)

    def load(self, source: Path | str) -> EpisodeRecord:
        """The source is a path or an id. Raises ``StoreError`` if it does not exist or its file is invalid."""
        path = source if isinstance(source, Path) else self._find(source)
        return decode_episode(self.read(path), path)

    def load_with_tokens(self, path: Path) -> EpisodeRecord:
        """Return a ``TokenizedEpisode`` if the episode has token ids; raises like ``load``."""
        record = self.load(path)
        tokens = self.tokens_path(record.batch_id, record.episode_id)
        member = tokens_member(record.batch_id, record.episode_id)
        has_ref = any(step.tokens_ref is not msgspec.UNSET for step in record.timesteps)
        # no step refers to a token file whose sequences are all of an unfinished step
        if not (
            has_ref or os.path.lexists(tokens) or (not os.path.lexists(path) and self._is_archived(tokens, member))
        ):
            return record
        try:
            return with_sequences(record, self._read(tokens, member))
        except StoreError as exc:
            return with_sequences(record, exc)

    def read_bytes(self, episode_id: str) -> bytes:
        """Raises a ``StoreError`` if the file does not exist."""
        return self.read(self._find(episode_id))

    def read(self, path: Path) -> bytes:
        """Read it from the archive of its batch if there is no such file; raises ``StoreError`` if there is neither."""
        return self._read(path, _member_of(path))

    def _read(self, path: Path, member: str) -> bytes:
        try:
            return read_file(path)
        except StoreError:
            if os.path.lexists(path) or not self._is_archived(path, member):
                raise
        archive = path.with_name(ARCHIVE_NAME)
        return read_member(archive, read_directory(archive)[member])

    def is_archived(self, path: Path) -> bool:
        return self._is_archived(path, _member_of(path))

    def _is_archived(self, path: Path, member: str) -> bool:
        with contextlib.suppress(StoreError):  # reported by the index
            return member in read_directory(path.with_name(ARCHIVE_NAME))
        return False

    def has_journal(self, batch_id: str) -> bool:
        """Return whether an episode of a batch is running, or its journal was left by a process that died."""
        return is_ulid(batch_id) and any(each.name.endswith(JOURNAL_SUFFIX) for each in _entries(self.runs / batch_id))

    def batch_ids(self, damaged: list[DamagedFile] | None = None) -> Iterator[str]:
        """``damaged`` receives what is no batch; raises a ``StoreError`` if the folders cannot be read."""
        return (batch.name for batch in self._batch_folders(damaged))

    def list_batch(self, batch_id: str, damaged: list[DamagedFile]) -> list[EpisodeFile]:
        """Return all episodes of a batch in arbitrary order; of one with a file and in the archive, the file.

        ``damaged`` receives what is no episode by its name or kind, and an archive that cannot be read or is of another
        batch. Raises ``StoreError`` or ``OSError`` if the folder cannot be read.
        """
        return _list_batch(self.runs / batch_id, damaged)

    def _find(self, episode_id: str) -> Path:
        if is_ulid(episode_id):
            for is_here in (os.path.lexists, self.is_archived):  # reading archives takes longer
                for batch in self._batch_folders():
                    if is_here(path := batch / f"{episode_id}.json"):
                        return path
        raise StoreError(f"there is no episode {episode_id!r} under {self.runs}; check the id and the state directory")

    def stat_file(self, record: EpisodeRecord) -> EpisodeFile:
        """Raises a ``StoreError`` if the file does not exist."""
        path = self.path(record.batch_id, record.episode_id)
        try:
            return _episode_file(record.batch_id, record.episode_id, path.stat(follow_symlinks=False))
        except OSError as exc:
            raise StoreError(f"{path} does not exist any more: {exc}") from exc

    def _batch_folders(self, damaged: list[DamagedFile] | None = None) -> Iterator[Path]:
        """Yield the folders of batches; ``damaged`` receives everything else that is not hidden."""
        for entry in _entries(self.runs):
            path = self.runs / entry.name
            if is_ulid(entry.name) and entry.is_dir(follow_symlinks=False):
                yield path
            elif damaged is not None and not entry.name.startswith(".") and entry.name != LOST_AND_FOUND:
                damaged.append(DamagedFile(path, NO_BATCH))

    def recover(self, clock: Clock | None = None) -> list[EpisodeRecord]:
        """Turn journals of dead processes into ``interrupted`` episodes, and remove abandoned temporary files.

        Journals of batches that a process plays, including this one, are left unchanged. A worker whose driver has
        died may still end its step; then this waits for it.
        """
        self.damaged = []
        recovered: list[EpisodeRecord] = []
        clock = clock or Clock()
        now, deadline_s = clock.now(), clock.monotonic() + ORPHANS_S
        for batch in self._batch_folders():
            try:
                entries = list(_entries(batch))
            except StoreError as exc:
                self._report_damaged(batch, str(exc))
                continue
            for entry in entries:
                path = batch / entry.name
                if entry.name.endswith(JOURNAL_SUFFIX):
                    if (
                        not _is_played(batch)
                        and (record := self._recover_unlocked(path, deadline_s, clock)) is not None
                    ):
                        recovered.append(record)
                elif entry.name.endswith(TEMPORARY_SUFFIX):
                    _remove_stale(path, now)
        return recovered

    def _recover_unlocked(self, journal: Path, deadline_s: float, clock: Clock) -> EpisodeRecord | None:
        while True:
            with file_lock(journal) as is_locked:
                if is_locked:
                    return self._recover_journal(journal)
            if clock.monotonic() > deadline_s or not journal.exists() or _is_played(journal.parent):
                return None
            time.sleep(LOCK_TICK_S)

    def _recover_journal(self, journal: Path) -> EpisodeRecord | None:
        try:
            if journal.with_name(journal.name.removesuffix(JOURNAL_SUFFIX) + ".json").exists():
                self._remove(journal)
                return None
            if not read_file(journal).strip(b"\0"):
                logger.warning("%s is empty, as after a power loss; its episode was not recorded", journal)
                self._remove(journal)
                self._remove(journal.with_name(journal.name.removesuffix(JOURNAL_SUFFIX) + TOKENS_SUFFIX))
                return None
            return self._finalize(journal)
        except StoreError as exc:
            self._report_damaged(journal, str(exc))
            return None

    def _finalize(self, path: Path) -> EpisodeRecord:
        """Write the episode file of a journal without a writer; one that is damaged is kept as ``….jsonl.damaged``."""
        journal = read_journal(path)
        record = unfinished_record(journal, Outcome.INTERRUPTED, ended_at=_modified_at(path))
        self._write(record)
        if journal.damage is None:
            self._remove(path)
        else:
            self._set_aside(path, journal.damage)
        return record

    def _set_aside(self, journal: Path, reason: str) -> None:
        renamed = journal.with_name(journal.name + ".damaged")
        try:
            journal.rename(renamed)
        except OSError as exc:
            logger.warning("%s could not be renamed: %s", journal, exc)
            renamed = journal
        self._report_damaged(renamed, reason)

    def _report_damaged(self, path: Path, reason: str) -> None:
        logger.warning("%s: %s", path, reason)
        self.damaged.append(DamagedFile(path, reason))


def _is_played(batch: Path) -> bool:
    with file_lock(batch) as is_free:
        return not is_free


def _member_of(path: Path) -> str:
    return episode_member(path.parent.name, path.stem)


def stamp_of(status: os.stat_result) -> tuple[int, int]:
    """Return the size and time of a file by which the index notices changes; the time fits an integer of SQLite."""
    return status.st_size, status.st_mtime_ns % 2**63


def _episode_file(batch_id: str, episode_id: str, status: os.stat_result) -> EpisodeFile:
    return EpisodeFile(batch_id, episode_id, *stamp_of(status))


def _list_batch(batch: Path, damaged: list[DamagedFile]) -> list[EpisodeFile]:
    files: dict[str, EpisodeFile] = {}
    for entry in _entries(batch):
        stem, _, suffix = entry.name.partition(".")
        if suffix not in ("zip", "json") and not entry.is_dir(follow_symlinks=False):
            continue  # journals, token files, locks and temporary files
        if entry.name == ARCHIVE_NAME:
            continue
        if not is_ulid(stem) or suffix != "json":
            damaged.append(DamagedFile(Path(entry.path), NO_EPISODE))
            continue
        with contextlib.suppress(FileNotFoundError):
            files[stem] = _episode_file(batch.name, stem, entry.stat(follow_symlinks=False))
    # It is read after the files, because a file is deleted only after it was archived.
    archive = batch / ARCHIVE_NAME
    return [*(_list_archive(archive, damaged) | files if os.path.lexists(archive) else files).values()]


def _list_archive(archive: Path, damaged: list[DamagedFile]) -> dict[str, EpisodeFile]:
    batch_id, found = archive.parent.name, {}
    try:
        for name, member in read_directory(archive).items():
            stem = PurePosixPath(name).stem
            if is_ulid(stem) and name == episode_member(batch_id, stem):  # an archive from elsewhere may have any names
                found[stem] = EpisodeFile(batch_id, stem, member.size, member.crc, is_archived=True)
        if not found:
            damaged.append(DamagedFile(archive, FOREIGN))
    except StoreError as exc:
        damaged.append(DamagedFile(archive, str(exc)))
    return found


def _entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            yield from entries
    except FileNotFoundError:
        return
    except OSError as exc:
        raise StoreError(f"{folder} cannot be read: {exc.strerror}; check its permissions") from exc


def _modified_at(path: Path) -> datetime:
    try:
        return datetime.fromtimestamp(path.stat().st_mtime, UTC)
    except (OSError, ValueError, OverflowError) as exc:
        raise StoreError(f"{path} has an invalid modification time: {exc}; touch it") from exc


def _remove_stale(path: Path, now: datetime) -> None:
    with contextlib.suppress(OSError):
        if now.timestamp() - path.stat(follow_symlinks=False).st_mtime > STALE_S:
            path.unlink()
