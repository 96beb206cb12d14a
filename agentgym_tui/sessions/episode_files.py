"""Episodes as bytes and as the ``Episode`` that screens show: files, members of archives, lines, and journals.

A JSON Lines file of episodes is listed as if it was a folder, with one name per line: the position of the line.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import msgspec

from agentgym_tui.state.episode import Episode, Spans, as_messages, picture_of, step_of
from runner.errors import StoreError
from runner.types import ErrorInfo, Outcome
from runner.util.files import MAX_FILE_BYTES, exists, read_file
from runner.util.safe_values import encode

if TYPE_CHECKING:
    from runner.formats.format import Format
    from runner.store import EpisodeRecord

LOG_SUFFIXES: Final = (".jsonl", ".ndjson", ".log")  # of files that are shown line by line
LINES_SUFFIXES: Final = (".jsonl", ".ndjson")  # of files whose lines can be episodes
JOURNAL_SUFFIX: Final = ".journal.jsonl"  # of an unfinished episode; ``runner.store.journal`` takes long to import
ARCHIVE_SUFFIX: Final = ".zip"
EPISODE_START: Final = b'{"schema":'
MANIFEST: Final = "manifest.json"  # ends the names of the manifests of exports; ``runner.formats`` takes long to import
UNFINISHED: Final = "still running, or its node died; the node completes the episode when it starts again"

_FOREIGN_SUFFIXES: Final = (".json", ".jsonl", ".ndjson", ".eval", ".parquet")
_FOREIGN_STARTS: Final = (b"{", b"[", b"PK\3\4", b"PAR1", b"\xef\xbb\xbf")
_ID_NAME_LENGTH: Final = 26 + len(".json")
_HEAD_BYTES: Final = 64 << 10
_LINE_NAME: Final = re.compile(r"(\d{1,18})-(\d{1,18})")


def episode_from_record(record: EpisodeRecord) -> Episode:
    from runner.store.episode_file import shared_fields
    from runner.store.flags import find_flags

    error, origin = record.error, record.origin
    imported = "" if origin is None else origin.format
    if origin is not None and origin.missing:
        imported += f", which lacks: {', '.join(origin.missing)}"
    values = shared_fields(record, Episode) | {
        "outcome": str(record.outcome),
        "currency": record.currency or "",
        "unscored": record.unscored,
        "gpu": record.gpu,
        "reset_observation": as_messages(record.reset_observation),
        "reset_world": picture_of(record.reset_world),
        "steps": [step_of(step) for step in record.timesteps],
        "spans": Spans(record.spans),
        "found_flags": tuple((flag.name, flag.step) for flag in find_flags(record, record.timesteps)),
        "imported": imported,
    }
    if error is not None:
        values |= {f"error_{name}": getattr(error, name) for name in ("type", "message", "traceback")}
    return Episode(**values)


def running_episode(journal: Any) -> Episode:  # noqa: ANN401 - its module takes long to import
    from runner.store.journal import unfinished_record

    episode = episode_from_record(unfinished_record(journal, Outcome.INTERRUPTED, ended_at=journal.header.started_at))
    episode.outcome = episode.duration_s = None
    return episode


def record_from_bytes(data: bytes, path: Path) -> EpisodeRecord:
    """Decode an episode file that may have been moved: ``path`` is only named in errors; raises ``StoreError``."""
    from runner.store.episode_file import decode_episode

    return decode_episode(data, path, was_moved=True)


def episode_from_bytes(data: bytes, path: Path) -> Episode:
    return episode_from_record(record_from_bytes(data, path))


def read_episode(path: Path) -> bytes:
    """Return the content of an episode file, in an archive, on a line or unfinished, too; raises ``StoreError``."""
    from runner.store.archive import read_episodes, read_member

    if path.name.endswith(JOURNAL_SUFFIX):
        return _read_unfinished(path)
    if is_line(path) and not is_folder(path.parent):
        return read_line(path)
    if not path.parent.name.endswith(ARCHIVE_SUFFIX) or is_folder(path.parent):
        return read_file(path)
    if (member := read_episodes(path.parent).get(path.name)) is None:
        raise StoreError(f"{path.parent} has no file {path.name!r} any more; reload it")
    return read_member(path.parent, member)


def holds_episodes(path: Path) -> bool:
    return path.name.endswith(LINES_SUFFIXES) and _read_head(path, os.O_NOFOLLOW).startswith(EPISODE_START)


def line_names(path: Path) -> Iterator[str]:
    """Yield a name for each line that is not empty; raises ``StoreError``, also for a line that is too long."""
    try:
        with _open(path) as file:
            start = 0
            while line := file.readline(MAX_FILE_BYTES + 1):
                if len(line) > MAX_FILE_BYTES:
                    raise StoreError(f"{path} has a line of more than {MAX_FILE_BYTES >> 20} MiB at byte {start}")
                if line.strip():
                    yield f"{start:018}-{len(line)}"
                start += len(line)
    except OSError as exc:
        raise StoreError(f"{path} cannot be read: {exc.strerror or exc}") from exc


def is_line(path: Path) -> bool:
    return path.parent.name.endswith(LINES_SUFFIXES) and _LINE_NAME.fullmatch(path.name) is not None


def read_line(path: Path) -> bytes:
    if (match := _LINE_NAME.fullmatch(path.name)) is None:
        raise StoreError(f"{path.name!r} is no line of {path.parent}")
    start, size = int(match[1]), min(int(match[2]), MAX_FILE_BYTES)
    try:
        with _open(path.parent) as file:
            file.seek(start)
            line = file.read(size)
    except (OSError, ValueError) as exc:
        raise StoreError(f"{path.parent} cannot be read: {exc}") from exc
    if len(line) < size:
        raise StoreError(f"{path.parent} is shorter than before; reload it")
    return line


def _read_unfinished(path: Path) -> bytes:
    from runner.store.journal import read_journal, unfinished_record

    journal = read_journal(path, was_moved=True)
    try:
        ended_at = datetime.fromtimestamp(path.stat().st_mtime, UTC)
    except (OSError, ValueError, OverflowError):
        ended_at = journal.header.started_at
    reason = UNFINISHED if journal.damage is None else f"{UNFINISHED}; {journal.damage}"
    error = ErrorInfo(type="Unfinished", message=reason, traceback="")
    return encode(unfinished_record(journal, Outcome.INTERRUPTED, ended_at=ended_at, error=error))


def _open(path: Path, flags: int = os.O_NOFOLLOW) -> BinaryIO:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | flags)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(f"{path} is no regular file")
    return os.fdopen(descriptor, "rb")


def is_folder(path: Path) -> bool:
    return os.path.isdir(path)  # noqa: PTH112 - Path.is_dir raises for a long name, or where it may not search


def is_log(path: Path) -> bool:
    """Return whether a path is a log, which is shown line by line: by its suffix, or by its start.

    A ``.json`` file is one if more lines follow a complete JSON value; another one unless it starts like an episode.
    """
    if is_folder(path) or path.name.endswith(ARCHIVE_SUFFIX) or foreign_format(path) is not None:
        return False
    if path.name.endswith(LOG_SUFFIXES):
        return True
    if not exists(path):
        return False
    head = _read_head(path)
    if path.suffix != ".json":
        return not head.startswith(EPISODE_START)
    first, _, rest = head.partition(b"\n")
    try:
        msgspec.json.decode(first)
    except (ValueError, RecursionError):
        return False
    return bool(rest.strip())


def foreign_format(path: Path) -> Format | None:
    """Return the format of a file or folder of another tool's episodes; None for anything else."""
    if not is_folder(path):
        head = _read_head(path).lstrip()
        if head.startswith(EPISODE_START) or not head.startswith(_FOREIGN_STARTS):
            return None
    from runner.formats.format import recognise  # slow to import

    return recognise(path)


def unknown_reason(path: Path) -> str | None:
    """Return why a file that does not begin like an episode file cannot be read; None for any other path."""
    head = _read_head(path)
    if not head or head.startswith(EPISODE_START):
        return None
    from runner.formats.format import unknown_format  # slow to import

    return unknown_format(path)


def foreign_names(folder: str, names: Sequence[str]) -> list[str]:
    """Return the names of a folder's files that may be files of other tools, or manifests.

    Of files that are named by ids, as ours and those of an ATIF export are, the first one stands for the others.
    """
    named_by_id = [name for name in names if len(name) == _ID_NAME_LENGTH and name.endswith(".json")]
    is_foreign = named_by_id and foreign_format(Path(folder, named_by_id[0])) is not None
    own = set() if is_foreign else set(named_by_id)
    return [name for name in names if name.endswith(_FOREIGN_SUFFIXES) and name not in own]


def _read_head(path: Path, flags: int = 0) -> bytes:
    try:
        with _open(path, flags) as file:
            return file.read(_HEAD_BYTES)
    except (OSError, ValueError):
        return b""
