"""Mutations of the product, each of which breaks one promise; ``mutated_node`` runs a node with one of them.

Each replaces a function of the product in the node's own process, before the node starts.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec
from nats.aio.client import Client

from runner.batch import batch as batch_module
from runner.batch.observers import BatchItem, EpisodeStored
from runner.batch.running_episode import CommandName
from runner.batch.spec import BatchSpec
from runner.events.codec import headers_for
from runner.events.live import EpisodeEnded, EpisodeStarted
from runner.node.batch_player import BatchPlayer
from runner.node.batch_queue import BatchQueue, QueuedBatch
from runner.node.handlers import ControlHandler
from runner.publish import delivery, outbox, publisher
from runner.publish.delivery import DeliveryOptions, DeliveryResult, Route, TransientFailure
from runner.publish.live_publisher import LivePublisher, Queued, _Queue
from runner.publish.outbox import Ack, OutboxEvent
from runner.store import EpisodeIndex, EpisodeRecord, EpisodeRecorder, index
from runner.store.episode_store import EpisodeStore
from runner.store.index_schema import SCHEMA
from runner.store.journal import EpisodeJournal
from runner.store.parts import Part, Step, Unjournaled
from runner.types import Outcome
from tests.history.violation import Promise

Mutation: TypeAlias = Callable[[], None]
EVERY: Final = 3
"""A mutation changes each third event, step or episode, so that the node still works."""
LEAKED_FILES: Final = 60
DEAF_S: Final = 26.0
REFUSAL: Final = b'{"v":1,"ok":false,"error":{"code":"refused","message":"The batch cannot be started.","hint":""}}'

MUTATIONS: Final[dict[str, tuple[Promise, Mutation]]] = {}


def mutation(promise: Promise) -> Callable[[Mutation], Mutation]:
    """Register a mutation that breaks ``promise``."""

    def register(function: Mutation) -> Mutation:
        MUTATIONS[function.__name__] = promise, function
        return function

    return register


def replace(owner: Any, name: str, function: object) -> None:  # noqa: ANN401 - a class or a module
    assert hasattr(owner, name), f"{owner} has no {name}"
    setattr(owner, name, function)


@mutation("accepted")
def forgotten_batch() -> None:
    """A start is answered with ``ok``, and the batch is never written to the queue."""
    add = BatchQueue.add

    def forget(self: BatchQueue, *batches: QueuedBatch) -> bool:
        return batches[0].spec.env == "TextCraft" or add(self, *batches)

    replace(BatchQueue, "add", forget)


@mutation("accepted")
def completed_too_early() -> None:
    """A batch leaves out its last episode and counts as completed."""
    replace(BatchSpec, "plan", _without_last(BatchSpec.plan))


def _without_last(plan: Callable[[BatchSpec], list[Any]]) -> Callable[[BatchSpec], list[Any]]:
    return lambda spec: plan(spec)[:-1] or plan(spec)


@mutation("finished")
def altered_observation() -> None:
    """What the server answered is not what is recorded."""
    receive = EpisodeRecorder.receive

    def alter(self: EpisodeRecorder, part: Part) -> None:
        if isinstance(part, Step):
            record = msgspec.json.decode(part.data)
            record["observation"] = [message | {"content": "changed"} for message in record["observation"]]
            part = msgspec.structs.replace(part, data=msgspec.json.encode(record))
        receive(self, part)

    replace(EpisodeRecorder, "receive", alter)


@mutation("finished")
def rewritten_file() -> None:
    """An episode file is written again, with other bytes."""
    save, numbers = EpisodeStore.save, itertools.count()

    def save_twice(self: EpisodeStore, record: EpisodeRecord) -> Path:
        path = save(self, record)
        if next(numbers) % EVERY == 0:
            threading.Timer(1.5, lambda: path.write_bytes(path.read_bytes() + b"\n")).start()
        return path

    replace(EpisodeStore, "save", save_twice)


@mutation("finished")
def dropped_journal_line() -> None:
    """The first timesteps are not in the journal, so that the death of the node loses them."""
    write = EpisodeJournal.write

    def drop(self: EpisodeJournal, part: Part) -> Unjournaled | None:
        return None if isinstance(part, Step) else write(self, part)

    replace(EpisodeJournal, "write", drop)


@mutation("stored")
def row_without_event() -> None:
    """Some rows of episodes come into the index without an event."""
    begin = "AFTER INSERT ON episodes WHEN"
    assert begin in SCHEMA.tables
    tables = SCHEMA.tables.replace(begin, f"{begin} (SELECT count(*) FROM episodes) % {EVERY} AND")
    replace(index, "SCHEMA", msgspec.structs.replace(SCHEMA, tables=tables))
    replace(outbox, "_ADD_MISSED", "SELECT 1")  # each start would add it


@mutation("stored")
def lost_event() -> None:
    """An event is not sent and counts as acknowledged."""
    deliver, numbers = delivery.deliver, itertools.count()

    async def lose(client: Client, event: OutboxEvent, route: Route, options: DeliveryOptions) -> DeliveryResult:
        return Ack(event.id) if next(numbers) % EVERY == 0 else await deliver(client, event, route, options)

    replace(publisher, "deliver", lose)


@mutation("stored")
def lost_acknowledgement() -> None:
    """A failed delivery counts as acknowledged, so that an outage of a broker loses events."""
    deliver = delivery.deliver

    async def accept(client: Client, event: OutboxEvent, route: Route, options: DeliveryOptions) -> DeliveryResult:
        result = await deliver(client, event, route, msgspec.structs.replace(options, ack_timeout_s=1))
        return Ack(event.id) if isinstance(result, TransientFailure) else result

    replace(publisher, "deliver", accept)


@mutation("stored")
def doubled_id() -> None:
    """An event is sent twice, the second time with another id for the broker's deduplication."""
    deliver = delivery.deliver
    doubled: set[str] = set()

    def headers(event_type: str, event_id: str, *rest: Any) -> dict[str, str]:  # noqa: ANN401
        message_id = f"{event_id}:again" if event_id in doubled else event_id
        return headers_for(event_type, event_id, *rest) | {"Nats-Msg-Id": message_id}

    async def twice(client: Client, event: OutboxEvent, route: Route, options: DeliveryOptions) -> DeliveryResult:
        await deliver(client, event, route, options)
        doubled.add(event.id)
        return await deliver(client, event, route, options)

    replace(delivery, "headers_for", headers)
    replace(publisher, "deliver", twice)


