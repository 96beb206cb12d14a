"""The outbox: the durable events of a state directory, how they get there, and their delivery state per sink.

``outbox.sqlite`` is the only record of what was sent, so it is kept. The event of an episode is only an id there: the
rest follows from its row in the index when it is sent.
"""

from __future__ import annotations

import itertools
import logging
import os
import sqlite3
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from runner.batch.result import FINISHED, BatchResult, BatchStats
from runner.batch.spec import BatchSpec
from runner.batch.workspace import Workspace
from runner.errors import StoreError, catch_foreign, log_failure
from runner.events import subjects
from runner.events.codec import encode
from runner.events.durable import BatchCompleted, BatteryCompleted, DurableEvent, EpisodeCompleted, FieldStatus
from runner.events.subjects import DurableNames
from runner.results.summary import IS_RATED
from runner.store import EpisodeIndex, EpisodeRecord, EpisodeRow
from runner.store.episode_file import shared_fields
from runner.store.index import FILE_NAME as INDEX_NAME
from runner.store.index_schema import COLUMNS, from_columns
from runner.types import Tokens, split_models
from runner.types.fields import NodeStatus
from runner.util.clock import Clock, new_ulid
from runner.util.sqlite import Database, FileState, SqliteSchema, Statement, file_state

logger = logging.getLogger(__name__)

FILE_NAME = "outbox.sqlite"
LOCAL = "local"
"""Name of the sink that every outbox has: the node's own broker."""
KEEP_ACKED_S = 600.0
"""Seconds to keep the acknowledgement of an event, so that it can be sent again.

nats-server writes acknowledged messages to disk every 2 minutes by default, so a power loss can lose them.
"""
ABANDON_AFTER_S = 30 * 86400.0
"""Seconds after which dead letters, sinks that are no longer configured, and events of deleted files are deleted."""
MAX_PER_TRANSACTION = 5000

DAMAGED = "its row in the index is damaged"
"""Reason of a dead letter that no broker has refused."""
LOCK_TIMEOUT_S = 1.0
"""Seconds to wait for another process that has locked the outbox."""

_VERSION = 1
# Compared columns have the same type, as SQLite does not use an index otherwise. An event that was only found in the
# files is held back from a sink that was new before they were read: its address gets what ends from then on.
_SCHEMA = SqliteSchema(
    version=_VERSION,
    tables=f"""
    BEGIN IMMEDIATE;
    CREATE TABLE events (n INTEGER PRIMARY KEY, id UNIQUE, subject, is_new, type, source, time, payload);
    CREATE TABLE marks (sink, n INTEGER, state, stream, seq, reason, at, PRIMARY KEY (sink, n)) WITHOUT ROWID;
    CREATE INDEX waiting ON marks (sink, n) WHERE state = 'pending';
    CREATE TABLE sinks (name PRIMARY KEY, seen_at, has_read) WITHOUT ROWID;
    CREATE TABLE streams (sink, name, created, PRIMARY KEY (sink, name)) WITHOUT ROWID;
    INSERT INTO sinks VALUES ('{LOCAL}', 0, 1);
    CREATE TRIGGER awaited AFTER INSERT ON events BEGIN
        INSERT INTO marks (sink, n, state)
            SELECT name, new.n, iif(has_read OR new.is_new, 'pending', 'held') FROM sinks;
    END;
    PRAGMA user_version = {_VERSION};
    COMMIT;
""",
    probes=(
        "SELECT n, id, subject, is_new, type, source, time, payload FROM events LIMIT 0",
        "SELECT sink, n, state, stream, seq, reason, at FROM marks LIMIT 0",
        "SELECT n FROM marks INDEXED BY waiting WHERE sink = '' AND state = 'pending' LIMIT 0",
        "SELECT name, seen_at, has_read FROM sinks LIMIT 0",
        "SELECT sink, name, created FROM streams LIMIT 0",
    ),
    source="the index",
    durable=True,
)
_ADVICE = "free disk space; if this persists, move the file away: all events are sent to the node's broker again"

