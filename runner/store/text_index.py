"""The full-text index: an SQLite database in which the words of all episodes are found.

It has no text, only where each word is, and lies in a file of its own, so that building it never delays the node.
A missing, damaged or later file is built again from the episode files.
"""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Callable, Collection, Container, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final, TypeAlias

from runner.errors import StoreError
from runner.store.episode_store import EpisodeStore
from runner.store.index import FILE_NAME as INDEX_NAME
from runner.store.index import open_index_to_read
from runner.store.passages import Passage, TextPattern, find_hits, read_passages
from runner.util.files import file_lock
from runner.util.safe_values import escape_surrogates
from runner.util.sqlite import DATABASE_ERRORS, Database, SqliteSchema, read_rows, transaction

logger = logging.getLogger(__name__)

FILE_NAME: Final = "text.sqlite"
EPISODES_PER_TRANSACTION: Final = 50
BYTES_PER_TRANSACTION: Final = 4 << 20
"""Largest number and size of episodes that are read, and then added in one transaction."""
MANY: Final = 500
"""Number of episodes from which on a search that has to add them first logs it, because it takes a moment."""
BUSY_TIMEOUT_S: Final = 5.0

_PASSAGE_BITS: Final = 24
"""Bits of the number of a passage for its place in its episode; further passages are left out."""
# Fewer and larger segments than by default, as each merge of segments writes all their words again.
_TABLES: Final = """
    CREATE TABLE episodes (
        number INTEGER PRIMARY KEY AUTOINCREMENT,
        episode_id TEXT NOT NULL,
        batch_id TEXT NOT NULL,
        size INTEGER NOT NULL,
        mtime_ns INTEGER NOT NULL,
        UNIQUE (episode_id, batch_id)
    );
    CREATE VIRTUAL TABLE passages USING fts5(
        text, content = '', columnsize = 0, tokenize = 'unicode61 remove_diacritics 0'
    );
    INSERT INTO passages (passages, rank) VALUES ('automerge', 16), ('crisismerge', 64), ('hashsize', 4194304);
"""
_SCHEMA = SqliteSchema(
    version=2, tables=f"BEGIN IMMEDIATE; {_TABLES} PRAGMA user_version = 2; COMMIT;", probes=(), is_checked=False
)
_ADVICE: Final = "search again; if this persists, delete the file, which is built again"
_REMOVE = "DELETE FROM episodes WHERE (episode_id, batch_id, size, mtime_ns) = (?, ?, ?, ?)"
_REMOVE_EARLIER = "DELETE FROM episodes WHERE episode_id = ? AND batch_id = ? AND (size, mtime_ns) <> (?, ?)"
_ADD = "INSERT OR IGNORE INTO episodes (episode_id, batch_id, size, mtime_ns) VALUES (?, ?, ?, ?)"
_IS_MOSTLY_GONE = "SELECT max(seq) > 2 * (SELECT count(*) FROM episodes) FROM sqlite_sequence"
_START_AGAIN = (
    "INSERT INTO passages (passages) VALUES ('delete-all')",
    "DELETE FROM episodes",
    "DELETE FROM sqlite_sequence",
)

_NUMBERS = f"SELECT DISTINCT rowid >> {_PASSAGE_BITS} AS number FROM passages WHERE passages MATCH ?"
_COUNTS = f"SELECT rowid >> {_PASSAGE_BITS} AS number, count(*) AS n FROM passages WHERE passages MATCH ? GROUP BY 1"
_FIND = f"SELECT episode_id FROM ({_NUMBERS}) JOIN episodes USING (number)"
_COUNT = f"SELECT episode_id, n FROM ({_COUNTS}) JOIN episodes USING (number)"

Stamped: TypeAlias = tuple[str, str, int, int]
"""Episode id, batch id, and size and modification time (in ns) of the file."""
Summary: TypeAlias = tuple[int, float, int | None]
"""Number and size of all files, and the latest modification time."""
SUMMARY: Final = "SELECT count(*), total(size), max(mtime_ns) FROM episodes"
STAMPS: Final = "SELECT episode_id, batch_id, size, mtime_ns FROM episodes"


