"""Where closed spans go; several collectors can listen to one tracer."""

from __future__ import annotations

from typing import Protocol, TypeVar

from runner.types import Flow, Span

_T = TypeVar("_T")


class Collector(Protocol):
    """Hears of each span when it closes, and of its arrows right after it.

    Called on the thread that closes the span, so it must be quick and must not raise. What it gets is safe to encode:
    plain attribute values, bounded texts without lone surrogates.
    """

    def on_span(self, span: Span) -> None:
        """A span was closed; it does not change any more."""

    def on_flow(self, flow: Flow) -> None:
        """The span that was just closed starts or ends an arrow."""


class SpanList:
    """Keeps everything in order of closing, for the episode file."""

    def __init__(self) -> None:
        """Start empty."""
        self.spans: list[Span] = []
        self.flows: list[Flow] = []
        self.on_span = self.spans.append
        self.on_flow = self.flows.append


def take_all(items: list[_T]) -> list[_T]:
    """Empty a list that other threads may be appending to, and return what was in it."""
    taken = items[:]
    del items[: len(taken)]
    return taken
