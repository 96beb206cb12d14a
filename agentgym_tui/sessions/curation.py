"""What can be done with chosen episodes: archive, delete, export and audit.

Episodes of opened files are copied into a temporary state directory first, and written from there.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from agentgym_tui.sessions.episode_files import record_from_bytes
from runner.errors import StoreError

if TYPE_CHECKING:
    from agentgym_tui.sessions.library import Library
    from runner.formats.export import Manifest
    from runner.formats.format import Format
    from runner.formats.selection import Candidate, Reasons
    from runner.formats.training import Audit
    from runner.node.retention import CleanUpAction, PruneReport
    from runner.store import EpisodeIndex, EpisodeStore

_CHOSEN: Final = "episode_id IN (SELECT value FROM json_each(:ids))"


class ExportStopped(StoreError):
    """The user has stopped an export; nothing was written."""


class ExportJob:
    """An export of episodes, and how far it is; ``filters`` are fields of ``Filters``, ``query`` for the manifest."""

    def __init__(self, episode_ids: Sequence[str], target: Format, path: Path, filters: list[str], query: str) -> None:
        self.episode_ids, self.target, self.path, self.filters, self.query = episode_ids, target, path, filters, query
        self.n_done = 0
        self._is_stopped = threading.Event()

    def stop(self) -> None:
        """Stop before the next episode; the output is removed."""
        self._is_stopped.set()

    def check(self) -> None:
        if self._is_stopped.is_set():
            raise ExportStopped("stopped; nothing was written")

    def counted(self, candidates: Sequence[Candidate]) -> Iterator[Candidate]:
        for candidate in candidates:
            self.check()
            yield candidate
            self.n_done += 1


class Exporter:
    """Writes episodes in the formats of trainers and other tools, and audits them; raises ``RunnerError``."""

    def chosen(
        self, episode_ids: Sequence[str], check: Callable[[], None]
    ) -> AbstractContextManager[tuple[EpisodeStore, EpisodeIndex, Counter[str]]]:
        """Return a store of these episodes, its index, and the number of unreadable ones by reason.

        ``check`` is called before each episode that is copied, and may raise.
        """
        raise NotImplementedError

    async def export(self, job: ExportJob) -> Manifest:
        def export() -> Manifest:
            from runner.formats.export import export_episodes

            now, query, filters = datetime.now(UTC), job.query, job.filters
            with self._selected(job) as selected:
                return export_episodes(*selected, job.target, job.path, query=query, filters=filters, now=now)

        return await asyncio.to_thread(export)

    async def audit(self, job: ExportJob) -> Audit:
        """Write nothing, and return what a trainer could use of an export."""

        def audit() -> Audit:
            from runner.formats.training import audit_episodes

            with self._selected(job) as selected:
                return audit_episodes(*selected)

        return await asyncio.to_thread(audit)

    @contextmanager
    def _selected(self, job: ExportJob) -> Iterator[tuple[EpisodeStore, Iterator[Candidate], Reasons]]:
        from runner.formats.selection import Filters, select_candidates

        ids, filters = {"ids": json.dumps(list(job.episode_ids))}, Filters(**dict.fromkeys(job.filters, True))
        with self.chosen(job.episode_ids, job.check) as (store, index, unreadable):
            found, reasons = select_candidates(index, _CHOSEN, ids, filters, by_task=job.target.by_task)
            yield store, job.counted(found), reasons + unreadable


class Curation(Exporter):
    """Archives, deletes and exports the episodes of a state directory; ``open_store`` is called in another thread."""

    def __init__(self, open_store: Callable[[], tuple[EpisodeStore, EpisodeIndex]]) -> None:
        self._open_store = open_store

    async def clean_up(
        self, action: CleanUpAction, episode_ids: Collection[str], *, dry_run: bool = False
    ) -> PruneReport:
        """Archive or delete episodes, as far as it is possible, or return what would be done; raises ``StoreError``."""

        def prune() -> PruneReport:
            from runner.node.retention import Policy, Pruner
            from runner.publish.outbox import Outbox

            store, index = self._open_store()
            with closing(Outbox(index)) as outbox:
                return Pruner(store, index, outbox).prune(Policy.of_chosen(action, episode_ids), dry_run=dry_run)

        return await asyncio.to_thread(prune)

    def chosen(
        self, episode_ids: Sequence[str], check: Callable[[], None]
    ) -> AbstractContextManager[tuple[EpisodeStore, EpisodeIndex, Counter[str]]]:
        return nullcontext((*self._open_store(), Counter()))


class FileExporter(Exporter):
    """Writes episodes of opened files, also unfinished ones and those of other tools; the files stay as they are."""

    def __init__(self, files: Library) -> None:
        self._files = files

    @contextmanager
    def chosen(
        self, episode_ids: Sequence[str], check: Callable[[], None]
    ) -> Iterator[tuple[EpisodeStore, EpisodeIndex, Counter[str]]]:
        from runner.store import open_index

        with self._copied(episode_ids, check) as (store, unreadable), closing(open_index(store)) as index:
            yield store, index, unreadable

    async def archive(self, episode_ids: Sequence[str], path: Path) -> tuple[int, Counter[str]]:
        """Copy episodes into a new zip archive; return their number, and that of the unreadable ones by reason.

        Raises ``StoreError`` if the archive cannot be written or exists, or no episode can be read.
        """
        return await asyncio.to_thread(self._archive, episode_ids, path)

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
