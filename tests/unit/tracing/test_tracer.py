"""Spans, error info of exceptions, and the published names of exception classes."""

from __future__ import annotations

import asyncio
import enum
import importlib
import inspect
import math
import pkgutil
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import pytest
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from hypothesis import given
from hypothesis import strategies as st

import agentgym_tui
import runner
from runner.errors import EvaluationFault, OracleDiverged, RunnerError
from runner.tracing import SpanList, Tracer, create_flow_id, traced_method
from runner.tracing.tracer import create_error_info, error_attribute, error_type
from runner.types import Flow, Span, SpanLevel
from runner.util.safe_values import MAX_VALUE_BYTES


def make_tracer(level: SpanLevel = "full") -> tuple[Tracer, SpanList]:
    spans = SpanList()
    ticks = iter(range(1_000, 1_000_000))
    return Tracer(level, [spans], track="slot 7", clock_ns=lambda: next(ticks)), spans


def by_name(spans: SpanList) -> dict[str, Span]:
    return {span.name: span for span in spans.spans}


def test_a_span_has_its_times_its_parent_and_its_attributes() -> None:
    tracer, spans = make_tracer()
    with tracer.span("episode", "episode", task_id="Maze:3", attempt=1) as outer:
        with tracer.span("env.reset", "environment") as inner:
            inner.set_attribute("rows", 7)
        outer.set_attribute("reward", 0.5)
        outer.set_attribute("attempt", 2)
    reset, episode = spans.spans
    assert (episode.name, episode.category, episode.track, episode.parent) == ("episode", "episode", "slot 7", None)
    assert episode.attributes == {"task_id": "Maze:3", "attempt": 2, "reward": 0.5}
    assert (reset.parent, reset.attributes) == (episode.id, {"rows": 7})
    assert (episode.id, reset.id) == (outer.id, inner.id)
    assert episode.start_ns < reset.start_ns < reset.end_ns < episode.end_ns


@pytest.mark.parametrize(("level", "recorded"), [("off", []), ("episode", ["episode"]), ("full", ["step", "episode"])])
def test_the_level_decides_what_is_recorded(level: SpanLevel, recorded: list[str]) -> None:
    tracer, spans = make_tracer(level)
    with tracer.span("episode", "episode") as span, tracer.span("step", "timestep") as step:
        step.set_attribute("index", 0)
        step.start_flow(1)
        span.end_flow(2)
    assert [span.name for span in spans.spans] == recorded
    assert [flow.id for flow in spans.flows] == {"off": [], "episode": [2], "full": [1, 2]}[level]


def test_spans_that_are_not_recorded_are_one_shared_object_with_id_0() -> None:
    tracer, _ = make_tracer("episode")
    assert tracer.span("a", "agent") is Tracer("off").span("b", "episode")
    assert tracer.span("a", "agent").id == 0


def test_the_parent_is_the_nearest_recorded_span() -> None:
    tracer, spans = make_tracer("episode")
    with tracer.span("outer", "episode"), tracer.span("skipped", "agent"), tracer.span("inner", "episode"):
        pass
    assert by_name(spans)["inner"].parent == by_name(spans)["outer"].id


def test_an_exception_is_recorded_and_propagates() -> None:
    tracer, spans = make_tracer()
    with pytest.raises(KeyError, match="missing"), tracer.span("outer", "agent"):
        with pytest.raises(ValueError, match="inside"), tracer.span("inner", "agent"):
            raise ValueError("inside")
        raise KeyError("missing")
    assert [span.attributes for span in spans.spans] == [{"error": "ValueError"}, {"error": "KeyError"}]


