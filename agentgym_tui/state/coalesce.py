"""What a live message says, put together for a store, and cut so that a screen is never kept waiting for long."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from itertools import groupby, islice
from operator import attrgetter, le
from typing import Final, TypeVar, cast

import msgspec

from agentgym_tui.state.episode_content import heard_size
from agentgym_tui.state.item_batches import Asked, Digest, PastRun, Run, SpanRun, StepRun, TextRun, gaps_in
from agentgym_tui.state.steps import step_of, steps_size
from runner.events.decoded import LiveRow
from runner.events.live import HeardItem, HeardSpan, HeardTimestep, TokenText
from runner.subscribe.messages import Seen
from runner.types import Part

WORK: Final = 500
"""Rounds, other runs and other messages of a portion, about."""

_ManyT = TypeVar("_ManyT", TokenText, HeardSpan, HeardTimestep)
_FAILURE: Final = attrgetter("failure")
_NOTHING: Final = (b"null", b"[]")


def digest_of(row: LiveRow) -> Digest:
    """What a live message says."""
    batch = row.batch
    runs = list(_runs(batch.items))
    n_items, n_malformed = len(batch.items), len(row.raw)
    return Digest(
        node=batch.node, boot=batch.boot, dropped=batch.dropped, n_items=n_items, n_malformed=n_malformed, runs=runs
    )


def portions(came: Iterable[Seen | Digest]) -> Iterator[list[Seen | Digest]]:
    """The same in the same order, in parts each of which is taken in within some milliseconds."""
    together: list[Seen | Digest] = []
    work = 0
    for each in came:
        for part in _parts(each) if isinstance(each, Digest) else (each,):
            together.append(part)
            work += sum(map(_work, part.runs)) if isinstance(part, Digest) else 1
            if work >= WORK:
                yield together
                together, work = [], 0
    if together:
        yield together


def _parts(digest: Digest) -> Iterator[Digest]:
    first, work, last = 0, 0, len(digest.runs) - 1
    for place, run in enumerate(digest.runs):
        work += _work(run)
        if work >= WORK and place < last:
            runs = digest.runs[first : place + 1]
            yield msgspec.structs.replace(digest, n_items=0, n_malformed=0, runs=runs)
            first, work = place + 1, 0
    yield msgspec.structs.replace(digest, runs=digest.runs[first:])


def _work(run: Run) -> int:
    return len(run.steps) if isinstance(run, StepRun) else 1


def _runs(items: Iterable[HeardItem]) -> Iterator[Run]:
    """All items, those of each episode in their order."""
    for kind, alike in groupby(items, type):
        if kind is TokenText:
            for part in _between_failures(list(cast("Iterable[TokenText]", alike))):
                for told in _by_episode(part):
                    yield from _texts(told)
        elif kind is HeardSpan:
            yield from map(_spans, _by_episode(cast("Iterable[HeardSpan]", alike)))
        elif kind is HeardTimestep:
            yield from map(_steps, _by_episode(cast("Iterable[HeardTimestep]", alike)))
        else:
            yield from cast("Iterable[Run]", alike)


def _between_failures(items: Sequence[TokenText]) -> Iterator[Sequence[TokenText]]:
    """Where an endpoint fails, what came before that in other episodes comes before it here as well."""
    if set(map(_FAILURE, items)) == {None}:
        yield items
        return
    for failed, part in groupby(items, lambda item: item.failure is not None):
        if failed:
            for item in part:
                yield (item,)
        else:
            yield list(part)


def _by_episode(items: Iterable[_ManyT]) -> Iterable[list[_ManyT]]:
    found = defaultdict[str, list[_ManyT]](list)
    for item in items:
        found[item.episode_id].append(item)
    return found.values()


def _texts(items: Sequence[TokenText]) -> Iterator[PastRun | TextRun | TokenText]:
    """Of one episode: texts that are over, and who was asked; those that go on in runs, other news one by one."""
    steps = [item.step for item in items]
    newest = max(steps)
    orderly = True not in [item.restart for item in items] and all(map(le, steps, islice(steps, 1, None)))
    begins = dict(zip(reversed(steps), reversed(items), strict=True)) if orderly else {}
    past, all_past = list[TokenText](), True
    for item in items:
        is_over = _only_more(item) and item.step < newest
        if is_over or (all_past and item is begins.get(item.step) and _only_asks(item)):
            past.append(item)
        else:
            all_past = False
    if past:
        yield _past(past, items[0].at)
        known = {id(item) for item in past}
        items = [item for item in items if id(item) not in known]
    for part, alike in groupby(items, _part):
        if part is None:
            yield from alike
        else:
            yield text_run(list(alike))


def _past(items: Sequence[TokenText], at: datetime) -> PastRun:
    asked = [
        Asked(place, item.step, item.endpoint, item.model)
        for place, item in enumerate(items)
        if item.endpoint is not None
    ]
    seqs = [item.seq for item in items]
    return PastRun(episode_id=items[0].episode_id, seqs=seqs, gaps=gaps_in(seqs), at=at, asked=asked)


def _only_more(item: TokenText) -> bool:
    """Whether there is more of an answer, and no other news, as in nearly all items there are."""
    told = item.restart or item.failure is not None or item.endpoint is not None
    return bool(item.text or item.tool) and not told


def _only_asks(item: TokenText) -> bool:
    """Whether it says who is asked and nothing else, as an answer's first item does."""
    return item.endpoint is not None and not (item.restart or item.failure is not None or item.text or item.tool)


def _part(item: TokenText) -> tuple[int, Part, int] | None:
    """Of which step and part an item is more, None where it is not only that."""
    return (item.step, item.part, item.call) if _only_more(item) else None


def text_run(items: Sequence[TokenText]) -> TextRun:
    """More of one part of an answer."""
    first, seqs = items[0], [item.seq for item in items]
    return TextRun(
        episode_id=first.episode_id,
        seqs=seqs,
        gaps=gaps_in(seqs),
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


def _spans(items: Sequence[HeardSpan]) -> SpanRun:
    spans, first = [bytes(item.span) for item in items], items[0]
    seqs, size = [item.seq for item in items], heard_size(spans)
    return SpanRun(episode_id=first.episode_id, seqs=seqs, gaps=gaps_in(seqs), at=first.at, spans=spans, size=size)


def _steps(items: Sequence[HeardTimestep]) -> StepRun:
    first, resets = items[0], enumerate(bytes(item.reset_observation) for item in items)
    seqs, steps = [item.seq for item in items], [step_of(item) for item in items]
    return StepRun(
        episode_id=first.episode_id,
        seqs=seqs,
        gaps=gaps_in(seqs),
        at=first.at,
        until=items[-1].at,
        steps=steps,
        size=steps_size(steps),
        resets={place: told for place, told in resets if told not in _NOTHING},
    )
