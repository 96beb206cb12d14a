"""Session that reads the episode files and log files named on the command line; it writes only a cache of rows."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from agentgym_tui.logs.log_file import LogFile
from agentgym_tui.logs.path_kind import is_log
from agentgym_tui.sessions.episode_loader import currency_of
from agentgym_tui.sessions.file_export import FileExporter
from agentgym_tui.sessions.file_library import FileLibrary
from agentgym_tui.sessions.input_priority import InputPriority
from agentgym_tui.sessions.protocols import Session
from agentgym_tui.state.data_model import BusLink
from agentgym_tui.state.episode_list import FoundLog
from agentgym_tui.state.run_store import RunStore

FILES_ONLY: Final = "files only: nothing can be started here; use `agentgym-tui launch`"


class FileSession(Session):
    """Session that shows episode files and log files without a bus; see ``Session``.

    Args:
        paths: log files, episode files, and folders to search for episode files.
        cache_folder: see ``FileLibrary``.
    """

    def __init__(self, paths: Sequence[Path], cache_folder: Path | None = None) -> None:
        self.title = ", ".join(map(str, paths))
        self.read_only = FILES_ONLY
        self.store, self.input_priority = RunStore(), InputPriority()
        logs = dict.fromkeys(path for path in paths if is_log(path))
        self.logs = [LogFile(path) for path in logs]
        self._files = FileLibrary([path for path in paths if path not in logs], cache_folder)
        self.library = self._files
        self.exporter = self.archiver = FileExporter(self._files)

    async def run(self) -> None:
        parts = self._files.scan()
        self.store.set_link(BusLink("none", "reading files"))
        while (rows := await asyncio.to_thread(next, parts, None)) is not None:
            self._add_found_logs()
            self.store.read_progress = self._files.progress
            self.store.currency = self.store.currency or currency_of(rows)
            self.store.apply_stored(rows)
        self.store.read_progress = None
        self.store.set_link(BusLink("none", "files"))

    def _add_found_logs(self) -> None:
        known = {log.path for log in self.logs}
        found = (file.path for file in self._files.unreadable if isinstance(file, FoundLog))
        self.logs = [*self.logs, *(LogFile(path) for path in found if path not in known)]

    async def close(self) -> None:
        await asyncio.to_thread(self._files.close)
        for log in self.logs:
            log.close()
