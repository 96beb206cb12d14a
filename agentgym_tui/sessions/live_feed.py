"""From a bus into the store."""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from agentgym_tui.sessions.input_priority import InputPriority
from agentgym_tui.sessions.node_launcher import StateLocation
from agentgym_tui.state.coalesce import coalesce_batch, split_portions
from agentgym_tui.state.item_batches import DecodedBatch
from agentgym_tui.state.models import BusLink, BusLinkStatus
from agentgym_tui.state.run_store import RunStore
from agentgym_tui.state.timestamps import ulid_time
from runner.events.decoded import LiveRow
from runner.subscribe.messages import Notice, SubscriptionItem

if TYPE_CHECKING:
    from agentgym_tui.sessions.decode_worker_client import DecodeWorkerClient
    from runner.bus.connection import NatsConnection
    from runner.bus.errors import BusState
    from runner.events.subjects import DurableNames
    from runner.subscribe.buffer import RawMessage
    from runner.subscribe.messages import Since
    from runner.subscribe.subscription import Subscription

MAX_MESSAGES: Final = 500
"""Messages that are taken in before the screen gets its turn."""

MAX_READ_BYTES: Final = 256 * 1024
"""The same in bytes, but for the last message."""

MAX_PAUSE_S: Final = 0.05
"""Seconds for which nothing is taken in after something was."""

MAX_WAITING_BYTES: Final = 8 << 20
"""Bytes that wait here; of what streams keep more waits there."""

GC_THRESHOLDS: Final = (10_000, 50, 20)
"""How rarely it is looked for: hardly anything here refers to itself, and a key waits while all that is new is gone
through, which takes 2 to 7 ms for ten thousand."""

THREAD_SWITCH_S: Final = 0.0005
"""Seconds after which another thread gets its turn: those of keyboard and screen have little to do, but at once."""

_LINK_STATUS: Final[dict[str, BusLinkStatus]] = {
    "connecting": "connecting",
    "connected": "connected",
    "stalled": "stalled",
    "disconnected": "disconnected",
}


class LiveFeed:
    """Takes what is said into a store.

    Args:
        store: where to.
        turns: says when.
        worked: what this thread has used of a processor, seconds. By another clock a console that was stopped while
            it took something in would rest for half as long as it was stopped.
    """

    def __init__(self, store: RunStore, turns: InputPriority, worked: Callable[[], float] = time.thread_time) -> None:
        """Nothing is taken before ``follow``."""
        self._store = store
        self._input_priority = turns
        self._cpu_time_s = worked

    async def follow(
        self, connection: NatsConnection, patterns: Sequence[str], since: Since, names: DurableNames
    ) -> None:
        """Take in what is said on some subjects, until cancelled."""
        from agentgym_tui.sessions.decode_worker_client import DecodeWorkerClient
        from runner.subscribe.subscription import Subscription

        sys.setswitchinterval(THREAD_SWITCH_S)
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)
        following = Subscription(connection, patterns=patterns, since=since, names=names, max_bytes=MAX_WAITING_BYTES)
        with closing(DecodeWorkerClient(names)) as digester:
            async with following as follow:
                while True:
                    await self._input_priority.wait_until_idle()
                    came = await follow.next_raw(MAX_MESSAGES, max_bytes=MAX_READ_BYTES)
                    for part in split_portions(await _decode_messages(came, follow, digester)):
                        await self._input_priority.wait_until_idle()
                        before = self._cpu_time_s()
                        self._store.apply_events(part)
                        # a long history must not keep the keys waiting
                        await asyncio.sleep(min((self._cpu_time_s() - before) / 2, MAX_PAUSE_S))


async def _decode_messages(
    came: Iterable[RawMessage | Notice], follow: Subscription, digester: DecodeWorkerClient
) -> list[SubscriptionItem | DecodedBatch]:
    seen: list[SubscriptionItem | DecodedBatch] = []
    for each in came:
        if isinstance(each, Notice):
            seen.append(each)
        elif (digest := await digester.decode(each)) is not None:
            seen.append(digest)
        elif (said := follow.decode(each)) is not None:
            seen.append(coalesce_batch(said.decoded) if isinstance(said.decoded, LiveRow) else said)
    return seen


def link_from_state(state: BusState, address: str) -> BusLink | None:
    """What a connection's state means for the person, None when it is left; ``address`` is without credentials."""
    status = _LINK_STATUS.get(state.status)
    return None if status is None else BusLink(status, state.reason, address)


def feed_subjects(place: StateLocation) -> tuple[DurableNames, str]:
    """The names of the durable events in a profile, and the pattern of all live items."""
    from runner.events.subjects import LIVE_SUBJECTS, DurableNames

    nats = place.profile.nats
    names = DurableNames(
        episode_completed=nats.episode_completed, eval_batch=nats.eval_batch, field_status=nats.field_status
    )
    return names, LIVE_SUBJECTS


def batch_age(batch_id: str, now: datetime) -> timedelta | None:
    """How long ago a batch was asked for, by its id; None for what is no id."""
    asked_at = ulid_time(batch_id)
    return None if asked_at is None else max(now - asked_at, timedelta())
