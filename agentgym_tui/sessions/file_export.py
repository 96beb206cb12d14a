"""Export of opened files: chosen episodes are copied into a temporary state directory, and written from there."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections import Counter
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from agentgym_tui.sessions.curation import ExportJob, export_chosen
from runner.errors import StoreError

if TYPE_CHECKING:
    from agentgym_tui.sessions.file_library import FileLibrary
    from runner.formats.export import Manifest
    from runner.store import EpisodeStore


class FileExporter:
    """Writes episodes of opened files, also unfinished ones and those of other tools; the files stay as they are.

    Args:
        files: the opened files.
    """

    def __init__(self, files: FileLibrary) -> None:
        self._files = files

    async def export(self, job: ExportJob) -> Manifest:
        """Write episodes in a format, and return what was written and left out; raises ``RunnerError``."""
        return await asyncio.to_thread(self._export, job)

    def _export(self, job: ExportJob) -> Manifest:
        from runner.store import EpisodeStore, open_index

        with tempfile.TemporaryDirectory(prefix="agentgym-export-") as folder:
            store, unreadable = EpisodeStore(Path(folder)), Counter[str]()
            for episode_id in job.episode_ids:
                job.check()
                try:
                    self._copy(store, episode_id)
                except StoreError as exc:
                    unreadable[str(exc)] += 1
            with closing(open_index(store)) as index:
                return export_chosen(store, index, job, unreadable)

    def _copy(self, store: EpisodeStore, episode_id: str) -> None:
        """Copy an episode with its token ids; raises ``StoreError``."""
        from agentgym_tui.sessions.episode_library import record_from_bytes
        from runner.store.token_file import TOKENS_SUFFIX
        from runner.util.files import replace_file

        data = self._files.read(episode_id)
        copy = store.path(record_from_bytes(data, Path(episode_id)).batch_id, episode_id)
        try:
            copy.parent.mkdir(parents=True, exist_ok=True)
            replace_file(copy, data)
            if (path := self._files.path(episode_id)) is not None:
                with suppress(FileNotFoundError, NotADirectoryError):
                    shutil.copyfile(path.with_suffix(TOKENS_SUFFIX), copy.with_suffix(TOKENS_SUFFIX))
        except OSError as exc:
            raise StoreError(f"{copy} cannot be written: {exc.strerror or exc}") from exc
