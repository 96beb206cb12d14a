"""Opening the index of a state directory: to write it, or, where its file cannot be written, in memory."""

from __future__ import annotations

import logging
import sqlite3

from runner.errors import StoreError
from runner.store.episode_store import EpisodeStore
from runner.store.index import FILE_NAME, EpisodeIndex, file_id
from runner.store.index_schema import SCHEMA
from runner.store.old_outbox import take_over
from runner.util.files import file_lock
from runner.util.sqlite import BUSY_TIMEOUT_S, open_database

logger = logging.getLogger(__name__)


def open_index(
    store: EpisodeStore, *, is_owner: bool = False, reconcile: bool = True, busy_timeout_s: float = BUSY_TIMEOUT_S
) -> EpisodeIndex:
    """Open the index of a store and synchronize it with the files.

    A missing or corrupt index is rebuilt; one of another version since 5 keeps its events and marks.

    Args:
        is_owner: whether no node of another process uses the state directory; only then, the outbox of an earlier
            version is taken over, because a node of that version may be using it.

    Raises:
        StoreError: the files or the database cannot be read or written.
    """
    # Without the lock, two processes could find a corrupt database and one delete the other's new one.
    with file_lock(store.runs, wait=True):
        connection = open_database(store.data_dir / FILE_NAME, SCHEMA, busy_timeout_s=busy_timeout_s)
        try:
            if is_owner:
                take_over(store.data_dir / "outbox.sqlite", connection)
        except StoreError:
            connection.close()
            raise
        index = EpisodeIndex(store, connection, busy_timeout_s, file_id(store.data_dir / FILE_NAME))
    return _reconciled(index) if reconcile else index


def open_index_to_read(store: EpisodeStore) -> EpisodeIndex:
    """Open the index of a store that is only read; where its file cannot be written, build the index in memory."""
    try:
        return open_index(store)
    except StoreError as exc:
        logger.warning("%s. Every episode file is read instead", exc)
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    connection.executescript(SCHEMA.tables)
    return _reconciled(EpisodeIndex(store, connection))


def _reconciled(index: EpisodeIndex) -> EpisodeIndex:
    try:
        index.reconcile()
    except StoreError:
        index.close()
        raise
    return index
