"""What a node sends and answers on its bus while it plays two episodes of Maze with the oracle.

A live message has any number of items, so each item is a line, below the envelope of its message. Of items that come in
time, such as progress, the last one of each batch, episode and name is kept. What depends on the machine is left out:
its load and hardware, the heartbeat, whether a model server answers here, and on the bus the health of environments,
which comes every few seconds.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
from pathlib import Path
from typing import Any

from nats.aio.msg import Msg

from runner.events.subjects import EPISODE_COMPLETED
from tests.golden.normalise import Normaliser
from tests.support.node_process import COMMAND, NodeProcess
from tests.support.watch_process import read_line, watch

BATCH = "01K0000000000000000000GD00"
OPERATIONS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("health", {}),
    ("start", {"batch_id": BATCH, "envs": ["Maze"], "agent": "oracle", "tasks": {"Maze": [24, 3]}}),
    ("start", {"batch_id": BATCH, "envs": ["Wordle"], "agent": "oracle"}),
    ("start", {"batch_id": "x", "envs": []}),
    ("pause", {"batch_id": BATCH}),
    ("nonsense", {}),
)
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
LEFT_OUT = {"host", "machine", "heartbeat", "model.health", "env.health", "queue"}
"""Kinds of items that depend on the machine, or on how fast it is."""
STATUS = (b'"status":"running"', b'"status":"idle"')
"""The statuses of the node while it plays and afterwards; it sends others before, when it starts."""
LAST = {b"agentgym.eval.batch.completed.v1", b'"n_done":2,"n_planned":2', *STATUS}
"""What comes last, in any order but that of the statuses."""
_NAMES = ("kind", "episode_id", "index", "batch_id", "name", "env")


def record_bus(folder: Path) -> dict[str, list[str]]:
    """Return the messages of durable and live subjects, and the replies to control requests."""
    with NodeProcess(folder / "node", name="golden") as node:
        messages, replies, watched = asyncio.run(_play(node))
        info = subprocess.check_output([COMMAND, "nats-info", "--json", "--data-dir", node.data_dir])
    latest: dict[tuple[str, ...], str] = {}
    for message in messages:
        payload = json.loads(message.data)
        items = payload.pop("items", [{}]) if message.subject.startswith("agentgym.live.") else [{}]
        for item in items:
            if item.get("kind") not in LEFT_OUT and not message.subject.startswith("agentgym.control."):
                key = (message.subject, *(str(item.get(name, payload.get(name))) for name in _NAMES))
                line = {"subject": message.subject, "headers": sorted(message.headers or {}), **payload, "item": item}
                latest[key] = json.dumps(line)
    ordered = sorted(latest.items(), key=lambda entry: (entry[0][0], entry[0][1]))  # the order of arrival within
    for reply in replies:
        if isinstance(result := reply.get("result"), dict) and "items" in result:
            result["items"] = [item for item in result["items"] if item["kind"] == "env.health"]
    return {
        "bus": Normaliser(folder).lines(line for _, line in ordered),
        "control": Normaliser(folder).lines(json.dumps(reply) for reply in replies),
        "batches": Normaliser(folder).lines((folder / "node" / "batches.jsonl").read_bytes().splitlines()),
        "commands/watch": Normaliser(folder).lines(watched),
        "commands/nats_info": Normaliser(folder).lines([info]),
    }


async def _play(node: NodeProcess) -> tuple[list[Msg], list[Any], list[str]]:
    messages: list[Msg] = []
    replies, ended, done = [], asyncio.Event(), set[bytes]()
    async with await node.connect() as connection:

        async def keep(message: Msg) -> None:
            messages.append(message)
            seen = {name for name in LAST if name in message.data + message.subject.encode()}
            done.update(seen if STATUS[0] in done else seen - {STATUS[1]})
            if done == LAST:
                ended.set()

        subscription = await connection.client.subscribe("agentgym.>", cb=keep)
        for op, args in OPERATIONS:
            replies.append(await node.request_reply(connection, op, **args))
            if op == "start" and replies[-1].get("ok"):
                await node.wait_for_batch(connection, BATCH, "completed")
        replies.append(await node.request_reply(connection, "list"))
        async with asyncio.timeout(20):
            await ended.wait()
        await subscription.unsubscribe()
        for headers, payload in FOREIGN:
            await connection.client.jetstream().publish(EPISODE_COMPLETED, payload, headers=headers)
        options = ("--data-dir", str(node.data_dir), "--since", "all", "--subject", EPISODE_COMPLETED, "--json")
        async with watch(node.data_dir, *options) as process:
            watched = [await read_line(process) for _ in range(2 + len(FOREIGN))]
    return messages, replies, watched
