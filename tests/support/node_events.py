"""Durable events of a node process, as a subscriber receives them, and the episodes it stored."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from nats.aio.msg import Msg

from runner.events.subjects import DURABLE
from runner.subscribe.subscription import Subscription
from tests.support.node_process import NodeProcess
from tests.support.subscriptions import SubscriptionRecorder


@asynccontextmanager
async def subscribe_to_node(node: NodeProcess) -> AsyncIterator[SubscriptionRecorder]:
    """Record all durable events of the node's own broker, from the first one."""
    async with (
        await node.connect() as connection,
        Subscription(connection, patterns=DURABLE, since="all") as subscription,
    ):
        recorder = SubscriptionRecorder(subscription)
        task = asyncio.create_task(recorder.run())
        try:
            yield recorder
        finally:
            task.cancel()
            await asyncio.wait([task])


def count_event_ids(recorder: SubscriptionRecorder) -> Counter[str]:
    """Return how often each event of an episode or a batch was received, by event id."""
    ids = (message.headers.get("ce-id", "") for message in recorder.messages)
    return Counter(event_id for event_id in ids if event_id.startswith(("episode:", "batch:")))


def stored_episodes(data_dir: Path, batch_id: str = "*") -> list[Path]:
    return list((data_dir / "runs").glob(f"{batch_id}/*.json"))


def episode_event_ids(data_dir: Path, batch_id: str = "*") -> set[str]:
    return {f"episode:{path.stem}" for path in stored_episodes(data_dir, batch_id)}


async def wait_until(condition: Callable[[], bool], timeout_s: float = 30.0) -> None:
    """Poll a condition that depends on another process."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - no event of this process tells when it holds
            await asyncio.sleep(0.005)


def collect_into(messages: list[Msg]) -> Callable[[Msg], Awaitable[None]]:
    """Return a callback of a subscription that appends each message."""

    async def on_message(message: Msg) -> None:
        messages.append(message)

    return on_message
