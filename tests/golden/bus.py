"""What a node sends and answers on its bus while the requests of ``scene`` are sent to it.

A live message has any number of items, so each item is a text of its own, and what surrounds them another one. Of items
that come in time, such as progress, the last one of each batch, episode and name is kept. Load and hardware of the
machine, which no two runs share, are recorded as they are encoded, with values of their own (``samples``).
"""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
from nats.aio.msg import Msg
from nats.js.api import RawStreamMsg

from runner.events.subjects import EPISODE_COMPLETED, EVENTS_STREAM
from tests.golden.normalise import Normaliser
from tests.golden.scene import WAITING, Listener, Scene, ToldModel, contents, write_profile
from tests.support.node_process import COMMAND, NodeProcess
from tests.support.serving import serve_in_thread
from tests.support.watch_process import read_line, watch

FOREIGN: tuple[tuple[dict[str, str], bytes], ...] = (
    ({}, b'{"episode_id":"e1","env":"Maze","reward":1.0,"rounds":3,"duration_s":2.5}'),
    (
        {"ce-id": "theirs:1", "ce-source": "their node"},
        '{"env":"\u202e","success":true,"score":0.25,"rounds":3}'.encode(),
    ),
    ({"ce-id": "theirs:2", "ce-source": "lab"}, b'{"episode_id":"e2","env":7}'),
    ({}, b"no JSON \xff\x1b[2J"),
)
"""Messages of others on the subject of finished episodes."""
LEFT_OUT = {"host", "machine", "env.health"}
"""Kinds of items about the machine, and the health of environments, which comes every few seconds."""
_NAMES = ("kind", "episode_id", "step", "index", "part", "batch_id", "paused", "name", "env", "endpoint", "batches")


def record_bus(folder: Path) -> dict[str, list[str]]:
    """Return the messages of durable and live subjects, and the requests with their replies."""
    model = ToldModel()
    with serve_in_thread({"model": model.app}) as urls:
        profile = write_profile(folder / "golden.yaml", urls["model"])
        with NodeProcess(folder / "node", "--config", str(profile), name="golden") as node:
            live, events, exchanged, watched, info = asyncio.run(_play(node, model))
    return {
        "bus/events": Normaliser(folder).lines(_events(events)),
        "bus/live": Normaliser(folder).lines(_live(live)),
        "bus/control": Normaliser(folder).lines(exchanged),
        "bus/batches": Normaliser(folder).lines([(folder / "node" / "batches.jsonl").read_bytes()]),
        "commands/watch": Normaliser(folder).lines(watched),
        "commands/nats_info": Normaliser(folder).lines([info]),
    }


async def _play(
    node: NodeProcess, model: ToldModel
) -> tuple[list[Msg], list[RawStreamMsg], list[bytes], list[bytes], bytes]:
    listener = Listener()
    async with await node.connect() as connection:
        subscription = await connection.client.subscribe("agentgym.>", cb=listener.keep)
        scene = Scene(node, connection, model, listener)
        await scene.play()
        await subscription.unsubscribe()
        stream = connection.client.jetstream()
        last = (await stream.stream_info(EVENTS_STREAM)).state.last_seq
        events = [await stream.get_msg(EVENTS_STREAM, number) for number in range(1, last + 1)]
        for headers, payload in FOREIGN:
            await stream.publish(EPISODE_COMPLETED, payload, headers=headers)
        words = [COMMAND, "nats-info", "--json", "--data-dir", str(node.data_dir)]
        info = await asyncio.to_thread(subprocess.check_output, words)
        options = ("--data-dir", str(node.data_dir), "--since", "all", "--subject", EPISODE_COMPLETED, "--json")
        n_episodes = sum(event.subject == EPISODE_COMPLETED for event in events)
        async with watch(node.data_dir, *options) as process:
            watched = [(await read_line(process)).encode() for _ in range(n_episodes + len(FOREIGN))]
        await scene.ask("shutdown")
    return listener.messages, events, scene.exchanged, watched, info


def _events(events: list[RawStreamMsg]) -> Iterator[bytes]:
    """Yield subject, headers and payload of the events, those of one subject in their order."""
    for event in sorted(events, key=lambda event: event.subject or ""):
        yield f"{event.subject}\n{header_lines(event.headers)}".encode() + (event.data or b"")


def header_lines(headers: Mapping[str, str] | None) -> str:
    return "".join(f"{name}: {value}\n" for name, value in (headers or {}).items())


def _live(messages: list[Msg]) -> Iterator[bytes]:
    """Yield what surrounds the items of each subject, and below it the items that it had."""
    latest: dict[tuple[str, ...], bytes] = {}
    for message in messages:
        if message.subject.startswith("agentgym.live."):
            items = contents(message)
            around = message.data.replace(b",".join(items), b"\xe2\x80\xa6", 1)
            head = f"{message.subject}\n{header_lines(message.headers)}".encode()
            latest[message.subject, "", str(around)] = head + around
            for item in items:
                known = msgspec.json.decode(item)
                if not _is_left_out(item, known["kind"]):
                    latest[message.subject, *(str(known.get(name)) for name in _NAMES)] = item
    yield from (item for _, item in sorted(latest.items(), key=lambda entry: entry[0][:2]))


def _is_left_out(item: bytes, kind: str) -> bool:
    """Return whether the item is one of ``LEFT_OUT``, or of a queue that changes without a request."""
    return kind in LEFT_OUT or (kind == "queue" and WAITING.encode() not in item)
