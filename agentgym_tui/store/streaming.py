"""An answer while it comes, put together from live items."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from msgspec.structs import replace

from agentgym_tui.store.bounds import MAX_CAUSE, MAX_COUNT, count, name, optional
from agentgym_tui.store.state import StreamedCall, Streaming
from agentgym_tui.store.steps import aware
from runner.events.live_items import TokenText

MAX_STREAMING: Final = 64 * 1024
"""Characters of a step's streamed text that are kept, and of its thoughts: the newest."""

MAX_ARGUMENTS: Final = 8 * 1024
"""The same of the arguments of each tool call."""

MAX_CALLS: Final = 16
MAX_FAILURES: Final = 20
_PER_TOKEN: Final = 4
"""Characters of a token, about, where nobody counts them."""


def streamed(before: Streaming | None, items: Sequence[TokenText]) -> Streaming | None:
    """The answer with what items tell of it; one for a later step begins anew, and no earlier one is kept."""
    step = max([item.step for item in items])
    if before is not None and before.step > step:
        return before
    answer = before if before is not None and before.step == step else Streaming(step=step)
    for run in _runs([item for item in items if item.step == step]):
        answer = _with_more(answer, run) if _only_more(run[0]) else _with_news(answer, run[0])
    return answer


def _runs(items: Sequence[TokenText]) -> Iterator[Sequence[TokenText]]:
    """Pieces of text that come one after the other, and each item with news."""
    first = 0
    for place, item in enumerate(items):
        if not _only_more(item):
            if first < place:
                yield items[first:place]
            yield items[place : place + 1]
            first = place + 1
    if first < len(items):
        yield items[first:]


def _only_more(item: TokenText) -> bool:
    """Whether there is more text, and no other news, as in nearly all items there are."""
    told = item.restart or item.failure is not None or item.endpoint is not None
    return item.part == "text" and bool(item.text) and not told


def _with_more(before: Streaming, items: Sequence[TokenText]) -> Streaming:
    """As ``replace``, which takes several times as long."""
    begins = before.first_at is None
    return Streaming(
        step=before.step,
        text=(before.text + "".join([item.text for item in items]))[-MAX_STREAMING:],
        reasoning=before.reasoning,
        calls=before.calls,
        endpoint=before.endpoint,
        model=before.model,
        failures=before.failures,
        n=count(before.n + _n_of(items)),
        n_first=_n(items[0]) if begins else before.n_first,
        ttft_s=items[0].ttft_s if begins else before.ttft_s,
        first_at=aware(items[0].at) if begins else before.first_at,
        newest_at=aware(items[-1].at),
    )


def _with_news(before: Streaming, item: TokenText) -> Streaming:
    if item.restart:
        before = Streaming(step=item.step, failures=before.failures)
    if item.failure is not None:
        known = [*before.failures, item.failure[:MAX_CAUSE]]
        before = replace(before, failures=tuple(known[-MAX_FAILURES:]), endpoint=None, model=None)
    if item.endpoint is not None:
        before = replace(before, endpoint=name(item.endpoint), model=optional(item.model))
    return _timed(_longer(before, item), item) if item.text or item.tool else before


def _n_of(items: Sequence[TokenText]) -> int:
    told = [item.n for item in items]
    return sum(told) if min(told) > 0 and max(told) < MAX_COUNT else sum(map(_n, items))


def _n(item: TokenText) -> int:
    return count(item.n) or 1 + len(item.text) // _PER_TOKEN


def _longer(before: Streaming, item: TokenText) -> Streaming:
    match item.part:
        case "text":
            return replace(before, text=(before.text + item.text)[-MAX_STREAMING:])
        case "reasoning":
            return replace(before, reasoning=(before.reasoning + item.text)[-MAX_STREAMING:])
        case "call":
            return replace(before, calls=_called(before.calls, item))


def _called(before: tuple[StreamedCall, ...], item: TokenText) -> tuple[StreamedCall, ...]:
    calls = {call.number: call for call in before}
    known = calls.get(item.call, StreamedCall(item.call))
    if item.call in calls or len(calls) < MAX_CALLS:
        arguments = (known.arguments + item.text)[-MAX_ARGUMENTS:]
        calls[item.call] = replace(known, tool=known.tool or name(item.tool), arguments=arguments)
    return tuple(calls.values())


def _timed(answer: Streaming, item: TokenText) -> Streaming:
    at, n = aware(item.at), _n(item)
    if answer.first_at is None:
        return replace(answer, n=n, n_first=n, ttft_s=item.ttft_s, first_at=at, newest_at=at)
    return replace(answer, n=count(answer.n + n), newest_at=at)
