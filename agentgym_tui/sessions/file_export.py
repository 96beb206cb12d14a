"""Export of opened files: chosen episodes are copied into a temporary state directory, and written from there."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from agentgym_tui.sessions.curation import ExportJob, audit_chosen, export_chosen
from runner.errors import StoreError

if TYPE_CHECKING:
    from agentgym_tui.sessions.file_library import FileLibrary
    from runner.formats.export import Manifest
    from runner.formats.training import Audit
    from runner.store import EpisodeIndex, EpisodeStore

_T = TypeVar("_T")


class FileExporter:
    """Writes episodes of opened files, also unfinished ones and those of other tools; the files stay as they are.

    Args:
        files: the opened files.
    """

    def __init__(self, files: FileLibrary) -> None:
        self._files = files

    async def export(self, job: ExportJob) -> Manifest:
        """Write episodes in a format, and return what was written and left out; raises ``RunnerError``."""
        return await asyncio.to_thread(self._chosen, export_chosen, job)

    async def audit(self, job: ExportJob) -> Audit:
        """Write nothing, and return what a trainer could use of an export; raises ``RunnerError``."""
        return await asyncio.to_thread(self._chosen, audit_chosen, job)

    async def archive(self, episode_ids: Sequence[str], path: Path) -> tuple[int, Counter[str]]:
        """Copy episodes into a new archive, which can be opened like a folder.

        Args:
            episode_ids: the episodes.
            path: the archive, a zip file that does not exist.

        Returns:
            The number of copied episodes, and of those that cannot be read by reason.

        Raises:
            StoreError: the archive cannot be written or exists, or no episode can be read.
        """
        return await asyncio.to_thread(self._archive, episode_ids, path)

    def _chosen(
        self, function: Callable[[EpisodeStore, EpisodeIndex, ExportJob, Mapping[str, int]], _T], job: ExportJob
    ) -> _T:
        from runner.store import open_index

        with self._copied(job.episode_ids, job.check) as (store, unreadable), closing(open_index(store)) as index:
            return function(store, index, job, unreadable)

    def _archive(self, episode_ids: Sequence[str], path: Path) -> tuple[int, Counter[str]]:
        from runner.store.archive import Source, write_archive

        if path.exists():
            raise StoreError(f"{path} exists; move it away")
        with self._copied(episode_ids) as (store, unreadable):
            files = sorted(each for each in store.runs.glob("*/*") if each.is_file())
            if not (n_copied := len(episode_ids) - unreadable.total()):
                raise StoreError(f"no episode can be read: {next(iter(unreadable))}")
            write_archive(path, [Source(str(each.relative_to(store.data_dir)), each) for each in files])
        return n_copied, unreadable

    @contextmanager
    def _copied(
        self, episode_ids: Sequence[str], check: Callable[[], None] = lambda: None
    ) -> Iterator[tuple[EpisodeStore, Counter[str]]]:
        """Copy episodes into a temporary store; yield it, and the number of those that cannot be read by reason.

        Args:
            episode_ids: the episodes.
            check: called before each of them; may raise.
        """
        from runner.store import EpisodeStore

        with tempfile.TemporaryDirectory(prefix="agentgym-export-") as folder:
            store, unreadable = EpisodeStore(Path(folder)), Counter[str]()
            for episode_id in episode_ids:
                check()
                try:
                    self._copy(store, episode_id)
                except StoreError as exc:
                    unreadable[str(exc)] += 1
            yield store, unreadable

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
