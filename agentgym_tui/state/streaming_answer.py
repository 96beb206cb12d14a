"""Extends the streaming answer for the current step of an episode by live items."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Final, NamedTuple

from msgspec.structs import replace

from agentgym_tui.state.data_model import StreamingAnswer, StreamingToolCall
from agentgym_tui.state.normalize import MAX_CAUSE_CHARS, MAX_COUNT, as_aware, clamp_count, clip_name, clip_optional
from runner.events.live import TokenText
from runner.types import DeltaPart

MAX_STREAMED_CHARS: Final = 64 * 1024
"""Number of characters kept at the end of an answer's text, and at the end of its reasoning."""

MAX_ARGUMENT_CHARS: Final = 8 * 1024
"""Number of characters kept at the end of the arguments of each tool call."""

MAX_CALLS: Final = 16
MAX_FAILURES: Final = 20
_CHARS_PER_TOKEN: Final = 4
"""Assumed number of characters per token in items without a token count."""


class _AnswerTexts(NamedTuple):
    """Text, reasoning and tool calls of an answer, with the numbers of characters that are not kept."""

    text: str
    reasoning: str
    calls: tuple[StreamingToolCall, ...]
    n_text_dropped: int
    n_reasoning_dropped: int


def answer_parts(items: Sequence[TokenText]) -> Iterator[Sequence[TokenText]]:
    """Split items of one episode into sequences that ``update_answer`` can apply.

    Successive texts of the same part of the newest answer are one sequence, each item without such a text is one.
    Texts of earlier answers are left out, because the newest answer replaces them.
    """
    newest = max([item.step for item in items])
    keyed = [
        (None, item)
        if item.endpoint is not None or item.failure is not None or item.restart or not (item.text or item.tool)
        else ((item.part, item.call), item)
        for item in items
    ]
    for key, alike in groupby(keyed, itemgetter(0)):
        if key is None:
            yield from ([item] for _, item in alike)
        elif texts := [item for _, item in alike if item.step == newest]:
            yield texts


def update_answer(before: StreamingAnswer | None, items: Sequence[TokenText]) -> StreamingAnswer:
    """Return the streaming answer that results from items.

    Args:
        before: the answer before the items; None if there is none.
        items: an item, or several texts of the same part of an answer. Items of a later step start a new answer; items
            of an earlier step are ignored.
    """
    first = items[0]
    if before is not None and before.step > first.step:
        return before
    answer = before if before is not None and before.step == first.step else StreamingAnswer(step=first.step)
    if first.restart:
        answer = StreamingAnswer(step=first.step, failures=answer.failures)
    if first.failure is not None:
        failures = [*answer.failures, first.failure[:MAX_CAUSE_CHARS]]
        answer = replace(answer, failures=tuple(failures[-MAX_FAILURES:]), endpoint=None, model=None)
    if first.endpoint is not None:
        answer = replace(answer, endpoint=clip_name(first.endpoint), model=clip_optional(first.model))
    return _append(answer, items) if first.text or first.tool else answer


def _append(before: StreamingAnswer, items: Sequence[TokenText]) -> StreamingAnswer:
    # several times faster than ``replace``
    first, is_first = items[0], before.first_at is None
    tool = next((item.tool for item in items if item.tool), "")
    texts = _append_text(before, first.part, first.call, tool, "".join([item.text for item in items]))
    return StreamingAnswer(
        step=before.step,
        text=texts.text,
        reasoning=texts.reasoning,
        calls=texts.calls,
        n_text_dropped=texts.n_text_dropped,
        n_reasoning_dropped=texts.n_reasoning_dropped,
        endpoint=before.endpoint,
        model=before.model,
        failures=before.failures,
        n_tokens=clamp_count(before.n_tokens + _count_tokens(items)),
        n_first_tokens=_count_tokens(items[:1]) if is_first else before.n_first_tokens,
        ttft_s=first.ttft_s if is_first else before.ttft_s,
        first_at=as_aware(first.at) if is_first else before.first_at,
        newest_at=as_aware(items[-1].at),
    )


def _count_tokens(items: Sequence[TokenText]) -> int:
    ns = [item.n for item in items]
    if min(ns) > 0 and max(ns) < MAX_COUNT:  # by far the most frequent
        return sum(ns)
    return sum([clamp_count(item.n) or 1 + len(item.text) // _CHARS_PER_TOKEN for item in items])


def _append_text(before: StreamingAnswer, part: DeltaPart, call: int, tool: str, text: str) -> _AnswerTexts:
    answer, reasoning, calls = before.text, before.reasoning, before.calls
    n_text, n_reasoning = before.n_text_dropped, before.n_reasoning_dropped
    match part:
        case "text":
            answer, n_text = _keep_newest(answer + text, MAX_STREAMED_CHARS, n_text)
        case "reasoning":
            reasoning, n_reasoning = _keep_newest(reasoning + text, MAX_STREAMED_CHARS, n_reasoning)
        case "call":
            calls = _append_call(calls, call, tool, text)
    return _AnswerTexts(answer, reasoning, calls, n_text, n_reasoning)


def _keep_newest(text: str, limit: int, n_dropped: int) -> tuple[str, int]:
    return text[-limit:], clamp_count(n_dropped + max(len(text) - limit, 0))


def _append_call(
    before: tuple[StreamingToolCall, ...], number: int, tool: str, text: str
) -> tuple[StreamingToolCall, ...]:
    calls = {call.number: call for call in before}
    known = calls.get(number, StreamingToolCall(number))
    if number in calls or len(calls) < MAX_CALLS:
        arguments, n_dropped = _keep_newest(known.arguments + text, MAX_ARGUMENT_CHARS, known.n_dropped)
        calls[number] = replace(known, tool=known.tool or clip_name(tool), arguments=arguments, n_dropped=n_dropped)
    return tuple(calls.values())
