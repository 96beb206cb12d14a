"""Tags and notes of episodes and steps, in ``notes.sqlite`` of the state directory.

They exist nowhere else: the file is never rebuilt or deleted with the index, a damaged one is set aside, and one of a
later version is refused. Each change is one synced transaction, so several processes write without losing any.
"""

from __future__ import annotations

import sqlite3
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

import msgspec

from runner.errors import StoreError
from runner.types.notes import MAX_NOTE_CHARS, MAX_PER_EPISODE, MAX_STEP, MAX_TAG_CHARS, Kind, Note, NoteChange
from runner.util.clock import Clock, is_ulid, new_ulid
from runner.util.display_text import is_unsafe
from runner.util.files import make_folder
from runner.util.safe_values import escape_surrogates
from runner.util.sqlite import Database, SqliteSchema, transaction

FILE_NAME: Final = "notes.sqlite"
BUSY_TIMEOUT_S: Final = 5.0

_COLUMNS = "id, episode_id, step, kind, text, at, author"
_SCHEMA = SqliteSchema(
    version=1,
    tables="""
    BEGIN IMMEDIATE;
    CREATE TABLE notes (
        id TEXT PRIMARY KEY,
        episode_id TEXT NOT NULL,
        step INTEGER,
        kind TEXT NOT NULL,
        text TEXT NOT NULL,
        at TEXT NOT NULL,
        author TEXT
    ) WITHOUT ROWID;
    CREATE INDEX of_episode ON notes (episode_id);
    CREATE UNIQUE INDEX tags ON notes (episode_id, ifnull(step, -1), text) WHERE kind = 'tag';
    PRAGMA user_version = 1;
    COMMIT;
""",
    probes=(f"SELECT {_COLUMNS} FROM notes INDEXED BY of_episode WHERE episode_id = '' LIMIT 0",),
    source="nothing: tags and notes exist only there",
    durable=True,
)
_ADD = f"INSERT OR IGNORE INTO notes ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)"
_REMOVE_TAG = "DELETE FROM notes WHERE kind = 'tag' AND episode_id = ? AND step IS ? AND text = ?"
_REMOVE_NOTE = "DELETE FROM notes WHERE kind = 'note' AND episode_id = ? AND id = ?"
_OF_EPISODE = f"SELECT {_COLUMNS} FROM notes WHERE episode_id = ? ORDER BY id LIMIT {2 * MAX_PER_EPISODE}"


class InvalidNote(StoreError):
    """A tag or note that is not stored, and why."""


def checked_tag(text: str) -> str:
    """Return a tag in its stored form: composed characters, without spaces around it; raises ``InvalidNote``."""
    tag = unicodedata.normalize("NFC", text[: 4 * MAX_TAG_CHARS].strip())
    if not 0 < len(tag) <= MAX_TAG_CHARS:
        raise InvalidNote(f"a tag has 1 to {MAX_TAG_CHARS} characters")
    if "," in tag or any(map(str.isspace, tag)) or not tag.isprintable() or is_unsafe(tag):
        raise InvalidNote("a tag has no spaces, commas or invisible characters; join its words with -")
    return tag


def _checked_note(text: str, limit: int) -> str:
    text = escape_surrogates(text.strip())
    if not 0 < len(text) <= limit:
        raise InvalidNote(f"a note or name has 1 to {limit} characters")
    return text


