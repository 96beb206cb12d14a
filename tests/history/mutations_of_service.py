"""Mutations with which nothing is lost or doubled, but the node does its work badly; see ``mutations``."""

from __future__ import annotations

import itertools
import subprocess
import time
from pathlib import Path
from typing import Any, Final

import msgspec
from nats.aio.client import Client

from runner.batch.observers import BatchItem, EpisodeStored
from runner.events.subjects import BATCH_COMPLETED
from runner.node.handlers import ControlHandler
from runner.publish import delivery, publisher
from runner.publish.delivery import DeliveryOptions, DeliveryResult, Route
from runner.publish.live_publisher import LivePublisher
from runner.publish.outbox import OutboxEvent
from runner.store import EpisodeRecord, EpisodeRecorder
from runner.store.episode_store import EpisodeStore
from runner.store.parts import Part, Step
from runner.types import ErrorInfo, Outcome
from tests.history.mutations import EVERY, leak_per_episode, mutation, replace

SLEEPS_AT_S, SLEEPS_S = 8.0, 28.0
REFUSAL: Final = b'{"v":1,"ok":false,"error":{"code":"refused","message":"The batch cannot be started.","hint":""}}'


@mutation("accepted")
def refused_start() -> None:
    """Every start of one environment is refused, although nothing is in its way."""
    handle = ControlHandler.handle

    def refuse(self: ControlHandler, payload: bytes, *, commands: bool = True) -> bytes:
        if b'"start"' in payload and b"TextCraft" in payload:
            return REFUSAL
        return handle(self, payload, commands=commands)

    replace(ControlHandler, "handle", refuse)


@mutation("accepted")
def counted_too_early() -> None:
    """While a batch runs, its progress is that of its end."""
    handle = ControlHandler.handle

    def count(self: ControlHandler, payload: bytes, *, commands: bool = True) -> bytes:
        reply = handle(self, payload, commands=commands)
        if b'"list"' not in payload:
            return reply
        decoded: dict[str, Any] = msgspec.json.decode(reply)
        for state in decoded["result"]["batches"]:
            if state["status"] == "running":
                state["n_done"] = state["n_planned"]
        return msgspec.json.encode(decoded)

    replace(ControlHandler, "handle", count)


@mutation("finished")
def spurious_error() -> None:
    """Some episodes end with an error although their server answers."""
    save, numbers = EpisodeStore.save, itertools.count()

    def fail(self: EpisodeStore, record: EpisodeRecord) -> Path:
        if next(numbers) % EVERY == 0:
            error = ErrorInfo(type="environment_fault", message="The server went away.", traceback="")
            record = msgspec.structs.replace(record, outcome=Outcome.ERROR, success=False, error=error)
        return save(self, record)

    replace(EpisodeStore, "save", fail)


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


@mutation("told")
def other_subject() -> None:
    """Events of episodes are sent on the subject of batches, which the same stream keeps."""
    deliver = delivery.deliver

    async def move(client: Client, event: OutboxEvent, route: Route, options: DeliveryOptions) -> DeliveryResult:
        if event.id.startswith("episode:"):
            event = msgspec.structs.replace(event, subject=BATCH_COMPLETED)
        return await deliver(client, event, route, options)

    replace(publisher, "deliver", move)


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


@mutation("recovered")
def sleeping_node() -> None:
    """Once, without any fault before, a node answers nothing for some time."""
    handle, sleeps_at = ControlHandler.handle, time.monotonic() + SLEEPS_AT_S

    def sleep(self: ControlHandler, payload: bytes, *, commands: bool = True) -> bytes:
        if sleeps_at < time.monotonic():
            time.sleep(max(0.0, sleeps_at + SLEEPS_S - time.monotonic()))
        return handle(self, payload, commands=commands)

    replace(ControlHandler, "handle", sleep)