_ADD_NEW = (
    "INSERT OR IGNORE INTO events (id, subject, is_new, type, source, time, payload) VALUES (?, ?, ?, ?, ?, ?, ?)"
)
_ADD_FOUND = (
    "INSERT OR IGNORE INTO events (id, subject, is_new) "
    "SELECT 'episode:' || episode_id, subject, played FROM other.unannounced WHERE n <= ? ORDER BY n"
)
_ADD_MISSED = (
    "INSERT OR IGNORE INTO events (id, is_new) SELECT 'episode:' || episode_id, 0 FROM other.episodes "
    "WHERE NOT settled AND NOT EXISTS (SELECT 1 FROM events WHERE id = 'episode:' || episode_id) ORDER BY episode_id"
)
_HOLD_EARLIER = (
    "INSERT INTO marks (sink, n, state) SELECT ?, n, 'held' FROM events WHERE id < 'status:' OR id >= 'status;'"
)
_FINISHED_MARKS = (
    "DELETE FROM marks WHERE (sink, n) IN (SELECT sink, n FROM marks "
    "WHERE (state = 'acked' AND at <= ?) OR (state = 'dead' AND at <= ?) LIMIT ?)"
)
# Batches keep their event for sinks to come; a status is of no use to them.
_FINISHED_STATUS = (
    "DELETE FROM events WHERE id >= 'status:' AND id < 'status;' AND "
    "NOT EXISTS (SELECT 1 FROM sinks JOIN marks ON sink = name AND marks.n = events.n)"
)

# The event of an episode whose file was deleted waits ABANDON_AFTER_S until the file returns.
_SENDABLE = "(payload IS NOT NULL OR EXISTS (SELECT 1 FROM other.episodes WHERE episode_id = substr(id, 9)))"
_SENDABLE_EVENTS = f"SELECT n FROM events WHERE {_SENDABLE}"


class OutboxEvent(msgspec.Struct, frozen=True):
    """Durable event ready to be sent; ``type`` is the canonical subject, ``source`` the name of the node."""

    id: str
    subject: str
    type: str
    source: str
    time: datetime
    payload: bytes


class Ack(msgspec.Struct, frozen=True):
    """Acknowledgement of an event by a sink; ``stream`` and ``seq`` are None when no stream keeps it."""

    id: str
    stream: str | None = None
    seq: int | None = None


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A sink can never accept the event in its current form."""

    id: str
    sink: str
    subject: str
    reason: str
    at: datetime


class SinkCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of pending, acknowledged (and still stored), undeliverable and earlier events of a sink.

    Earlier events were there before the sink; it gets them only on request.
    """

    pending: int = 0
    acked: int = 0
    dead: int = 0
    held: int = 0


def durable_event(event_id: str, kind: str, event: DurableEvent, names: DurableNames, time: datetime) -> OutboxEvent:
    """The same id again has no effect."""
    subject, source = names.subject_of(kind), event.node or ""
    return OutboxEvent(id=event_id, subject=subject, type=kind, source=source, time=time, payload=encode(event))


def episode_event(episode: EpisodeRow, names: DurableNames) -> OutboxEvent:
    tokens = (episode.tokens_prompt, episode.tokens_completion, episode.tokens_reasoning, episode.tokens_cached)
    event = EpisodeCompleted(
        **(shared_fields(episode, EpisodeCompleted) | {"models": split_models(episode.models)}),
        score=episode.reward,
        agentgym=episode.agentgym,
        duration_sec=episode.duration_s,
        tokens=Tokens(*tokens),
    )
    return durable_event(f"episode:{episode.episode_id}", subjects.EPISODE_COMPLETED, event, names, episode.ended_at)


