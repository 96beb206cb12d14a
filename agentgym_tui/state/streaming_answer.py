"""Extends the streaming answer for the current step of an episode by live items."""

from __future__ import annotations

from typing import Final, NamedTuple

from msgspec.structs import replace

from agentgym_tui.state.coalesce import answer_chunk
from agentgym_tui.state.data_model import StreamingAnswer, StreamingToolCall
from agentgym_tui.state.merged_items import AnswerChunk, InferenceStarted
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


def update_answer(
    before: StreamingAnswer | None, update: InferenceStarted | AnswerChunk | TokenText
) -> StreamingAnswer:
    """Return the streaming answer that results from an update.

    Args:
        before: the answer before the update; None if there is none.
        update: the update. An update of a later step starts a new answer; an update of an earlier step is ignored.
    """
    if before is not None and before.step > update.step:
        return before
    answer = before if before is not None and before.step == update.step else StreamingAnswer(step=update.step)
    match update:
        case AnswerChunk():
            return _append_chunk(answer, update)
        case InferenceStarted():
            return _set_endpoint(answer, update.endpoint, update.model)
        case _:
            return _apply_token_item(answer, update)


def _append_chunk(before: StreamingAnswer, chunk: AnswerChunk) -> StreamingAnswer:
    # several times faster than ``replace``
    is_first = before.first_at is None
    texts = _append_text(before, chunk.part, chunk.call, chunk.tool, "".join(chunk.texts))
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
        n_tokens=clamp_count(before.n_tokens + _count_tokens(chunk)),
        n_first_tokens=_count_item_tokens(chunk.ns[0], chunk.texts[0]) if is_first else before.n_first_tokens,
        ttft_s=chunk.ttft_s if is_first else before.ttft_s,
        first_at=as_aware(chunk.at) if is_first else before.first_at,
        newest_at=as_aware(chunk.until),
    )


def _apply_token_item(before: StreamingAnswer, item: TokenText) -> StreamingAnswer:
    if item.restart:
        before = StreamingAnswer(step=item.step, failures=before.failures)
    if item.failure is not None:
        failures = [*before.failures, item.failure[:MAX_CAUSE_CHARS]]
        before = replace(before, failures=tuple(failures[-MAX_FAILURES:]), endpoint=None, model=None)
    if item.endpoint is not None:
        before = _set_endpoint(before, item.endpoint, item.model)
    return _append_chunk(before, answer_chunk([item])) if item.text or item.tool else before


def _set_endpoint(before: StreamingAnswer, endpoint: str, model: str | None) -> StreamingAnswer:
    return replace(before, endpoint=clip_name(endpoint), model=clip_optional(model))


def _count_tokens(chunk: AnswerChunk) -> int:
    if min(chunk.ns) > 0 and max(chunk.ns) < MAX_COUNT:
        return sum(chunk.ns)
    return sum(map(_count_item_tokens, chunk.ns, chunk.texts))


def _count_item_tokens(n_tokens: int, text: str) -> int:
    return clamp_count(n_tokens) or 1 + len(text) // _CHARS_PER_TOKEN


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