class TextIndex:
    """A full-text index, for several threads and processes; its first use opens the file.

    A row of ``passages`` is a passage: its number is that of its episode and its place there, so that numbers only
    grow; FTS5 begins a new segment at a smaller one. Passages of episodes that are gone stay until these are more than
    the others, as FTS5 cannot delete rows without their text. ``read`` returns the content of an episode file for the
    ids of batch and episode. All methods raise ``StoreError`` if the file cannot be used.
    """

    def __init__(self, path: Path, read: Callable[[str, str], bytes]) -> None:
        self.path, self._read_file = path, read
        self._database = Database(path, _SCHEMA, busy_timeout_s=BUSY_TIMEOUT_S, advice=_ADVICE)

    @classmethod
    def of(cls, store: EpisodeStore) -> TextIndex:
        return cls(store.data_dir / FILE_NAME, lambda batch_id, id: store.read(store.path(batch_id, id)))

    def close(self) -> None:
        """The next use opens the file again."""
        self._database.release()

    def update(
        self,
        wanted: Collection[Stamped],
        *,
        at_most: int | None = None,
        is_all: bool = True,
        go_on: Callable[[float], bool] = lambda seconds: True,
    ) -> int:
        """Add the files that this index lacks, and remove what is gone; return the number of files it still lacks.

        Args:
            at_most: add nothing if more than this number of files are lacking.
            is_all: whether all other files are gone.
            go_on: called after each transaction with the seconds it took; may wait; returns whether to continue.
        """
        missing = self._missing(wanted, is_all=is_all)
        if at_most is not None and len(missing) > at_most:
            return len(missing)
        n_left = len(missing)
        for part in _parts(missing):
            started = time.monotonic()
            self._add(part)
            n_left -= len(part)
            if not go_on(time.monotonic() - started):
                break
        return n_left

    def build(self, wanted: Collection[Stamped], go_on: Callable[[float], bool], *, is_all: bool = True) -> None:
        """Add all that is missing, like ``update``, unless another process does it now."""
        with file_lock(self.path.with_suffix(".building"), create=True) as is_mine:
            if is_mine:
                self.update(wanted, is_all=is_all, go_on=go_on)

    def _missing(self, wanted: Collection[Stamped], *, is_all: bool) -> list[Stamped]:
        earliest = min((stamped[3] for stamped in wanted), default=0)
        query = STAMPS if is_all else f"{STAMPS} WHERE mtime_ns >= {earliest}"
        with self._database.session() as connection:
            known: set[Stamped] = set(connection.execute(query))
            gone = known.difference(wanted) if is_all else ()
            if gone:
                with transaction(connection):
                    connection.executemany(_REMOVE, gone)
                    if connection.execute(_IS_MOSTLY_GONE).fetchone() == (1,):
                        known.clear()
                        for statement in _START_AGAIN:
                            connection.execute(statement)
        return [stamped for stamped in wanted if stamped not in known]

    def _add(self, missing: list[Stamped]) -> None:
        read = [(stamped, self._read(stamped)) for stamped in missing]
        with self._database.transaction() as connection:
            for stamped, passages in read:
                _insert(connection, stamped, passages)

    def _read(self, stamped: Stamped) -> list[Passage]:
        """Return the passages of an episode; none if its file cannot be read, which the episode index reports."""
        try:
            return read_passages(self._read_file(stamped[1], stamped[0]))
        except StoreError as exc:
            logger.debug("episode %s has no text: %s", stamped[0], exc)
            return []

    def search(self, patterns: Iterable[TextPattern]) -> list[str]:
        return [episode_id for (episode_id,) in self._database.select(_FIND, (_expression(patterns),))]

    def count(self, patterns: Iterable[TextPattern], within: Container[str]) -> int:
        with self._database.session() as connection:
            counts = connection.execute(_COUNT, (_expression(patterns),))
            return sum(n for episode_id, n in counts if episode_id in within)

    def summary(self) -> Summary:
        """Return what is compared with the episode index to see whether something is missing; raises ``StoreError``."""
        summary: Summary = self._database.select(SUMMARY)[0]
        return summary


