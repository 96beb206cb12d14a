"""An answer while it comes, put together from live items."""

from __future__ import annotations

from typing import Final, NamedTuple

from msgspec.structs import replace

from agentgym_tui.state.coalesce import answer_chunk
from agentgym_tui.state.item_batches import AnswerChunk, InferenceStarted
from agentgym_tui.state.limits import MAX_CAUSE_CHARS, MAX_COUNT, clamp_count, clip_name, clip_optional
from agentgym_tui.state.models import StreamingAnswer, StreamingToolCall
from agentgym_tui.state.timestamps import as_aware
from runner.events.live import TokenText
from runner.types import DeltaPart

MAX_STREAMED_CHARS: Final = 64 * 1024
"""Characters of a step's streamed text that are kept, and of its thoughts: the newest."""

MAX_ARGUMENT_CHARS: Final = 8 * 1024
"""The same of the arguments of each tool call."""

MAX_CALLS: Final = 16
MAX_FAILURES: Final = 20
_CHARS_PER_TOKEN: Final = 4
"""Characters of a token, about, where nobody counts them."""


class _AnswerTexts(NamedTuple):
    """The parts of an answer."""

    text: str
    reasoning: str
    calls: tuple[StreamingToolCall, ...]
    n_text_dropped: int
    n_reasoning_dropped: int


def update_answer(before: StreamingAnswer | None, told: InferenceStarted | AnswerChunk | TokenText) -> StreamingAnswer:
    """The answer with what is told of it; one for a later step begins anew, and no earlier one is kept."""
    if before is not None and before.step > told.step:
        return before
    answer = before if before is not None and before.step == told.step else StreamingAnswer(step=told.step)
    match told:
        case AnswerChunk():
            return _append_chunk(answer, told)
        case InferenceStarted():
            return _set_endpoint(answer, told.endpoint, told.model)
        case _:
            return _apply_token_item(answer, told)


def _append_chunk(before: StreamingAnswer, run: AnswerChunk) -> StreamingAnswer:
    """As ``replace``, which takes several times as long."""
    begins, said = before.first_at is None, _append_text(before, run.part, run.call, run.tool, "".join(run.texts))
    return StreamingAnswer(
        step=before.step,
        text=said.text,
        reasoning=said.reasoning,
        calls=said.calls,
        n_text_dropped=said.n_text_dropped,
        n_reasoning_dropped=said.n_reasoning_dropped,
        endpoint=before.endpoint,
        model=before.model,
        failures=before.failures,
        n_tokens=clamp_count(before.n_tokens + _count_tokens(run)),
        n_first_tokens=_count_item_tokens(run.ns[0], run.texts[0]) if begins else before.n_first_tokens,
        ttft_s=run.ttft_s if begins else before.ttft_s,
        first_at=as_aware(run.at) if begins else before.first_at,
        newest_at=as_aware(run.until),
    )


def _apply_token_item(before: StreamingAnswer, item: TokenText) -> StreamingAnswer:
    if item.restart:
        before = StreamingAnswer(step=item.step, failures=before.failures)
    if item.failure is not None:
        known = [*before.failures, item.failure[:MAX_CAUSE_CHARS]]
        before = replace(before, failures=tuple(known[-MAX_FAILURES:]), endpoint=None, model=None)
    if item.endpoint is not None:
        before = _set_endpoint(before, item.endpoint, item.model)
    return _append_chunk(before, answer_chunk([item])) if item.text or item.tool else before


def _set_endpoint(before: StreamingAnswer, endpoint: str, model: str | None) -> StreamingAnswer:
    return replace(before, endpoint=clip_name(endpoint), model=clip_optional(model))


def _count_tokens(run: AnswerChunk) -> int:
    if min(run.ns) > 0 and max(run.ns) < MAX_COUNT:
        return sum(run.ns)
    return sum(map(_count_item_tokens, run.ns, run.texts))


def _count_item_tokens(told: int, text: str) -> int:
    return clamp_count(told) or 1 + len(text) // _CHARS_PER_TOKEN


def _append_text(before: StreamingAnswer, part: DeltaPart, call: int, tool: str, text: str) -> _AnswerTexts:
    said, reasoning, calls = before.text, before.reasoning, before.calls
    n_text, n_reasoning = before.n_text_dropped, before.n_reasoning_dropped
    match part:
        case "text":
            said, n_text = _keep_newest(said + text, MAX_STREAMED_CHARS, n_text)
        case "reasoning":
            reasoning, n_reasoning = _keep_newest(reasoning + text, MAX_STREAMED_CHARS, n_reasoning)
        case "call":
            calls = _append_call(calls, call, tool, text)
    return _AnswerTexts(said, reasoning, calls, n_text, n_reasoning)


def _keep_newest(text: str, limit: int, n_gone: int) -> tuple[str, int]:
    """What is kept of a text, and how many characters are not."""
    return text[-limit:], clamp_count(n_gone + max(len(text) - limit, 0))


def _append_call(
    before: tuple[StreamingToolCall, ...], number: int, tool: str, text: str
) -> tuple[StreamingToolCall, ...]:
    calls = {call.number: call for call in before}
    known = calls.get(number, StreamingToolCall(number))
    if number in calls or len(calls) < MAX_CALLS:
        arguments, n_gone = _keep_newest(known.arguments + text, MAX_ARGUMENT_CHARS, known.n_dropped)
        calls[number] = replace(known, tool=known.tool or clip_name(tool), arguments=arguments, n_dropped=n_gone)
    return tuple(calls.values())
