"""Following batches of a node: every durable event of theirs once, and the steps, from live items or episode files."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Final, TypeAlias

import msgspec
from msgspec import Meta

from runner.client.node_client import ControlRequestError
from runner.client.target import ConnectedNode
from runner.errors import RunnerError
from runner.events.codec import DurableRow, LiveRow, decode_item
from runner.events.control import BatchState, EpisodeEntry, EpisodesArgs
from runner.events.durable import BatchCompleted, BatteryCompleted, EpisodeCompleted
from runner.events.live import EpisodeStarted, Timestep
from runner.events.subjects import LiveChannel, live_subject
from runner.store.episode_file import decode_episode, shared_fields
from runner.subscribe.messages import BusMessage, Notice
from runner.subscribe.subscription import Subscription
from runner.types import Outcome, TimeStep
from runner.types.fields import FOREIGN
from runner.util.clock import is_ulid, ulid_milliseconds
from runner.util.json_accessors import as_dict, content_text

MARGIN: Final = timedelta(minutes=5)  # before the id of the oldest batch was made, for clocks that differ
MAX_AGE_S: Final = 365 * 86_400.0
MAX_SILENCE_S: Final = 60.0  # of the node after which nothing is awaited any more
PAGE: Final = 200
CHECK_S: Final = 2.0  # between requests for the state of the batches: a killed node publishes no end
LIVE: Final[tuple[LiveChannel, ...]] = ("episode", "timestep")
ENDED: Final = ("completed", "cancelled", "interrupted")
GRACE_S: Final = 5.0  # for the event of a batch that has ended by the node's list


class StepItem(msgspec.Struct, kw_only=True, tag_field="kind", tag="step"):
    """A timestep of an episode."""

    episode_id: str
    index: Annotated[int, Meta(description="index of the timestep, from 0")]
    reward: float
    done: bool
    valid: bool
    action: Annotated[str, FOREIGN]
    observation: Annotated[str, FOREIGN]


class EpisodeItem(msgspec.Struct, kw_only=True, tag_field="kind", tag="episode"):
    """An episode ended."""

    episode_id: str
    batch_id: str | None
    env: str
    outcome: str | None
    success: bool | None
    reward: float | None
    rounds: int
    duration_s: float
    task_index: int | None


class EpisodeDetails(msgspec.Struct, kw_only=True):
    """An episode, from its file."""

    episode: EpisodeItem
    error: Annotated[str | None, FOREIGN]
    steps: Annotated[list[StepItem], Meta(description="the last steps")]


class BatchItem(msgspec.Struct, kw_only=True, tag_field="kind", tag="batch"):
    """A batch ended."""

    batch_id: str
    env: str
    status: str
    n_episodes: int
    n_planned: int | None
    n_errors: int | None
    success_rate: float | None = None
    mean_reward: float | None = None


class GapItem(msgspec.Struct, kw_only=True, tag_field="kind", tag="gap"):
    """Something that cannot be shown, such as steps whose live items were lost and whose episode cannot be read."""

    text: str
    detail: Annotated[str | None, Meta(description="what a server or the connection reported"), FOREIGN] = None


FollowItem: TypeAlias = StepItem | EpisodeItem | BatchItem | GapItem


class Shown(msgspec.Struct, kw_only=True):
    """What an id names: the batch, the batches of the battery, or the episode."""

    batches: list[BatchState]
    episode: EpisodeDetails | None


class _Batch:
    """What is known of a followed batch: the episodes that were items, and its end once that was announced."""

    def __init__(self) -> None:
        self.shown: set[str] = set()
        self.n_errors = 0
        self.end: BatchItem | None = None
        self.end_since_s = 0.0


class Follower:
    """Follows batches until all have ended: each ended episode and batch once, over restarts of broker and node.

    Args:
        node: the node that plays them.
        run_id: ULID of a batch or a battery.
        batch_ids: its batches that are known; a battery gets others where its repeats are adaptive.
        steps: whether timesteps are items, too.

    Raises ``ControlRequestError`` if a node sent something else as an id.

    Attributes:
        ended: the end of each batch that has ended.
    """

    def __init__(self, node: ConnectedNode, run_id: str, batch_ids: Collection[str], *, steps: bool = True) -> None:
        self._node, self._steps, self._run_id = node, steps, run_id
        self._running = {batch_id: _Batch() for batch_id in batch_ids}
        self._is_battery = run_id not in batch_ids
        ids = (run_id, *batch_ids)
        if not all(map(is_ulid, ids)):
            raise ControlRequestError(f"node {node.name} has a batch whose id is no ULID", code="invalid")
        oldest_ms = min(map(ulid_milliseconds, ids))
        age_s = time.time() - oldest_ms / 1000
        self._since = timedelta(seconds=min(max(age_s, 0.0), MAX_AGE_S)) + MARGIN
        self._others: set[str] = set()
        """Batches that do not belong to the run."""
        self._undecided: list[EpisodeCompleted | BatchCompleted] = []
        self._steps_shown: dict[str, set[int]] = {}
        """Indices of the steps that were items, by running episode."""
        self._ended_episodes: set[str] = set()
        self._silent_since_s: float | None = None
        self._idle_since_s: float | None = None
        self.ended: dict[str, BatchItem] = {}

    @property
    def exit_code(self) -> int:
        """Return that of a run: 0, 1 if not every episode ran to an outcome, 130 if a batch was interrupted."""
        if any(batch.status == "interrupted" for batch in self.ended.values()):
            return 130
        return int(any(batch.status != "completed" or batch.n_errors for batch in self.ended.values()))

    async def items(self) -> AsyncGenerator[FollowItem, None]:
        """Yield items until every batch has ended.

        Raises ``ControlRequestError`` if the node stays away, ``RunnerError`` if the bus cannot be read.
        """
        node, names = self._node, self._node.names
        patterns = [names.episode_completed, names.eval_batch, names.eval_battery]
        patterns += [live_subject(channel, node.name) for channel in LIVE] if self._steps else []
        checked_s = time.monotonic()
        async with Subscription(node.connection, patterns=patterns, since=self._since, names=names) as subscription:
            while self._running or self._is_battery:
                received: Sequence[BusMessage | Notice] = ()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(CHECK_S):
                        received = await subscription.next_batch()
                for each in received:
                    if not (self._running or self._is_battery):  # the end of the run is the last item
                        return
                    async for item in self._read(each):
                        yield item
                if time.monotonic() - checked_s >= CHECK_S:
                    async for item in self._check():
                        yield item
                    checked_s = time.monotonic()

    async def _read(self, message: BusMessage | Notice) -> AsyncIterator[FollowItem]:
        if isinstance(message, Notice):
            yield GapItem(text=message.kind.replace("_", " "), detail=message.text)
        elif isinstance(message.decoded, LiveRow):
            for live in map(decode_item, message.decoded.batch.items):
                if isinstance(live, EpisodeStarted):
                    is_mine = self._run_id in (live.batch_id, live.battery_id)
                    if is_mine and live.episode_id not in self._ended_episodes:
                        self._steps_shown.setdefault(live.episode_id, set())
                elif isinstance(live, Timestep) and self._is_new(live.episode_id, live.index):
                    yield step_item(live.episode_id, live)
        elif isinstance(message.decoded, DurableRow):
            match message.decoded.event:
                case BatteryCompleted() as event:
                    self._is_battery &= event.battery_id != self._run_id
                case EpisodeCompleted() | BatchCompleted() as event:
                    async for item in self._end(event):
                        yield item

    async def _end(self, event: EpisodeCompleted | BatchCompleted) -> AsyncIterator[FollowItem]:
        if isinstance(event, BatchCompleted) and event.battery_id == self._run_id:
            self._add(event.batch_id)
        if event.batch_id is None or event.batch_id in self._others:
            return
        if event.batch_id not in self._running and event.batch_id not in self.ended:
            self._undecided.append(event)  # a part that was planned since; the node's list has it
            return
        if isinstance(event, EpisodeCompleted):
            async for item in self._end_episode(event):
                yield item
        elif (batch := self._running.get(event.batch_id)) is not None:
            batch.end, batch.end_since_s = BatchItem(**shared_fields(event, BatchItem)), time.monotonic()
            if event.status != "interrupted" and len(batch.shown) >= event.n_episodes:
                yield self._end_batch(batch.end)

    def _add(self, batch_id: str) -> None:
        if batch_id not in self.ended:
            self._running.setdefault(batch_id, _Batch())

    def _is_new(self, episode_id: str, index: int) -> bool:
        """Note that a step is an item now; False for a step of another batch, and for one that was an item before."""
        shown = self._steps_shown.get(episode_id)
        if shown is None or index in shown:
            return False
        shown.add(index)
        return True

    async def _end_episode(self, event: EpisodeCompleted | EpisodeEntry) -> AsyncIterator[FollowItem]:
        if event.episode_id in self._ended_episodes:
            return
        self._ended_episodes.add(event.episode_id)
        shown = self._steps_shown.setdefault(event.episode_id, set())
        if self._steps and len(shown) < event.rounds:
            try:
                data = await self._node.client.fetch_episode(event.episode_id)
                for step in decode_episode(data, Path(f"{event.episode_id}.json"), was_moved=True).timesteps:
                    if self._is_new(event.episode_id, step.index):
                        yield step_item(event.episode_id, step)
            except (ControlRequestError, RunnerError):  # its text may quote a server
                n_missing = event.rounds - len(shown)
                text = f"{n_missing} steps of episode {event.episode_id} are missing, and its file cannot be read"
                yield GapItem(text=text)
        del self._steps_shown[event.episode_id]  # live items that arrive later are none
        if (batch := self._running.get(event.batch_id or "")) is not None:
            batch.shown.add(event.episode_id)
            batch.n_errors += event.outcome == Outcome.ERROR
        yield EpisodeItem(**shared_fields(event, EpisodeItem))

    def _end_batch(self, end: BatchItem) -> BatchItem:
        self._running.pop(end.batch_id, None)
        self.ended[end.batch_id] = end
        return end

    async def _check(self) -> AsyncIterator[FollowItem]:
        """Compare with the node's list: parts that were planned since, and ends whose events do not come.

        A node that was killed publishes no end of its batches, and a broker may have lost old events.
        """
        now_s = time.monotonic()
        try:
            listed = await self._node.client.fetch_list(self._run_id)
        except ControlRequestError as exc:
            self._silent_since_s = now_s if self._silent_since_s is None else self._silent_since_s
            if now_s - self._silent_since_s > MAX_SILENCE_S:
                hint = "start it again; resume plays what is left of its batches"
                raise ControlRequestError(f"node {self._node.name} does not answer", hint, "unreachable") from exc
            return
        self._silent_since_s = None
        for state in listed.batches:
            self._add(state.batch_id)
        undecided, self._undecided = self._undecided, []
        for event in undecided:
            if event.batch_id is not None and event.batch_id not in self._running:
                self._others.add(event.batch_id)
            async for item in self._end(event):
                yield item
        for state in listed.batches:
            async for item in self._close(state):
                yield item
        self._idle_since_s = None if self._running else self._idle_since_s or now_s
        if self._idle_since_s is not None and now_s - self._idle_since_s >= GRACE_S:
            self._is_battery = False

    async def _close(self, state: BatchState) -> AsyncIterator[FollowItem]:
        """End a batch that has ended by the node's list for ``GRACE_S``; the node has what no event announced."""
        if (batch := self._running.get(state.batch_id)) is None:
            return
        if state.status not in ENDED:
            batch.end, batch.end_since_s = None, 0.0
            return
        batch.end_since_s = batch.end_since_s or time.monotonic()
        if time.monotonic() - batch.end_since_s < GRACE_S:
            return
        async for item in self._missing_episodes(state.batch_id, batch):
            yield item
        known = shared_fields(state, BatchItem) | {"n_episodes": state.n_done, "n_errors": batch.n_errors}
        yield self._end_batch(batch.end or BatchItem(**known))

    async def _missing_episodes(self, batch_id: str, batch: _Batch) -> AsyncIterator[FollowItem]:
        """Read the ended episodes from the node whose events did not come."""
        before: str | None = None
        while True:
            args = EpisodesArgs(query=f"batch:{batch_id}", limit=PAGE, before=before)
            try:
                found = await self._node.client.fetch_episodes(args)
            except ControlRequestError:
                yield GapItem(text=f"ended episodes of batch {batch_id} may be missing")
                return
            for entry in found[::-1]:
                async for item in self._end_episode(entry):
                    yield item
            if len(found) < PAGE:
                return
            before = found[-1].episode_id


def episode_details(data: bytes, episode_id: str, n_steps: int) -> EpisodeDetails:
    """Return an episode from its file, with its last steps; raises ``StoreError`` if it is damaged."""
    record = decode_episode(data, Path(f"{episode_id}.json"), was_moved=True)
    last = record.timesteps[max(len(record.timesteps) - n_steps, 0) :]
    steps = [step_item(episode_id, step) for step in last]
    error = None if record.error is None else f"{record.error.type}: {record.error.message}"
    return EpisodeDetails(episode=EpisodeItem(**shared_fields(record, EpisodeItem)), error=error, steps=steps)


def step_item(episode_id: str, step: Timestep | TimeStep) -> StepItem:
    calls = (f"{call.name} {call.arguments}" for call in step.action.tool_calls)
    texts = (content_text(as_dict(message).get("content")) for message in step.observation)
    shown = {"action": "\n".join(filter(None, (step.action.text, *calls))), "observation": "\n".join(texts)}
    known = shared_fields(step.action, StepItem) | shared_fields(step, StepItem)
    return StepItem(**known | shown | {"episode_id": episode_id})
