"""What a span costs with its export, against the OpenTelemetry SDK's with the in-memory exporter."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from runner.tracing import PerfettoFile, SpanList, Tracer
from tests.benchmarks.measure import Row, ratio, seconds

N_EPISODES = 50
N_STEPS = 30
N_SPANS = N_EPISODES * N_STEPS * 2
PAIRS = 15


def work(tracer: Tracer) -> None:
    """The spans of one episode: two to a step, nested, each with three attributes."""
    for index in range(N_STEPS):
        with tracer.span("timestep", "timestep", index=index, semantic="timestep") as step:
            with tracer.span("env.step", "environment", index=index, semantic="environment") as inner:
                inner.set_attribute("valid", True)
            step.set_attribute("reward", 0.5)


def exported(trace: PerfettoFile) -> None:
    """Episodes with both collectors, the trace being written after each."""
    for _ in range(N_EPISODES):
        perfetto = trace.for_track("slot 0")
        work(Tracer("full", [SpanList(), perfetto]))
        perfetto.flush()


def recorded() -> None:
    """Episodes whose spans go nowhere."""
    for _ in range(N_EPISODES):
        work(Tracer("full"))


def opentelemetry() -> Callable[[], None]:
    """The same episodes by the SDK, which has no category to set."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    start = provider.get_tracer("bench").start_as_current_span

    def episodes() -> None:
        for _ in range(N_EPISODES):
            for index in range(N_STEPS):
                with start("timestep", attributes={"index": index, "semantic": "timestep"}) as step:
                    with start("env.step", attributes={"index": index, "semantic": "environment"}) as inner:
                        inner.set_attribute("valid", True)
                    step.set_attribute("reward", 0.5)
            exporter.clear()

    return episodes


def run() -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        trace = PerfettoFile(Path(folder) / "bench.pftrace")
        measured = ratio(lambda: exported(trace), opentelemetry(), pairs=PAIRS)
    alone = min(seconds(recorded) for _ in range(PAIRS))
    return [
        Row.of_ratio("a span with its export against OpenTelemetry's, CPU", measured, at_most=0.5),
        Row("a span with its export, CPU", f"{measured.a_median / N_SPANS * 1e6:.2f} µs"),
        Row("OpenTelemetry's, CPU", f"{measured.b_median / N_SPANS * 1e6:.2f} µs"),
        Row("a span without export, CPU, best of all runs", f"{alone / N_SPANS * 1e6:.2f} µs", "aim: 3 µs"),
    ]