def _expression(patterns: Iterable[TextPattern]) -> str:
    return " OR ".join(pattern.match_expression for pattern in patterns)


def _parts(missing: Iterable[Stamped]) -> Iterator[list[Stamped]]:
    """Yield the files of each transaction, few enough to be in memory together."""
    part: list[Stamped] = []
    n_bytes = 0
    for stamped in missing:
        if len(part) == EPISODES_PER_TRANSACTION or (part and n_bytes + stamped[2] > BYTES_PER_TRANSACTION):
            yield part
            part, n_bytes = [], 0
        part.append(stamped)
        n_bytes += stamped[2]
    if part:
        yield part


def _insert(connection: sqlite3.Connection, stamped: Stamped, passages: list[Passage]) -> None:
    connection.execute(_REMOVE_EARLIER, stamped)
    added = connection.execute(_ADD, stamped)
    if not added.rowcount:  # another process was faster
        return
    assert added.lastrowid is not None
    numbers = range(added.lastrowid << _PASSAGE_BITS, (added.lastrowid + 1) << _PASSAGE_BITS)
    texts = (escape_surrogates(passage.text) for passage in passages)
    connection.executemany("INSERT INTO passages (rowid, text) VALUES (?, ?)", zip(numbers, texts, strict=False))


def read_stamps(data_dir: Path, indexed: Summary) -> tuple[list[Stamped], bool]:
    """Return the files of a state directory to compare with a full-text index, and whether these are all.

    Where nothing earlier has changed, they are those later than any indexed one, so that a few new episodes do not cost
    a look at all others. Raises ``StoreError``.
    """
    path, latest = data_dir / INDEX_NAME, indexed[2] or 0
    if _read(path, f"{SUMMARY} WHERE mtime_ns <= {latest}") == [indexed]:
        return _read(path, f"{STAMPS} WHERE mtime_ns > {latest}"), False
    return _read(path, STAMPS), True


def is_current(data_dir: Path) -> bool:
    """Return whether the full-text index of a state directory seems to have all episodes, without writing anything."""
    try:
        listed = _read(data_dir / INDEX_NAME, SUMMARY)
        return listed[0][0] == 0 or listed == _read(data_dir / FILE_NAME, SUMMARY)
    except StoreError:
        return False


def _read(path: Path, query: str) -> list[Any]:
    try:
        return read_rows(path, query, busy_timeout_s=BUSY_TIMEOUT_S)
    except DATABASE_ERRORS as exc:
        raise StoreError(f"{path} cannot be read: {exc}; a node or a list of the episodes makes it again") from exc


def find_texts(data_dir: Path, pattern: TextPattern) -> list[str]:
    """Return the ids of the episodes of a state directory with a pattern, after what is missing was added.

    Where the index cannot be written, as in a read-only folder, every episode file is read instead. Raises
    ``StoreError`` if the episodes cannot be read.
    """
    store = EpisodeStore(data_dir)
    with closing(open_index_to_read(store)) as index, closing(TextIndex.of(store)) as text_index:
        stamps: list[Stamped] = index.select(STAMPS)
        try:
            if n_missing := text_index.update(stamps, at_most=MANY):
                logger.warning("%s episodes are not in the full-text index yet; they are added now", f"{n_missing:,}")
                text_index.update(stamps)
            return text_index.search([pattern])
        except StoreError as exc:
            logger.warning("%s. Every episode file is read instead", exc)
    return [stamp[0] for stamp in stamps if _has_text(store, store.path(stamp[1], stamp[0]), pattern)]


def _has_text(store: EpisodeStore, path: Path, pattern: TextPattern) -> bool:
    try:
        return next(find_hits(store.read(path), [pattern]), None) is not None
    except StoreError:
        return False
