"""Applies the messages of a bus to a run store, with pauses that keep the screen responsive."""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from agentgym_tui.sessions.input_priority import InputPriority
from agentgym_tui.sessions.node_launcher import StateLocation
from agentgym_tui.state.data_model import BusLink, BusLinkStatus
from agentgym_tui.state.live_batches import join_live, split_portions
from agentgym_tui.state.normalize import ulid_time
from agentgym_tui.state.run_store import RunStore
from runner.subscribe.messages import Notice, SubscriptionItem

if TYPE_CHECKING:
    from runner.bus.connection import NatsConnection
    from runner.bus.errors import BusState
    from runner.events.subjects import DurableNames
    from runner.subscribe.buffer import RawMessage
    from runner.subscribe.messages import Since
    from runner.subscribe.subscription import Subscription

MAX_MESSAGES: Final = 2_000
"""Largest number of messages read at once."""

MAX_READ_BYTES: Final = 5 << 20
"""Size in bytes after which no further message is added to a read; the last message may exceed it.

The items of an episode that are read together are applied together, so that larger reads take less CPU time per item.
"""

SLICE_S: Final = 0.003
"""CPU time in seconds after which decoding pauses; the message in progress is decoded to its end."""

GATHER_FACTOR: Final = 3
"""The time for which further messages gather is ``GATHER_FACTOR`` times the CPU time of the last read.

Messages of one subject are merged, so the more messages arrive, the less CPU time each of them takes.
"""

MAX_GATHER_S: Final = 0.25
"""Longest time for which messages gather, in seconds; under such a load the screen is not repainted more often."""

MAX_PAUSE_S: Final = 0.05
"""Longest pause after a portion of messages, in seconds."""

MAX_WAITING_BYTES: Final = 10 << 20
"""Largest size of the unread messages buffered in this process. Messages that a stream stores wait in the stream."""

MIN_HISTORY: Final = timedelta(seconds=15)
"""Age of the oldest live items that are read where no batch is running."""

HISTORY_MARGIN: Final = timedelta(seconds=5)
"""Time before the start of the oldest running batch from which live items are read."""

THREAD_SWITCH_S: Final = 0.0005
"""Interval of thread switches in seconds; short, because the threads of keyboard and screen must not wait."""

_LINK_STATUS: Final[dict[str, BusLinkStatus]] = {
    "connecting": "connecting",
    "connected": "connected",
    "stalled": "stalled",
    "disconnected": "disconnected",
}


class LiveFeed:
    """Subscribes to a bus and applies its messages to a run store.

    Args:
        store: the run store.
        input_priority: delays messages until pending input is painted.
        cpu_time_s: returns the CPU time of the current thread in seconds. It ends a slice of decoding, and the pause
            after a portion of messages is half the CPU time of the portion. Wall time would be wrong where the console
            was suspended in between.
    """

    def __init__(
        self, store: RunStore, input_priority: InputPriority, cpu_time_s: Callable[[], float] = time.thread_time
    ) -> None:
        self._store = store
        self._input_priority = input_priority
        self._cpu_time_s = cpu_time_s

    async def run(self, connection: NatsConnection, patterns: Sequence[str], since: Since, names: DurableNames) -> None:
        """Subscribe and apply messages until cancelled.

        Args:
            connection: connection to the bus.
            patterns: patterns of the subjects to subscribe to.
            since: where reading starts.
            names: subjects of the durable events.
        """
        from runner.subscribe.subscription import Subscription

        sys.setswitchinterval(THREAD_SWITCH_S)
        gc.freeze()
        subscribing = Subscription(connection, patterns=patterns, since=since, names=names, max_bytes=MAX_WAITING_BYTES)
        async with subscribing as subscription:
            while True:
                await self._input_priority.wait_until_idle()
                received = await subscription.next_raw(MAX_MESSAGES, max_bytes=MAX_READ_BYTES)
                read_s = self._cpu_time_s()
                behind = is_behind(received)
                decoded = await self._decode(received, subscription)
                received.clear()
                for portion in split_portions(join_live(decoded)):
                    await self._input_priority.wait_until_idle()
                    started_s = self._cpu_time_s()
                    self._store.apply_events(portion)
                    # keys must be handled while a long history is read
                    await asyncio.sleep(min((self._cpu_time_s() - started_s) / 2, MAX_PAUSE_S))
                if not behind:
                    await asyncio.sleep(min((self._cpu_time_s() - read_s) * GATHER_FACTOR, MAX_GATHER_S))

    async def _decode(
        self, received: Iterable[RawMessage | Notice], subscription: Subscription
    ) -> list[SubscriptionItem]:
        decoded: list[SubscriptionItem] = []
        started_s = self._cpu_time_s()
        for each in received:
            if isinstance(each, Notice):
                decoded.append(each)
                continue
            if (message := subscription.decode(each)) is not None:
                decoded.append(message)
            if self._cpu_time_s() - started_s >= SLICE_S:
                await asyncio.sleep(0)
                await self._input_priority.wait_until_idle()
                started_s = self._cpu_time_s()
        return decoded


def is_behind(received: Sequence[RawMessage | Notice]) -> bool:
    """Whether the read was full, or the stream had more unread messages than were read."""
    messages = [each for each in received if not isinstance(each, Notice)]
    if len(received) == MAX_MESSAGES or sum([len(message.payload) for message in messages]) >= MAX_READ_BYTES:
        return True
    return bool(messages) and messages[-1].pending > len(messages)


def link_from_state(state: BusState, address: str) -> BusLink | None:
    """Return the bus link that a connection state results in; None for a state that does not change the link.

    Args:
        state: state of the connection.
        address: URL of the bus, without credentials.
    """
    status = _LINK_STATUS.get(state.status)
    return None if status is None else BusLink(status, state.reason, address)


def feed_subjects(location: StateLocation) -> tuple[DurableNames, str]:
    """Return the subjects of the durable events, as named in the profile, and the pattern of all live subjects."""
    from runner.events.subjects import LIVE_SUBJECTS, DurableNames

    return DurableNames.of(location.profile.nats), LIVE_SUBJECTS


def history_age(batch_ids: Iterable[str], now: datetime) -> timedelta:
    """Return the age of the oldest live items to read: those of the running batches, whose ids encode their starts."""
    starts = [started_at for batch_id in batch_ids if (started_at := ulid_time(batch_id)) is not None]
    return max([max(now - started_at, timedelta()) + HISTORY_MARGIN for started_at in starts], default=MIN_HISTORY)
