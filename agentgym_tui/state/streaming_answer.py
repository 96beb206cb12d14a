"""Extends the streaming answer for the current step of an episode by live items."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from msgspec.structs import replace

from agentgym_tui.state.data_model import StreamingAnswer, StreamingToolCall
from agentgym_tui.state.normalize import MAX_CAUSE_CHARS, MAX_COUNT, as_aware, clamp_count, clip_name, clip_optional
from runner.events.live import TokenText

MAX_STREAMED_CHARS: Final = 64 * 1024
"""Number of characters kept at the end of an answer's text, and at the end of its reasoning."""

MAX_ARGUMENT_CHARS: Final = 8 * 1024
"""Number of characters kept at the end of the arguments of each tool call."""

MAX_CALLS: Final = 16
MAX_FAILURES: Final = 20
_CHARS_PER_TOKEN: Final = 4
"""Assumed number of characters per token in items without a token count."""


def answer_parts(items: Sequence[TokenText]) -> Iterator[Sequence[TokenText]]:
    """Split items of one episode into sequences that ``update_answer`` can apply.

    Successive texts of the same part of the newest answer are one sequence, each item without such a text is one.
    Texts of earlier answers are left out, because the newest answer replaces them.
    """
    newest = max([item.step for item in items])
    texts: list[TokenText] = []
    for item in items:
        is_text = item.endpoint is None and item.failure is None and not item.restart and bool(item.text or item.tool)
        if is_text and item.step < newest:
            continue
        if texts and not (is_text and item.part == texts[0].part and item.call == texts[0].call):
            yield texts
            texts = []
        if is_text:
            texts.append(item)
        else:
            yield [item]
    if texts:
        yield texts


def update_answer(before: StreamingAnswer | None, items: Sequence[TokenText]) -> StreamingAnswer:
    """Return the streaming answer that results from items: a new one, or ``before``, which is updated in place.

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
        answer.failures = (*answer.failures, first.failure[:MAX_CAUSE_CHARS])[-MAX_FAILURES:]
        answer.endpoint = answer.requested_at = answer.model = None
    if first.endpoint is not None:
        answer.endpoint, answer.model = clip_name(first.endpoint), clip_optional(first.model)
        answer.requested_at = as_aware(first.at)
    if first.text or first.tool:
        _append(answer, items)
    return answer


def _append(answer: StreamingAnswer, items: Sequence[TokenText]) -> None:
    first, text = items[0], "".join([item.text for item in items])
    match first.part:
        case "text":
            n_before, text = answer.n_text_dropped, answer.text + text
            answer.text, answer.n_text_dropped = _keep_newest(text, MAX_STREAMED_CHARS, n_before)
        case "reasoning":
            n_before, text = answer.n_reasoning_dropped, answer.reasoning + text
            answer.reasoning, answer.n_reasoning_dropped = _keep_newest(text, MAX_STREAMED_CHARS, n_before)
        case "call":
            tool = next((item.tool for item in items if item.tool), "")
            answer.calls = _append_call(answer.calls, first.call, tool, text)
    answer.n_tokens = clamp_count(answer.n_tokens + _count_tokens(items))
    answer.newest_at = as_aware(items[-1].at)
    if answer.first_at is None:
        answer.first_at, answer.ttft_s = as_aware(first.at), first.ttft_s
        answer.n_first_tokens = _count_tokens(items[:1])


def _count_tokens(items: Sequence[TokenText]) -> int:
    ns = [item.n for item in items]
    if min(ns) > 0 and max(ns) < MAX_COUNT:  # by far the most frequent
        return sum(ns)
    return sum([clamp_count(item.n) or 1 + len(item.text) // _CHARS_PER_TOKEN for item in items])


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
