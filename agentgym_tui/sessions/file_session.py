"""Files that somebody names: stored episodes and logs, without a bus."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from agentgym_tui.logs.file_types import is_log
from agentgym_tui.logs.log_file import LogFile
from agentgym_tui.sessions.file_library import FilesLibrary
from agentgym_tui.sessions.input_priority import Turns
from agentgym_tui.sessions.protocols import Control, ControlFailed, Library
from agentgym_tui.state.models import Link
from agentgym_tui.state.run_store import RunStore

if TYPE_CHECKING:
    from agentgym_tui.sessions.event_source import EventSource

FILES: Final = "these are files: nothing can be started here; use `agentgym-tui launch`"


class FilesSession:
    """Shows stored episodes without a bus."""

    def __init__(self, paths: Sequence[Path]) -> None:
        """Nothing is read before ``run``."""
        self.title = ", ".join(map(str, paths))
        self.read_only = FILES
        self.store, self.turns = RunStore(), Turns()
        logs = dict.fromkeys(path for path in paths if is_log(path))
        self.logs: Sequence[LogFile] = [LogFile(path) for path in logs]
        self._files = FilesLibrary([path for path in paths if path not in logs])
        self.library: Library | None = self._files
        self.control: Control | None = None
        self.events: EventSource | None = None
        self.data_dir: Path | None = None

    async def start_node(self) -> None:
        """Not from here."""
        raise ControlFailed(FILES)

    async def run(self) -> None:
        """Read the files; what is read can be seen at once."""
        parts = self._files.scan()
        self.store.set_link(Link("none", "reading files"))
        while (rows := await asyncio.to_thread(next, parts, None)) is not None:
            self.store.reading = self._files.progress
            self.store.take_stored(rows)
        self.store.reading = None
        self.store.set_link(Link("none", "files"))

    async def close(self) -> None:
        """Let go of the logs."""
        for log in self.logs:
            log.close()
