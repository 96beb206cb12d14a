"""The node of a state directory: found or started, followed, asked."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from agentgym_tui.sessions.control_client import NodeControl
from agentgym_tui.sessions.episode_library import StateDirLibrary
from agentgym_tui.sessions.event_source import BusEventSource, EventSource
from agentgym_tui.sessions.input_priority import InputPriority
from agentgym_tui.sessions.live_feed import LiveFeed, batch_age, feed_subjects, link_from_state
from agentgym_tui.sessions.node_launcher import LaunchOptions, StateLocation, StateLocator, ensure_node, read_node_file
from agentgym_tui.sessions.protocols import Control, ControlRequestError, Library
from agentgym_tui.state.models import BusLink
from agentgym_tui.state.run_store import RunStore
from runner.errors import RunnerError

if TYPE_CHECKING:
    from agentgym_tui.logs.log_file import LogFile
    from runner.bus.address import BusAddress
    from runner.bus.connection import NatsConnection
    from runner.bus.errors import BusState
    from runner.events.control import NodeList

POLL_INTERVAL_S: Final = 20.0
"""Seconds between two questions; a node that is not asked for two minutes leaves."""

RETRY_INTERVAL_S: Final = 1.0
FIRST_LIST_TIMEOUT_S: Final = 3.0
REPAIR_INTERVAL_S: Final = 2.0
MAX_REPAIRED: Final = 20
"""Of so many episodes, the newest, files are read when live items of them were missed; the others wait until opened."""

MIN_HISTORY: Final = timedelta(seconds=15)
HISTORY_MARGIN: Final = timedelta(seconds=5)


class NodeSession:
    """Attaches to the node of a state directory; starts one when there is none.

    Args:
        wanted: which.
        start_key: what a person presses to have it started again.
    """

    def __init__(self, wanted: LaunchOptions, start_key: str = "N") -> None:
        """Nothing is touched before ``run``."""
        self.title = "node"
        self.read_only = ""
        self.store, self.input_priority = RunStore(), InputPriority()
        self._feed = LiveFeed(self.store, self.input_priority)
        self.data_dir: Path | None = None
        self._start_key = start_key
        self._finder = StateLocator(wanted)
        self._stored = StateDirLibrary(lambda: self._finder.find().data_dir)
        self._client = NodeControl(
            lambda: self._connection, lambda _: self._node, on_command=lambda: self._ask.set(), start_key=start_key
        )
        self.library: Library | None = self._stored
        self.control: Control | None = self._client
        self._bus = BusEventSource()
        self.events: EventSource | None = self._bus
        self.logs: Sequence[LogFile] = ()
        self._connection: NatsConnection | None = None
        self._node = ""
        self._ask = asyncio.Event()
        self._listed = asyncio.Event()
        self._up = asyncio.Event()
        self._start = asyncio.Event()
        self._since = MIN_HISTORY
        self._filled: dict[str, int] = {}
        self._starting = False

    async def start_node(self) -> None:
        """Start the node again when it is gone, or try again what did not work."""
        self._start.set()

    async def run(self) -> None:
        """Find or start the node, and follow it until cancelled."""
        while (place := await self._found()) is None:
            await self._start.wait()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._keep_node(place))
            tasks.create_task(self._seed())
            tasks.create_task(self._follow(place))

    async def close(self) -> None:
        """Let go of the index; the node goes on."""
        await asyncio.to_thread(self._stored.close)

    async def _found(self) -> StateLocation | None:
        self._start.clear()
        self.store.set_link(BusLink("starting"))
        try:
            place = await asyncio.to_thread(self._finder.find)
        except RunnerError as exc:
            self._fail(exc)
            return None
        self.data_dir = place.data_dir
        self.store.apply_profile([(tier, entry.name, entry.ram or "") for tier, entry in place.profile.tiered_entries()])
        return place

    def _fail(self, exc: RunnerError) -> None:
        self.store.set_link(BusLink("failed", f"{exc}\nmend it, then press {self._start_key} to try again"))

    async def _seed(self) -> None:
        """What is stored already."""
        try:
            self.store.apply_stored(await asyncio.to_thread(self._stored.rows))
        except RunnerError as exc:
            self.store.set_link(BusLink("failed", str(exc)))

    async def _keep_node(self, place: StateLocation) -> None:
        """Have a node now, and again each time somebody asks for it."""
        while True:
            self._start.clear()
            self._starting = True
            try:
                await ensure_node(place, self._finder.options.config)
            except RunnerError as exc:
                self._fail(exc)
            else:
                self._up.set()
            self._starting = False
            self._ask.set()
            await self._start.wait()
            if self._connection is None or not self._connection.connected:
                self.store.set_link(BusLink("starting"))

    async def _follow(self, place: StateLocation) -> None:
        from runner.bus.connection import NatsConnection

        read_address = self._reader(place.data_dir)
        address = await self._address(read_address)
        opening = NatsConnection.open(
            address, name="agentgym-tui", on_state=self._show, read_address=read_address, required=False
        )
        async with await opening as self._connection, asyncio.TaskGroup() as tasks:
            self._bus.set_connection(self._connection)
            self._show(self._connection.state)  # what was told while it opened lacked the address
            names, live = feed_subjects(place)
            tasks.create_task(self._keep_asking(place))
            tasks.create_task(self._feed.follow(self._connection, names.all(), "now", names))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FIRST_LIST_TIMEOUT_S):
                    await self._listed.wait()
            tasks.create_task(self._feed.follow(self._connection, [live], self._since, names))
            tasks.create_task(self._keep_filling())

    def _reader(self, data_dir: Path) -> Callable[[], BusAddress | None]:
        def read() -> BusAddress | None:
            from runner.bus.address import address_of_node

            return address_of_node(data_dir)

        return read

    async def _address(self, read: Callable[[], BusAddress | None]) -> BusAddress:
        """Where the node's bus is, once there is a node."""
        await self._up.wait()
        while True:
            try:
                if (address := await asyncio.to_thread(read)) is not None:
                    return address
            except RunnerError as exc:
                self.store.set_link(BusLink("failed", str(exc)))
            await asyncio.sleep(RETRY_INTERVAL_S / 10)  # it has its lock, but has not said yet where it is

    def _show(self, state: BusState) -> None:
        connection = self._connection
        if (link := link_from_state(state, connection.address.display_url if connection else "")) is not None:
            self.store.set_link(link)
        self._ask.set()

    async def _keep_asking(self, place: StateLocation) -> None:
        """Ask on each connect, after each order and every now and then; look for the node where it does not answer."""
        while True:
            self._ask.clear()
            answered = await self._asked(place)
            if not answered and not self._starting:
                await self._look_for_node(place)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POLL_INTERVAL_S if answered else RETRY_INTERVAL_S):
                    await self._ask.wait()

    async def _asked(self, place: StateLocation) -> bool:
        if self._connection is None or not self._connection.connected:
            return False
        if (known := await asyncio.to_thread(read_node_file, place.data_dir)) is not None:
            self._node = known.node
            self.title = f"node {known.node}"
        try:
            self.store.apply_health(await self._client.fetch_health())
            listed = await self._client.fetch_list()
        except ControlRequestError:
            return False
        self.store.apply_list(listed)
        if not self._listed.is_set():
            await self._prepare(listed)
        return True

    async def _look_for_node(self, place: StateLocation) -> None:
        from runner.node.state_lock import is_node_alive

        if not await asyncio.to_thread(is_node_alive, place.data_dir) and not self._starting:
            self.store.set_link(BusLink("disconnected", f"the node is gone; press {self._start_key} to start it again"))
            self.store.mark_node_lost(self._node)

    async def _prepare(self, listed: NodeList) -> None:
        """How far back live items have to be read, and what journals know of what is being played."""
        now = datetime.now(UTC)
        playing = [batch for batch in listed.batches if batch.status in ("running", "paused")]
        ages = [age for batch in playing if (age := batch_age(batch.batch_id, now)) is not None]
        self._since = max([age + HISTORY_MARGIN for age in ages], default=MIN_HISTORY)
        self._listed.set()
        await self._fill({batch.batch_id for batch in playing})

    async def _keep_filling(self) -> None:
        """Read from the files what was missed of the newest episodes."""
        while True:
            await asyncio.sleep(REPAIR_INTERVAL_S)
            newest = [*self.store.episodes.values()][-MAX_REPAIRED:]
            missing = [e for e in newest if e.n_missing > self._filled.get(e.episode_id, 0)]
            self._filled = {e.episode_id: e.n_missing for e in newest if e.n_missing}
            await self._fill({episode.batch_id for episode in missing if episode.running})
            for episode in missing:
                if not episode.running:
                    await self._fill_ended(episode.episode_id)

    async def _fill(self, batch_ids: set[str]) -> None:
        if not batch_ids:
            return
        with contextlib.suppress(RunnerError):  # what is missing is shown as missing
            for episode in await asyncio.to_thread(self._stored.read_journals, batch_ids):
                self.store.merge_episode(episode)

    async def _fill_ended(self, episode_id: str) -> None:
        with contextlib.suppress(RunnerError):
            episode, _ = await asyncio.to_thread(self._stored.load, episode_id)
            self.store.merge_episode(episode)
