"""The tracer: spans around work, arrows between them, in threads and in tasks alike."""

from __future__ import annotations

import functools
import hashlib
import inspect
import itertools
import time
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Literal, Protocol, Self, TypeVar, cast

import msgspec

from runner.tracing.error_info import error_attribute
from runner.types import Flow, Span, SpanLevel
from runner.util.safe_values import MAX_VALUE_BYTES, plain_attributes, plain_text, plain_value

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


def drain(items: list[_T]) -> list[_T]:
    """Empty a list that other threads may be appending to, and return what was in it."""
    taken = items[:]
    del items[: len(taken)]
    return taken


_UINT64 = 2**64 - 1
_F = TypeVar("_F", bound=Callable[..., Any])


class SpanHandle(msgspec.Struct, eq=False):
    """A span for the code inside its ``with`` block. This class records nothing: it is what a tracer gives that is off.

    ``id`` is unique in its tracer and 0 where nothing is recorded.
    """

    id: int

    def set_attribute(self, key: str, value: object) -> None:
        """Add or replace an attribute."""

    def start_flow(self, flow_id: int) -> None:
        """Let an arrow leave this span; where it ends has to begin later (see ``create_flow_id``)."""

    def end_flow(self, flow_id: int) -> None:
        """Let an arrow arrive at this span."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None: ...


_NOOP_SPAN = SpanHandle(0)
_current: ContextVar[_OpenSpan | None] = ContextVar("current_span", default=None)


class _OpenSpan(SpanHandle, eq=False):
    """A span that is recorded; it counts from ``__enter__`` to ``__exit__``."""

    _tracer: Tracer
    _record: Span
    _outer: _OpenSpan | None = None  # what was current before, of any tracer
    _flows: list[Flow] | None = None

    def set_attribute(self, key: str, value: object) -> None:
        self._record.attributes[plain_text(key)] = plain_value(value)

    def start_flow(self, flow_id: int) -> None:
        self._add_flow(flow_id, "start")

    def end_flow(self, flow_id: int) -> None:
        self._add_flow(flow_id, "end")

    def _add_flow(self, flow_id: int, phase: Literal["start", "end"]) -> None:
        if self._flows is None:
            self._flows = []
        self._flows.append(Flow(id=flow_id & _UINT64, span=self.id, phase=phase))

    def __enter__(self) -> Self:
        tracer, record = self._tracer, self._record
        self._outer = outer = _current.get()
        while outer is not None and outer._tracer is not tracer:
            outer = outer._outer
        if outer is not None:
            record.parent = outer.id
        _current.set(self)
        tracer._open[self.id] = record
        record.start_ns = tracer._clock_ns()
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        tracer, record = self._tracer, self._record
        record.end_ns = tracer._clock_ns()
        if kind is not None:
            record.attributes["error"] = plain_text(error_attribute(kind))
        if _current.get() is self:  # not so when a generator is closed by another task than the one it ran in
            _current.set(self._outer)
        del tracer._open[self.id]
        for on_span in tracer._on_span:
            on_span(record)
        if self._flows is not None:
            for flow in self._flows:
                for on_flow in tracer._on_flow:
                    on_flow(flow)


class Tracer:
    """Records the spans of one episode.

    Spans nest by context: a task or ``asyncio.to_thread`` started inside a span has that span as its parent; a bare
    thread starts anew. Tracers do not see each other's spans. Closed spans go to the collectors, open ones are listed
    by ``open_spans``.

    Args:
        level: ``full`` records every span, ``off`` none, ``episode`` those of category ``episode``: the category alone
            decides, and the parent of a recorded span is the nearest recorded one.
        collectors: where closed spans go.
        track: the row of the trace viewer, one per slot.
        clock_ns: a monotonic clock in nanoseconds.
    """

    def __init__(
        self,
        level: SpanLevel = "full",
        collectors: Sequence[Collector] = (),
        track: str = "slot 0",
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """Start with no span open."""
        self.level: SpanLevel = level
        self.track = plain_text(track)
        self._full = level == "full"
        self._clock_ns = clock_ns
        self._on_span = [collector.on_span for collector in collectors]
        self._on_flow = [collector.on_flow for collector in collectors]
        self._next_id = itertools.count(1).__next__  # atomic, unlike adding to an attribute
        self._open: dict[int, Span] = {}

    def span(self, name: str, category: str, **attributes: object) -> SpanHandle:
        """A span to be entered with ``with``, in sync and async code alike.

        An exception that leaves the block goes on, and its class name becomes the attribute ``error``. Attribute values
        other than str, int, float, bool and None are kept as text.
        """
        if not self._full and (self.level == "off" or category != "episode"):
            return _NOOP_SPAN
        if not (len(name) + len(category) <= MAX_VALUE_BYTES and name.isascii() and category.isascii()):
            name, category = plain_text(name), plain_text(category)
        record = Span(
            id=self._next_id(),
            parent=None,
            name=name,
            category=category,
            track=self.track,
            start_ns=0,
            end_ns=0,
            attributes=plain_attributes(attributes) if attributes else {},
        )
        return _OpenSpan(record.id, self, record)

    def open_spans(self) -> list[Span]:
        """Copies of the spans that are open, outer ones first, each ending now; callable from any thread."""
        now = self._clock_ns()
        opened = list(self._open.values())
        return [msgspec.structs.replace(span, end_ns=now, attributes=span.attributes.copy()) for span in opened]


_OFF_TRACER = Tracer("off")


def create_flow_id(kind: str, id: str) -> int:
    """The same unsigned 64-bit number, never 0, for the same two texts: in every process and on every machine."""
    data = f"{len(kind)}:{kind}{id}".encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big") or 1


def traced_method(name: str | None = None, category: str = "agent") -> Callable[[_F], _F]:
    """Put a span around each call of a method, sync or async, of an object with the attribute ``tracer``.

    The span is called ``name``, else like the method; without a tracer (or with None) the method just runs.
    """

    def decorate(method: _F) -> _F:
        span_name = name or method.__name__

        @functools.wraps(method)
        def traced(self: object, *args: object, **kwargs: object) -> object:
            with _tracer_of(self).span(span_name, category):
                return method(self, *args, **kwargs)

        @functools.wraps(method)
        async def traced_async(self: object, *args: object, **kwargs: object) -> object:
            with _tracer_of(self).span(span_name, category):
                return await method(self, *args, **kwargs)

        return cast("_F", traced_async if inspect.iscoroutinefunction(method) else traced)

    return decorate


def _tracer_of(owner: object) -> Tracer:
    tracer: Tracer | None = getattr(owner, "tracer", None)
    return _OFF_TRACER if tracer is None else tracer
