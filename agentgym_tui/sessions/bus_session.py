"""Where the console gets its news: the own node, a bus, or files; see ``sessions.session``."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from agentgym_tui.logs.log_file import LogFile
from agentgym_tui.sessions.control_client import NodeControl
from agentgym_tui.sessions.event_source import BusEventSource, EventSource
from agentgym_tui.sessions.input_priority import InputPriority
from agentgym_tui.sessions.live_feed import LiveFeed, feed_subjects, link_from_state
from agentgym_tui.sessions.node_launcher import LaunchOptions, StateLocation, StateLocator
from agentgym_tui.sessions.protocols import Control, ControlRequestError, Library
from agentgym_tui.state.models import BusLink
from agentgym_tui.state.run_store import RunStore
from runner.errors import ConfigError, RunnerError

if TYPE_CHECKING:
    from runner.bus.address import BusAddress
    from runner.bus.connection import NatsConnection
    from runner.bus.errors import BusState

LIVE_HISTORY: Final = timedelta(minutes=10)
"""So far back live items are read: as a rule the whole of each episode that runs."""

WATCH_ONLY: Final = "watching only: nothing can be started or stopped from here; use `agentgym-tui launch` on the node"


class BusSession:
    """Looks at a bus without touching it.

    Args:
        wanted: for the names of subjects, and the state directory whose node is looked at without ``url``.
        url: another bus; credentials come from the environment.
        since: how far back durable events are read.
    """

    def __init__(
        self, wanted: LaunchOptions, *, url: str | None = None, since: timedelta | Literal["all"] = timedelta(hours=24)
    ) -> None:
        """Nothing is touched before ``run``."""
        self.title = "watch"
        self.read_only = WATCH_ONLY
        self.store, self.input_priority = RunStore(), InputPriority()
        self._feed = LiveFeed(self.store, self.input_priority)
        self.library: Library | None = None
        self.data_dir: Path | None = None
        self.control: Control | None = NodeControl(lambda: self._connection, self._node_of, read_only=WATCH_ONLY)
        self._bus = BusEventSource()
        self.events: EventSource | None = self._bus
        self.logs: Sequence[LogFile] = ()
        self._finder = StateLocator(wanted)
        self._url = url
        self._since = since
        self._connection: NatsConnection | None = None

    async def start_node(self) -> None:
        """Not from here."""
        raise ControlRequestError(WATCH_ONLY)

    async def run(self) -> None:
        """Follow until cancelled."""
        try:
            place = await asyncio.to_thread(self._finder.find)
            read_address = self._address_of(place)
            address = await asyncio.to_thread(read_address)
            if address is None:
                raise ConfigError(f"there never was a node in {place.data_dir}; name a bus with --nats")
        except RunnerError as exc:
            self.store.set_link(BusLink("failed", str(exc)))
            return
        self.title = f"watch {address.display_url}"
        await self._follow(place, address, read_address)

    async def close(self) -> None:
        """Nothing is held."""

    def _address_of(self, place: StateLocation) -> Callable[[], BusAddress | None]:
        def read() -> BusAddress | None:
            from runner.bus.address import address_from_environ, address_of_node

            return address_from_environ(self._url, os.environ) if self._url else address_of_node(place.data_dir)

        return read

    async def _follow(
        self, place: StateLocation, address: BusAddress, read_address: Callable[[], BusAddress | None]
    ) -> None:
        from runner.bus.connection import NatsConnection

        def show(state: BusState) -> None:
            if (link := link_from_state(state, address.display_url)) is not None:
                self.store.set_link(link)

        opening = NatsConnection.open(
            address, name="agentgym-watch", on_state=show, read_address=read_address, required=False
        )
        async with await opening as connection, asyncio.TaskGroup() as tasks:
            self._connection = connection
            self._bus.set_connection(connection)
            names, live = feed_subjects(place)
            tasks.create_task(self._feed.follow(connection, names.all(), self._since, names))
            tasks.create_task(self._feed.follow(connection, [live], LIVE_HISTORY, names))

    def _node_of(self, episode_id: str) -> str:
        """Who played an episode."""
        episode = self.store.episodes.get(episode_id)
        if episode is None or not episode.node:
            raise ControlRequestError(f"it is not known which node played episode {episode_id}")
        return episode.node