async def test_the_parent_of_concurrent_tasks_is_the_span_around_them() -> None:
    tracer, spans = make_tracer()
    barrier = asyncio.Barrier(3)

    async def work(name: str) -> None:
        with tracer.span(name, "agent"):
            await barrier.wait()
            with tracer.span(f"{name}.inner", "agent"):
                await barrier.wait()

    with tracer.span("gather", "agent") as gather:
        await asyncio.gather(*(work(name) for name in "abc"))
        with tracer.span("after", "agent"):
            pass
    named = by_name(spans)
    assert [named[name].parent for name in ("a", "b", "c", "after")] == [gather.id] * 4
    assert all(named[f"{name}.inner"].parent == named[name].id for name in "abc")


async def test_cancellation_is_recorded_and_propagates() -> None:
    tracer, spans = make_tracer()
    started = asyncio.Event()

    async def work() -> None:
        with tracer.span("act", "agent"):
            started.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert spans.spans[0].attributes == {"error": "CancelledError"}


async def test_a_thread_starts_its_own_tree_and_to_thread_continues_that_of_its_caller() -> None:
    tracer, spans = make_tracer()
    inside = threading.Barrier(2)

    def bare() -> None:
        with tracer.span("bare", "agent"):
            inside.wait()
            with tracer.span("bare.inner", "agent"):
                inside.wait()

    def helper() -> None:
        with tracer.span("helper", "agent"):
            pass

    with tracer.span("main", "agent") as main:
        thread = threading.Thread(target=bare)
        thread.start()
        inside.wait()
        with tracer.span("main.inner", "agent"):
            inside.wait()
        thread.join()
        await asyncio.to_thread(helper)
    named = by_name(spans)
    assert named["bare"].parent is None
    assert named["bare.inner"].parent == named["bare"].id
    assert (named["main.inner"].parent, named["helper"].parent) == (main.id, main.id)
    assert len({span.id for span in spans.spans}) == 5


def test_two_tracers_do_not_share_parents() -> None:
    first, first_spans = make_tracer()
    second, second_spans = make_tracer()
    with first.span("a", "agent"), second.span("b", "agent"), first.span("a2", "agent"), second.span("b2", "agent"):
        pass
    assert by_name(first_spans)["a2"].parent == by_name(first_spans)["a"].id
    assert by_name(second_spans)["b2"].parent == by_name(second_spans)["b"].id
    assert (by_name(first_spans)["a"].parent, by_name(second_spans)["b"].parent) == (None, None)


async def test_a_generator_closed_by_another_task_does_not_change_the_parent_there() -> None:
    tracer, spans = make_tracer()

    def generate() -> Iterator[int]:
        with tracer.span("generator", "agent"):
            yield 1

    generator = generate()

    async def start() -> None:
        next(generator)

    await asyncio.create_task(start())
    with tracer.span("main", "agent") as main:
        generator.close()  # type: ignore[attr-defined]
        with tracer.span("inner", "agent"):
            pass
    assert by_name(spans)["inner"].parent == main.id
    assert by_name(spans)["generator"].attributes == {"error": "GeneratorExit"}


def test_flows_are_reported_after_their_span() -> None:
    received: list[Span | Flow] = []

    class RecordingCollector:
        on_span = staticmethod(received.append)
        on_flow = staticmethod(received.append)

    with Tracer(collectors=[RecordingCollector(), RecordingCollector()]).span("episode", "episode") as span:
        span.start_flow(2**64 - 1)
        span.end_flow(-1)
    start = Flow(id=2**64 - 1, span=span.id, phase="start")
    end = Flow(id=2**64 - 1, span=span.id, phase="end")
    assert [type(item) for item in received[:2]] == [Span, Span]
    assert received[2:] == [start, start, end, end]


def test_open_spans_are_copies_with_the_current_time_as_end() -> None:
    tracer, spans = make_tracer()
    with tracer.span("episode", "episode", task_id="x") as outer:
        with tracer.span("closed", "agent"):
            pass
        with tracer.span("act", "agent"):
            opened = tracer.open_spans()
        outer.set_attribute("later", True)
    assert [(span.name, span.parent) for span in opened] == [("episode", None), ("act", outer.id)]
    assert opened[0].attributes == {"task_id": "x"}
    assert all(span.end_ns > span.start_ns for span in opened)
    assert opened[0].end_ns < by_name(spans)["episode"].end_ns
    assert tracer.open_spans() == []


