"""Following batches of a node: every durable event of theirs once, and the steps, from live items or episode files."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Collection, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias

import msgspec
from msgspec import Meta

from runner.client.node_client import ControlRequestError
from runner.client.target import ConnectedNode
from runner.client.views import (
    BatchView,
    ComparedEpisodes,
    EpisodeList,
    HealthView,
    Listing,
    LogView,
    Order,
    Quoted,
    Quotes,
    Results,
    ServerView,
    view_of,
)
from runner.errors import RunnerError
from runner.events.codec import DurableRow, LiveRow, decode_item
from runner.events.control import NodeList
from runner.events.durable import BatchCompleted, EpisodeCompleted
from runner.events.live import EpisodeStarted, Timestep
from runner.events.subjects import LiveChannel, live_subject
from runner.store.episode_file import decode_episode
from runner.subscribe.messages import BusMessage, Notice
from runner.subscribe.subscription import Subscription
from runner.types import ActionContent, TimeStep
from runner.util.clock import ulid_milliseconds
from runner.util.json_accessors import as_dict, content_text

MARGIN: Final = timedelta(seconds=5)  # before the id of the oldest batch was made, for clocks that differ
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
    action: Quoted | None
    observation: Quoted | None


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
    error: Quoted | None
    steps: Annotated[list[StepItem], Meta(description="the last steps")]


class BatchItem(msgspec.Struct, kw_only=True, tag_field="kind", tag="batch"):
    """A batch ended."""

    batch_id: str
    env: str
    status: str
    n_episodes: int
    n_planned: int | None
    n_errors: int | None
    success_rate: float | None
    mean_reward: float | None


class GapItem(msgspec.Struct, kw_only=True, tag_field="kind", tag="gap"):
    """Something that cannot be shown, such as steps whose live items were lost and whose episode cannot be read."""

    text: str


FollowItem: TypeAlias = StepItem | EpisodeItem | BatchItem | GapItem


class Shown(msgspec.Struct, kw_only=True):
    """What an id names: the batch, the batches of the battery, or the episode."""

    batches: list[BatchView]
    episode: EpisodeDetails | None


RESULTS: Final[dict[str, Any]] = {
    "list": Listing,
    "show": Shown,
    "results": Results,
    "episodes": EpisodeList,
    "compare": ComparedEpisodes,
    "logs": LogView,
    "follow": FollowItem,
    "health": HealthView,
    "env": ServerView,
    **dict.fromkeys(("submit", "again", "pause", "resume", "step", "cancel", "move", "stop"), Order),
}
"""Type of ``Document.result`` by command; ``follow`` prints a document for each item."""


class Follower:
    """Follows batches until all have ended: each durable event once, over restarts of the broker and the node.

    Args:
        node: the node that plays them.
        run_id: ULID of a batch or a battery.
        batch_ids: its batches that are known; a battery gets others where its repeats are adaptive.
        quote: wraps foreign texts.
        steps: whether timesteps are items, too.

    Attributes:
        ended: the end of each batch that has ended.
    """

    def __init__(
        self, node: ConnectedNode, run_id: str, batch_ids: Collection[str], quote: Quotes, *, steps: bool = True
    ) -> None:
        self._node, self._quote, self._steps = node, quote, steps
        self._run_id, self._running = run_id, set(batch_ids)
        oldest_ms = min(map(ulid_milliseconds, (run_id, *batch_ids)))
        self._since = datetime.now(UTC) - datetime.fromtimestamp(oldest_ms / 1000, UTC) + MARGIN
        self._shown: dict[str, set[int]] = {}
        """Indices of the steps that were items, by the episodes of the batches that are known to run."""
        self._late_since: dict[str, float] = {}
        self.ended: dict[str, BatchItem] = {}

    @property
    def exit_code(self) -> int:
        """Return that of a run: 0, 1 if not every episode ran to an outcome, 130 if a batch was interrupted."""
        if any(batch.status == "interrupted" for batch in self.ended.values()):
            return 130
        return int(any(batch.status != "completed" or batch.n_errors for batch in self.ended.values()))

    async def items(self) -> AsyncIterator[FollowItem]:
        """Yield items until every batch has ended; raises ``RunnerError`` if the bus cannot be read."""
        node, names = self._node, self._node.names
        patterns = [names.episode_completed, names.eval_batch]
        patterns += [live_subject(channel, node.name) for channel in LIVE] if self._steps else []
        checked_s = time.monotonic()
        async with Subscription(node.connection, patterns=patterns, since=self._since, names=names) as subscription:
            while self._running or await self._find_more():
                received: Sequence[BusMessage | Notice] = ()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(CHECK_S):
                        received = await subscription.next_batch()
                for each in received:
                    async for item in self._read(each):
                        yield item
                if time.monotonic() - checked_s >= CHECK_S:
                    for ended in await self._ended_without_event():
                        yield ended
                    checked_s = time.monotonic()

    async def _read(self, message: BusMessage | Notice) -> AsyncIterator[FollowItem]:
        if isinstance(message, Notice):
            yield GapItem(text=self._quote.visible(message.text))
        elif isinstance(message.decoded, LiveRow):
            for live in map(decode_item, message.decoded.batch.items):
                if isinstance(live, EpisodeStarted) and live.batch_id in self._running:
                    self._shown.setdefault(live.episode_id, set())
                elif isinstance(live, Timestep) and self._is_new(live.episode_id, live.index):
                    yield step_item(live.episode_id, live, self._quote)
        elif isinstance(message.decoded, DurableRow):
            match message.decoded.event:
                case EpisodeCompleted() as event if event.batch_id in self._running:
                    async for item in self._end_episode(event):
                        yield item
                case BatchCompleted() as event if event.batch_id in self._running:
                    yield self._end_batch(view_of(BatchItem, event, self._quote))

    def _is_new(self, episode_id: str, index: int) -> bool:
        """Note that a step is an item now; False for a step of another batch, and for one that was an item before."""
        shown = self._shown.get(episode_id)
        if shown is None or index in shown:
            return False
        shown.add(index)
        return True

    async def _end_episode(self, event: EpisodeCompleted) -> AsyncIterator[FollowItem]:
        shown = self._shown.setdefault(event.episode_id, set())
        if self._steps and len(shown) < event.rounds:
            try:
                data = await self._node.client.fetch_episode(event.episode_id)
                for step in decode_episode(data, Path(f"{event.episode_id}.json"), was_moved=True).timesteps:
                    if self._is_new(event.episode_id, step.index):
                        yield step_item(event.episode_id, step, self._quote)
            except (ControlRequestError, RunnerError) as exc:
                text = f"{event.rounds - len(shown)} steps of episode {event.episode_id} are missing: {exc}"
                yield GapItem(text=self._quote.visible(text))
        shown.update(range(event.rounds))  # live items that arrive later are none
        yield view_of(EpisodeItem, event, self._quote)

    def _end_batch(self, batch: BatchItem) -> BatchItem:
        self._running.discard(batch.batch_id)
        self.ended[batch.batch_id] = batch
        return batch

    async def _find_more(self) -> bool:
        """Return whether the battery has batches that have not ended."""
        with contextlib.suppress(ControlRequestError):
            self._add_parts(await self._node.client.fetch_list())
        return bool(self._running)

    def _add_parts(self, listed: NodeList) -> None:
        known = {each.batch_id for each in listed.batches if self._run_id in (each.batch_id, each.battery_id)}
        self._running |= known - self.ended.keys()

    async def _ended_without_event(self) -> list[BatchItem]:
        """Return the batches that have ended by the node's list, and whose event has not come for ``GRACE_S``.

        A node that was killed publishes no end of its batches.
        """
        try:
            listed = await self._node.client.fetch_list()
        except ControlRequestError:  # it may be starting again
            return []
        states = {batch.batch_id: batch for batch in listed.batches}
        self._add_parts(listed)
        now_s, ended = time.monotonic(), []
        for batch_id in sorted(self._running):
            state = states.get(batch_id)
            if state is None or state.status not in ENDED:
                self._late_since.pop(batch_id, None)
            elif now_s - self._late_since.setdefault(batch_id, now_s) >= GRACE_S:
                others = {"n_episodes": state.n_done, "n_errors": None, "success_rate": None, "mean_reward": None}
                ended.append(self._end_batch(view_of(BatchItem, state, self._quote, **others)))
        return ended


def episode_details(data: bytes, episode_id: str, quote: Quotes, n_steps: int) -> EpisodeDetails:
    """Return an episode from its file, with its last steps; raises ``StoreError`` if it is damaged."""
    record = decode_episode(data, Path(f"{episode_id}.json"), was_moved=True)
    last = record.timesteps[max(len(record.timesteps) - n_steps, 0) :]
    steps = [step_item(episode_id, step, quote) for step in last]
    error = None if record.error is None else f"{record.error.type}: {record.error.message}"
    return EpisodeDetails(episode=view_of(EpisodeItem, record, quote), error=quote(error), steps=steps)


def step_item(episode_id: str, step: Timestep | TimeStep, quote: Quotes) -> StepItem:
    valid = step.valid if isinstance(step, Timestep) else step.action.valid
    texts = {"action": action_text(step.action), "observation": observation_text(step.observation)}
    return view_of(StepItem, step, quote, episode_id=episode_id, valid=valid, **texts)


def action_text(action: ActionContent) -> str:
    """Return the text of an action, or its tool calls, one per line."""
    calls = (f"{call.name} {call.arguments}" for call in action.tool_calls)
    return "\n".join(calls) if action.text is None else action.text


def observation_text(messages: Sequence[Any]) -> str:
    return "\n".join(content_text(as_dict(message).get("content")) for message in messages)
