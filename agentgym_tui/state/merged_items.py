"""Updates: items of live messages, merged into chunks where possible.

A node may send tens of thousands of items per second. Frequent items of one kind and one episode are merged into an
``AnswerChunk``, ``FinishedAnswers``, ``SpanChunk`` or ``StepChunk``. Every other item is an update by itself.
``DecodedBatch`` holds the updates of one live message.
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
from runner.events.live import EnvHealth, EpisodeEnded, EpisodeStarted, Heartbeat, Host, ModelHealth, TokenText
from runner.types import BatchProgress, DeltaPart, EpisodePaused, EpisodeResumed, WorkerState

MAX_GAP_RATIO: Final = 32
"""Largest length of a range of sequence numbers, as a multiple of the numbers received, whose gaps are listed."""

_ItemT = TypeVar("_ItemT")


class _Chunk(msgspec.Struct, kw_only=True, tag_field="kind", gc=False):
    """Merged items of one episode.

    Attributes:
        seqs: sequence numbers of the items; each list with one value per item has the same length as ``seqs``.
        gaps: numbers missing between the first and the last of ``seqs``; None if they are not known, as for sparse
            numbers and numbers that do not ascend.
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
        part: extended part of the answer: its text, its reasoning or a tool call.
        call: number of the tool call in the answer; used only where ``part`` is a tool call.
        tool: name of the called tool; "" where no item carries the name.
        texts: text of each item.
        ns: number of tokens of each item; 0 if the number is not known.
        ttft_s: seconds from the request to the first token; None if it is not known.
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
        """Return a chunk with only the items at ``positions``."""
        return msgspec.structs.replace(
            self,
            seqs=_pick(self.seqs, positions),
            gaps=None,
            texts=_pick(self.texts, positions),
            ns=_pick(self.ns, positions),
        )


class InferenceStarted(NamedTuple):
    """An endpoint starts to answer a step.

    Attributes:
        position: position of the item in ``FinishedAnswers.seqs``.
        step: index of the step.
        endpoint: name of the endpoint.
        model: name of the model; None if it is not known.
    """

    position: int
    step: int
    endpoint: str
    model: str | None


class FinishedAnswers(_Chunk, kw_only=True, tag="finished"):
    """Items of finished answers, which are answers that a later answer follows in the same message.

    Attributes:
        started: endpoints that started to answer, in the order of the items. The start of the newest, unfinished answer
            may be included, and may be the only one.
    """

    started: list[InferenceStarted]

    def select(self, positions: Sequence[int]) -> Self:
        """Return a chunk with only the items at ``positions``."""
        by_position = {start.position: start for start in self.started}
        started = [by_position[old]._replace(position=new) for new, old in enumerate(positions) if old in by_position]
        return msgspec.structs.replace(self, seqs=_pick(self.seqs, positions), gaps=None, started=started)


class SpanChunk(_Chunk, kw_only=True, tag="spans"):
    """Spans of an episode.

    Attributes:
        spans: each span as JSON.
        size: approximate memory of the spans in bytes.
    """

    spans: list[bytes]
    size: int

    def select(self, positions: Sequence[int]) -> Self:
        """Return a chunk with only the items at ``positions``."""
        spans = _pick(self.spans, positions)
        return msgspec.structs.replace(
            self, seqs=_pick(self.seqs, positions), gaps=None, spans=spans, size=raw_spans_size(spans)
        )


class StepChunk(_Chunk, kw_only=True, tag="steps"):
    """Steps of an episode.

    Attributes:
        until: time of the last item.
        steps: step of each item.
        size: approximate memory of the steps in bytes.
        resets: reset observations as JSON, by position of the item that carries the observation.
    """

    until: datetime
    steps: list[StepState]
    size: int
    resets: dict[int, bytes]

    def select(self, positions: Sequence[int]) -> Self:
        """Return a chunk with only the items at ``positions``."""
        resets = {new: self.resets[old] for new, old in enumerate(positions) if old in self.resets}
        seqs, steps = _pick(self.seqs, positions), _pick(self.steps, positions)
        return msgspec.structs.replace(self, seqs=seqs, gaps=None, steps=steps, size=steps_size(steps), resets=resets)


_SingleEpisodeItem: TypeAlias = EpisodeStarted | EpisodePaused | EpisodeResumed | EpisodeEnded | TokenText
_StateItem: TypeAlias = BatchProgress | WorkerState | EnvHealth | ModelHealth | Host | Heartbeat
EpisodeUpdate: TypeAlias = AnswerChunk | FinishedAnswers | SpanChunk | StepChunk | _SingleEpisodeItem
Update: TypeAlias = EpisodeUpdate | _StateItem
CHUNK_TYPES: Final = (AnswerChunk, FinishedAnswers, SpanChunk, StepChunk)


class DecodedBatch(msgspec.Struct, kw_only=True, gc=False):
    """The updates of one live message.

    Attributes:
        node: name of the node that sent the message.
        boot: id of the node process that sent the message.
        dropped: number of live items that the process never sent.
        n_items: number of items in the message that were decoded.
        n_malformed: number of items in the message that could not be decoded.
        updates: the decoded items, merged where possible.
    """

    node: str
    boot: str
    dropped: int
    n_items: int
    n_malformed: int
    updates: list[Update]


def find_gaps(seqs: Sequence[int]) -> list[int] | None:
    """Return the numbers missing between the first and the last of ``seqs``; None for sparse or unsorted numbers."""
    first, end = seqs[0], seqs[-1] + 1
    if end - first == len(seqs) and seqs == [*range(first, end)]:
        return []
    if end - first > MAX_GAP_RATIO * len(seqs) or not is_ascending(seqs):
        return None
    return sorted({*range(first, end)}.difference(seqs))


def is_ascending(numbers: Sequence[int]) -> bool:
    """Return whether each number is larger than its predecessor."""
    return all(map(lt, numbers, islice(numbers, 1, None)))


def _pick(entries: Sequence[_ItemT], positions: Iterable[int]) -> list[_ItemT]:
    return [entries[position] for position in positions]
