"""An answer while it comes, put together from live items."""

from __future__ import annotations

from typing import Final, NamedTuple

from msgspec.structs import replace

from agentgym_tui.state.coalesce import text_run
from agentgym_tui.state.item_batches import Asked, TextRun
from agentgym_tui.state.limits import MAX_CAUSE, MAX_COUNT, count, name, optional
from agentgym_tui.state.models import StreamedCall, Streaming
from agentgym_tui.state.steps import aware
from runner.events.live import TokenText
from runner.types import Part

MAX_STREAMING: Final = 64 * 1024
"""Characters of a step's streamed text that are kept, and of its thoughts: the newest."""

MAX_ARGUMENTS: Final = 8 * 1024
"""The same of the arguments of each tool call."""

MAX_CALLS: Final = 16
MAX_FAILURES: Final = 20
_PER_TOKEN: Final = 4
"""Characters of a token, about, where nobody counts them."""


class _Said(NamedTuple):
    """The parts of an answer."""

    text: str
    reasoning: str
    calls: tuple[StreamedCall, ...]
    n_text_gone: int
    n_reasoning_gone: int


def streamed(before: Streaming | None, told: Asked | TextRun | TokenText) -> Streaming:
    """The answer with what is told of it; one for a later step begins anew, and no earlier one is kept."""
    if before is not None and before.step > told.step:
        return before
    answer = before if before is not None and before.step == told.step else Streaming(step=told.step)
    match told:
        case TextRun():
            return _with_more(answer, told)
        case Asked():
            return _asked(answer, told.endpoint, told.model)
        case _:
            return _with_news(answer, told)


def _with_more(before: Streaming, run: TextRun) -> Streaming:
    """As ``replace``, which takes several times as long."""
    begins, said = before.first_at is None, _longer(before, run.part, run.call, run.tool, "".join(run.texts))
    return Streaming(
        step=before.step,
        text=said.text,
        reasoning=said.reasoning,
        calls=said.calls,
        n_text_gone=said.n_text_gone,
        n_reasoning_gone=said.n_reasoning_gone,
        endpoint=before.endpoint,
        model=before.model,
        failures=before.failures,
        n=count(before.n + _n_of(run)),
        n_first=_n(run.ns[0], run.texts[0]) if begins else before.n_first,
        ttft_s=run.ttft_s if begins else before.ttft_s,
        first_at=aware(run.at) if begins else before.first_at,
        newest_at=aware(run.until),
    )


def _with_news(before: Streaming, item: TokenText) -> Streaming:
    if item.restart:
        before = Streaming(step=item.step, failures=before.failures)
    if item.failure is not None:
        known = [*before.failures, item.failure[:MAX_CAUSE]]
        before = replace(before, failures=tuple(known[-MAX_FAILURES:]), endpoint=None, model=None)
    if item.endpoint is not None:
        before = _asked(before, item.endpoint, item.model)
    return _with_more(before, text_run([item])) if item.text or item.tool else before


def _asked(before: Streaming, endpoint: str, model: str | None) -> Streaming:
    return replace(before, endpoint=name(endpoint), model=optional(model))


def _n_of(run: TextRun) -> int:
    if min(run.ns) > 0 and max(run.ns) < MAX_COUNT:
        return sum(run.ns)
    return sum(map(_n, run.ns, run.texts))


def _n(told: int, text: str) -> int:
    return count(told) or 1 + len(text) // _PER_TOKEN


def _longer(before: Streaming, part: Part, call: int, tool: str, text: str) -> _Said:
    said, reasoning, calls = before.text, before.reasoning, before.calls
    n_text, n_reasoning = before.n_text_gone, before.n_reasoning_gone
    match part:
        case "text":
            said, n_text = _newest(said + text, MAX_STREAMING, n_text)
        case "reasoning":
            reasoning, n_reasoning = _newest(reasoning + text, MAX_STREAMING, n_reasoning)
        case "call":
            calls = _called(calls, call, tool, text)
    return _Said(said, reasoning, calls, n_text, n_reasoning)


def _newest(text: str, limit: int, n_gone: int) -> tuple[str, int]:
    """What is kept of a text, and how many characters are not."""
    return text[-limit:], count(n_gone + max(len(text) - limit, 0))


def _called(before: tuple[StreamedCall, ...], number: int, tool: str, text: str) -> tuple[StreamedCall, ...]:
    calls = {call.number: call for call in before}
    known = calls.get(number, StreamedCall(number))
    if number in calls or len(calls) < MAX_CALLS:
        arguments, n_gone = _newest(known.arguments + text, MAX_ARGUMENTS, known.n_gone)
        calls[number] = replace(known, tool=known.tool or name(tool), arguments=arguments, n_gone=n_gone)
    return tuple(calls.values())
