"""What a live message says, put together for a store, and cut so that a screen is never kept waiting for long."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from itertools import groupby, islice
from operator import attrgetter, le
from typing import Final, TypeVar, cast

import msgspec

from agentgym_tui.state.episode_content import raw_spans_size
from agentgym_tui.state.item_batches import (
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
from runner.events.decoded import LiveRow
from runner.events.live import LazyItem, LazySpan, LazyTimestep, TokenText
from runner.subscribe.messages import SubscriptionItem
from runner.types import DeltaPart

PORTION_WORK: Final = 500
"""Rounds, other runs and other messages of a portion, about."""

_ManyT = TypeVar("_ManyT", TokenText, LazySpan, LazyTimestep)
_failure_of: Final = attrgetter("failure")
_EMPTY_RESETS: Final = (b"null", b"[]")


def coalesce_batch(row: LiveRow) -> DecodedBatch:
    """What a live message says."""
    batch = row.batch
    runs = list(_coalesce_items(batch.items))
    n_items, n_malformed = len(batch.items), len(row.raw)
    return DecodedBatch(
        node=batch.node, boot=batch.boot, dropped=batch.dropped, n_items=n_items, n_malformed=n_malformed, updates=runs
    )


def split_portions(came: Iterable[SubscriptionItem | DecodedBatch]) -> Iterator[list[SubscriptionItem | DecodedBatch]]:
    """The same in the same order, in parts each of which is taken in within some milliseconds."""
    together: list[SubscriptionItem | DecodedBatch] = []
    work = 0
    for each in came:
        for part in _split_batch(each) if isinstance(each, DecodedBatch) else (each,):
            together.append(part)
            work += sum(map(_work_of, part.updates)) if isinstance(part, DecodedBatch) else 1
            if work >= PORTION_WORK:
                yield together
                together, work = [], 0
    if together:
        yield together


def _split_batch(digest: DecodedBatch) -> Iterator[DecodedBatch]:
    first, work, last = 0, 0, len(digest.updates) - 1
    for place, run in enumerate(digest.updates):
        work += _work_of(run)
        if work >= PORTION_WORK and place < last:
            runs = digest.updates[first : place + 1]
            yield msgspec.structs.replace(digest, n_items=0, n_malformed=0, updates=runs)
            first, work = place + 1, 0
    yield msgspec.structs.replace(digest, updates=digest.updates[first:])


def _work_of(run: Update) -> int:
    return len(run.steps) if isinstance(run, StepChunk) else 1


def _coalesce_items(items: Iterable[LazyItem]) -> Iterator[Update]:
    """All items, those of each episode in their order."""
    for kind, alike in groupby(items, type):
        if kind is TokenText:
            for part in _split_at_failures(list(cast("Iterable[TokenText]", alike))):
                for told in _group_by_episode(part):
                    yield from _coalesce_answer(told)
        elif kind is LazySpan:
            yield from map(_span_chunk, _group_by_episode(cast("Iterable[LazySpan]", alike)))
        elif kind is LazyTimestep:
            yield from map(_step_chunk, _group_by_episode(cast("Iterable[LazyTimestep]", alike)))
        else:
            yield from cast("Iterable[Update]", alike)


def _split_at_failures(items: Sequence[TokenText]) -> Iterator[Sequence[TokenText]]:
    """Where an endpoint fails, what came before that in other episodes comes before it here as well."""
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
    found = defaultdict[str, list[_ManyT]](list)
    for item in items:
        found[item.episode_id].append(item)
    return found.values()


def _coalesce_answer(items: Sequence[TokenText]) -> Iterator[FinishedAnswers | AnswerChunk | TokenText]:
    """Of one episode: texts that are over, and who was asked; those that go on in runs, other news one by one."""
    steps = [item.step for item in items]
    newest = max(steps)
    orderly = True not in [item.restart for item in items] and all(map(le, steps, islice(steps, 1, None)))
    begins = dict(zip(reversed(steps), reversed(items), strict=True)) if orderly else {}
    past, all_past = list[TokenText](), True
    for item in items:
        is_over = _only_adds_text(item) and item.step < newest
        if is_over or (all_past and item is begins.get(item.step) and _only_starts_inference(item)):
            past.append(item)
        else:
            all_past = False
    if past:
        yield _finished_answers(past, items[0].at)
        known = {id(item) for item in past}
        items = [item for item in items if id(item) not in known]
    for part, alike in groupby(items, _chunk_key):
        if part is None:
            yield from alike
        else:
            yield answer_chunk(list(alike))


def _finished_answers(items: Sequence[TokenText], at: datetime) -> FinishedAnswers:
    asked = [
        InferenceStarted(place, item.step, item.endpoint, item.model)
        for place, item in enumerate(items)
        if item.endpoint is not None
    ]
    seqs = [item.seq for item in items]
    return FinishedAnswers(episode_id=items[0].episode_id, seqs=seqs, gaps=find_gaps(seqs), at=at, started=asked)


def _only_adds_text(item: TokenText) -> bool:
    """Whether there is more of an answer, and no other news, as in nearly all items there are."""
    told = item.restart or item.failure is not None or item.endpoint is not None
    return bool(item.text or item.tool) and not told


def _only_starts_inference(item: TokenText) -> bool:
    """Whether it says who is asked and nothing else, as an answer's first item does."""
    return item.endpoint is not None and not (item.restart or item.failure is not None or item.text or item.tool)


def _chunk_key(item: TokenText) -> tuple[int, DeltaPart, int] | None:
    """Of which step and part an item is more, None where it is not only that."""
    return (item.step, item.part, item.call) if _only_adds_text(item) else None


def answer_chunk(items: Sequence[TokenText]) -> AnswerChunk:
    """More of one part of an answer."""
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
        resets={place: told for place, told in resets if told not in _EMPTY_RESETS},
    )
