"""Sessions that read a bus: with the node of a state directory, and one that only watches."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence, Set
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from agentgym_tui.sessions.event_reader import EventSource
from agentgym_tui.sessions.library import Curation, ResultLibrary, StateDirLibrary, read_batch_totals
from agentgym_tui.sessions.node import profile_difference, running_ids, unfinished_ids
from agentgym_tui.sessions.session import Session, currency_of
from agentgym_tui.state.episode import Episode
from agentgym_tui.state.nodes import BusLink
from agentgym_tui.state.normalize import ulid_time
from agentgym_tui.state.run_store import LOST_AFTER_S, RunStore, join_live, split_portions
from runner.client.node_client import ControlRequestError, NodeClient
from runner.client.node_folder import (
    LaunchOptions,
    StateLocation,
    StateLocator,
    ensure_node,
    read_node_file,
    wait_until_stopped,
)
from runner.errors import ConfigError, RunnerError
from runner.events.subjects import LIVE_SUBJECTS, DurableNames
from runner.node.logs import node_logs
from runner.node.state_lock import NodeFile, is_node_alive
from runner.subscribe.messages import Notice, SubscriptionItem
from runner.types import IMPORTED, UNKNOWN_OUTCOME, Outcome
from runner.util.files import world_writable_problem

if TYPE_CHECKING:
    from agentgym_tui.logs import LogFile
    from runner.bus.address import BusAddress
    from runner.bus.connection import NatsConnection
    from runner.bus.errors import BusState
    from runner.events.control import NodeList
    from runner.results.summary import ResultSource
    from runner.store.index_schema import EpisodeRow
    from runner.subscribe.buffer import RawMessage
    from runner.subscribe.messages import Since
    from runner.subscribe.subscription import Subscription

MAX_MESSAGES: Final = 2_000  # largest number of messages read at once
MAX_READ_BYTES: Final = 5 << 20  # after which a read ends; items of an episode cost less CPU time where read together
SLICE_S: Final = 0.003  # CPU time after which decoding pauses; the message in progress is decoded to its end
GATHER_FACTOR: Final = 3  # messages gather for this many times the CPU time of the last read; those of a subject merge
MAX_GATHER_S: Final = 0.25  # for which messages gather at most; the screen is not repainted more often then
MAX_PAUSE_S: Final = 0.05  # longest pause after a portion of messages
MAX_WAITING_BYTES: Final = 10 << 20  # of unread messages in this process; those of a stream wait in the stream
MIN_HISTORY: Final = timedelta(seconds=15)  # age of the oldest live items that are read where no batch is running
HISTORY_MARGIN: Final = timedelta(seconds=5)  # before the start of the oldest running batch
LIVE_HISTORY: Final = timedelta(minutes=10)  # of live items for a watcher; covers most running episodes
THREAD_SWITCH_S: Final = 0.0005  # short, because the threads of keyboard and screen must not wait
POLL_INTERVAL_S: Final = 20.0  # between requests for the node's state; without any for two minutes it exits
MIN_POLL_GAP_S: Final = 0.25  # between requests while another console changes the queue, or ten times as long as one
RETRY_INTERVAL_S: Final = 1.0  # between requests while the node does not reply
FIRST_LIST_TIMEOUT_S: Final = 3.0  # to wait for the first list before live items are read
STORED_DELAY_S: Final = 0.5  # for which reading the stored episodes leaves the processor to the connection
REPAIR_INTERVAL_S: Final = 2.0  # between reads of the files of episodes with missing live items
MAX_REPAIRED: Final = 20  # number of newest episodes whose files are read where live items are missing
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
    return DurableNames.of(location.profile.nats), LIVE_SUBJECTS


def history_age(batch_ids: Iterable[str], now: datetime) -> timedelta:
    """Return the age of the oldest live items to read: those of the running batches, whose ids encode their starts."""
    starts = [started_at for batch_id in batch_ids if (started_at := ulid_time(batch_id)) is not None]
    return max([max(now - started_at, timedelta()) + HISTORY_MARGIN for started_at in starts], default=MIN_HISTORY)


class BusSession(Session):
    """Watches a bus without changing anything on it, from the durable events of an age (``since``) on.

    It is that of ``url``, with credentials from environment variables or, for ``ssh://``, from there; or that of the
    node that last ran in the state directory.
    """

    def __init__(
        self,
        options: LaunchOptions,
        *,
        url: str | None = None,
        since: timedelta | Literal["all"] = timedelta(hours=24),
        remote_command: str | None = None,
    ) -> None:
        super().__init__("watch", WATCH_ONLY, RunStore())
        self.received = ReceivedEpisodes(self.store)
        self.control = NodeClient(lambda: self._connection, self._node_of, read_only=WATCH_ONLY)
        self.events = self._bus = EventSource()
        self._locator, self._url, self._since = StateLocator(options), url, since
        self._remote_command = remote_command
        self._connection: NatsConnection | None = None

    async def run(self) -> None:
        from runner.bus.address import address_from_environ, address_of_node

        try:
            location = await asyncio.to_thread(self._locator.find)
            read_address: Callable[[], BusAddress | None] = partial(address_of_node, location.data_dir)
            if self._url and self._url.startswith("ssh:"):
                from runner.client.ssh import forwarded, parse_ssh_url

                async with forwarded(parse_ssh_url(self._url, self._remote_command)) as (forwarded_to, _):
                    await self._watch(forwarded_to, lambda: forwarded_to, location)
                return
            if self._url:
                read_address = partial(address_from_environ, self._url, os.environ)
            address = await asyncio.to_thread(read_address)
            if address is None:
                raise ConfigError(f"no node has run in {location.data_dir}; name a bus with --nats")
        except RunnerError as exc:
            self.store.set_link(BusLink("failed", str(exc)))
            return
        await self._watch(address, read_address, location)

    async def _watch(
        self, address: BusAddress, read_address: Callable[[], BusAddress | None], location: StateLocation
    ) -> None:
        from runner.bus.connection import NatsConnection

        self.title = "watching only"

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


class NodeSession(Session):
    """Session with the node of a state directory, which is started where it is not running.

    Hints name ``start_key``, which starts the node again; after ``lost_after_s`` of silence it counts as lost.
    """

    def __init__(self, options: LaunchOptions, start_key: str, *, lost_after_s: float = LOST_AFTER_S) -> None:
        super().__init__("node", "", RunStore(lost_after_s=lost_after_s))
        self.has_node_logs = True
        self.logs: list[LogFile] = []
        self._feed = LiveFeed(self.store)
        self._start_key = start_key
        self._locator = StateLocator(options)
        self.library = self._library = StateDirLibrary(lambda: self._locator.find().data_dir)
        self.curation = self.exporter = Curation(self._library.opened)
        self.control = self._client = NodeClient(
            lambda: self._connection,
            lambda _: self.node,
            on_command=lambda: self._poll_now.set(),
            to_start=f"press {start_key}",
        )
        self.events = self._bus = EventSource()
        self._connection: NatsConnection | None = None
        self._location: StateLocation | None = None
        self._starting = False
        self._to_resume: list[str] = []
        self._n_missing: dict[str, int] = {}
        self._since = MIN_HISTORY
        self._poll_now, self._listed, self._node_is_up, self._located, self._start = (asyncio.Event() for _ in range(5))
        self.store.on_queue_change = self._poll_now.set
        self.store.link = BusLink("starting")

    async def start_node(self) -> None:
        self._start.set()

    async def stop_node(self, *, drain: bool = False) -> None:
        await self._client.shutdown(drain=drain)

    async def restart_node(self) -> None:
        try:
            location = await asyncio.to_thread(self._locator.reload)
        except RunnerError as exc:
            raise ControlRequestError(f"the node was not restarted: {exc}", "fix its profile and try again") from exc
        listed = await self._client.fetch_list()
        await self._client.shutdown(drain=False)
        self._starting = True
        try:
            await wait_until_stopped(location.data_dir)
        except RunnerError as exc:
            self._starting = False
            raise ControlRequestError(str(exc), f"press {self._start_key} once it has stopped") from exc
        self._to_resume = unfinished_ids(listed)
        self._start.set()

    async def use_profile(self, path: Path) -> None:
        try:
            self._apply_location(await asyncio.to_thread(self._locator.reload, str(path)))
        except RunnerError as exc:
            raise ControlRequestError(f"the profile cannot be used: {exc}") from exc
        self._poll_now.set()

    def open_logs(self) -> Sequence[LogFile]:
        if self._location is not None:
            from agentgym_tui.logs import LogFile

            known = {log.path for log in self.logs}
            found = node_logs(self._location.data_dir)
            self.logs = [*self.logs, *(LogFile(path) for path in found if path not in known)]
        return self.logs

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            subscribing: asyncio.Task[None] | None = None
            if (data_dir := await asyncio.to_thread(self._locator.running_folder)) is not None:
                self.data_dir = data_dir
                self._node_is_up.set()
                subscribing = tasks.create_task(self._subscribe(data_dir))
                await _wait(self._listed, FIRST_LIST_TIMEOUT_S)
            while (location := await self._locate(subscribing)) is None:
                subscribing = None
                await self._start.wait()
            tasks.create_task(self._keep_node(location))
            tasks.create_task(self._read_stored(location))
            if subscribing is None:
                tasks.create_task(self._subscribe(location.data_dir))

    async def close(self) -> None:
        await asyncio.to_thread(self._library.close)
        await super().close()

    async def _locate(self, subscribing: asyncio.Task[None] | None) -> StateLocation | None:
        """Read the profile; where it is not valid, end ``subscribing`` and return None."""
        self._start.clear()
        if subscribing is None:
            self.store.set_link(BusLink("starting"))
        try:
            location = await asyncio.to_thread(self._locator.find)
        except RunnerError as exc:
            if subscribing is not None:
                subscribing.cancel()
                await asyncio.wait([subscribing])
                self._node_is_up.clear()
                self._listed.clear()
            self._fail(exc)
            return None
        if location.notice:
            self.store.add_notice(location.notice)
        self._apply_location(location)
        self._located.set()
        return location

    def _apply_location(self, location: StateLocation) -> None:
        self._location, self.data_dir = location, location.data_dir
        self.profile = location.profile_file and (location.profile, location.profile_file)
        profile, episode = location.profile, location.profile.episode
        self.store.apply_profile([(tier, entry.name, entry.ram or "") for tier, entry in profile.tiered_entries()])
        self.store.currency = profile.agent.currency
        defaults: dict[str, float | str | None] = {"concurrency": episode.concurrent, "workers": episode.workers}
        if all(entry.max_rounds is entry.max_duration_sec is None for _, entry in profile.tiered_entries()):
            defaults |= {"max_rounds": episode.max_rounds, "max_duration_sec": episode.max_duration_sec}
        self.store.set_profile_defaults(profile.id, defaults)

    def _fail(self, exc: RunnerError) -> None:
        self.store.set_link(BusLink("failed", f"{exc}\nfix it, then press {self._start_key} to try again"))

    async def _wait_for_location(self) -> StateLocation:
        await self._located.wait()
        assert self._location is not None
        return self._location

    async def _read_stored(self, location: StateLocation) -> None:
        await _wait(self._listed, STORED_DELAY_S)
        try:
            rows = await asyncio.to_thread(self._library.rows)
            if not location.profile.agent.price:
                self.store.currency = currency_of(rows) or self.store.currency
            self.store.apply_stored(rows)
        except RunnerError as exc:
            self.store.set_link(BusLink("failed", str(exc)))

    async def _keep_node(self, location: StateLocation) -> None:
        """Start the node where it is not running: now, and after each call of ``start_node``."""
        while True:
            self._start.clear()
            self._starting = True
            try:
                config = location.profile_file and str(location.profile_file.path)
                await ensure_node(location, config or self._locator.options.config)
            except RunnerError as exc:
                self._fail(exc)
            else:
                self._node_is_up.set()
                if (problem := world_writable_problem(location.data_dir)) is not None:
                    self.store.add_notice(problem)
            self._starting = False
            self._poll_now.set()
            await self._start.wait()
            with contextlib.suppress(RunnerError):  # the start of the node reports it
                self._apply_location(location := await asyncio.to_thread(self._locator.reload))
            if self._connection is None or not self._connection.connected:
                self.store.set_link(BusLink("starting"))

    async def _subscribe(self, data_dir: Path) -> None:
        from runner.bus.address import address_of_node
        from runner.bus.connection import NatsConnection

        read_address = partial(address_of_node, data_dir)
        address = await self._address(read_address)
        connecting = NatsConnection.open(
            address, name="agentgym-tui", on_state=self._update_link, read_address=read_address, required=False
        )
        async with await connecting as self._connection, asyncio.TaskGroup() as tasks:
            self._bus.set_connection(self._connection)
            self._update_link(self._connection.state)  # states reported while it opened lacked the address
            connected_at = datetime.now(UTC)
            tasks.create_task(self._keep_polling(data_dir))
            names, live = feed_subjects(await self._wait_for_location())
            since = datetime.now(UTC) - connected_at  # what the first list may not contain
            tasks.create_task(self._feed.run(self._connection, names.all(), since, names))
            await _wait(self._listed, FIRST_LIST_TIMEOUT_S)
            tasks.create_task(self._feed.run(self._connection, [live], self._since, names))
            tasks.create_task(self._repair())

    async def _address(self, read: Callable[[], BusAddress | None]) -> BusAddress:
        await self._node_is_up.wait()
        while True:
            try:
                if (address := await asyncio.to_thread(read)) is not None:
                    return address
            except RunnerError as exc:
                self.store.set_link(BusLink("failed", str(exc)))
            await asyncio.sleep(RETRY_INTERVAL_S / 10)  # the node has its lock, but has not written its address yet

    def _update_link(self, state: BusState) -> None:
        connection = self._connection
        if (link := link_from_state(state, connection.address.display_url if connection else "")) is not None:
            self.store.set_link(link)
        self._poll_now.set()

    async def _keep_polling(self, data_dir: Path) -> None:
        """Request the state after changes of connection or queue, after commands, and at intervals."""
        while True:
            self._poll_now.clear()
            started_s = time.monotonic()
            answered = await self._poll(data_dir)
            await asyncio.sleep(max(MIN_POLL_GAP_S, 10 * (time.monotonic() - started_s)) if answered else 0)
            if not answered and not self._starting:
                await self._check_process(data_dir)
            await _wait(self._poll_now, POLL_INTERVAL_S if answered else RETRY_INTERVAL_S)

    async def _poll(self, data_dir: Path) -> bool:
        if self._connection is None or not self._connection.connected:
            return False
        if (node_file := await asyncio.to_thread(read_node_file, data_dir)) is not None:
            self.node = node_file.node
            self.title = f"node {node_file.node}"
        try:
            health, listed = await asyncio.gather(self._client.fetch_health(), self._client.fetch_list())
        except ControlRequestError:
            return False
        self.store.apply_health(health)
        self.store.apply_list(listed)
        if is_first := not self._listed.is_set():
            self._since = history_age(running_ids(listed), datetime.now(UTC))
            self._listed.set()
        if node_file is not None and node_file.boot != health.boot:
            node_file = None  # of the node before: one that starts answers before it writes its file
        if node_file is not None:
            await self._compare_profiles(node_file)
        await self._resume_restarted(listed)
        with contextlib.suppress(RunnerError):  # the list of episodes shows why they cannot be read
            await self._read_library(listed, is_first=is_first)
        with contextlib.suppress(RunnerError):  # the console works without tags
            before, tags = self._library.notes_state, await asyncio.to_thread(self._library.tags)
            if tags != self.store.tags or before != self._library.notes_state:
                self.store.apply_tags(tags)
        return node_file is not None

    async def _compare_profiles(self, node_file: NodeFile) -> None:
        """Set how the profile of the node differs; follow the node to another profile if the user named none."""
        location = await self._wait_for_location()
        difference = await asyncio.to_thread(profile_difference, location, node_file, os.environ)
        is_other = difference is not None and difference.is_other
        if is_other and (followed := await asyncio.to_thread(self._locator.follow_node)) is not None:
            self._apply_location(followed)
            difference = None
        self.store.set_profile_difference(difference)

    async def _resume_restarted(self, listed: NodeList) -> None:
        interrupted = {batch.batch_id for batch in listed.batches if batch.status == "interrupted"}
        batch_ids, self._to_resume = [each for each in self._to_resume if each in interrupted], []
        for batch_id in batch_ids:
            try:
                await self._client.command("resume", batch_id=batch_id)
            except ControlRequestError as exc:
                self.store.add_notice(f"a batch stays interrupted: {exc}")

    async def _read_library(self, listed: NodeList, *, is_first: bool) -> None:
        """Read what other processes have stored: episodes, batches and their sums; raises ``RunnerError``."""
        library = self._library
        if has_changed := not is_first and await asyncio.to_thread(library.has_changed):
            self.store.apply_stored(())
        if is_first:
            await self._read_journals(running_ids(listed))
            self.store.apply_unlisted(await asyncio.to_thread(library.unlisted_batches, [*self.store.batches]))
        if is_first or has_changed:
            self.store.set_n_unlisted(await asyncio.to_thread(library.n_unlisted, [*self.store.batches]))
        if batch_ids := self.store.batch_registry.without_totals():  # they ended while the console did not follow them
            source = await asyncio.to_thread(library.result_source)
            self.store.apply_totals(batch_ids, await asyncio.to_thread(read_batch_totals, source, batch_ids))

    async def _repair(self) -> None:
        """Merge the files of those newest episodes whose live items are missing; the screen shows the other gaps."""
        while True:
            await asyncio.sleep(REPAIR_INTERVAL_S)
            newest = [*self.store.episodes.values()][-MAX_REPAIRED:]
            missing = [each for each in newest if each.n_missing > self._n_missing.get(each.episode_id, 0)]
            self._n_missing = {each.episode_id: each.n_missing for each in newest if each.n_missing}
            if running := {episode.batch_id for episode in missing if episode.running}:
                await self._read_journals(running)
            for episode in missing:
                if not episode.running:
                    with contextlib.suppress(RunnerError):
                        stored, _ = await asyncio.to_thread(self._library.load, episode.episode_id)
                        self.store.merge_episode(stored)

    async def _read_journals(self, batch_ids: Set[str]) -> None:
        with contextlib.suppress(RunnerError):
            for episode in await asyncio.to_thread(self._library.read_journals, batch_ids):
                self.store.merge_episode(episode)

    async def _check_process(self, data_dir: Path) -> None:
        if not await asyncio.to_thread(is_node_alive, data_dir) and not self._starting:
            reason = f"the node has stopped; press {self._start_key} to start it again"
            self.store.set_link(BusLink("disconnected", reason))
            self.store.mark_node_lost(self.node)
            self.store.set_profile_difference(None)


async def _wait(event: asyncio.Event, at_most_s: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(at_most_s):
            await event.wait()
