"""Live items put together: there may be tens of thousands in a second, in runs of one kind and of one episode each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from itertools import groupby
from operator import attrgetter
from typing import Final, Self, TypeAlias, TypeVar, cast

import msgspec

from agentgym_tui.store.state import Step
from agentgym_tui.store.steps import step_of
from agentgym_tui.store.told import heard_size
from runner.events.live_items import (
    BatchProgress,
    EnvHealth,
    EpisodeEnded,
    EpisodePaused,
    EpisodeResumed,
    EpisodeStarted,
    HeardItem,
    HeardSpan,
    HeardTimestep,
    Heartbeat,
    Host,
    ModelHealth,
    TokenText,
)
from runner.events.rows import LiveRow

_ItemT = TypeVar("_ItemT")
_ManyT = TypeVar("_ManyT", TokenText, HeardSpan, HeardTimestep)
_FAILURE: Final = attrgetter("failure")
_NULL: Final = b"null"


class _Together(msgspec.Struct, kw_only=True, tag_field="kind", gc=False):
    """Items of an episode.

    Attributes:
        seqs: their numbers; other fields have as many entries.
        at: when the first of them was said.
    """

    episode_id: str
    seqs: list[int]
    at: datetime


class TextRun(_Together, kw_only=True, tag="texts"):
    """More text of the answer for a step, and nothing else; ``until``: when the last of it was said."""

    until: datetime
    step: int
    texts: list[str]
    ns: list[int]
    ttft_s: float | None

    def only(self, places: Sequence[int]) -> Self:
        """Some of them."""
        return msgspec.structs.replace(
            self, seqs=_at(self.seqs, places), texts=_at(self.texts, places), ns=_at(self.ns, places)
        )


class PastRun(_Together, kw_only=True, tag="past"):
    """What was said of answers that another one came after in the same message."""

    def only(self, places: Sequence[int]) -> Self:
        """Some of them."""
        return msgspec.structs.replace(self, seqs=_at(self.seqs, places))


class SpanRun(_Together, kw_only=True, tag="spans"):
    """Spans as they came; ``size``: bytes they take, about."""

    spans: list[bytes]
    size: int

    def only(self, places: Sequence[int]) -> Self:
        """Some of them."""
        spans = _at(self.spans, places)
        return msgspec.structs.replace(self, seqs=_at(self.seqs, places), spans=spans, size=heard_size(spans))


class StepRun(_Together, kw_only=True, tag="steps"):
    """Rounds; ``until``: when the last was over, ``reset_observation``: JSON of what the reset gave, if one says so."""

    until: datetime
    steps: list[Step]
    reset_observation: bytes | None

    def only(self, places: Sequence[int]) -> Self:
        """Some of them."""
        return msgspec.structs.replace(self, seqs=_at(self.seqs, places), steps=_at(self.steps, places))


_One: TypeAlias = EpisodeStarted | EpisodePaused | EpisodeResumed | EpisodeEnded | TokenText
_State: TypeAlias = BatchProgress | EnvHealth | ModelHealth | Host | Heartbeat
EpisodeRun: TypeAlias = TextRun | PastRun | SpanRun | StepRun | _One
Run: TypeAlias = EpisodeRun | _State
TOGETHER: Final = (TextRun, PastRun, SpanRun, StepRun)


class Digest(msgspec.Struct, kw_only=True, gc=False):
    """A live message; of ``n_items`` items, ``n_malformed`` not counted, which did not decode."""

    node: str
    boot: str
    dropped: int
    n_items: int
    n_malformed: int
    runs: list[Run]


def digest_of(row: LiveRow) -> Digest:
    """What a live message says."""
    batch = row.batch
    runs = list(_runs(batch.items))
    n_items, n_malformed = len(batch.items), len(row.raw)
    return Digest(
        node=batch.node, boot=batch.boot, dropped=batch.dropped, n_items=n_items, n_malformed=n_malformed, runs=runs
    )


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
    """Of one episode: what is over, text that goes on in runs, each item with other news by itself."""
    newest = max([item.step for item in items])
    if past := [item.seq for item in items if item.step < newest]:
        yield PastRun(episode_id=items[0].episode_id, seqs=past, at=items[0].at)
        items = [item for item in items if item.step == newest]
    for is_text, alike in groupby(items, _only_more):
        if is_text:
            yield _text_run(list(alike))
        else:
            yield from alike


def _only_more(item: TokenText) -> bool:
    """Whether there is more text, and no other news, as in nearly all items there are."""
    told = item.restart or item.failure is not None or item.endpoint is not None
    return item.part == "text" and bool(item.text) and not told


def _text_run(items: Sequence[TokenText]) -> TextRun:
    first = items[0]
    return TextRun(
        episode_id=first.episode_id,
        seqs=[item.seq for item in items],
        at=first.at,
        until=items[-1].at,
        step=first.step,
        texts=[item.text for item in items],
        ns=[item.n for item in items],
        ttft_s=first.ttft_s,
    )


def _spans(items: Sequence[HeardSpan]) -> SpanRun:
    spans, first = [bytes(item.span) for item in items], items[0]
    seqs = [item.seq for item in items]
    return SpanRun(episode_id=first.episode_id, seqs=seqs, at=first.at, spans=spans, size=heard_size(spans))


def _steps(items: Sequence[HeardTimestep]) -> StepRun:
    first, resets = items[0], [bytes(item.reset_observation) for item in items]
    return StepRun(
        episode_id=first.episode_id,
        seqs=[item.seq for item in items],
        at=first.at,
        until=items[-1].at,
        steps=[step_of(item) for item in items],
        reset_observation=next((told for told in resets if told != _NULL), None),
    )


def _at(entries: Sequence[_ItemT], places: Iterable[int]) -> list[_ItemT]:
    return [entries[place] for place in places]
