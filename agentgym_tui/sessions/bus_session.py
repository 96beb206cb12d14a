"""Session that watches a bus without sending commands: the bus of a local node, or a bus given by its URL."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Final, Literal

from agentgym_tui.sessions.control_client import NodeControl
from agentgym_tui.sessions.event_source import EventSource
from agentgym_tui.sessions.input_priority import InputPriority
from agentgym_tui.sessions.live_feed import LiveFeed, feed_subjects, link_from_state
from agentgym_tui.sessions.node_launcher import LaunchOptions, StateLocation, StateLocator
from agentgym_tui.sessions.protocols import ControlRequestError, Session
from agentgym_tui.sessions.received_episodes import ReceivedEpisodes
from agentgym_tui.state.data_model import BusLink
from agentgym_tui.state.run_store import RunStore
from runner.errors import ConfigError, RunnerError

if TYPE_CHECKING:
    from runner.bus.address import BusAddress
    from runner.bus.connection import NatsConnection
    from runner.bus.errors import BusState

LIVE_HISTORY: Final = timedelta(minutes=10)
"""Age of the oldest live items that are read, which covers most running episodes from their start."""

WATCH_ONLY: Final = "watching only: nothing can be started or stopped from here; use `agentgym-tui launch` on the node"


class BusSession(Session):
    """Session that watches a bus without changing anything on it; see ``Session``.

    Args:
        options: command-line options that select the profile, which names the subjects, and the state directory.
        url: URL of the bus, whose credentials are read from environment variables; None for the bus of the node that
            last ran in the state directory.
        since: age of the oldest durable events that are read, or all of them.
    """

    def __init__(
        self, options: LaunchOptions, *, url: str | None = None, since: timedelta | Literal["all"] = timedelta(hours=24)
    ) -> None:
        self.title = "watch"
        self.read_only = WATCH_ONLY
        self.store, self.input_priority = RunStore(), InputPriority()
        self.received = ReceivedEpisodes(self.store)
        self._feed = LiveFeed(self.store, self.input_priority)
        self.control = NodeControl(lambda: self._connection, self._node_of, read_only=WATCH_ONLY)
        self.events = self._bus = EventSource()
        self._locator = StateLocator(options)
        self._url = url
        self._since = since
        self._connection: NatsConnection | None = None

    async def run(self) -> None:
        from runner.bus.address import address_from_environ, address_of_node

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
        await self._subscribe(location, address, read_address)

    async def _subscribe(
        self, location: StateLocation, address: BusAddress, read_address: Callable[[], BusAddress | None]
    ) -> None:
        from runner.bus.connection import NatsConnection

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
            tasks.create_task(self._feed.run(connection, names.all(), self._since, names))
            tasks.create_task(self._feed.run(connection, [live], LIVE_HISTORY, names))

    def _node_of(self, episode_id: str) -> str:
        episode = self.store.episodes.get(episode_id)
        node = None if episode is None else self.store.nodes.get(episode.node)
        if node is None or not node.boot:  # as of other field runners, which answer no requests
            raise ControlRequestError(f"episode {episode_id}: the node that ran it is not known")
        return node.name