@mutation("told")
def altered_event() -> None:
    """An event has another reward than the episode."""
    insert = EpisodeIndex.insert

    def alter(self: EpisodeIndex, record: EpisodeRecord, content: EpisodeRecord | None = None) -> None:
        insert(self, msgspec.structs.replace(record, reward=(record.reward or 0) + 1), content)

    replace(EpisodeIndex, "insert", alter)


@mutation("told")
def announced_and_not_stored() -> None:
    """An episode is announced, and its file does not stay."""
    insert, numbers = EpisodeIndex.insert, itertools.count()

    def remove(self: EpisodeIndex, record: EpisodeRecord, content: EpisodeRecord | None = None) -> None:
        insert(self, record, content)
        if next(numbers) % EVERY == 0:
            self._store.path(record.batch_id, record.episode_id).unlink()

    replace(EpisodeIndex, "insert", remove)


@mutation("shown")
def early_end() -> None:
    """A live item ends an episode that has just begun, so that a console shows an end that is never announced."""
    put = LivePublisher.__call__

    def end_at_once(self: LivePublisher, item: BatchItem) -> None:
        put(self, item)
        if isinstance(item, EpisodeStarted):
            self.put(
                EpisodeEnded(
                    at=item.at,
                    episode_id=item.episode_id,
                    seq=1000,
                    outcome=Outcome.CANCELLED,
                    success=False,
                    reward=-5.0,
                    rounds=77,
                    duration_s=0.1,
                )
            )

    replace(LivePublisher, "__call__", end_at_once)


