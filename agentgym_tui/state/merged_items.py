"""Updates: the items of live messages, merged into chunks of one kind and one episode.

A node may send tens of thousands of items per second. Items that occur often are merged into ``AnswerChunk``,
``FinishedAnswers``, ``SpanChunk`` and ``StepChunk``; the others are updates of their own. ``DecodedBatch`` holds the
updates of one live message.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from itertools import islice
from operator import lt
from typing import Final, NamedTuple, Self, TypeAlias, TypeVar

import msgspec

from agentgym_tui.state.data_model import StepState
from agentgym_tui.state.episode_content import raw_spans_size
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
"""Largest range of sequence numbers, as a multiple of their count, whose gaps are listed."""

_ItemT = TypeVar("_ItemT")


class _Chunk(msgspec.Struct, kw_only=True, tag_field="kind", gc=False):
    """Merged items of one episode.

    Attributes:
        seqs: their sequence numbers; lists with a value per item have the same length.
        gaps: missing numbers in between; None where the numbers are sparse or do not ascend, or gaps are not known.
        at: time of the first item.
    """

    episode_id: str
    seqs: list[int]
    gaps: list[int] | None
    at: datetime


class AnswerChunk(_Chunk, kw_only=True, tag="texts"):
    """Text that extends one part of the answer for a step.

    Attributes:
        until: time of the last item.
        part: the part of the answer; of a tool call, ``call`` is its number and ``tool`` its name, if an item has it.
        texts: the text of each item.
        ns: the number of tokens of each item; 0 where it is not known.
    """

    until: datetime
    step: int
    part: DeltaPart
    call: int
    tool: str
    texts: list[str]
    ns: list[int]
    ttft_s: float | None

    def select(self, positions: Sequence[int]) -> Self:
        """Return a chunk of the items at some positions."""
        return msgspec.structs.replace(
            self,
            seqs=_pick(self.seqs, positions),
            gaps=None,
            texts=_pick(self.texts, positions),
            ns=_pick(self.ns, positions),
        )


class InferenceStarted(NamedTuple):
    """An endpoint starts to answer a step; ``position`` is that of the item in ``seqs``."""

    position: int
    step: int
    endpoint: str
    model: str | None


class FinishedAnswers(_Chunk, kw_only=True, tag="past"):
    """Items of answers that are followed by a later answer in the same message.

    Attributes:
        started: the endpoints used, by step. The endpoint of the newest answer may be among them, or be all there is.
    """

    started: list[InferenceStarted]

    def select(self, positions: Sequence[int]) -> Self:
        """Return a chunk of the items at some positions."""
        by_position = {start.position: start for start in self.started}
        started = [by_position[old]._replace(position=new) for new, old in enumerate(positions) if old in by_position]
        return msgspec.structs.replace(self, seqs=_pick(self.seqs, positions), gaps=None, started=started)


class SpanChunk(_Chunk, kw_only=True, tag="spans"):
    """Spans as JSON; ``size`` is their approximate memory in bytes."""

    spans: list[bytes]
    size: int

    def select(self, positions: Sequence[int]) -> Self:
        """Return a chunk of the items at some positions."""
        spans = _pick(self.spans, positions)
        return msgspec.structs.replace(
            self, seqs=_pick(self.seqs, positions), gaps=None, spans=spans, size=raw_spans_size(spans)
        )


class StepChunk(_Chunk, kw_only=True, tag="steps"):
    """Steps.

    Attributes:
        until: time of the last step.
        size: approximate memory of the steps in bytes.
        resets: JSON of the reset observation, by position of the item that carries it.
    """

    until: datetime
    steps: list[StepState]
    size: int
    resets: dict[int, bytes]

    def select(self, positions: Sequence[int]) -> Self:
        """Return a chunk of the items at some positions."""
        resets = {new: self.resets[old] for new, old in enumerate(positions) if old in self.resets}
        seqs, steps = _pick(self.seqs, positions), _pick(self.steps, positions)
        return msgspec.structs.replace(self, seqs=seqs, gaps=None, steps=steps, size=steps_size(steps), resets=resets)


_SingleEpisodeItem: TypeAlias = EpisodeStarted | EpisodePaused | EpisodeResumed | EpisodeEnded | TokenText
_StateItem: TypeAlias = BatchProgress | EnvHealth | ModelHealth | Host | Heartbeat
EpisodeUpdate: TypeAlias = AnswerChunk | FinishedAnswers | SpanChunk | StepChunk | _SingleEpisodeItem
Update: TypeAlias = EpisodeUpdate | _StateItem
CHUNK_TYPES: Final = (AnswerChunk, FinishedAnswers, SpanChunk, StepChunk)


class DecodedBatch(msgspec.Struct, kw_only=True, gc=False):
    """A live message as updates; ``n_items`` counts its items without the ``n_malformed`` ones that did not decode."""

    node: str
    boot: str
    dropped: int
    n_items: int
    n_malformed: int
    updates: list[Update]


def find_gaps(seqs: Sequence[int]) -> list[int] | None:
    """Return the numbers missing between the first and the last; None where they are sparse or do not ascend."""
    first, end = seqs[0], seqs[-1] + 1
    if end - first > MAX_GAP_RATIO * len(seqs) or not is_ascending(seqs):
        return None
    return sorted({*range(first, end)}.difference(seqs)) if end - first > len(seqs) else []


def is_ascending(numbers: Sequence[int]) -> bool:
    """Return whether each number is larger than the one before."""
    return all(map(lt, numbers, islice(numbers, 1, None)))


def _pick(entries: Sequence[_ItemT], positions: Iterable[int]) -> list[_ItemT]:
    return [entries[position] for position in positions]
