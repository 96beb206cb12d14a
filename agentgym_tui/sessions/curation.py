"""What can be done with chosen episodes of a state directory: archive, delete, and export."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from runner.errors import StoreError

if TYPE_CHECKING:
    from runner.formats.export import Manifest
    from runner.formats.format import Format
    from runner.formats.selection import Candidate, Reasons
    from runner.formats.training import Audit
    from runner.node.retention import CleanUpAction, PruneReport
    from runner.store import EpisodeIndex, EpisodeStore


class ExportStopped(StoreError):
    """The user has stopped an export; nothing was written."""


class ExportJob:
    """An export: which episodes, how and where, and how far it is.

    Args:
        episode_ids: the chosen episodes.
        target: the format.
        path: the file or folder to create.
        filters: names of the filters, which are fields of ``runner.formats.selection.Filters``.
        query: the query of the list, for the manifest.
    """

    def __init__(self, episode_ids: Sequence[str], target: Format, path: Path, filters: list[str], query: str) -> None:
        self.episode_ids, self.target, self.path, self.filters, self.query = episode_ids, target, path, filters, query
        self.n_done = 0
        self._is_stopped = threading.Event()

    def stop(self) -> None:
        """Stop before the next episode; the output is removed."""
        self._is_stopped.set()

    def check(self) -> None:
        """Raise ``ExportStopped`` after ``stop``."""
        if self._is_stopped.is_set():
            raise ExportStopped("stopped; nothing was written")

    def counted(self, candidates: Sequence[Candidate]) -> Iterator[Candidate]:
        """Yield the episodes and count them; raises ``ExportStopped``."""
        for candidate in candidates:
            self.check()
            yield candidate
            self.n_done += 1


class Curation:
    """Archives and deletes stored episodes outside the event loop; see ``runner.node.retention``.

    Args:
        open_store: returns the opened episode files and their index; called at the first use, in another thread.
    """

    def __init__(self, open_store: Callable[[], tuple[EpisodeStore, EpisodeIndex]]) -> None:
        self._open_store = open_store

    async def clean_up(
        self, action: CleanUpAction, episode_ids: Collection[str], *, dry_run: bool = False
    ) -> PruneReport:
        """Archive or delete episodes, as far as it is possible, or return what would be done; raises ``StoreError``."""
        return await asyncio.to_thread(self._clean_up, action, episode_ids, dry_run)

    def _clean_up(self, action: CleanUpAction, episode_ids: Collection[str], dry_run: bool) -> PruneReport:
        from runner.node.retention import Policy, Pruner
        from runner.publish.outbox import Outbox

        store, index = self._open_store()
        with closing(Outbox(index)) as outbox:
            return Pruner(store, index, outbox).prune(Policy.of_chosen(action, episode_ids), dry_run=dry_run)

    async def export(self, job: ExportJob) -> Manifest:
        """Write episodes in a format, and return what was written and left out; raises ``RunnerError``."""
        return await asyncio.to_thread(lambda: export_chosen(*self._open_store(), job))

    async def audit(self, job: ExportJob) -> Audit:
        """Write nothing, and return what a trainer could use of an export; raises ``RunnerError``."""
        return await asyncio.to_thread(lambda: audit_chosen(*self._open_store(), job))


def export_chosen(
    store: EpisodeStore, index: EpisodeIndex, job: ExportJob, left_out: Mapping[str, int] | None = None
) -> Manifest:
    """Write the episodes of a job, and return what was written and left out; blocks.

    Args:
        store: the episode files.
        index: their index.
        job: which episodes, how and where.
        left_out: episodes that are not in the store, by reason.

    Raises:
        RunnerError: the output cannot be written, or the job was stopped.
    """
    from runner.formats.export import export_episodes

    candidates, reasons = _selected(index, job, left_out)
    return export_episodes(
        store,
        job.counted(candidates),
        reasons,
        job.target,
        job.path,
        query=job.query,
        filters=job.filters,
        now=datetime.now(UTC),
    )


def audit_chosen(
    store: EpisodeStore, index: EpisodeIndex, job: ExportJob, left_out: Mapping[str, int] | None = None
) -> Audit:
    """Return what a trainer could use of the episodes of a job, with the arguments of ``export_chosen``; blocks.

    Raises:
        RunnerError: the episodes cannot be read, or the job was stopped.
    """
    from runner.formats.training import audit_episodes

    candidates, reasons = _selected(index, job, left_out)
    return audit_episodes(store, job.counted(candidates), reasons)


def _selected(
    index: EpisodeIndex, job: ExportJob, left_out: Mapping[str, int] | None
) -> tuple[list[Candidate], Reasons]:
    from msgspec.json import encode

    from runner.formats.selection import Filters, select_candidates

    condition = "episode_id IN (SELECT value FROM json_each(:ids))"
    filters = Filters(**dict.fromkeys(job.filters, True))
    ids = {"ids": encode(job.episode_ids).decode()}
    candidates, reasons = select_candidates(index, condition, ids, filters, by_task=job.target.by_task)
    return candidates, reasons + Counter(left_out or {})
