"""Retention: archives or deletes old episodes, by age and by the size of all, and never one that is still needed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from runner.config.profile import RetentionSettings, age_seconds
from runner.errors import StoreError
from runner.node.batch_queue import queued_ids
from runner.publish.outbox import KEEP_ACKED_S, Outbox
from runner.store import EpisodeIndex, EpisodeStore
from runner.store.archive import SUFFIX
from runner.store.notes import Notes
from runner.store.pruning import BatchInUse, archive_episodes, delete_episodes
from runner.store.token_file import TOKENS_SUFFIX
from runner.store.trash import remove_abandoned_trash
from runner.util.clock import Clock
from runner.util.files import file_lock

logger = logging.getLogger(__name__)
logger.setLevel(logging.INFO)  # log what was pruned

INTERVAL_S: Final = 600.0
"""Seconds between two prunings of an idle node."""
ARCHIVED_SHARE: Final = 0.2
"""Size of an archive in proportion to its files, as a dry run assumes it."""
MAX_PROBLEMS: Final = 20
TAGGED: Final = "tagged"
UNFINISHED: Final = "batch not ended"
UNDELIVERED: Final = "event not delivered"
RECENT: Final = f"event delivered in the last {KEEP_ACKED_S // 60:.0f} minutes"
"""Reasons for which episodes are kept; a broker that fails may lose the newest events and gets them again."""
ARCHIVED: Final = "archived"
_SUFFIXES: Final = (".json", TOKENS_SUFFIX, SUFFIX, ".pftrace")
_ROWS = "SELECT batch_id, episode_id, ended_at, size FROM episodes"


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """Which episodes are pruned, and how: those of an age, and the oldest above a size; None: it does not matter."""

    older_s: float | None = None
    max_bytes: int | None = None
    keep_tagged: bool = True
    archive: bool = True
    undelivered: bool = False

    @classmethod
    def from_profile(cls, settings: RetentionSettings) -> Policy:
        return cls(
            older_s=None if settings.older is None else age_seconds(settings.older),
            max_bytes=settings.max_bytes,
            keep_tagged=settings.keep == "tagged",
            archive=settings.archive,
        )

    @property
    def prunes(self) -> bool:
        return self.older_s is not None or self.max_bytes is not None


class PruneReport(msgspec.Struct, kw_only=True):
    """What was pruned, or would be.

    Attributes:
        n_bytes: bytes of all episode files, archives and traces afterwards.
        kept: number of episodes that are old enough, or too much, and stay, by reason.
    """

    n_archived: int = 0
    n_deleted: int = 0
    n_freed: int = 0
    n_bytes: int = 0
    kept: dict[str, int] = msgspec.field(default_factory=dict)
    problems: list[str] = msgspec.field(default_factory=list)


class _Candidate(NamedTuple):
    """The prunable episodes of a batch: the end of the last one, their ids and the size of their files."""

    ended_at: datetime
    batch_id: str
    episode_ids: list[str]
    n_bytes: int


class Pruner:
    """Prunes one state directory; only one process at a time does."""

    def __init__(self, store: EpisodeStore, index: EpisodeIndex, outbox: Outbox, clock: Clock | None = None) -> None:
        self._store = store
        self._index = index
        self._outbox = outbox
        self._clock = clock or Clock()
        self._notes = Notes(store.data_dir)

    def prune(
        self, policy: Policy, *, dry_run: bool = False, should_stop: Callable[[], bool] = lambda: False
    ) -> PruneReport:
        """Prune the oldest batches first until ``should_stop``; return what was done, or what a ``dry_run`` would do.

        Raises:
            StoreError: another process prunes the directory, or the index, the queue or the tags cannot be read.
        """
        with pruning_lock(self._store.data_dir):
            self._index.reconcile()
            if not dry_run:
                remove_abandoned_trash(self._store.data_dir)
            report = PruneReport()
            report.n_bytes = disk_usage(self._store, report.problems)
            kept, kept_young = Counter[str](), Counter[str]()
            for candidate in self._candidates(policy, report, kept, kept_young):
                if should_stop():
                    break
                self._prune_batch(candidate, policy, report, kept, dry_run=dry_run)
            if exceeds_quota(policy, report):
                kept += kept_young
            report.kept = {reason: count for reason, count in kept.items() if count}
            return report

    def _candidates(
        self, policy: Policy, report: PruneReport, kept: Counter[str], kept_young: Counter[str]
    ) -> Iterator[_Candidate]:
        """Yield the episodes that are too old, then others while the size exceeds the quota, both the oldest first."""
        limit = None if policy.older_s is None else self._clock.now() - timedelta(seconds=policy.older_s)
        old, young = self._split(policy, limit, kept, kept_young)
        yield from old
        for candidate in young:
            if policy.max_bytes is None or report.n_bytes <= policy.max_bytes:
                return
            yield candidate

    def _split(
        self, policy: Policy, limit: datetime | None, kept: Counter[str], kept_young: Counter[str]
    ) -> tuple[list[_Candidate], list[_Candidate]]:
        """Return the prunable episodes that ended before ``limit``, and the others, by batch; count what is kept."""
        unfinished = unfinished_batches(self._store.data_dir)
        tagged: Collection[str] = self._notes.tags() if policy.keep_tagged else ()
        undelivered = set() if policy.undelivered else self._outbox.undelivered_episodes(keep_acked_s=0.0)
        recent = set() if policy.undelivered else self._outbox.undelivered_episodes()
        groups: dict[tuple[str, bool], list[tuple[datetime, str, int]]] = defaultdict(list)
        for batch_id, episode_id, ended, size in self._index.select(_ROWS):
            ended_at = datetime.fromisoformat(ended)
            is_old = limit is not None and ended_at < limit
            if not is_old and policy.max_bytes is None:
                continue
            is_file = os.path.lexists(self._store.path(batch_id, episode_id))
            if policy.archive and not is_file:
                kept_young[ARCHIVED] += 1
                continue
            reasons = {
                TAGGED: episode_id in tagged,
                UNFINISHED: batch_id in unfinished,
                UNDELIVERED: episode_id in undelivered,
                RECENT: episode_id in recent,
            }
            if (reason := next((name for name, holds in reasons.items() if holds), None)) is not None:
                (kept if is_old else kept_young)[reason] += 1
                continue
            groups[batch_id, is_old].append((ended_at, episode_id, size if is_file else 0))
        candidates = {
            key: _Candidate(max(episodes)[0], key[0], [each[1] for each in episodes], sum(each[2] for each in episodes))
            for key, episodes in groups.items()
        }
        old, young = ([each for key, each in candidates.items() if key[1] is is_old] for is_old in (True, False))
        return sorted(old), sorted(young)

    def _prune_batch(
        self, candidate: _Candidate, policy: Policy, report: PruneReport, kept: Counter[str], *, dry_run: bool
    ) -> None:
        # read again: a pruning of many batches takes minutes, in which a person may tag an episode
        tagged: Collection[str] = self._notes.tags() if policy.keep_tagged else ()
        episode_ids = [episode_id for episode_id in candidate.episode_ids if episode_id not in tagged]
        kept[TAGGED] += len(candidate.episode_ids) - len(episode_ids)
        if not episode_ids:
            return
        n_episodes = len(episode_ids)
        if dry_run:
            share = ARCHIVED_SHARE if policy.archive else 0.0
            n_freed = round(candidate.n_bytes * (1 - share))
        else:
            prune = archive_episodes if policy.archive else delete_episodes
            try:
                n_episodes, n_freed, _ = prune(self._store, self._index, candidate.batch_id, episode_ids)
            except BatchInUse:
                kept[UNFINISHED] += n_episodes
                return
            except StoreError as exc:
                if len(report.problems) < MAX_PROBLEMS:
                    report.problems.append(str(exc))
                return
        if not policy.archive:
            kept["in an archive with others"] += len(episode_ids) - n_episodes
        report.n_archived += n_episodes if policy.archive else 0
        report.n_deleted += 0 if policy.archive else n_episodes
        report.n_freed += n_freed
        report.n_bytes -= n_freed


@contextlib.contextmanager
def pruning_lock(data_dir: Path) -> Iterator[None]:
    """Raises a ``StoreError`` if another process prunes the directory."""
    with file_lock(data_dir / "prune.lock", wait=False, create=True) as is_locked:
        if not is_locked:
            raise StoreError(
                f"{data_dir} is being pruned by another process, or prune.lock there cannot be used; try again later"
            )
        yield


def unfinished_batches(data_dir: Path) -> set[str]:
    """Raises a ``StoreError`` if the queue cannot be read."""
    return queued_ids(data_dir, unfinished=True)


async def prune_when_idle(
    pruner: Pruner,
    policy: Policy,
    is_idle: Callable[[], bool],
    *,
    interval_s: float = INTERVAL_S,
) -> None:
    """Prune at intervals while no batch runs or waits, until cancelled.

    Args:
        policy: which episodes are pruned, and how; if it prunes none, nothing is done.
        is_idle: whether none does; also called between batches, on another thread.
    """
    reported: list[str] = []
    while policy.prunes:
        if is_idle():
            try:
                report = await asyncio.to_thread(pruner.prune, policy, should_stop=lambda: not is_idle())
            except StoreError as exc:
                report = PruneReport(problems=[str(exc)])
            if report.n_archived or report.n_deleted:
                done = f"{report.n_archived} episodes archived, {report.n_deleted} deleted"
                logger.info("retention: %s, %d bytes freed", done, report.n_freed)
            problems = [*report.problems, *_unmet(policy, report)]
            if problems != reported:
                reported = problems
                for problem in problems:
                    logger.warning("retention: %s", problem)
        await asyncio.sleep(interval_s)


def _unmet(policy: Policy, report: PruneReport) -> list[str]:
    if report.problems or not exceeds_quota(policy, report):
        return []
    reasons = ", ".join(reason for reason in report.kept if reason != ARCHIVED)
    advice = "set archive: false to delete old ones" if policy.archive else "the other episodes are kept"
    why = f"episodes are kept: {reasons}" if reasons else advice
    return [f"the episodes exceed retention.max_bytes ({policy.max_bytes}) and no more can be pruned now; {why}"]


def exceeds_quota(policy: Policy, report: PruneReport) -> bool:
    return policy.max_bytes is not None and report.n_bytes > policy.max_bytes


def disk_usage(store: EpisodeStore, problems: list[str]) -> int:
    """Unreadable folders are added to ``problems``."""
    folders = [*(store.runs / batch_id for batch_id in store.batch_ids()), store.data_dir / "traces"]
    return sum(_size_of(folder, problems) for folder in folders)


def _size_of(folder: Path, problems: list[str]) -> int:
    size = 0
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.endswith(_SUFFIXES) and entry.is_file(follow_symlinks=False):
                    size += entry.stat(follow_symlinks=False).st_size
    except FileNotFoundError:
        pass
    except OSError as exc:
        if len(problems) < MAX_PROBLEMS:
            problems.append(f"{folder} cannot be read: {exc.strerror}; check its permissions")
    return size
