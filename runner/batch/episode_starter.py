"""Preparation of the episodes that a batch starts: headers, recorders and deadlines."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from runner.batch.episode_feed import EpisodeFeed, Publish
from runner.batch.resolve import ResolvedBatch
from runner.batch.running_episode import EpisodeDone, EpisodePlayed, RunningEpisode
from runner.batch.slots import SPARE_BYTES, SPARE_FILES
from runner.batch.spec import PlannedEpisode
from runner.batch.workspace import Workspace
from runner.plugins import installed_versions
from runner.pool.protocol import Slot
from runner.store import EpisodeRecorder
from runner.types import EpisodeHeader
from runner.util.clock import new_ulid
from runner.util.resources import SpareResources

MAX_PUT_BACKS = 3
"""Maximum number of times that an episode is put back; after that, the episode is recorded as an error."""


class EpisodeStarter:
    """Prepares the episodes of one batch.

    ``on_done`` receives the end of each episode, and that it was played, on any thread.
    """

    def __init__(
        self,
        batch: ResolvedBatch,
        workspace: Workspace,
        *,
        batch_id: str,
        battery_id: str | None,
        currency: str | None,
        publish: Publish,
        on_done: Callable[[EpisodePlayed | EpisodeDone], object],
        grace_s: float,
        step_grace_s: float,
    ) -> None:
        self._spec = batch.spec
        self._workspace = workspace
        self._placement = batch.placement
        self._batch_id = batch_id
        self._battery_id, self._currency = battery_id, currency
        self._publish = publish
        self._on_done = on_done
        self._grace_s, self._step_grace_s = grace_s, step_grace_s
        self._versions = {**workspace.versions, **installed_versions(batch.placement.packages)}
        self._trace_file = workspace.trace_file(batch_id)
        self._spare = SpareResources(0)

    def reserve(self) -> None:
        self._spare = SpareResources(SPARE_FILES, SPARE_BYTES)

    def close(self) -> None:
        self._spare.release()
        self._workspace.index.write_waiting()

    def prepare(
        self, slot: Slot, planned: PlannedEpisode, earlier: RunningEpisode | None, *, can_wait: bool
    ) -> RunningEpisode:
        """Return an episode that is about to start.

        ``earlier`` is its earlier start if it was put back; the episode keeps the id. ``can_wait``: whether the batch
        waits for a server that is gone.
        """
        header, n_put_backs, clock = self._header(planned, slot), 0, self._workspace.clock
        if earlier is not None:
            earlier.feed.recorder.discard()
            header = msgspec.structs.replace(header, episode_id=earlier.header.episode_id)
            n_put_backs = earlier.n_put_backs + 1
        feed = EpisodeFeed(
            header,
            EpisodeRecorder(self._workspace.store, self._workspace.index, clock=clock, meter=self._workspace.meter),
            publish=self._publish,
            trace_file=self._trace_file,
            track=slot.name,
            on_free=lambda problem: self._on_done(EpisodeDone(slot, header.episode_id, problem)),
            on_played=lambda: self._on_done(EpisodePlayed(slot, header.episode_id)),
            now=clock.monotonic,
            can_put_back=can_wait and n_put_backs < MAX_PUT_BACKS,
            was_started=n_put_backs > 0,
            spare=self._spare,
        )
        return RunningEpisode(
            slot=slot,
            header=header,
            feed=feed,
            clock=clock,
            deadline_s=self._spec.limits.max_duration_s + self._grace_s,
            grace_s=self._grace_s,
            step_grace_s=self._step_grace_s,
            n_put_backs=n_put_backs,
        )

    def _header(self, planned: PlannedEpisode, slot: Slot) -> EpisodeHeader:
        spec, workspace = self._spec, self._workspace
        return EpisodeHeader(
            episode_id=new_ulid(),
            batch_id=self._batch_id,
            battery_id=self._battery_id,
            node=workspace.node,
            boot=workspace.boot,
            profile=workspace.profile,
            env=spec.env,
            transport=self._placement.transport,
            data_label=self._placement.data_label,
            mode=spec.mode,
            task_index=planned.task_index,
            seed=planned.seed,
            attempt=planned.attempt,
            agent=spec.agent,
            model=spec.model,
            limits=spec.limits.label,
            n_planned=spec.n_planned,
            started_at=workspace.clock.now(),
            versions=self._versions,
            worker=slot.info,
            currency=self._currency,
        )
