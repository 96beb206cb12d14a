"""Merges the items of live messages into updates, and splits sequences of messages into portions of bounded work.

A live message may carry thousands of items. ``coalesce_batch`` merges successive items of the same kind and episode
into one chunk. ``split_portions`` keeps each portion small enough that the screen stays responsive while it is applied.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from itertools import groupby, islice
from operator import attrgetter, itemgetter, le
from typing import Final, TypeAlias, TypeVar, cast

import msgspec

from agentgym_tui.state.episode_content import raw_spans_size
from agentgym_tui.state.merged_items import (
    AnswerChunk,
    DecodedBatch,
    FinishedAnswers,
    InferenceStarted,
    SpanChunk,
    StepChunk,
    Update,
    find_gaps,
)
from agentgym_tui.state.steps import step_from_item, steps_size
from runner.events.codec import LiveRow
from runner.events.live import LazyItem, LazySpan, LazyTimestep, TokenText
from runner.subscribe.messages import BusMessage, SubscriptionItem
from runner.types import DeltaPart

PORTION_WORK: Final = 500
"""Work after which a portion ends; a step, an update of any other kind and a message without updates count 1 each."""

_ManyT = TypeVar("_ManyT", TokenText, LazySpan, LazyTimestep)
_ChunkKey: TypeAlias = tuple[int, DeltaPart, int]
"""Step, part and tool call that a text extends."""

_failure_of: Final = attrgetter("failure")
_EMPTY_RESETS: Final = (b"null", b"[]")


def coalesce_batch(row: LiveRow) -> DecodedBatch:
    """Return a decoded live message with its items merged into updates."""
    batch = row.batch
    return DecodedBatch(
        node=batch.node,
        boot=batch.boot,
        dropped=batch.dropped,
        n_items=len(batch.items),
        n_malformed=len(row.raw),
        updates=list(_coalesce_items(batch.items)),
    )


def coalesce_batches(
    messages: Iterable[SubscriptionItem | DecodedBatch],
) -> Iterator[SubscriptionItem | DecodedBatch]:
    """Yield the messages; live messages of one subject and one node process become one ``DecodedBatch``.

    A notice or any other message separates the live messages before it from those after it. Live messages on different
    subjects may change their order, as each kind of item has its own subject.
    """
    for is_live, alike in groupby(messages, _is_live_message):
        if not is_live:
            yield from alike
            continue
        by_sender = defaultdict[tuple[str, str, str], list[LiveRow]](list)
        for message in cast("Iterable[BusMessage]", alike):
            row = cast("LiveRow", message.decoded)
            by_sender[message.subject, row.batch.node, row.batch.boot].append(row)
        for rows in by_sender.values():
            yield coalesce_batch(_joined_row(rows) if len(rows) > 1 else rows[0])


def _is_live_message(message: SubscriptionItem | DecodedBatch) -> bool:
    return isinstance(message, BusMessage) and isinstance(message.decoded, LiveRow)


def _joined_row(rows: Sequence[LiveRow]) -> LiveRow:
    batch = msgspec.structs.replace(rows[-1].batch, items=[item for row in rows for item in row.batch.items])
    return LiveRow(batch=batch, raw=tuple(raw for row in rows for raw in row.raw))


def split_portions(
    messages: Iterable[SubscriptionItem | DecodedBatch],
) -> Iterator[list[SubscriptionItem | DecodedBatch]]:
    """Yield the messages in their order, in portions that each take a few milliseconds to apply."""
    portion: list[SubscriptionItem | DecodedBatch] = []
    work = 0
    for message in messages:
        for part in _split_batch(message) if isinstance(message, DecodedBatch) else (message,):
            portion.append(part)
            work += sum(map(_work_of, part.updates)) if isinstance(part, DecodedBatch) else 1
            if work >= PORTION_WORK:
                yield portion
                portion, work = [], 0
    if portion:
        yield portion


def _split_batch(batch: DecodedBatch) -> Iterator[DecodedBatch]:
    first, work, last = 0, 0, len(batch.updates) - 1
    for position, update in enumerate(batch.updates):
        work += _work_of(update)
        if work >= PORTION_WORK and position < last:
            updates = batch.updates[first : position + 1]
            yield msgspec.structs.replace(batch, n_items=0, n_malformed=0, updates=updates)
            first, work = position + 1, 0
    yield msgspec.structs.replace(batch, updates=batch.updates[first:])


def _work_of(update: Update) -> int:
    return len(update.steps) if isinstance(update, StepChunk) else 1


def _coalesce_items(items: Iterable[LazyItem]) -> Iterator[Update]:
    """Yield the updates that result from merging items; the items of each episode keep their order."""
    for kind, alike in groupby(items, type):
        if kind is TokenText:
            for part in _split_at_failures(list(cast("Iterable[TokenText]", alike))):
                for episode_items in _group_by_episode(part):
                    yield from _coalesce_answer(episode_items)
        elif kind is LazySpan:
            yield from map(_span_chunk, _group_by_episode(cast("Iterable[LazySpan]", alike)))
        elif kind is LazyTimestep:
            yield from map(_step_chunk, _group_by_episode(cast("Iterable[LazyTimestep]", alike)))
        else:
            yield from cast("Iterable[Update]", alike)


def _split_at_failures(items: Sequence[TokenText]) -> Iterator[Sequence[TokenText]]:
    """Yield runs of items without an endpoint failure, and each item that reports a failure on its own.

    Items are therefore never merged across a failure, and earlier items of other episodes stay before it.
    """
    if set(map(_failure_of, items)) == {None}:
        yield items
        return
    for failed, part in groupby(items, lambda item: item.failure is not None):
        if failed:
            for item in part:
                yield (item,)
        else:
            yield list(part)


def _group_by_episode(items: Iterable[_ManyT]) -> Iterable[list[_ManyT]]:
    by_episode = defaultdict[str, list[_ManyT]](list)
    for item in items:
        by_episode[item.episode_id].append(item)
    return by_episode.values()


def _coalesce_answer(items: Sequence[TokenText]) -> Iterator[FinishedAnswers | AnswerChunk | TokenText]:
    """Merge the answer items of one episode.

    Items of answers that a later answer follows become one ``FinishedAnswers``. Successive texts of the current answer
    become ``AnswerChunk`` objects. All other items are yielded unchanged.
    """
    keys = [
        None
        if item.endpoint is not None or item.failure is not None or item.restart or not (item.text or item.tool)
        else (item.step, item.part, item.call)
        for item in items
    ]
    if keys[0] is not None and keys.count(keys[0]) == len(keys):  # most often, all items extend the same text
        yield answer_chunk(items)
        return
    steps = [item.step for item in items]
    newest = max(steps)
    is_ordered = True not in [item.restart for item in items] and all(map(le, steps, islice(steps, 1, None)))
    first_items = dict(zip(reversed(steps), reversed(items), strict=True)) if is_ordered else {}
    finished, rest, all_finished = list[TokenText](), list[tuple[_ChunkKey | None, TokenText]](), True
    for key, item in zip(keys, items, strict=True):
        is_finished = key is not None and item.step < newest
        if is_finished or (all_finished and item is first_items.get(item.step) and _only_starts_inference(item)):
            finished.append(item)
        else:
            all_finished = False
            rest.append((key, item))
    if finished:
        yield _finished_answers(finished, items[0].at)
    for part, alike in groupby(rest, itemgetter(0)):
        if part is None:
            yield from (item for _, item in alike)
        else:
            yield answer_chunk([item for _, item in alike])


def _finished_answers(items: Sequence[TokenText], at: datetime) -> FinishedAnswers:
    started = [
        InferenceStarted(position, item.step, item.endpoint, item.model)
        for position, item in enumerate(items)
        if item.endpoint is not None
    ]
    seqs = [item.seq for item in items]
    return FinishedAnswers(episode_id=items[0].episode_id, seqs=seqs, gaps=find_gaps(seqs), at=at, started=started)


def _only_starts_inference(item: TokenText) -> bool:
    return item.endpoint is not None and not (item.restart or item.failure is not None or item.text or item.tool)


def answer_chunk(items: Sequence[TokenText]) -> AnswerChunk:
    """Return one chunk for items that extend the same part of an answer: its text, its reasoning or one tool call."""
    first, seqs = items[0], [item.seq for item in items]
    return AnswerChunk(
        episode_id=first.episode_id,
        seqs=seqs,
        gaps=find_gaps(seqs),
        at=first.at,
        until=items[-1].at,
        step=first.step,
        part=first.part,
        call=first.call,
        tool=next((item.tool for item in items if item.tool), ""),
        texts=[item.text for item in items],
        ns=[item.n for item in items],
        ttft_s=first.ttft_s,
    )


def _span_chunk(items: Sequence[LazySpan]) -> SpanChunk:
    spans, first = [bytes(item.span) for item in items], items[0]
    seqs, size = [item.seq for item in items], raw_spans_size(spans)
    return SpanChunk(episode_id=first.episode_id, seqs=seqs, gaps=find_gaps(seqs), at=first.at, spans=spans, size=size)


def _step_chunk(items: Sequence[LazyTimestep]) -> StepChunk:
    first, resets = items[0], enumerate(bytes(item.reset_observation) for item in items)
    seqs, steps = [item.seq for item in items], [step_from_item(item) for item in items]
    return StepChunk(
        episode_id=first.episode_id,
        seqs=seqs,
        gaps=find_gaps(seqs),
        at=first.at,
        until=items[-1].at,
        steps=steps,
        size=steps_size(steps),
        resets={position: reset for position, reset in resets if reset not in _EMPTY_RESETS},
    )