class Color(enum.StrEnum):
    RED = "red"


class Unprintable:
    def __str__(self) -> str:
        raise SystemExit("no text for you")


class Celsius(float):
    def __str__(self) -> str:
        return "warm"


@pytest.mark.parametrize(
    ("given_value", "expected"),
    [
        (True, True),
        (None, None),
        (2**63 - 1, 2**63 - 1),
        (2**63, str(2**63)),
        (-(2**63) - 1, str(-(2**63) - 1)),
        pytest.param(10**5000, "<int>", id="an int too long to print"),
        (Color.RED, "red"),
        (Celsius(21.5), 21.5),
        (math.inf, math.inf),
        ([1, "a"], "[1, 'a']"),
        (Unprintable(), "<Unprintable>"),
        ("tab\there", "tab\there"),
        ("lone \ud800", "lone \\ud800"),
        ("x" * 1024, "x" * 1024),
        ("x" * 1025, "x" * 1021 + "…"),
        ("é" * 600, "é" * 510 + "…"),
    ],
)
def test_attribute_values_are_converted_to_plain_types(given_value: object, expected: object) -> None:
    tracer, spans = make_tracer()
    with tracer.span("a", "agent", at_start=given_value) as span:
        span.set_attribute("later", given_value)
    assert spans.spans[0].attributes == {"at_start": expected, "later": expected}
    assert [type(value) for value in spans.spans[0].attributes.values()] == [type(expected)] * 2


hostile = st.text(st.characters()) | st.builds(
    str.__mul__, st.text(st.characters(), min_size=1, max_size=3), st.integers(300, 1100)
)
anything = st.none() | st.booleans() | st.integers() | st.floats() | st.binary() | hostile | st.lists(hostile)


@given(hostile, hostile, st.dictionaries(hostile, anything, max_size=3), hostile)
def test_spans_with_any_text_can_be_encoded(name: str, category: str, attributes: dict[str, Any], key: str) -> None:
    tracer, spans = make_tracer()
    with tracer.span(name, category) as span:
        for attribute, value in attributes.items():
            span.set_attribute(attribute, value)
    unnamed = {attribute: value for attribute, value in attributes.items() if attribute not in ("name", "category")}
    with tracer.span(key, key, **unnamed):
        pass
    assert len(msgspec.json.decode(msgspec.json.encode(spans.spans), type=list[Span])) == 2
    for recorded in spans.spans:
        texts = [recorded.name, recorded.category, *recorded.attributes, *map(str, recorded.attributes.values())]
        assert all(len(text.encode()) <= MAX_VALUE_BYTES for text in texts)


@given(hostile, hostile, hostile, hostile)
def test_flow_ids_are_stable_and_unique(kind: str, name: str, other_kind: str, other: str) -> None:
    flow_id = create_flow_id(kind, name)
    assert 0 < flow_id < 2**64
    assert flow_id == create_flow_id(kind, name)
    assert (flow_id == create_flow_id(other_kind, other)) == ((kind, name) == (other_kind, other))


def test_flow_ids_are_the_same_on_every_machine() -> None:
    assert create_flow_id("task", "Maze:3") == 2128557885046214386


class Worker:
    def __init__(self, tracer: Tracer | None) -> None:
        self.tracer = tracer

    @traced_method()
    def plan(self, depth: int, *, wide: bool = False) -> str:
        """Plan."""
        return f"{depth} {wide}"

    @traced_method("inference", category="inference")
    async def infer(self, prompt: str) -> str:
        if not prompt:
            raise ValueError("empty")
        return prompt.upper()


