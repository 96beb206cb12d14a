"""Retention: archives or deletes old or chosen episodes, and never one that is still needed.

It works on the files of a state directory, also while a node plays there: one process at a time holds ``prune.lock``,
each batch is locked while its files change, and the index follows in a transaction. So several consoles and a node
agree on what is there.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeAlias

import msgspec

from runner.config.profile import RetentionSettings, age_seconds
from runner.errors import StoreError
from runner.node.batch_queue import queued_ids
from runner.publish.outbox import KEEP_ACKED_S, Outbox
from runner.store import EpisodeIndex, EpisodeStore
from runner.store.archive import NAME as ARCHIVE_NAME
from runner.store.notes import Notes
from runner.store.pruning import BatchInUse, archive_episodes, delete_episodes
from runner.store.token_file import TOKENS_SUFFIX
from runner.util.clock import Clock
from runner.util.files import file_lock

logger = logging.getLogger(__name__)
logger.setLevel(logging.INFO)  # log what was pruned

CleanUpAction: TypeAlias = Literal["archive", "delete"]

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
_SUFFIXES: Final = (".json", TOKENS_SUFFIX, ARCHIVE_NAME, ".pftrace")
_ROWS = "SELECT batch_id, episode_id, ended_at, size FROM episodes"
_CHOSEN = f"{_ROWS} WHERE episode_id IN (SELECT value FROM json_each(?))"


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """Which episodes are pruned, and how: those of an age, and the oldest above a size; None: it does not matter.

    ``chosen`` are the ids of those that a person has chosen, of any age and also with tags.
    """

    older_s: float | None = None
    max_bytes: int | None = None
    keep_tagged: bool = True
    archive: bool = True
    undelivered: bool = False
    chosen: Collection[str] | None = None

    @classmethod
    def from_profile(cls, settings: RetentionSettings) -> Policy:
        return cls(
            older_s=None if settings.older is None else age_seconds(settings.older),
            max_bytes=settings.max_bytes,
            keep_tagged=settings.keep == "tagged",
            archive=settings.archive,
        )

    @classmethod
    def of_chosen(cls, action: CleanUpAction, episode_ids: Collection[str]) -> Policy:
        return cls(archive=action == "archive", keep_tagged=False, chosen=frozenset(episode_ids))

    @property
    def prunes(self) -> bool:
        return self.older_s is not None or self.max_bytes is not None


class PruneReport(msgspec.Struct, kw_only=True):
    """What was pruned, or would be.

    Attributes:
        n_bytes: bytes of all episode files, archives and traces afterwards; 0 if episodes were chosen.
        kept: number of episodes that are chosen, old enough, or too much, and stay, by reason.
    """

    n_archived: int = 0
    n_deleted: int = 0
    n_freed: int = 0
    n_bytes: int = 0
    kept: dict[str, int] = msgspec.field(default_factory=dict)
    problems: list[str] = msgspec.field(default_factory=list)


class _Candidate(NamedTuple):
    """The prunable episodes of a batch, which are pruned in the order of these tuples.

    Those that are neither chosen nor old are ``is_young``: they are pruned while the size exceeds the quota.
    """

    is_young: bool
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
        with contextlib.nullcontext() if dry_run else pruning_lock(self._store.data_dir):
            self._index.reconcile()
            report = PruneReport()
            if policy.chosen is None:
                report.n_bytes = disk_usage(self._store, report.problems)
            kept, kept_young = Counter[str](), Counter[str]()
            for candidate in self._candidates(policy, kept, kept_young):
                if should_stop() or (candidate.is_young and not exceeds_quota(policy, report)):
                    break
                self._prune_batch(candidate, policy, report, kept, dry_run=dry_run)
            if exceeds_quota(policy, report):
                kept += kept_young
            report.kept = {reason: count for reason, count in kept.items() if count}
            return report

    def _candidates(self, policy: Policy, kept: Counter[str], kept_young: Counter[str]) -> list[_Candidate]:
        limit = None if policy.older_s is None else self._clock.now() - timedelta(seconds=policy.older_s)
        reason_of = self._reasons(policy)
        groups: dict[tuple[bool, str], list[tuple[datetime, str, int]]] = defaultdict(list)
        for batch_id, episode_id, ended, size in self._rows(policy, kept):
            ended_at = datetime.fromisoformat(ended)
            is_young = policy.chosen is None and (limit is None or ended_at >= limit)
            if is_young and policy.max_bytes is None:
                continue
            is_file = os.path.lexists(self._store.path(batch_id, episode_id))
            if policy.archive and not is_file:
                (kept_young if policy.chosen is None else kept)[ARCHIVED] += 1
            elif (reason := reason_of(batch_id, episode_id)) is not None:
                (kept_young if is_young else kept)[reason] += 1
            else:
                groups[is_young, batch_id].append((ended_at, episode_id, size if is_file else 0))
        return sorted(
            _Candidate(is_young, max(found)[0], batch_id, [each[1] for each in found], sum(each[2] for each in found))
            for (is_young, batch_id), found in groups.items()
        )

    def _rows(self, policy: Policy, kept: Counter[str]) -> list[tuple[str, str, str, int]]:
        if policy.chosen is None:
            return self._index.select(_ROWS)
        rows = self._index.select(_CHOSEN, (msgspec.json.encode(policy.chosen).decode(),))
        kept["not stored"] += len({*policy.chosen} - {row[1] for row in rows})
        return rows

    def _reasons(self, policy: Policy) -> Callable[[str, str], str | None]:
        """Return what finds the reason for which an episode of a batch is kept."""
        unfinished = queued_ids(self._store.data_dir, unfinished=True)
        tagged: Collection[str] = self._notes.tags() if policy.keep_tagged else ()
        undelivered = set() if policy.undelivered else self._outbox.undelivered_episodes(keep_acked_s=0.0)
        waits = not (policy.undelivered or policy.chosen is not None)
        recent = self._outbox.undelivered_episodes() if waits else set()

        def reason_of(batch_id: str, episode_id: str) -> str | None:
            reasons = {
                TAGGED: episode_id in tagged,
                UNFINISHED: batch_id in unfinished,
                UNDELIVERED: episode_id in undelivered,
                RECENT: episode_id in recent,
            }
            return next((name for name, holds in reasons.items() if holds), None)

        return reason_of

    def _prune_batch(
        self, candidate: _Candidate, policy: Policy, report: PruneReport, kept: Counter[str], *, dry_run: bool
    ) -> None:
        # read again: a pruning of many batches takes minutes, in which a person may tag an episode
        tagged: Collection[str] = self._notes.tags() if policy.keep_tagged else ()
        episode_ids = [episode_id for episode_id in candidate.episode_ids if episode_id not in tagged]
        kept[TAGGED] += len(candidate.episode_ids) - len(episode_ids)
        if not episode_ids:
            return
        try:
            if dry_run:
                n_freed = round(candidate.n_bytes * (1 - ARCHIVED_SHARE if policy.archive else 1))
            else:
                prune = archive_episodes if policy.archive else delete_episodes
                n_freed = prune(self._store, self._index, candidate.batch_id, episode_ids)
        except BatchInUse:
            kept[UNFINISHED] += len(episode_ids)
        except StoreError as exc:
            if len(report.problems) < MAX_PROBLEMS:
                report.problems.append(str(exc))
        else:
            report.n_archived += len(episode_ids) if policy.archive else 0
            report.n_deleted += 0 if policy.archive else len(episode_ids)
            report.n_freed += n_freed
            report.n_bytes -= n_freed


@contextlib.contextmanager
def pruning_lock(data_dir: Path) -> Iterator[None]:
    """Raises a ``StoreError`` if another process prunes the directory."""
    with file_lock(data_dir / "prune.lock", create=True) as is_locked:
        if not is_locked:
            raise StoreError(
                f"{data_dir} is being pruned by another process, or prune.lock there cannot be used; try again later"
            )
        yield


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
    size = 0
    for folder in [*(store.runs / batch_id for batch_id in store.batch_ids()), store.data_dir / "traces"]:
        try:
            with os.scandir(folder) as entries:
                files = [
                    each for each in entries if each.name.endswith(_SUFFIXES) and each.is_file(follow_symlinks=False)
                ]
                size += sum(each.stat(follow_symlinks=False).st_size for each in files)
        except FileNotFoundError:
            pass
        except OSError as exc:
            if len(problems) < MAX_PROBLEMS:
                problems.append(f"{folder} cannot be read: {exc.strerror}; check its permissions")
    return size
