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

from agentgym_tui.sessions.input_priority import Turns
from agentgym_tui.sessions.node_launcher import Place
from agentgym_tui.state.coalesce import digest_of, portions
from agentgym_tui.state.item_batches import Digest
from agentgym_tui.state.models import Link, LinkStatus
from agentgym_tui.state.run_store import RunStore
from agentgym_tui.state.ulids import time_of
from runner.events.decoded import LiveRow
from runner.subscribe.messages import Notice, Seen

if TYPE_CHECKING:
    from agentgym_tui.sessions.decode_worker_client import Digester
    from runner.bus.connection import Connection
    from runner.bus.errors import BusState
    from runner.events.codec import DurableNames
    from runner.subscribe.buffer import Incoming
    from runner.subscribe.messages import Since
    from runner.subscribe.subscription import Follow

AT_ONCE: Final = 500
"""Messages that are taken in before the screen gets its turn."""

BYTES_AT_ONCE: Final = 256 * 1024
"""The same in bytes, but for the last message."""

MOST_REST_S: Final = 0.05
"""Seconds for which nothing is taken in after something was."""

WAITING: Final = 8 << 20
"""Bytes that wait here; of what streams keep more waits there."""

GARBAGE: Final = (10_000, 50, 20)
"""How rarely it is looked for: hardly anything here refers to itself, and a key waits while all that is new is gone
through, which takes 2 to 7 ms for ten thousand."""

SWITCH_S: Final = 0.0005
"""Seconds after which another thread gets its turn: those of keyboard and screen have little to do, but at once."""

_LINKS: Final[dict[str, LinkStatus]] = {
    "connecting": "connecting",
    "connected": "connected",
    "stalled": "stalled",
    "disconnected": "disconnected",
}


class Feed:
    """Takes what is said into a store.

    Args:
        store: where to.
        turns: says when.
        worked: what this thread has used of a processor, seconds. By another clock a console that was stopped while
            it took something in would rest for half as long as it was stopped.
    """

    def __init__(self, store: RunStore, turns: Turns, worked: Callable[[], float] = time.thread_time) -> None:
        """Nothing is taken before ``follow``."""
        self._store = store
        self._turns = turns
        self._worked = worked

    async def follow(self, connection: Connection, patterns: Sequence[str], since: Since, names: DurableNames) -> None:
        """Take in what is said on some subjects, until cancelled."""
        from agentgym_tui.sessions.decode_worker_client import Digester
        from runner.subscribe.subscription import Follow

        sys.setswitchinterval(SWITCH_S)
        gc.freeze()
        gc.set_threshold(*GARBAGE)
        following = Follow(connection, patterns=patterns, since=since, names=names, max_bytes=WAITING)
        with closing(Digester(names)) as digester:
            async with following as follow:
                while True:
                    await self._turns.mine()
                    came = await follow.raw(AT_ONCE, max_bytes=BYTES_AT_ONCE)
                    for part in portions(await _read(came, follow, digester)):
                        await self._turns.mine()
                        before = self._worked()
                        self._store.take(part)
                        # a long history must not keep the keys waiting
                        await asyncio.sleep(min((self._worked() - before) / 2, MOST_REST_S))


async def _read(came: Iterable[Incoming | Notice], follow: Follow, digester: Digester) -> list[Seen | Digest]:
    seen: list[Seen | Digest] = []
    for each in came:
        if isinstance(each, Notice):
            seen.append(each)
        elif (digest := await digester.digest(each)) is not None:
            seen.append(digest)
        elif (said := follow.decoded(each)) is not None:
            seen.append(digest_of(said.decoded) if isinstance(said.decoded, LiveRow) else said)
    return seen


def link_of(state: BusState, address: str) -> Link | None:
    """What a connection's state means for the person, None when it is left; ``address`` is without credentials."""
    status = _LINKS.get(state.status)
    return None if status is None else Link(status, state.reason, address)


def subjects_of(place: Place) -> tuple[DurableNames, str]:
    """The names of the durable events in a profile, and the pattern of all live items."""
    from runner.events.codec import DurableNames
    from runner.events.subjects import LIVE_SUBJECTS

    nats = place.profile.nats
    names = DurableNames(
        episode_completed=nats.episode_completed, eval_batch=nats.eval_batch, field_status=nats.field_status
    )
    return names, LIVE_SUBJECTS


def batch_age(batch_id: str, now: datetime) -> timedelta | None:
    """How long ago a batch was asked for, by its id; None for what is no id."""
    asked_at = time_of(batch_id)
    return None if asked_at is None else max(now - asked_at, timedelta())