async def test_traced_methods_run_in_spans() -> None:
    tracer, spans = make_tracer()
    worker = Worker(tracer)
    assert worker.plan(3, wide=True) == "3 True"
    assert await worker.infer("hi") == "HI"
    with pytest.raises(ValueError, match="empty"):
        await worker.infer("")
    assert [(span.name, span.category) for span in spans.spans] == [("plan", "agent")] + [("inference",) * 2] * 2
    assert spans.spans[2].attributes == {"error": "ValueError"}
    assert (Worker.plan.__name__, Worker.plan.__doc__) == ("plan", "Plan.")


async def test_traced_methods_work_without_a_tracer() -> None:
    worker = Worker(None)
    assert worker.plan(1) == "1 False"
    del worker.tracer
    assert await worker.infer("hi") == "HI"


PUBLISHED = """
    ControlFailed ControlFailed ExportFailed ExportFailed JudgeFailed JudgeFailed NoJetStream NoJetStream
    NotLoaded NotLoaded PlaintextRefused PlaintextRefused ProgramError ProgramError
    ProxyLoginRequired ProxyLoginRequired UnreadableItem UnreadableItem Unusable Unusable UnusableBody UnusableBody
    WrongFormat WrongFormat _NotAdmitted _NotAdmitted _OtherColumns _OtherColumns _Unusable _Unusable _stuck _Stuck
    agent_fault AgentFault batch_in_use BatchInUse broken_actor BrokenActor broken_frame BrokenFrame
    bus_error BusError check_failed CheckFailed config_error ConfigError config_error ConfigError
    context_exceeded ContextExceeded endpoint_failure EndpointFailure environment_fault EnvironmentFault
    environment_fault EnvironmentFault evaluation Evaluation export_stopped ExportStopped
    frame_too_large FrameTooLarge gpu_unavailable GpuUnavailable inference_fault InferenceFault
    invalid_note InvalidNote left_out LeftOut no_model NoModel no_streams NoStreams node_failed NodeFailed
    oracle_diverged OracleDiverged query_error QueryError queue_full QueueFull refused Refused refused Refused
    resource_shortage ResourceShortage runner_error RunnerError server_busy ServerBusy ssh Ssh store_error StoreError
    worker_lost WorkerLost worker_problem WorkerProblem worker_start_error WorkerStartError
"""
"""``error.type`` and the span attribute ``error`` of each exception class, as stored in episode files.

``refused`` is in use twice, by the node's control requests and by the pool of the environment server. A name that
cannot be played is published as ``config_error``, and ``ServerGone`` as its base class ``environment_fault``.
"""


NOT_IMPORTED = ("__main__", "remote_runner", "ray_head")
"""Modules that run on import, or that need an extra; they define no exceptions."""


def exception_classes() -> Iterator[type[BaseException]]:
    for package in (runner, agentgym_tui):
        for module_info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module_info.name.endswith(NOT_IMPORTED):
                module = importlib.import_module(module_info.name)
                yield from exceptions_defined_in(vars(module), module.__name__)


def exceptions_defined_in(
    namespace: Mapping[str, object], module: str, outer: str = ""
) -> Iterator[type[BaseException]]:
    for name, value in list(namespace.items()):
        if inspect.isclass(value) and (value.__module__, value.__qualname__) == (module, outer + name):
            if issubclass(value, BaseException):
                yield value
            yield from exceptions_defined_in(vars(value), module, f"{value.__qualname__}.")


def test_every_exception_class_keeps_its_published_values() -> None:
    classes = set(exception_classes())
    words = iter(PUBLISHED.split())
    assert sorted((error_type(kind), error_attribute(kind)) for kind in classes) == sorted(
        zip(words, words, strict=True)
    )


class _Renamed(RunnerError):
    published_error_type = "old_name"


class _RenamedForeign(ValueError):
    published_error_type = "OldName"


class _Derived(_Renamed):
    pass


