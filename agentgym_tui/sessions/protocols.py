"""Protocols between screens and sessions.

A session shows the node of a state directory, another bus, or files; all screens use the same interface.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from agentgym_tui.sessions.input_priority import InputPriority
from agentgym_tui.state.data_model import Episode
from agentgym_tui.state.episode_list import UnreadableFile
from agentgym_tui.state.run_store import RunStore
from runner.events.control import BatchState, NodeList, StartArgs

if TYPE_CHECKING:
    from agentgym_tui.logs.log_file import LogFile
    from agentgym_tui.sessions.event_source import EventSource
    from runner.store.index_schema import EpisodeRow

RunCommand: TypeAlias = Literal["cancel", "pause", "resume", "step"]
"""Command for a batch or an episode."""


class ControlRequestError(Exception):
    """A request to a node was rejected or not answered.

    Args:
        message: what was requested and what came back; untrusted text, as it may quote a node.
        hint: what to do next; untrusted text.
    """

    published_error_type = "ControlFailed"

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class Control(Protocol):
    """Requests to a node; all methods raise ``ControlRequestError``."""

    async def start(self, args: StartArgs) -> list[BatchState]:
        """Start batches."""
        ...

    async def command(self, command: RunCommand, *, batch_id: str | None = None, episode_id: str | None = None) -> None:
        """Send a command for a batch or an episode."""
        ...

    async def fetch_list(self) -> NodeList:
        """Fetch batches, agents, models and environments."""
        ...

    async def fetch_episode(self, episode_id: str) -> bytes:
        """Fetch an episode file, checked against its digest."""
        ...

    async def shutdown(self, *, drain: bool) -> None:
        """Stop the node; with ``drain`` after its running episodes."""
        ...


class Library(Protocol):
    """Stored episodes; the methods block and are called in a thread.

    Attributes:
        unreadable: files that cannot be read, among those read so far.
    """

    unreadable: Sequence[UnreadableFile]

    def rows(self) -> Sequence[EpisodeRow]:
        """Return all episodes, the newest first; raises ``StoreError``."""
        ...

    def load(self, episode_id: str) -> tuple[Episode, bytes]:
        """Return an episode and the content of its file; raises ``StoreError``."""
        ...


class Session(Protocol):
    """A source of state and the requests that it supports.

    Attributes:
        title: what the session shows; untrusted text.
        read_only: why nothing can be started or commanded; "" where it can.
        store: the state; changed only in the event loop.
        input_priority: delays bus messages while input is pending.
        library: stored episodes on this machine; None for another machine's bus.
        control: requests to the node; None where there is none.
        events: raw messages of the bus; None without a bus.
        logs: opened log files.
        data_dir: the state directory, once it is known; None without one.
    """

    title: str
    read_only: str
    store: RunStore
    input_priority: InputPriority
    library: Library | None
    control: Control | None
    events: EventSource | None
    logs: Sequence[LogFile]
    data_dir: Path | None

    async def start_node(self) -> None:
        """Start the node again after it has stopped; does nothing while it runs. Raises ``ControlRequestError``."""
        ...

    async def run(self) -> None:
        """Connect and follow the source until cancelled.

        The app starts this after the first paint, so implementations import bus libraries here.
        """
        ...

    async def close(self) -> None:
        """Release the resources of the session; a node that it started keeps running."""
        ...
