"""The tracer: spans and flows (arrows between spans) across threads and tasks, and the collectors that receive them."""

from __future__ import annotations

import functools
import hashlib
import inspect
import itertools
import re
import time
import traceback
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Literal, Protocol, Self, TypeVar, cast, overload

import msgspec

from runner.errors import EvaluationFault, RunnerError, catch_foreign
from runner.types import ErrorInfo, Flow, Span, SpanLevel, TracingLevel
from runner.util.display_text import mask
from runner.util.resources import RESOURCES, describe_shortage, find_shortage
from runner.util.safe_values import (
    escape_surrogates,
    plain_attributes,
    plain_text,
    plain_value,
    safe_str,
    truncate_text,
)

MAX_ERROR_BYTES = 16 * 1024
"""Maximum bytes of a message, of which the beginning is kept, and of a traceback, of which the end is kept."""

_MAX_FRAMES = 100
_WORD_START = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


class Collector(Protocol):
    """Receives each span when it closes, then the flows of that span.

    The methods run on the thread that closes the span: they must be fast and must not raise. All data is safe to
    encode: plain attribute values, and bounded texts without lone surrogates.
    """

    def on_span(self, span: Span) -> None:
        """The span does not change any more."""

    def on_flow(self, flow: Flow) -> None:
        """The flow starts or ends at the span closed last."""


