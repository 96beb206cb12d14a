"""How a batch is played, from its claim to its result: on the thread of a node, and by the command ``--run``.

A session plays one resolved batch and the parts of adaptive repeats that follow it. It chooses the placement and waits
for a busy server, plays what is not stored yet, takes commands from any thread, and stores later what found no room.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import msgspec

from runner.batch.batch import Batch
from runner.batch.observers import BatchItem, SelectiveObserver, UnstoredEpisode
from runner.batch.result import BatchResult, BatchStatus
from runner.batch.running_episode import CommandName
from runner.batch.spec import BatchSpec, ResolvedBatch
from runner.batch.stopping import MAX_SERVER_CHARS, BudgetWatch, Waiting, budget_left, is_used_up, next_part
from runner.batch.workspace import Workspace
from runner.errors import ServerBusy, StoreError, catch_foreign, log_failure
from runner.inference.profile_models import Models
from runner.node.batch_queue import QueuedBatch, StoredBatches, battery_entry
from runner.results.summary import IS_RATED
from runner.store import EpisodeIndex
from runner.types import BatchProgress, Budget
from runner.util.display_text import one_line

if TYPE_CHECKING:  # only a node has them
    from runner.inference.server_metrics import ServerLoad
    from runner.node.storage import StorageWatch

logger = logging.getLogger(__name__)

RETRY_S: Final = 1.0
"""Seconds between two attempts to store an episode for which there was no room."""

_PLAYED = f"""
SELECT count(*), total(success AND {IS_RATED}), total({IS_RATED}), total(CASE WHEN batch_id = ?1 THEN cost END),
total(CASE WHEN batch_id = ?1 THEN tokens_prompt + tokens_completion END)
FROM episodes WHERE battery_id = ?2 AND env = ?3 AND model IS ?4
"""


class Look(NamedTuple):
    """The interim look at the interval of the success rate, after a part of adaptive repeats.

    ``n_stored`` counts the episodes of all parts so far, ``n`` the scored ones. ``is_spent``: only the budget is why
    no part follows.
    """

    n_stored: int
    n_success: int
    n: int
    following: QueuedBatch | None
    is_spent: bool


def look_after(index: EpisodeIndex, ended: QueuedBatch) -> Look | None:
    """Return the look after a completed part; None for a batch that is no part of adaptive repeats."""
    spec, battery_id = ended.spec, ended.battery_id
    if spec.adaptive is None or battery_id is None:
        return None
    ((n_stored, *totals),) = index.select(_PLAYED, (ended.batch_id, battery_id, spec.env, spec.model))
    n_success, n, cost, n_tokens = int(totals[0]), int(totals[1]), totals[2], int(totals[3])
    budget = budget_left(spec.budget, cost, n_tokens)
    part = next_part(spec, n_success, n, budget)
    is_spent = is_used_up(budget) and next_part(spec, n_success, n, None) is not None
    return Look(n_stored, n_success, n, None if part is None else battery_entry(battery_id, part), is_spent)


async def watch_servers(
    models: Models,
    is_due: Callable[[], Awaitable[bool]],
    on_loads: Callable[[Sequence[ServerLoad]], object],
    on_failure: Callable[[BaseException], object],
) -> None:
    """Read the metrics of the model servers each time ``is_due`` is true; they split the time of each answer."""
    manager = await asyncio.to_thread(lambda: models.manager)  # imports the HTTP client
    while await is_due():
        with catch_foreign(on_failure):
            on_loads(await manager.read_servers())


class SessionHost(Protocol):
    """What a session needs of its node or command; everything is called on the thread that plays."""

    @property
    def workspace(self) -> Workspace: ...

    @property
    def models(self) -> Models | None: ...

    @property
    def storage(self) -> StorageWatch | None:
        """What finds out whether there is room again; None: an episode that cannot be stored ends the batch."""

    @property
    def place(self) -> Callable[[BatchSpec], ResolvedBatch]:
        """Returns a batch at its placement; raises ``ServerBusy`` while its server is, ``ConfigError`` if it cannot."""

    def show(self, queued: QueuedBatch, item: BatchItem) -> object:
        """Show what happens while no batch plays: the wait for a server or for room, and episodes stored later."""

    def playing(
        self, queued: QueuedBatch, placed: ResolvedBatch
    ) -> AbstractContextManager[Sequence[SelectiveObserver]]:
        """Return the observers of a batch that is about to play."""

    def on_look(self, ended: QueuedBatch, look: Look) -> bool:
        """Show a look, and store the part that follows, if any; return whether that may play now."""


class BatchSession:
    """Plays a claimed batch; ``play`` belongs to one thread, commands may come from any thread or a signal handler.

    Attributes:
        queued: the batch, or the part of it that is being played.
        is_cancelled: whether a command has ended it for good.
        is_paused: whether it is paused by the latest command, which the batch may read later.
    """

    def __init__(self, host: SessionHost, queued: QueuedBatch) -> None:
        self.queued = queued
        self.is_cancelled = self.is_paused = False
        self._host = host
        self._stored = StoredBatches(host.workspace)
        self._changed = threading.Condition(threading.RLock())  # a signal may interrupt its owner
        self._early: list[tuple[CommandName, str | None]] = []
        self._batch: Batch | None = None
        self._waiting: Waiting | None = None
        self._is_stopping = self._is_over = False
        self._next_spec: tuple[str, BatchSpec] | None = None  # with the id of its batch
        self._progress: BatchProgress | None = None
        self._unstored: list[UnstoredEpisode] = []

    @property
    def n_done(self) -> int:
        """Number of finished episodes, which are stored."""
        return self._progress.n_done if self._progress is not None else self.queued.n_done

    @property
    def waiting(self) -> Waiting | None:
        batch = self._batch
        return self._waiting if batch is None else batch.waiting

    def accepts(self, name: CommandName, episode_id: str) -> bool:
        batch = self._batch
        return batch is not None and batch.accepts(name, episode_id)

    def command(self, name: CommandName, episode_id: str | None = None) -> bool:
        """Send a command to the batch or one of its episodes; return False if the batch has ended.

        Before the batch plays, the command takes effect at its start. After a part of adaptive repeats has ended, it
        reaches the next part.
        """
        with self._changed:
            if self._is_over or (episode_id is not None and not self.accepts(name, episode_id)):
                return False
            if episode_id is None:
                self.is_cancelled = self.is_cancelled or name in ("cancel", "abort")
                self._is_stopping = self._is_stopping or name == "interrupt"
                if name in ("pause", "step", "resume"):
                    self.is_paused = name != "resume"
            if self._batch is None:
                self._early.append((name, episode_id))
            else:
                self._batch.command(name, episode_id)
            self._changed.notify()
            return True

    def change(self, spec: BatchSpec, save: Callable[[], object]) -> bool:
        """Go on with another spec as soon as the running episodes have ended; return False if the batch has ended.

        The spec plans all episodes that the present one plans. ``save`` is called before, and what it raises changes
        nothing.
        """
        with self._changed:
            if self._is_over:
                return False
            save()
            self._next_spec = self.queued.batch_id, spec
            if self._batch is not None:
                self._batch.command("wind_down")
            self._changed.notify()
            return True

    def play(self) -> Iterator[BatchResult]:
        """Yield the result of the batch, and of each part that follows; the caller stores it before the next part.

        Raises:
            ConfigError: the batch cannot be played now, or only where it would be mixed with other rules or data.
            StoreError: the index or an earlier episode cannot be read.
        """
        following: QueuedBatch | None = self.queued
        while following is not None:
            self.queued, following, self._progress = following, None, None
            # cancelled: after the last part
            result = self._stored.result(self.queued, "cancelled") if self.is_cancelled else self._play_part()
            yield result
            if result.status == "completed" and not self._is_stopping:
                self._take_change()  # what came since the last episode is for the parts to come
                with catch_foreign(log_failure(logger, "starting the next part of adaptive repeats")):
                    look = look_after(self._host.workspace.index, self.queued)
                    is_ready = look is not None and self._host.on_look(self.queued, look)
                    following = look.following if look is not None and is_ready else None
            with self._changed:
                self._is_over = following is None

    def end(self) -> BatchStatus:
        """Refuse further commands, and return the status of a batch that could not be played to its end."""
        with self._changed:
            self._is_over = True
            return "cancelled" if self.is_cancelled else "interrupted"

    def _play_part(self) -> BatchResult:
        budget: BudgetWatch | None = None
        duration_s = 0.0
        while True:
            self._take_change()
            placed = self._place()
            spec, currency = placed.spec, placed.profile.agent.currency
            budget = budget or BudgetWatch(spec.budget, currency)
            budget.budget = spec.budget or Budget()
            with self._host.playing(self.queued, placed) as observers:
                result = self._play_left(placed, observers, budget)
                while self._unstored and self._wait_for_room() and result.interrupted_by is None:
                    result = self._play_left(placed, observers, budget)
            duration_s += result.duration_s
            with self._changed:
                if self._next_spec is not None and result.status == "completed":
                    continue
                if self.is_cancelled:  # perhaps after the last episode
                    result = msgspec.structs.replace(result, status="cancelled")
                self._is_over = result.status != "completed" or self.queued.spec.adaptive is None
            return msgspec.structs.replace(result, duration_s=duration_s)

    def _take_change(self) -> None:
        with self._changed:
            if self._next_spec is not None and self._next_spec[0] == self.queued.batch_id:
                self.queued = msgspec.structs.replace(self.queued, spec=self._next_spec[1])
            self._next_spec = None

    def _place(self) -> ResolvedBatch:
        """Return the batch at its placement, which is that of its stored episodes.

        While its server is busy, it is placed again, for at most the seconds that the first ``ServerBusy`` names.
        """
        item: BatchProgress | None = None
        ends_at, placed = math.inf, None
        while placed is None:
            try:
                placed = self._host.place(self.queued.spec)
            except ServerBusy as busy:
                ends_at = min(ends_at, time.monotonic() + busy.wait_s)
                left_s = ends_at - time.monotonic()
                if left_s > 0:
                    item = item or self._stored.progress(self.queued)
                    self._waiting = Waiting(one_line(busy.server, MAX_SERVER_CHARS), float(math.ceil(left_s)))
                    self._show(item, waiting_for=self._waiting.server, waiting_s=self._waiting.left_s)
                if left_s <= 0 or self.is_cancelled or self._is_stopping:
                    raise
        self._waiting = None
        if item is not None:
            self._show(item)
        placed.placement.require_kind(self._stored.placement_kind(self.queued))
        return placed

    def _play_left(
        self, placed: ResolvedBatch, observers: Sequence[SelectiveObserver], budget: BudgetWatch
    ) -> BatchResult:
        """Play the episodes that are not stored yet; ``_unstored`` has those that could not be stored."""
        workspace, queued = self._host.workspace, self.queued
        if (workspace.store.runs / queued.batch_id).is_dir():
            workspace.index.reconcile()  # on a full disk, an episode may be stored without its row

        def keep_progress(item: BatchItem) -> None:
            if isinstance(item, BatchProgress):
                self._progress = item

        keep = SelectiveObserver(keep_progress, lambda kind: kind is BatchProgress, is_inline=True)
        batch = Batch(
            placed,
            workspace,
            observers=[keep, *observers],
            batch_id=queued.batch_id,
            battery_id=queued.battery_id,
            earlier_episodes=self._stored.episodes(queued.batch_id),
            models=self._host.models,
            budget=budget,
        )
        with self._changed:
            self._batch = batch
            if self.is_cancelled:  # while its episodes waited for room on the disk
                self._early.append(("cancel", None))
            elif self._is_stopping:
                self._early.append(("interrupt", None))
            elif self.is_paused:
                self._early.append(("pause", None))
            if self._next_spec is not None:
                batch.command("wind_down")
            for name, episode_id in self._early:
                batch.command(name, episode_id)
            self._early.clear()
        try:
            return batch.run()
        finally:
            with self._changed:
                self._batch, self._unstored = None, batch.unstored

    def _wait_for_room(self) -> bool:
        """Store the unstored episodes as soon as there is room; return False if there is none before the batch ends."""
        reported, storage = "", self._host.storage
        while storage is not None:
            problem = storage.check(write=True) or self._store_episodes()
            if problem is None:
                return True
            if problem != reported and self._progress is not None:
                reported = problem
                self._show(self._progress, interrupted=False, eta_s=None, waiting_for=problem)
            with self._changed:
                if self._is_stopping:
                    return False
                self._changed.wait(RETRY_S)
        return False

    def _store_episodes(self) -> str | None:
        """Return why that failed, or None."""
        workspace, models = self._host.workspace, self._host.models
        while self._unstored:
            stored, content = self._unstored[0].stored, self._unstored[0].content
            try:
                workspace.store.save(content)
            except StoreError as exc:
                return str(exc)
            del self._unstored[0]
            with catch_foreign(log_failure(logger, "adding a stored episode to the index")):
                workspace.index.insert(stored.record, content)
            self._host.show(self.queued, stored)
            if models is not None:
                models.feedback(stored.record)
        return None

    def _show(self, item: BatchProgress, **changes: object) -> None:
        self._host.show(self.queued, msgspec.structs.replace(item, at=self._host.workspace.clock.now(), **changes))