@mutation("resumed")
def resume_plays_all_again() -> None:
    """A resumed batch plays the finished tasks, too."""

    def plan_all(spec: BatchSpec, earlier: list[EpisodeRecord]) -> tuple[list[EpisodeRecord], list[Any]]:
        return [], spec.plan()

    replace(batch_module, "split_plan", plan_all)


@mutation("accepted")
def forgotten_cancellation() -> None:
    """A cancellation is answered with ``ok`` and only interrupts the batch."""
    command = BatchPlayer.command

    def interrupt(self: BatchPlayer, name: CommandName, batch_id: str) -> bool:
        return command(self, "interrupt" if name == "cancel" else name, batch_id)

    replace(BatchPlayer, "command", interrupt)


@mutation("live")
def hidden_gap() -> None:
    """Live items are dropped and not counted."""
    put, numbers = _Queue.put, itertools.count()

    def drop(self: _Queue, queued: Queued) -> None:
        if next(numbers) % EVERY:
            put(self, queued)

    replace(_Queue, "put", drop)


@mutation("live")
def repeated_live_item() -> None:
    put = _Queue.put

    def put_twice(self: _Queue, queued: Queued) -> None:
        put(self, queued)
        put(self, queued)

    replace(_Queue, "put", put_twice)


_LEAKED: list[Any] = []


def leak_per_episode(leak: Callable[[], object]) -> None:
    save = EpisodeStore.save

    def save_and_leak(self: EpisodeStore, record: EpisodeRecord) -> Path:
        _LEAKED.append(leak())
        return save(self, record)

    replace(EpisodeStore, "save", save_and_leak)


@mutation("bounded")
def leaked_files() -> None:
    leak_per_episode(lambda: [os.open(os.devnull, os.O_RDONLY) for _ in range(LEAKED_FILES)])


@mutation("recovered")
def deaf_node() -> None:
    """For some time after its second start, a node receives requests and answers none."""
    data_dir = Path(sys.argv[sys.argv.index("--data-dir") + 1])
    if not (data_dir / "batches.jsonl").exists():
        return
    handle, hears_at = ControlHandler.handle, time.monotonic() + DEAF_S

    def handle_late(self: ControlHandler, payload: bytes, *, commands: bool = True) -> bytes:
        time.sleep(max(0.0, hears_at - time.monotonic()))
        return handle(self, payload, commands=commands)

    replace(ControlHandler, "handle", handle_late)


@mutation("accepted")
def refused_start() -> None:
    """Every start of one environment is refused, although nothing is in its way."""
    handle = ControlHandler.handle

    def refuse(self: ControlHandler, payload: bytes, *, commands: bool = True) -> bytes:
        if b'"start"' in payload and b"TextCraft" in payload:
            return REFUSAL
        return handle(self, payload, commands=commands)

    replace(ControlHandler, "handle", refuse)


@mutation("finished")
def rounded_reward() -> None:
    """Rewards are stored with one decimal."""
    receive = EpisodeRecorder.receive

    def round_reward(self: EpisodeRecorder, part: Part) -> None:
        if isinstance(part, Step):
            record = msgspec.json.decode(part.data)
            record["reward"] = reward = round(record["reward"], 1)
            summary = msgspec.structs.replace(part.summary, reward=reward)
            part = msgspec.structs.replace(part, data=msgspec.json.encode(record), summary=summary)
        receive(self, part)

    replace(EpisodeRecorder, "receive", round_reward)


@mutation("live")
def lost_last_item() -> None:
    """The end of an episode, after which no number shows the gap, is not sent as a live item."""
    put = LivePublisher.__call__

    def lose(self: LivePublisher, item: BatchItem) -> None:
        if not isinstance(item, EpisodeStored):
            put(self, item)

    replace(LivePublisher, "__call__", lose)


@mutation("bounded")
def leaked_processes() -> None:
    leak_per_episode(lambda: subprocess.Popen(["setpriv", "--pdeathsig", "KILL", "sleep", "300"]))
