"""Chosen episodes are archived or deleted by a person, and brought back until the process ends.

Like ``prune``, it works on the files of a state directory, also while a node plays there: one process at a time holds
``prune.lock``, each batch is locked while its files change, and the index follows in a transaction. So several consoles
and a node agree on what is there.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from contextlib import closing
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeAlias

import msgspec

from runner.errors import StoreError
from runner.node.retention import ARCHIVED_SHARE, UNDELIVERED, UNFINISHED, pruning_lock, unfinished_batches
from runner.publish.outbox import Outbox
from runner.store import EpisodeIndex, EpisodeStore
from runner.store.pruning import BatchInUse, Pruned, archive_episodes, delete_episodes, unpack_archive
from runner.store.trash import Trash

CurationAction: TypeAlias = Literal["archive", "delete"]

MAX_PROBLEMS: Final = 20

_ROWS = "SELECT batch_id, episode_id, size FROM episodes WHERE episode_id IN (SELECT value FROM json_each(?))"


class CurationPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What an action would do.

    Attributes:
        batches: the chosen episodes that can be archived or deleted, by batch.
        n_bytes: bytes that this frees; about, for an archive.
        kept: number of episodes that stay as they are, by reason.
    """

    action: CurationAction
    episode_ids: list[str]
    batches: Mapping[str, list[str]]
    n_bytes: int
    kept: Mapping[str, int]

    @property
    def n_episodes(self) -> int:
        return sum(map(len, self.batches.values()))


class CurationReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was done.

    Attributes:
        n_bytes: bytes freed; a deletion frees them when the process ends.
        kept: number of episodes that stayed as they are, by reason.
        problems: why a batch was left as it is.
    """

    action: CurationAction
    n_episodes: int = 0
    n_bytes: int = 0
    kept: Mapping[str, int] = {}
    problems: list[str] = []
    is_undone: bool = False


class _Done(NamedTuple):
    """An action that can be undone: the folder of a deletion, or archives by batch."""

    action: CurationAction
    n_episodes: int
    deletion: Path | None
    archives: dict[Path, str]


class Curator:
    """Archives and deletes episodes of a state directory, and undoes it; for one thread at a time."""

    def __init__(self, store: EpisodeStore, index: EpisodeIndex) -> None:
        self._store, self._index = store, index
        self._trash = Trash(store.data_dir)
        self._done: list[_Done] = []

    def plan(self, action: CurationAction, episode_ids: Collection[str]) -> CurationPlan:
        """Raises a ``StoreError`` if the state cannot be read."""
        unfinished = unfinished_batches(self._store.data_dir)
        with closing(Outbox(self._index)) as outbox:
            undelivered = outbox.undelivered_episodes(0)
        batches: defaultdict[str, list[str]] = defaultdict(list)
        kept: Counter[str] = Counter()
        n_bytes = 0
        ids = list(dict.fromkeys(episode_ids))
        rows = self._index.select(_ROWS, (msgspec.json.encode(ids).decode(),))
        for batch_id, episode_id, size in rows:
            is_file = os.path.lexists(self._store.path(batch_id, episode_id))
            if batch_id in unfinished:
                kept[UNFINISHED] += 1
            elif episode_id in undelivered:
                kept[UNDELIVERED] += 1
            elif action == "archive" and not is_file:
                kept["already archived"] += 1
            else:
                batches[batch_id].append(episode_id)
                n_bytes += size if is_file else 0
        kept["not stored"] = len(set(ids) - {episode_id for _, episode_id, _ in rows})
        share = 1 - ARCHIVED_SHARE if action == "archive" else 1
        return CurationPlan(
            action=action, episode_ids=ids, batches=batches, n_bytes=round(n_bytes * share), kept=_counts(kept)
        )

    def apply(self, plan: CurationPlan) -> CurationReport:
        """Do what the plan can still do now; raises ``StoreError`` also if another process prunes the directory."""
        with pruning_lock(self._store.data_dir):
            self._index.reconcile()
            plan = self.plan(plan.action, plan.episode_ids)
            if not plan.batches:
                return CurationReport(action=plan.action, kept=plan.kept)
            deletion = self._trash.new_deletion() if plan.action == "delete" else None
            kept, problems = Counter(plan.kept), list[str]()
            n_episodes = n_bytes = 0
            archives: dict[Path, str] = {}
            for batch_id, episode_ids in plan.batches.items():
                try:
                    done = self._apply_to_batch(batch_id, episode_ids, deletion)
                except BatchInUse:
                    kept[UNFINISHED] += len(episode_ids)
                except StoreError as exc:
                    problems = [*problems, str(exc)][:MAX_PROBLEMS]
                else:
                    n_episodes, n_bytes = n_episodes + done.n_episodes, n_bytes + done.n_freed
                    kept["in an archive with others"] += len(episode_ids) - done.n_episodes
                    archives |= dict.fromkeys(done.archives, batch_id)
            if n_episodes or problems:
                self._done.append(_Done(plan.action, n_episodes, deletion, archives))
            return CurationReport(
                action=plan.action, n_episodes=n_episodes, n_bytes=n_bytes, kept=_counts(kept), problems=problems
            )

    def _apply_to_batch(self, batch_id: str, episode_ids: list[str], deletion: Path | None) -> Pruned:
        if deletion is None:
            return archive_episodes(self._store, self._index, batch_id, episode_ids)
        return delete_episodes(
            self._store, self._index, batch_id, episode_ids, lambda paths: self._trash.move(deletion, paths)
        )

    def undo(self) -> CurationReport | None:
        """Return None if no action is left to undo; after a ``StoreError``, the next call goes on."""
        if not self._done:
            return None
        last = self._done[-1]
        with pruning_lock(self._store.data_dir):
            problems: list[str] = []
            if last.deletion is not None:
                problems = [f"{path} exists again" for path in self._trash.restore(last.deletion)][:MAX_PROBLEMS]
            for archive in [each for each in last.archives if each.exists()]:
                unpack_archive(self._store, last.archives[archive], archive)
            self._index.reconcile()
            self._done.pop()
            return CurationReport(
                action=last.action, n_episodes=last.n_episodes - len(problems), problems=problems, is_undone=True
            )

    def close(self) -> None:
        """Delete what was deleted for good."""
        self._trash.close()


def _counts(kept: Mapping[str, int]) -> dict[str, int]:
    return {reason: n for reason, n in kept.items() if n}