class Notes:
    """The tags and notes of a state directory; safe for several threads and processes.

    The file is opened for each use, so a copy put in its place is used at once, and an idle node keeps nothing open.
    All methods raise ``StoreError`` if it cannot be used.
    """

    def __init__(self, data_dir: Path, clock: Clock | None = None) -> None:
        self.path = data_dir / FILE_NAME
        self._clock = clock or Clock()

    def change(self, episode_id: str, change: NoteChange) -> list[Note]:
        """Apply a change durably; return all tags and notes of the episode, the oldest first.

        Raises ``InvalidNote`` also if the episode would have more than ``MAX_PER_EPISODE``.
        """
        rows = self._rows(episode_id, change)
        removed = [(episode_id, change.step, checked_tag(tag)) for tag in change.remove]
        if change.is_empty:
            return self.of_episode(episode_id)
        with self._session() as connection, transaction(connection):
            connection.executemany(_REMOVE_TAG, removed)
            if change.note is None and change.note_id is not None:
                connection.execute(_REMOVE_NOTE, (episode_id, change.note_id))
            connection.executemany(_ADD, rows)
            (count,) = connection.execute("SELECT count(*) FROM notes WHERE episode_id = ?", (episode_id,)).fetchone()
            if rows and count > MAX_PER_EPISODE:
                raise InvalidNote(f"an episode has at most {MAX_PER_EPISODE} tags and notes; remove some")
            return _decode(connection.execute(_OF_EPISODE, (episode_id,)))

    def _rows(self, episode_id: str, change: NoteChange) -> list[tuple[object, ...]]:
        if not is_ulid(episode_id) or not is_ulid(change.note_id or episode_id):
            raise InvalidNote("the ids of episodes and notes are ULIDs of 26 characters")
        if change.step is not None and not 0 <= change.step < MAX_STEP:
            raise InvalidNote("a step is counted from 0")
        author = None if change.author is None else _checked_note(change.author, MAX_TAG_CHARS)
        texts: list[tuple[str, Kind, str]] = [(new_ulid(), "tag", checked_tag(tag)) for tag in change.add]
        if change.note is not None:
            texts.append((change.note_id or new_ulid(), "note", _checked_note(change.note, MAX_NOTE_CHARS)))
        at = self._clock.now().isoformat()
        return [(id_, episode_id, change.step, kind, text, at, author) for id_, kind, text in texts]

    def of_episode(self, episode_id: str) -> list[Note]:
        """Return the tags and notes of an episode and its steps, the oldest first."""
        if not self.path.exists():
            return []
        with self._session() as connection:
            return _decode(connection.execute(_OF_EPISODE, (episode_id,)))

    def tags(self) -> dict[str, tuple[str, ...]]:
        """Return the tags of each tagged episode and its steps, in alphabetical order."""
        if not self.path.exists():
            return {}
        query = "SELECT episode_id, text FROM notes WHERE kind = 'tag' GROUP BY episode_id, text"
        found: dict[str, list[str]] = {}
        with self._session() as connection:
            for episode_id, text in connection.execute(query):
                if isinstance(episode_id, str) and isinstance(text, str):
                    found.setdefault(episode_id, []).append(text[:MAX_TAG_CHARS])
        return {episode_id: tuple(sorted(tags)) for episode_id, tags in found.items()}

    def find(self, kind: Kind, pattern: str) -> set[str]:
        """``pattern`` is a tag with the wildcards of SQLite's ``GLOB``, or a part of a note; ASCII case is ignored."""
        if not self.path.exists():
            return set()
        test = "lower(text) GLOB lower(?)" if kind == "tag" else "instr(lower(text), lower(?)) > 0"
        query = f"SELECT DISTINCT episode_id FROM notes WHERE kind = ? AND {test}"
        with self._session() as connection:
            rows = connection.execute(query, (kind, escape_surrogates(pattern))).fetchall()
        return {episode_id for (episode_id,) in rows if isinstance(episode_id, str)}

    @contextmanager
    def _session(self) -> Iterator[sqlite3.Connection]:
        try:
            make_folder(self.path.parent)
        except OSError as exc:
            raise StoreError(f"{self.path.parent} cannot be created: {exc.strerror}; name another --data-dir") from exc
        with (
            closing(Database(self.path, _SCHEMA, busy_timeout_s=BUSY_TIMEOUT_S)) as database,
            database.session() as connection,
        ):
            yield connection


def _decode(rows: Iterable[Sequence[object]]) -> list[Note]:
    """Return the notes of rows; rows that no version has written are skipped."""
    notes = []
    for id_, _, step, kind, text, at, author in rows:
        shown = text[:MAX_NOTE_CHARS] if isinstance(text, str) else text
        fields = {"id": id_, "step": step, "kind": kind, "text": shown, "at": at, "author": author}
        try:
            notes.append(msgspec.convert(fields, Note))
        except msgspec.ValidationError:
            continue
    return notes