@pytest.mark.parametrize(
    ("kind", "published", "attribute"),
    [
        (_Renamed, "old_name", "OldName"),
        (_RenamedForeign, "OldName", "OldName"),
        (_Derived, "_derived", "_Derived"),  # subclasses do not inherit the published name
        (KeyError, "KeyError", "KeyError"),
    ],
)
def test_an_explicit_published_name_takes_precedence(kind: type[BaseException], published: str, attribute: str) -> None:
    assert (error_type(kind), error_attribute(kind)) == (published, attribute)
    assert create_error_info(kind("x")).type == published


def raise_and_catch(exc: BaseException) -> BaseException:
    try:
        raise exc
    except type(exc) as caught:
        return caught


class HTTPFault(RunnerError):
    pass


@pytest.mark.parametrize(
    ("exc", "kind"),
    [(OracleDiverged("x"), "oracle_diverged"), (HTTPFault("x"), "http_fault"), (KeyError("x"), "KeyError")],
)
def test_an_error_has_a_kind_a_message_and_a_traceback(exc: BaseException, kind: str) -> None:
    info = create_error_info(raise_and_catch(exc))
    assert info.type == kind
    assert info.message == str(exc)
    assert "raise exc" in info.traceback
    assert info.traceback.rstrip().endswith(str(exc))


def test_a_failed_judge_is_an_error_of_evaluation_and_others_have_no_category() -> None:
    info = create_error_info(raise_and_catch(EvaluationFault("no verdict")))
    assert (info.type, info.category) == ("evaluation", "evaluation")
    assert msgspec.json.decode(msgspec.json.encode(info))["category"] == "evaluation"
    assert "category" not in msgspec.json.decode(msgspec.json.encode(create_error_info(KeyError("x"))))


@pytest.mark.parametrize("exc", [MemoryError(), OSError(24, "Too many open files"), OSError(12, "Cannot allocate")])
def test_a_shortage_of_resources_is_the_type_of_every_exception_that_results(exc: BaseException) -> None:
    result = ImportError("cannot import name 'instantiate'")
    result.__cause__ = exc
    for error in (exc, result):
        info = create_error_info(raise_and_catch(error))
        assert info.type == "resources"
        assert info.message.startswith(("no more open files (the limit is ", "no more memory; free memory, or lower"))
        assert str(error) in info.message
        assert str(exc) in info.traceback


class Silent(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even now")

    __repr__ = __str__


class Blocking(Exception):
    @property
    def __notes__(self) -> list[str]:  # type: ignore[override]
        raise SystemExit(3)


def test_exceptions_without_a_readable_message_are_described() -> None:
    info = create_error_info(raise_and_catch(Silent()))
    assert (info.type, info.message) == ("Silent", "<Silent without a readable message>")
    assert "raise exc" in info.traceback
    assert create_error_info(raise_and_catch(Blocking("hm"))).message == "hm"
    assert create_error_info(ValueError("never \udc80 raised")).message == "never \\udc80 raised"


def test_long_errors_are_truncated() -> None:
    info = create_error_info(raise_and_catch(ValueError("start " + "é" * 20_000 + " end")))
    assert info.message.startswith("start é")
    assert info.message.endswith("é…")
    assert info.traceback.startswith("…")
    assert info.traceback.endswith("é end\n")
    assert max(len(info.message.encode()), len(info.traceback.encode())) <= 16 * 1024


def test_secrets_are_masked_before_truncation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "hunter2-hunter2")
    info = create_error_info(
        raise_and_catch(ValueError("x" * (16 * 1024 - 10) + " hunter2-hunter2 https://me:pw@host/"))
    )
    assert "hunter2" not in info.message + info.traceback
    assert "me:pw" not in info.message + info.traceback


def test_exceptions_wrapped_by_hydra_are_unwrapped() -> None:
    with pytest.raises(InstantiationException) as caught:
        instantiate({"_target_": "fractions.Fraction", "numerator": 1, "denominator": 0})
    info = create_error_info(caught.value)
    assert (info.type, info.message) == ("ZeroDivisionError", "Fraction(1, 0)")
    assert "InstantiationException" not in info.traceback
