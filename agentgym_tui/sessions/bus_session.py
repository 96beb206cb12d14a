"""What arrives on a bus, applied to the state with pauses for the screen, and a session that only watches."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Final, Literal

from agentgym_tui.sessions.control_client import ControlRequestError, NodeControl
from agentgym_tui.sessions.event_reader import EventSource
from agentgym_tui.sessions.library import ResultLibrary
from agentgym_tui.sessions.node_launcher import LaunchOptions, StateLocation, StateLocator
from agentgym_tui.sessions.session import Session
from agentgym_tui.state.episode import Episode
from agentgym_tui.state.nodes import BusLink
from agentgym_tui.state.normalize import ulid_time
from agentgym_tui.state.run_store import RunStore, join_live, split_portions
from runner.errors import ConfigError, RunnerError
from runner.subscribe.messages import Notice, SubscriptionItem

if TYPE_CHECKING:
    from runner.bus.address import BusAddress
    from runner.bus.connection import NatsConnection
    from runner.bus.errors import BusState
    from runner.events.subjects import DurableNames
    from runner.results.summary import ResultSource
    from runner.store.index_schema import EpisodeRow
    from runner.subscribe.buffer import RawMessage
    from runner.subscribe.messages import Since
    from runner.subscribe.subscription import Subscription

MAX_MESSAGES: Final = 2_000  # largest number of messages read at once
MAX_READ_BYTES: Final = 5 << 20  # that end a read; items of an episode that are read together cost less CPU time each
SLICE_S: Final = 0.003  # CPU time after which decoding pauses; the message in progress is decoded to its end
GATHER_FACTOR: Final = 3  # messages gather for this many times the CPU time of the last read; those of a subject merge
MAX_GATHER_S: Final = 0.25  # for which messages gather at most; the screen is not repainted more often then
MAX_PAUSE_S: Final = 0.05  # longest pause after a portion of messages
MAX_WAITING_BYTES: Final = 10 << 20  # of unread messages in this process; those of a stream wait in the stream
MIN_HISTORY: Final = timedelta(seconds=15)  # age of the oldest live items that are read where no batch is running
HISTORY_MARGIN: Final = timedelta(seconds=5)  # before the start of the oldest running batch
LIVE_HISTORY: Final = timedelta(minutes=10)  # of live items for a watcher; covers most running episodes
THREAD_SWITCH_S: Final = 0.0005  # short, because the threads of keyboard and screen must not wait
WATCH_ONLY: Final = "watching only: nothing can be started or stopped from here; use `agentgym-tui launch` on the node"

_LINK_STATUSES: Final = ("connecting", "connected", "stalled", "disconnected")


class LiveFeed:
    """Subscribes to a bus and applies its messages to a run store.

    Pauses follow the CPU time of the current thread; wall time would be wrong where the console was suspended.
    """

    def __init__(self, store: RunStore, cpu_time_s: Callable[[], float] = time.thread_time) -> None:
        self._store, self._cpu_time_s = store, cpu_time_s

    async def run(self, connection: NatsConnection, patterns: Sequence[str], since: Since, names: DurableNames) -> None:
        from runner.subscribe.subscription import Subscription

        sys.setswitchinterval(THREAD_SWITCH_S)
        gc.freeze()
        subscribing = Subscription(connection, patterns=patterns, since=since, names=names, max_bytes=MAX_WAITING_BYTES)
        async with subscribing as subscription:
            while True:
                received = await subscription.next_raw(MAX_MESSAGES, max_bytes=MAX_READ_BYTES)
                read_s = self._cpu_time_s()
                behind = is_behind(received)
                decoded = await self._decode(received, subscription)
                received.clear()
                for portion in split_portions(join_live(decoded)):
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
                started_s = self._cpu_time_s()
        return decoded


def is_behind(received: Sequence[RawMessage | Notice]) -> bool:
    """Whether the read was full, or the stream had more unread messages than were read."""
    messages = [each for each in received if not isinstance(each, Notice)]
    if len(received) == MAX_MESSAGES or sum([len(message.payload) for message in messages]) >= MAX_READ_BYTES:
        return True
    return bool(messages) and messages[-1].pending > len(messages)


def link_from_state(state: BusState, address: str) -> BusLink | None:
    """Return None for a state that does not change the link; ``address`` is the URL without credentials."""
    return BusLink(state.status, state.reason, address) if state.status in _LINK_STATUSES else None


def feed_subjects(location: StateLocation) -> tuple[DurableNames, str]:
    """Return the subjects of the durable events, as named in the profile, and the pattern of all live subjects."""
    from runner.events.subjects import LIVE_SUBJECTS, DurableNames

    return DurableNames.of(location.profile.nats), LIVE_SUBJECTS


def history_age(batch_ids: Iterable[str], now: datetime) -> timedelta:
    """Return the age of the oldest live items to read: those of the running batches, whose ids encode their starts."""
    starts = [started_at for batch_id in batch_ids if (started_at := ulid_time(batch_id)) is not None]
    return max([max(now - started_at, timedelta()) + HISTORY_MARGIN for started_at in starts], default=MIN_HISTORY)


class BusSession(Session):
    """Watches a bus without changing anything on it, and sends no commands.

    The bus is that of ``url``, with credentials from environment variables, or that of the node that last ran in the
    state directory. ``since`` is the age of the oldest durable events that are read.
    """

    def __init__(
        self, options: LaunchOptions, *, url: str | None = None, since: timedelta | Literal["all"] = timedelta(hours=24)
    ) -> None:
        super().__init__("watch", WATCH_ONLY, RunStore())
        self.received = ReceivedEpisodes(self.store)
        self.control = NodeControl(lambda: self._connection, self._node_of, read_only=WATCH_ONLY)
        self.events = self._bus = EventSource()
        self._locator, self._url, self._since = StateLocator(options), url, since
        self._connection: NatsConnection | None = None

    async def run(self) -> None:
        from runner.bus.address import address_from_environ, address_of_node
        from runner.bus.connection import NatsConnection

        try:
            location = await asyncio.to_thread(self._locator.find)
            read_address: Callable[[], BusAddress | None] = partial(address_of_node, location.data_dir)
            if self._url:
                read_address = partial(address_from_environ, self._url, os.environ)
            address = await asyncio.to_thread(read_address)
            if address is None:
                raise ConfigError(f"no node has run in {location.data_dir}; name a bus with --nats")
        except RunnerError as exc:
            self.store.set_link(BusLink("failed", str(exc)))
            return
        self.title = f"watch {address.display_url}"

        def update_link(state: BusState) -> None:
            if (link := link_from_state(state, address.display_url)) is not None:
                self.store.set_link(link)

        connecting = NatsConnection.open(
            address, name="agentgym-watch", on_state=update_link, read_address=read_address, required=False
        )
        async with await connecting as connection, asyncio.TaskGroup() as tasks:
            self._connection = connection
            self._bus.set_connection(connection)
            names, live = feed_subjects(location)
            feed = LiveFeed(self.store)
            tasks.create_task(feed.run(connection, names.all(), self._since, names))
            tasks.create_task(feed.run(connection, [live], LIVE_HISTORY, names))

    def _node_of(self, episode_id: str) -> str:
        episode = self.store.episodes.get(episode_id)
        node = None if episode is None else self.store.nodes.get(episode.node)
        if node is None or not node.boot:  # as of other field runners, which answer no requests
            raise ControlRequestError(f"episode {episode_id}: the node that ran it is not known")
        return node.name


class ReceivedEpisodes(ResultLibrary):
    """The ended episodes that a bus has reported, for the screens of results."""

    def __init__(self, store: RunStore) -> None:
        self._store = store

    def rows(self, *, check_files: bool = True) -> Sequence[EpisodeRow]:
        return [_row(episode) for episode in [*self._store.episodes.values()][::-1] if not episode.running]

    def result_source(self) -> ResultSource:
        from agentgym_tui.sessions.file_library import row_table

        return row_table(self.rows())


def _row(episode: Episode) -> EpisodeRow:
    """Return the row of an episode; like an imported one where its outcome is unknown."""
    from runner.store.episode_file import shared_fields
    from runner.store.index_schema import EpisodeRow
    from runner.types import IMPORTED, UNKNOWN_OUTCOME, Outcome

    is_unknown = episode.outcome == UNKNOWN_OUTCOME
    values = shared_fields(episode, EpisodeRow) | {
        "transport": IMPORTED if is_unknown else episode.transport,
        "outcome": Outcome.INTERRUPTED if is_unknown else episode.outcome,
        "success": bool(episode.success),
        "unscored": episode.unscored or episode.success is None,
        "models": episode.models if episode.agent else episode.models or "",  # without models, an agent is a baseline
        "shape": episode.shape,
    }
    tokens = {f"tokens_{kind}": getattr(episode.tokens, kind) for kind in episode.tokens.__struct_fields__}
    return EpisodeRow(**values, **tokens, ended_at=episode.started_at)