class SpanList:
    """In closing order, for the episode file."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.flows: list[Flow] = []
        self.on_span = self.spans.append
        self.on_flow = self.flows.append


_UINT64 = 2**64 - 1
_F = TypeVar("_F", bound=Callable[..., Any])


class SpanHandle(msgspec.Struct, eq=False):
    """Handle of a span for the code inside its ``with`` block; this base class is the handle of an unrecorded span.

    ``id`` is unique within a tracer, and 0 for an unrecorded span.
    """

    id: int

    def set_attribute(self, key: str, value: object) -> None: ...

    def start_flow(self, flow_id: int) -> None:
        """Start an arrow at this span, which must end at a later span. See ``create_flow_id``."""

    def end_flow(self, flow_id: int) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None: ...


_NOOP_SPAN = SpanHandle(0)
_current: ContextVar[_OpenSpan | None] = ContextVar("current_span", default=None)


class _OpenSpan(SpanHandle, eq=False):
    """Handle of a recorded span, which lasts from ``__enter__`` to ``__exit__``."""

    _tracer: Tracer
    _record: Span
    _outer: _OpenSpan | None = None  # the current span at entry, possibly of another tracer
    _flows: list[Flow] = []

    def set_attribute(self, key: str, value: object) -> None:
        self._record.attributes[plain_text(key)] = plain_value(value)

    def start_flow(self, flow_id: int) -> None:
        self._add_flow(flow_id, "start")

    def end_flow(self, flow_id: int) -> None:
        self._add_flow(flow_id, "end")

    def _add_flow(self, flow_id: int, phase: Literal["start", "end"]) -> None:
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
        if _current.get() is self:  # false if a generator is closed by another task than the one it ran in
            _current.set(self._outer)
        del tracer._open[self.id]
        for on_span in tracer._on_span:
            on_span(record)
        for flow in self._flows:
            for on_flow in tracer._on_flow:
                on_flow(flow)


class Tracer:
    """Records the spans of one episode, or of all episodes of a ``runner.Runner``.

    The parent of a span is the current span of its context: tasks and ``asyncio.to_thread`` inherit it, plain threads
    do not. Spans of different tracers are independent. Closed spans go to the collectors; ``open_spans`` lists the open
    ones.

    Args:
        level: ``full`` records every span, ``episode`` those of the category ``episode``, ``off`` none. The parent of
            a recorded span is its nearest recorded ancestor.
        track: row of the trace viewer; each episode worker has its own.
        worker_id: id of the worker whose spans these are; the row is then named after its type and id.
        worker_type: type of the worker, such as ``runner``.
        collector: a further receiver of closed spans, such as ``get_protobuf_collector()``.
    """

    def __init__(
        self,
        level: SpanLevel | TracingLevel = "full",
        collectors: Sequence[Collector] = (),
        track: str = "slot 0",
        clock_ns: Callable[[], int] = time.monotonic_ns,
        *,
        worker_id: str = "",
        worker_type: str = "",
        collector: Collector | None = None,
    ) -> None:
        self.level = level
        self.worker_id, self.worker_type = worker_id, worker_type
        self.track = plain_text(f"{worker_type} {worker_id}".strip() or track)
        collectors = collectors if collector is None else (*collectors, collector)
        self._full = level == "full"
        self._clock_ns = clock_ns
        self._on_span = [collector.on_span for collector in collectors]
        self._on_flow = [collector.on_flow for collector in collectors]
        self._next_id = itertools.count(1).__next__  # atomic, unlike adding to an attribute
        self._open: dict[int, Span] = {}

    def span(self, name: str, category: str, **attributes: object) -> SpanHandle:
        """Return a span to enter with ``with``, in sync and async code.

        An exception that leaves the block propagates, and its class name becomes the attribute ``error``. Attributes
        other than str, int, float, bool and None become text.
        """
        if not self._full and (self.level == "off" or category != "episode"):
            return _NOOP_SPAN
        record = self._record(name, category, attributes)
        return _OpenSpan(record.id, self, record)

    def _record(self, name: str, category: str, attributes: dict[str, object]) -> Span:
        return Span(
            id=self._next_id(),
            parent=None,
            name=plain_text(name),
            category=plain_text(category),
            track=self.track,
            start_ns=0,
            end_ns=0,
            attributes=plain_attributes(attributes.copy()),
        )

    def add_spans(self, category: str, parts: Sequence[tuple[str, float]], **attributes: object) -> None:
        """Record spans that follow each other and end now, inside the current span.

        ``parts`` are name and seconds of each span; what does not fit into the current span is cut off.
        """
        outer = _current.get()
        if not self._full or outer is None or outer._tracer is not self:
            return
        end_ns = self._clock_ns()
        start_ns = end_ns - sum(round(seconds * 1e9) for _, seconds in parts)
        for name, seconds in parts:
            part_end_ns = start_ns + round(seconds * 1e9)
            span = self._record(name, category, attributes)
            span.parent = outer.id
            span.start_ns = min(max(start_ns, outer._record.start_ns), end_ns)
            span.end_ns = min(max(part_end_ns, outer._record.start_ns), end_ns)
            start_ns = part_end_ns
            for on_span in self._on_span:
                on_span(span)

    def open_spans(self) -> list[Span]:
        """Return copies of all open spans, outer ones first, with the current time as their end; thread-safe."""
        now_ns = self._clock_ns()
        open_spans = list(self._open.values())
        return [msgspec.structs.replace(span, end_ns=now_ns, attributes=span.attributes.copy()) for span in open_spans]


_OFF_TRACER = Tracer("off")


def create_flow_id(kind: str, id: str) -> int:
    """Derive a flow id, an unsigned 64-bit number other than 0, from two texts; the same in all processes."""
    data = f"{len(kind)}:{kind}{id}".encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big") or 1


@overload
def traced_method(name: _F, /) -> _F: ...
@overload
def traced_method(name: str | None = None, category: str = "agent") -> Callable[[_F], _F]: ...
def traced_method(name: Any = None, category: str = "agent") -> Any:
    """Decorate a sync or async method to run in a span of its object's ``tracer``, as a decorator with or without call.

    Without the attribute ``tracer``, or if it is None, the method runs without a span.
    """
    if callable(name):
        return traced_method()(name)

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


def create_error_info(exc: BaseException) -> ErrorInfo:
    """Describe an exception and mask its secrets; never raises.

    Hydra's ``InstantiationException`` is replaced by its cause, the exception of the environment or agent. If files,
    memory or threads ran out, the type is ``resources``, whatever exception resulted, and the message starts with that.
    """
    exc = _unwrap_hydra(exc)
    kind = error_type(type(exc))
    message = mask(safe_str(exc, f"<{type(exc).__name__} without a readable message>"))
    if (shortage := find_shortage(exc)) is not None:
        message = f"{describe_shortage(shortage)} ({kind}: {message})"
        kind = RESOURCES
    return ErrorInfo(
        type=kind,
        message=truncate_text(message, MAX_ERROR_BYTES),
        traceback=truncate_text(mask(_traceback_text(exc)), MAX_ERROR_BYTES, keep_end=True),
        category="evaluation" if isinstance(exc, EvaluationFault) and kind != RESOURCES else None,
    )


def _unwrap_hydra(exc: BaseException) -> BaseException:
    kind = type(exc)  # compared by name, because hydra may not be imported
    if kind.__name__ == "InstantiationException" and kind.__module__.startswith("hydra.") and exc.__cause__:
        return exc.__cause__
    return exc


def error_type(kind: type[BaseException]) -> str:
    """Return the ``error.type`` of an exception class.

    A renamed class keeps its old ``error.type`` in the class attribute ``published_error_type``, which subclasses do
    not inherit. The type of any other class is its name, for subclasses of ``RunnerError`` in snake case, e.g.
    ``oracle_diverged``.
    """
    if explicit := _explicit_type(kind):
        return explicit
    return _WORD_START.sub("_", kind.__name__).lower() if issubclass(kind, RunnerError) else kind.__name__


def error_attribute(kind: type[BaseException]) -> str:
    """Return the span attribute ``error`` of an exception class: its name, or the published name of a renamed class."""
    explicit = _explicit_type(kind)
    if not explicit or not issubclass(kind, RunnerError):
        return explicit or kind.__name__
    words = explicit.lstrip("_")
    return explicit[: -len(words)] + "".join(map(str.capitalize, words.split("_")))


def _explicit_type(kind: type[BaseException]) -> str:
    explicit = vars(kind).get("published_error_type")
    return explicit if isinstance(explicit, str) else ""


def _traceback_text(exc: BaseException) -> str:
    failures: list[BaseException] = []
    with catch_foreign(failures.append):
        return escape_surrogates("".join(traceback.format_exception(exc, limit=-_MAX_FRAMES)))
    return f"<no traceback: formatting it raised {type(failures[0]).__name__}>"