class Outbox:
    """The durable events of a state directory and their delivery state per sink, for several threads and processes.

    The caller closes the index and the outbox. All methods raise ``StoreError`` when the outbox cannot be used.

    Attributes:
        is_reading: whether what is added was found in the files, and is earlier than a sink that is registered now.
    """

    def __init__(self, index: EpisodeIndex, names: DurableNames | None = None, clock: Clock | None = None) -> None:
        self.index = index
        self.names = names or DurableNames()
        self.is_reading = False
        self._clock = clock or Clock()
        self._generation = 0
        self._sinks: dict[str, None] = {}
        self.database = Database(index.data_dir / FILE_NAME, _SCHEMA, advice=_ADVICE, attached=index.database)

    @property
    def data_dir(self) -> Path:
        return self.index.data_dir

    def close(self) -> None:
        self.database.close()

    def file_state(self) -> FileState:
        return *file_state(self.data_dir / INDEX_NAME), *file_state(self.data_dir / FILE_NAME)

    def on_add(self, call: Callable[[], None] | None) -> None:
        """Call this after each addition of an event or episode, in the thread that adds it; None: not any more."""
        self.index.database.on_write = self.database.on_write = call

    def register_sinks(self, *sinks: str) -> None:
        """Register the configured sinks; a new sink gets what ends from now on, see ``send_earlier``."""
        self.collect()
        self._sinks |= dict.fromkeys(sinks)
        with self._transaction() as connection:
            for sink in sinks:
                row = (sink, self._now(), not self.is_reading)
                if connection.execute("INSERT OR IGNORE INTO sinks VALUES (?, ?, ?)", row).rowcount:
                    connection.execute(_HOLD_EARLIER, (sink,))
                else:
                    connection.execute("UPDATE sinks SET seen_at = ?2, has_read = has_read OR ?3 WHERE name = ?1", row)

    def finish_reading(self) -> None:
        """Call it when everything that ended before this process was added."""
        try:
            self.collect()
        finally:
            self.is_reading = False
        with self._transaction() as connection:
            connection.execute("UPDATE sinks SET has_read = 1")

    def send_earlier(self, *sinks: str) -> int:
        """Let the events that are earlier than a sink wait for it, too; return their number."""
        with self._transaction() as connection:
            update = (
                f"UPDATE marks SET state = 'pending' WHERE sink = ? AND state = 'held' AND n IN ({_SENDABLE_EVENTS})"
            )
            return sum(connection.execute(update, (sink,)).rowcount for sink in sinks)

    def n_held(self, *sinks: str) -> int:
        """Return how many events ``send_earlier`` would send."""
        query = f"SELECT count(*) FROM marks WHERE sink = ? AND state = 'held' AND n IN ({_SENDABLE_EVENTS})"
        return sum(int(self._select(query, (sink,))[0][0]) for sink in sinks)

    def collect(self) -> None:
        """Add the events of the episodes that are new in the index; events that were added before are not repeated."""
        self.index.database.write_waiting()
        query = f"SELECT n, episode_id FROM other.unannounced ORDER BY n LIMIT {MAX_PER_TRANSACTION}"
        while found := self._select(query):
            with self._transaction() as connection:
                connection.execute(_ADD_FOUND, (found[-1][0],))
            with self.index.database.transaction(LOCK_TIMEOUT_S) as connection:
                connection.executemany("DELETE FROM unannounced WHERE n = ? AND episode_id = ?", found)
        if self._generation != (generation := self.database.generation):
            with self._transaction() as connection:  # it was made again, or replaced by an older copy
                connection.execute(_ADD_MISSED)
            if self._generation:
                self._generation = self.database.generation
                self.register_sinks(*self._sinks)
            self._generation = generation

    def add(self, *events: OutboxEvent) -> int:
        """Add events for every sink, except those whose id was added before; returns the number of new events."""
        if not events:
            return 0
        with suppress(StoreError):
            self.collect()  # the event of a batch follows those of its episodes
        return self.database.write(*map(self._addition, events))

    def add_later(self, event: OutboxEvent) -> None:
        """Add an event with the next use of the outbox; returns immediately."""
        self.database.write_later(self._addition(event))

    def _addition(self, event: OutboxEvent) -> Statement:
        is_new = not self.is_reading or event.type == subjects.FIELD_STATUS
        row = (event.id, event.subject, is_new, event.type, event.source, event.time.isoformat(), event.payload)
        return _ADD_NEW, row

    def pending(self, sink: str, limit: int, *, without: Sequence[str] = ()) -> list[OutboxEvent]:
        """Return the oldest pending events of a sink, except those on the subjects in ``without``.

        An event whose stored values are impossible becomes a dead letter.
        """
        others = ", ".join(f"?{number}" for number in range(4, 4 + len(without)))
        query = (
            f"SELECT id, coalesce(subject, ?2), type, source, time, payload, {COLUMNS} "
            "FROM marks INDEXED BY waiting CROSS JOIN events USING (n) "
            "LEFT JOIN other.episodes ON payload IS NULL AND episode_id = substr(id, 9) "
            "WHERE sink = ?1 AND state = 'pending' AND (payload IS NOT NULL OR episode_id IS NOT NULL) "
            f"AND coalesce(subject, ?2) NOT IN ({others}) GROUP BY n ORDER BY n LIMIT ?3"
        )
        events = []
        self.collect()
        for row in self._select(query, (sink, self.names.episode_completed, limit, *without)):
            try:
                events.append(self._event(row))
            except (ValueError, TypeError) as exc:
                self.mark_dead(sink, row[0], f"{DAMAGED}: {exc}")
        return events

    def _event(self, row: tuple[Any, ...]) -> OutboxEvent:
        """The row has either its payload or the columns of its episode."""
        event_id, subject, kind, source, time, payload, *episode = row
        if payload is None:
            return msgspec.structs.replace(episode_event(from_columns(tuple(episode)), self.names), subject=subject)
        return OutboxEvent(event_id, subject, kind, source, datetime.fromisoformat(time), payload)

    def n_pending(self, sinks: Sequence[str]) -> int:
        """Return the number of events that can be sent, counting an event once for each of these sinks."""
        query = (
            "SELECT count(*) FROM marks INDEXED BY waiting CROSS JOIN events USING (n) "
            f"WHERE sink = ? AND state = 'pending' AND {_SENDABLE}"
        )
        self.collect()
        counts = [int(self._select(query, (sink,))[0][0]) for sink in sinks]
        return sum(counts) + self.n_unwritten * len(counts)

    @property
    def n_unwritten(self) -> int:
        return self.database.n_unwritten + self.index.database.n_unwritten

    def ack(self, sink: str, acks: Iterable[Ack]) -> None:
        now = self._now()
        rows = [(ack.stream, ack.seq, now, sink, ack.id) for ack in acks]
        self._mark("state = 'acked', stream = ?, seq = ?, reason = NULL, at = ?", rows)

    def mark_dead(self, sink: str, event_id: str, reason: str) -> None:
        """Mark an event as undeliverable to a sink; one that ``retry_refused`` tried in vain keeps its time."""
        change = "state = 'dead', at = CASE WHEN reason IS ?1 THEN at ELSE ?2 END, reason = ?1"
        self._mark(change, [(reason, self._now(), sink, event_id)])

    def _mark(self, change: str, rows: Sequence[tuple[object, ...]]) -> None:
        update = f"UPDATE marks SET {change} WHERE sink = ? AND n = (SELECT n FROM events WHERE id = ?)"
        with self._transaction() as connection:
            connection.executemany(update, rows)

    def retry_dead(self, event_id: str | None = None) -> int:
        """Make one dead letter, or all of them, pending again; returns their number."""
        update = (
            "UPDATE marks SET state = 'pending', reason = NULL, at = ?1 WHERE state = 'dead' "
            "AND (?2 IS NULL OR n = (SELECT n FROM events WHERE id = ?2))"
        )
        with self._transaction() as connection:
            return connection.execute(update, (self._now(), event_id)).rowcount

    def retry_refused(self, sink: str) -> None:
        """Make the dead letters of a sink pending again, because its limits and permissions may have changed."""
        with self._transaction() as connection:
            connection.execute(
                "UPDATE marks SET state = 'pending' WHERE sink = ? AND state = 'dead' AND reason NOT LIKE ? || '%'",
                (sink, DAMAGED),
            )

    def reconcile_stream(self, sink: str, stream: str, *, created: datetime | None, last_seq: int) -> int:
        """Compare acknowledged events with the state of their stream and make lost ones pending again.

        A recreated stream has lost all events; any other stream has lost the events after its last sequence.

        Returns:
            The number of events that are pending again; pruned events (see ``KEEP_ACKED_S``) are not.
        """
        created_at = created.isoformat() if created else None
        with self._transaction() as connection:
            key = (sink, stream)
            known = connection.execute("SELECT created FROM streams WHERE sink = ? AND name = ?", key).fetchone()
            connection.execute("INSERT OR REPLACE INTO streams VALUES (?, ?, ?)", (*key, created_at))
            last_valid_seq = last_seq if known is None or known[0] == created_at else -1
            lost = "UPDATE marks SET state = 'pending' WHERE sink = ? AND stream = ? AND seq > ? AND state = 'acked'"
            return connection.execute(lost, (*key, last_valid_seq)).rowcount

    def acknowledged(self, sink: str, stream: str) -> list[tuple[int, str]]:
        """Return sequence and id of the events that a stream has acknowledged and that are still marked, in order."""
        query = (
            "SELECT seq, id FROM marks JOIN events USING (n) "
            "WHERE sink = ? AND stream = ? AND state = 'acked' AND seq IS NOT NULL ORDER BY seq"
        )
        return self._select(query, (sink, stream))

    def has_known_stream(self, sink: str) -> bool:
        return bool(self._select("SELECT 1 FROM streams WHERE sink = ? LIMIT 1", (sink,)))

    def prune(self) -> int:
        """Delete the marks of old events that their sinks do not need, and what is only of use to marks.

        Returns the number of deleted marks. The ids of the events stay, so that they are never sent again.
        """
        now = self._now()
        with self._transaction() as connection:
            abandoned = "(SELECT name FROM sinks WHERE name != ? AND seen_at < ?)"
            for table, column in (("marks", "sink"), ("streams", "sink"), ("sinks", "name")):
                connection.execute(f"DELETE FROM {table} WHERE {column} IN {abandoned}", (LOCAL, now - ABANDON_AFTER_S))
            if not self.is_reading:  # the index may lack rows of files that are there
                self._forget_deleted(connection, now - ABANDON_AFTER_S)
            limits = (now - KEEP_ACKED_S, now - ABANDON_AFTER_S, MAX_PER_TRANSACTION)
            n_deleted = connection.execute(_FINISHED_MARKS, limits).rowcount
            connection.execute(_FINISHED_STATUS)
            return n_deleted

    def _forget_deleted(self, connection: sqlite3.Connection, before: float) -> None:
        """Delete the waiting events of old episodes without a file; a file that returns gets a new event."""
        waiting = (
            "SELECT DISTINCT n FROM marks INDEXED BY waiting CROSS JOIN events USING (n) WHERE state = 'pending' "
            f"AND id >= 'episode:' AND id < 'episode:' || ? AND NOT {_SENDABLE} LIMIT {MAX_PER_TRANSACTION}"
        )
        rows = connection.execute(waiting, (new_ulid(round(before * 1000)),)).fetchall()
        for table in ("marks", "events"):
            connection.executemany(f"DELETE FROM {table} WHERE n = ?", rows)

    def undelivered_episodes(self, keep_acked_s: float = KEEP_ACKED_S) -> set[str]:
        """Return the ids of the episodes whose event a sink has not acknowledged, or so lately that it may lose it.

        After ``keep_acked_s`` seconds an acknowledged event is taken for delivered.
        """
        query = (
            "SELECT DISTINCT substr(id, 9) FROM marks CROSS JOIN events USING (n) "
            "WHERE id >= 'episode:' AND id < 'episode;' AND (state IN ('pending', 'dead') OR at > ?)"
        )
        self.collect()
        return {episode_id for (episode_id,) in self._select(query, (self._now() - keep_acked_s,))}

    def known_ids(self, kind: str = "") -> set[str]:
        """Return the ids of all events that were ever added, or of those that begin with ``kind`` and a colon."""
        bounds = (f"{kind}:", f"{kind};") if kind else ("", "\U0010ffff")
        return {id_ for (id_,) in self._select("SELECT id FROM events WHERE id >= ? AND id < ?", bounds)}

    def dead_letters(self) -> list[DeadLetter]:
        """The oldest ones come first."""
        query = (
            "SELECT id, sink, coalesce(subject, ?), reason, at FROM marks JOIN events USING (n) "
            "WHERE state = 'dead' ORDER BY n"
        )
        names = DeadLetter.__struct_fields__
        rows = self._select(query, (self.names.episode_completed,))
        return [msgspec.convert(dict(zip(names, row, strict=True)), DeadLetter, strict=False) for row in rows]

    def counts(self) -> dict[str, SinkCounts]:
        query = (
            "SELECT name, state, count(n) FROM sinks LEFT JOIN (SELECT sink, state, n FROM marks JOIN events USING (n) "
            f"WHERE state NOT IN ('pending', 'held') OR {_SENDABLE}) ON sink = name GROUP BY name, state"
        )
        by_sink: dict[str, dict[str, int]] = {}
        self.collect()
        for sink, state, count in self._select(query):
            by_sink.setdefault(sink, {}).update({state: count} if state else {})
        return {sink: SinkCounts(**counts) for sink, counts in by_sink.items()}

    def _now(self) -> float:
        return self._clock.now().timestamp()

    def _select(self, query: str, parameters: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
        self.index.complete()
        return self.database.select(query, parameters)

    def _transaction(self) -> AbstractContextManager[sqlite3.Connection]:
        self.index.complete()
        return self.database.transaction(LOCK_TIMEOUT_S)


_FINISHED = f"SELECT batch_id, count(*) FROM episodes WHERE {FINISHED} GROUP BY batch_id"
_EPISODES = f"SELECT episode_id FROM episodes WHERE batch_id = ? AND {FINISHED} ORDER BY episode_id"
_BATTERY = f"""
SELECT batch_id, env, count(*), sum(outcome = 'cancelled' OR ({FINISHED})), total(CASE WHEN {IS_RATED} THEN reward END),
sum({IS_RATED}) FROM episodes WHERE battery_id = ? GROUP BY batch_id, env ORDER BY min(started_at)
"""
_ANSWERED = "SELECT DISTINCT models FROM episodes WHERE battery_id = ? AND models IS NOT NULL"


class EndedBattery(NamedTuple):
    """Its number of finished episodes, and of batches that were cancelled or not begun."""

    n_episodes: int
    n_cancelled: int


class EventRecorder:
    """Adds the events of batches and of this process to the outbox; its methods are thread-safe and never raise.

    Call ``finish_reading`` after what an earlier process has missed is recorded, and ``close`` at the end. An event
    that cannot be added now is added with the next use of the outbox. If the process dies before, the next start
    derives it from the episode files and the queue. The episodes of the index are published on the subject in
    ``names``.
    """

    def __init__(self, workspace: Workspace, names: DurableNames, *, role: Literal["node", "run"]) -> None:
        self.outbox = Outbox(workspace.index, names, workspace.clock)
        self.outbox.is_reading = True
        self.names = names
        workspace.index.episode_subject = None if names == DurableNames() else names.episode_completed
        self._workspace = workspace
        self._role: Literal["node", "run"] = role
        self._n_status = itertools.count()
        self._status: NodeStatus | None = None
        self._lock = threading.Lock()

    def finish_reading(self) -> None:
        """Call it after the index was read from the files, before anything is played."""
        with catch_foreign(log_failure(logger, "noting that the files were read")):
            self.outbox.finish_reading()

    def close(self) -> None:
        self.outbox.close()

    def record_batch(self, result: BatchResult) -> None:
        now = self._workspace.clock.now()
        self._add(lambda: batch_event(result, self.names, node=self._workspace.node, time=now), self.outbox.add)

    def record_batteries(self, ended: Mapping[str, EndedBattery]) -> None:
        """Record the batteries whose last batch ended, by id.

        A battery with deleted episodes is left out, because its mean is unknown.
        """
        with catch_foreign(log_failure(logger, "recording the ends of batteries")):
            for battery_id in ended.keys() - {event.partition(":")[2] for event in self.outbox.known_ids("battery")}:
                self._record_battery(battery_id, ended[battery_id])

    def _record_battery(self, battery_id: str, ended: EndedBattery) -> None:
        rows = self._workspace.index.select(_BATTERY, (battery_id,))
        answered = self._workspace.index.select(_ANSWERED, (battery_id,))
        batches, environments, n_stored, n_finished, rewards, n_rated = zip(*rows, strict=True) if rows else ((),) * 6
        if sum(n_stored) < ended.n_episodes:
            return
        event = BatteryCompleted(
            battery_id=battery_id,
            batches=[*dict.fromkeys(batches)],
            environments=[*dict.fromkeys(environments)],
            n_episodes=sum(n_finished),
            models=sorted({name for (models,) in answered for name in split_models(models)}),
            mean_reward=sum(rewards) / sum(n_rated) if sum(n_rated) else None,
            node=self._workspace.node,
            n_cancelled=ended.n_cancelled,
        )
        now = self._workspace.clock.now()
        kind = subjects.BATTERY_COMPLETED
        self.outbox.add(durable_event(f"battery:{battery_id}", kind, event, self.names, now))

    def record_status(self, status: NodeStatus) -> None:
        """Does not wait for the disk; ignores an unchanged status."""
        with self._lock:
            if status == self._status:
                return
            self._status = status
            n = next(self._n_status)
        workspace = self._workspace
        event = FieldStatus(
            node=workspace.node,
            config=workspace.profile,
            status=status,
            role=self._role,
            boot=workspace.boot,
            pid=os.getpid(),
        )
        self._add(
            lambda: durable_event(
                f"status:{workspace.boot}:{n}", subjects.FIELD_STATUS, event, self.names, workspace.clock.now()
            ),
            self.outbox.add_later,
        )

    def ended_batches(self) -> set[str]:
        """Recorded by this process or an earlier one."""
        return {event_id.partition(":")[2] for event_id in self.outbox.known_ids("batch")}

    def record_missed_batches(self, owned: Callable[[], Collection[str]]) -> None:
        """Record the completion of each batch whose episodes are all stored and whose end was never recorded.

        A process may have been killed in between. Another process may record the same batch at the same time: both
        events have the same id and count once. An unusable store is logged. Batches in ``owned``, for which a node is
        responsible, are skipped.
        """
        try:
            known = self.ended_batches() | {*owned()}
            for batch_id, n_finished in self._workspace.index.select(_FINISHED):
                if batch_id not in known:
                    self._record_missed(batch_id, n_finished)
        except StoreError as exc:
            logger.warning("completion events of earlier batches cannot be recorded now: %s", exc)

    def _record_missed(self, batch_id: str, n_finished: int) -> None:
        ids = [row[0] for row in self._workspace.index.select(_EPISODES, (batch_id,))]
        first = self._load(batch_id, ids[0])
        if first.n_planned != n_finished:
            return
        stats = BatchStats()
        for episode_id in ids:
            stats.add(self._load(batch_id, episode_id))
        spec = BatchSpec(env=first.env, agent=first.agent, model=first.model, repeat=n_finished, mode=first.mode)
        self.record_batch(
            stats.result(
                spec,
                batch_id=batch_id,
                battery_id=first.battery_id,
                status="completed",
                data_label=first.data_label,
                duration_s=0.0,
            )
        )

    def _load(self, batch_id: str, episode_id: str) -> EpisodeRecord:
        return self._workspace.store.load(self._workspace.store.path(batch_id, episode_id))

    def _add(self, create: Callable[[], OutboxEvent], add: Callable[[OutboxEvent], object]) -> None:
        with catch_foreign(log_failure(logger, "adding an event to the outbox")):
            add(create())


def batch_event(result: BatchResult, names: DurableNames, *, node: str, time: datetime) -> OutboxEvent:
    """Call it only for a batch that will not be resumed."""
    event = BatchCompleted(node=node, **shared_fields(result, BatchCompleted))
    return durable_event(f"batch:{result.batch_id}", subjects.BATCH_COMPLETED, event, names, time)
