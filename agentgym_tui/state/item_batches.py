"""Live items put together: there may be tens of thousands in a second, in runs of one kind and of one episode each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from itertools import islice
from operator import lt
from typing import Final, NamedTuple, Self, TypeAlias, TypeVar

import msgspec

from agentgym_tui.state.episode_content import raw_spans_size
from agentgym_tui.state.models import StepState
from agentgym_tui.state.steps import steps_size
from runner.events.live import (
    BatchProgress,
    EnvHealth,
    EpisodeEnded,
    EpisodePaused,
    EpisodeResumed,
    EpisodeStarted,
    Heartbeat,
    Host,
    ModelHealth,
    TokenText,
)
from runner.types import DeltaPart

MAX_GAP_RATIO: Final = 32
"""How many times as many numbers there may be from the first to the last; of sparser ones no gaps are made."""

_ItemT = TypeVar("_ItemT")


class _Chunk(msgspec.Struct, kw_only=True, tag_field="kind", gc=False):
    """Items of an episode.

    Attributes:
        seqs: their numbers; what is told of each item has as many entries.
        gaps: numbers in between that others have; None where these do not rise, are sparse, or nobody looked.
        at: when the first of them was said.
    """

    episode_id: str
    seqs: list[int]
    gaps: list[int] | None
    at: datetime


class AnswerChunk(_Chunk, kw_only=True, tag="texts"):
    """More of one part of the answer for a step, and nothing else.

    Attributes:
        until: when the last of it was said.
        part: what it belongs to; of a tool call, ``call`` is its number and ``tool`` its name, if it is said here.
    """

    until: datetime
    step: int
    part: DeltaPart
    call: int
    tool: str
    texts: list[str]
    ns: list[int]
    ttft_s: float | None

    def select(self, places: Sequence[int]) -> Self:
        """Some of them."""
        return msgspec.structs.replace(
            self, seqs=_pick(self.seqs, places), gaps=None, texts=_pick(self.texts, places), ns=_pick(self.ns, places)
        )


class InferenceStarted(NamedTuple):
    """An endpoint that is asked for the answer of a step; ``place``: where in ``seqs`` the item is that says so."""

    position: int
    step: int
    endpoint: str
    model: str | None


class FinishedAnswers(_Chunk, kw_only=True, tag="past"):
    """Texts of answers that another one came after in the same message, and who was ``asked``, steps in their order.

    Who is asked for the newest answer may be among these, and may be all there is.
    """

    started: list[InferenceStarted]

    def select(self, places: Sequence[int]) -> Self:
        """Some of them."""
        by_place = {asked.position: asked for asked in self.started}
        kept = [by_place[old]._replace(position=new) for new, old in enumerate(places) if old in by_place]
        return msgspec.structs.replace(self, seqs=_pick(self.seqs, places), gaps=None, started=kept)


class SpanChunk(_Chunk, kw_only=True, tag="spans"):
    """Spans as they came; ``size``: bytes they take, about."""

    spans: list[bytes]
    size: int

    def select(self, places: Sequence[int]) -> Self:
        """Some of them."""
        spans = _pick(self.spans, places)
        return msgspec.structs.replace(
            self, seqs=_pick(self.seqs, places), gaps=None, spans=spans, size=raw_spans_size(spans)
        )


class StepChunk(_Chunk, kw_only=True, tag="steps"):
    """Rounds.

    Attributes:
        until: when the last was over.
        size: bytes the steps take, about.
        resets: JSON of what the reset gave, by place of who says so.
    """

    until: datetime
    steps: list[StepState]
    size: int
    resets: dict[int, bytes]

    def select(self, places: Sequence[int]) -> Self:
        """Some of them."""
        resets = {new: self.resets[old] for new, old in enumerate(places) if old in self.resets}
        seqs, steps = _pick(self.seqs, places), _pick(self.steps, places)
        return msgspec.structs.replace(self, seqs=seqs, gaps=None, steps=steps, size=steps_size(steps), resets=resets)


_SingleEpisodeItem: TypeAlias = EpisodeStarted | EpisodePaused | EpisodeResumed | EpisodeEnded | TokenText
_StateItem: TypeAlias = BatchProgress | EnvHealth | ModelHealth | Host | Heartbeat
EpisodeUpdate: TypeAlias = AnswerChunk | FinishedAnswers | SpanChunk | StepChunk | _SingleEpisodeItem
Update: TypeAlias = EpisodeUpdate | _StateItem
CHUNK_TYPES: Final = (AnswerChunk, FinishedAnswers, SpanChunk, StepChunk)


class DecodedBatch(msgspec.Struct, kw_only=True, gc=False):
    """A live message; of ``n_items`` items, ``n_malformed`` not counted, which did not decode."""

    node: str
    boot: str
    dropped: int
    n_items: int
    n_malformed: int
    updates: list[Update]


def find_gaps(seqs: Sequence[int]) -> list[int] | None:
    """Numbers between the first and the last, None where these are sparse or do not rise."""
    first, end = seqs[0], seqs[-1] + 1
    if end - first > MAX_GAP_RATIO * len(seqs) or not is_ascending(seqs):
        return None
    return sorted({*range(first, end)}.difference(seqs)) if end - first > len(seqs) else []


def is_ascending(numbers: Sequence[int]) -> bool:
    """Whether each is larger than the one before."""
    return all(map(lt, numbers, islice(numbers, 1, None)))


def _pick(entries: Sequence[_ItemT], places: Iterable[int]) -> list[_ItemT]:
    return [entries[place] for place in places]
