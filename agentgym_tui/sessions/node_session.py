"""Session with the node of a state directory: finds or starts the node, reads its bus and sends requests to it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Sequence, Set
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from agentgym_tui.logs.log_file import LogFile
from agentgym_tui.sessions.bus_session import MIN_HISTORY, LiveFeed, feed_subjects, history_age, link_from_state
from agentgym_tui.sessions.control_client import ControlRequestError, NodeControl, running_ids, unfinished_ids
from agentgym_tui.sessions.curation import Curation
from agentgym_tui.sessions.event_reader import EventSource
from agentgym_tui.sessions.library import StateDirLibrary, read_batch_totals
from agentgym_tui.sessions.node_launcher import (
    LaunchOptions,
    StateLocation,
    StateLocator,
    ensure_node,
    node_logs,
    profile_difference,
    read_node_file,
    wait_until_stopped,
)
from agentgym_tui.sessions.session import Session, currency_of
from agentgym_tui.state.nodes import BusLink
from agentgym_tui.state.run_store import LOST_AFTER_S, RunStore
from runner.errors import RunnerError
from runner.util.files import world_writable_problem

if TYPE_CHECKING:
    from runner.bus.address import BusAddress
    from runner.bus.connection import NatsConnection
    from runner.bus.errors import BusState
    from runner.events.control import NodeList
    from runner.node.state_lock import NodeFile

POLL_INTERVAL_S: Final = 20.0  # between requests for the node's state; without any for two minutes it exits
MIN_POLL_GAP_S: Final = 0.25  # between requests while another console changes the queue, or ten times as long as one
RETRY_INTERVAL_S: Final = 1.0  # between requests while the node does not reply
FIRST_LIST_TIMEOUT_S: Final = 3.0  # to wait for the first list before live items are read
STORED_DELAY_S: Final = 0.5  # for which reading the stored episodes leaves the processor to the connection
REPAIR_INTERVAL_S: Final = 2.0  # between reads of the files of episodes with missing live items
MAX_REPAIRED: Final = 20  # number of newest episodes whose files are read where live items are missing


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
        self.control = self._client = NodeControl(
            lambda: self._connection, lambda _: self._node, on_command=lambda: self._poll_now.set(), start_key=start_key
        )
        self.events = self._bus = EventSource()
        self._connection: NatsConnection | None = None
        self._location: StateLocation | None = None
        self._node = ""
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
        """Request the state after changes of connection or queue, after commands, and at intervals.

        Where the node does not answer, check whether its process is alive.
        """
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
            self._node = node_file.node
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
        if node_file is not None:
            await self._compare_profiles(node_file)
        await self._resume_restarted(listed)
        with contextlib.suppress(RunnerError):  # the list of episodes shows why they cannot be read
            await self._read_library(listed, is_first=is_first)
        with contextlib.suppress(RunnerError):  # the console works without tags
            before, tags = self._library.notes_state, await asyncio.to_thread(self._library.tags)
            if tags != self.store.tags or before != self._library.notes_state:
                self.store.apply_tags(tags)
        return True

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
        from runner.node.state_lock import is_node_alive

        if not await asyncio.to_thread(is_node_alive, data_dir) and not self._starting:
            reason = f"the node has stopped; press {self._start_key} to start it again"
            self.store.set_link(BusLink("disconnected", reason))
            self.store.mark_node_lost(self._node)
            self.store.set_profile_difference(None)


async def _wait(event: asyncio.Event, at_most_s: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(at_most_s):
            await event.wait()
