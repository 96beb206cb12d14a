"""What the console looks at: the node of a state directory, somebody else's bus, or files; the same to all screens."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from agentgym_tui.sessions.input_priority import InputPriority
from agentgym_tui.state.episode_list import UnreadableFile
from agentgym_tui.state.models import Episode
from agentgym_tui.state.run_store import RunStore
from runner.events.control import BatchState, NodeList, StartArgs

if TYPE_CHECKING:
    from agentgym_tui.logs.log_file import LogFile
    from agentgym_tui.sessions.event_source import EventSource
    from runner.store.index_schema import EpisodeRow

RunCommand: TypeAlias = Literal["cancel", "pause", "resume", "step"]


class ControlRequestError(Exception):
    """A request was refused or not answered: ``str()`` says what was asked and what came back, ``hint`` what to do."""

    def __init__(self, message: str, hint: str = "") -> None:
        """Both for people; hostile text, as they may quote a node."""
        super().__init__(message)
        self.hint = hint


class Control(Protocol):
    """Requests to a node; all raise ``ControlRequestError``."""

    async def start(self, args: StartArgs) -> list[BatchState]:
        """Play batches."""
        ...

    async def command(self, order: RunCommand, *, batch_id: str | None = None, episode_id: str | None = None) -> None:
        """Command a batch or an episode."""
        ...

    async def fetch_list(self) -> NodeList:
        """Batches, and what may be started."""
        ...

    async def fetch_episode(self, episode_id: str) -> bytes:
        """An episode file, over the bus; checked against its digest."""
        ...

    async def shutdown(self, *, drain: bool) -> None:
        """Stop the node."""
        ...


class Library(Protocol):
    """Stored episodes; methods block and are called in a thread.

    Attributes:
        unusable: files that were found and cannot be shown, as far as they were looked at.
    """

    unreadable: Sequence[UnreadableFile]

    def rows(self) -> Sequence[EpisodeRow]:
        """All of them, the newest first; raises ``StoreError``."""
        ...

    def load(self, episode_id: str) -> tuple[Episode, bytes]:
        """One of them, and its file as it is; raises ``StoreError``."""
        ...


class Session(Protocol):
    """A source of news and what can be asked of it.

    Attributes:
        title: says what is looked at, hostile text.
        read_only: nothing can be started or commanded, for this reason; "" when it can.
        store: what is known; changed only in the event loop.
        turns: says when it may be changed by what a bus says.
        library: stored episodes on this machine, None for a foreign bus.
        control: None where nobody can be asked.
        events: all that is said on its bus, None where there is no bus.
        logs: those that were opened.
        data_dir: the state directory, once it is known, and if there is one.
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
        """Start the node again when it is gone; does nothing while it lives. Raises ``ControlRequestError``."""
        ...

    async def run(self) -> None:
        """Connect and follow until cancelled; started after the first paint, so imports of the bus happen here."""
        ...

    async def close(self) -> None:
        """Leave what it started running and let go of the rest."""
        ...
