"""Interfaces through which all screens use a session.

A session is connected to the node of a state directory, watches a bus, or reads files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from agentgym_tui.sessions.input_priority import InputPriority
from agentgym_tui.sessions.text_search import TextSearch
from agentgym_tui.state.data_model import Episode
from agentgym_tui.state.episode_list import UnreadableFile
from agentgym_tui.state.run_store import RunStore

if TYPE_CHECKING:
    from agentgym_tui.logs.log_file import LogFile
    from agentgym_tui.sessions.control_client import NodeControl
    from agentgym_tui.sessions.curation import Curation, ExportJob
    from agentgym_tui.sessions.event_source import EventSource
    from agentgym_tui.sessions.file_export import FileExporter
    from runner.formats.export import Manifest
    from runner.formats.training import Audit
    from runner.query.fields import Lookup
    from runner.results.summary import ResultSource
    from runner.store.index_schema import EpisodeRow
    from runner.types.notes import Note

RunCommand: TypeAlias = Literal["cancel", "pause", "resume", "step"]
"""Name of a command for a batch, a battery or an episode."""


class ControlRequestError(Exception):
    """A request to a node could not be sent, was rejected or was not answered.

    Args:
        message: what was requested and why it failed; untrusted text, because it may quote a node.
        hint: what the user can do; untrusted text.
        code: code of the node's rejection; "" if the node did not reject it. Untrusted text.
    """

    published_error_type = "ControlFailed"

    def __init__(self, message: str, hint: str = "", code: str = "") -> None:
        super().__init__(message)
        self.hint = hint
        self.code = code

    @property
    def text(self) -> str:
        """Message and hint as one sentence; untrusted text."""
        return "; ".join(filter(None, (str(self), self.hint)))


class ResultLibrary(Protocol):
    """Episodes that have results. The methods block, so they are called in a thread."""

    def rows(self, *, check_files: bool = True) -> Sequence[EpisodeRow]:
        """Return the list rows of all known episodes, the newest first; raises ``StoreError``.

        Args:
            check_files: whether to look for files that another program has added, changed or deleted.
        """
        ...

    def lookups(self) -> Mapping[str, Lookup]:
        """Return what finds the ids of episodes for a field of a query, by field; raises ``StoreError``."""
        ...

    def result_source(self) -> ResultSource:
        """Return the table from which results are aggregated; raises ``StoreError``."""
        ...


class Library(ResultLibrary, Protocol):
    """Library of stored episodes.

    Attributes:
        texts: the search in the texts of the episodes.
        first_rows: list rows that are known before ``rows`` is called, the newest first; shown at the first paint.
        notes_state: another value after notes have changed; None where there are none.
    """

    texts: TextSearch
    first_rows: Sequence[EpisodeRow]
    notes_state: object

    @property
    def unreadable(self) -> Sequence[UnreadableFile]:
        """Files, archives and folders found that cannot be read."""
        ...

    def notes(self, episode_id: str) -> Sequence[Note]:
        """Return the tags and notes of an episode and its steps, the oldest first; raises ``StoreError``."""
        ...

    def load(self, episode_id: str) -> tuple[Episode, bytes]:
        """Return an episode and the content of its file; raises ``StoreError``."""
        ...

    def path(self, episode_id: str) -> Path | None:
        """Return the path of an episode file; None if it is not known. Raises ``StoreError``."""
        ...


class Exporter(Protocol):
    """Writes episodes of a library in the formats of trainers and other tools, and audits them."""

    async def export(self, job: ExportJob) -> Manifest:
        """Write episodes in a format, and return what was written and left out; raises ``RunnerError``."""
        ...

    async def audit(self, job: ExportJob) -> Audit:
        """Write nothing, and return what a trainer could use of an export; raises ``RunnerError``."""
        ...


class Session(Protocol):
    """Source of the state that the console shows, and recipient of the user's commands.

    Attributes:
        title: name of what the session shows; untrusted text.
        read_only: why commands are not allowed; "" where commands are allowed.
        store: the state; changed only in the event loop.
        input_priority: delays bus messages until pending input is painted.
        library: episodes stored on this machine; None for a session that only watches a bus.
        received: the ended episodes that the bus has reported; None for a session with a library.
        curation: archives and deletes the episodes of the library; None where they are only read.
        exporter: writes episodes of the library; None for a session without one.
        archiver: copies episodes of opened files into an archive; None where ``curation`` archives them.
        control: client for requests to nodes; None for a session without a node.
        events: source of the raw messages of the bus; None for a session without a bus.
        logs: log files named on the command line, or found in opened folders, or opened by ``open_logs``; only grows.
        has_node_logs: whether ``open_logs`` returns the logs of a node on this machine.
        data_dir: the state directory; None if it is not known yet or the session has none.
    """

    title: str
    read_only: str
    store: RunStore
    input_priority: InputPriority
    library: Library | None = None
    received: ResultLibrary | None = None
    curation: Curation | None = None
    exporter: Exporter | None = None
    archiver: FileExporter | None = None
    control: NodeControl | None = None
    events: EventSource | None = None
    logs: Sequence[LogFile] = ()
    has_node_logs: bool = False
    data_dir: Path | None = None

    async def start_node(self) -> None:
        """Start the node again where it has stopped; do nothing while it runs.

        Raises:
            ControlRequestError: the session cannot start a node.
        """
        raise ControlRequestError(self.read_only)

    async def stop_node(self, *, drain: bool = False) -> None:
        """Stop the node after the running steps, or with ``drain`` after all queued batches.

        Batches that run or wait are interrupted, and can be resumed when a node runs again.

        Raises:
            ControlRequestError: the session cannot stop the node, or the node does not reply.
        """
        raise ControlRequestError(self.read_only)

    async def restart_node(self) -> None:
        """Stop the node after the running steps, and start it with the profile as it is now.

        Batches that ran or waited are resumed, unless one was paused: then all of them can be resumed.

        Raises:
            ControlRequestError: the session cannot restart the node, the profile is not valid, or the node does not
                reply or does not stop.
        """
        raise ControlRequestError(self.read_only)

    async def use_profile(self, path: Path) -> None:
        """Use another profile from now on; the running node keeps its own until it restarts.

        Raises:
            ControlRequestError: the session has no node of its own, or the profile is not valid.
        """
        raise ControlRequestError(self.read_only)

    def open_logs(self) -> Sequence[LogFile]:
        """Return the logs that the log screen shows: ``logs``, or those of the session's node."""
        return self.logs

    async def run(self) -> None:
        """Connect to the source and update ``store`` until cancelled or until all files are read.

        The app calls this method after the first paint. Implementations import the slow bus libraries in it, so that
        they do not delay the first paint.
        """
        ...

    async def close(self) -> None:
        """Release the resources of the session; a node that the session started keeps running."""
        return
