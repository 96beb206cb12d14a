"""CPU of a span with its export, compared with the OpenTelemetry SDK and its in-memory exporter."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from runner.tracing import PerfettoFile, SpanList, Tracer
from tests.benchmarks.measure import Row, ratio, seconds
from tests.support.perfetto import TrackCollector

N_EPISODES = 50
N_STEPS = 30
N_SPANS = N_EPISODES * N_STEPS * 2
PAIRS = 15


def record_spans(tracer: Tracer) -> None:
    """Record one episode: two nested spans per step, with three attributes each."""
    for index in range(N_STEPS):
        with tracer.span("timestep", "timestep", index=index, semantic="timestep") as step:
            with tracer.span("env.step", "environment", index=index, semantic="environment") as inner:
                inner.set_attribute("valid", True)
            step.set_attribute("reward", 0.5)


def record_and_export(trace: PerfettoFile) -> None:
    """Record episodes with both collectors; write the trace after each episode."""
    for _ in range(N_EPISODES):
        perfetto = TrackCollector(trace, "slot 0")
        record_spans(Tracer("full", [SpanList(), perfetto]))
        perfetto.flush()


def record_only() -> None:
    """Record episodes without a collector."""
    for _ in range(N_EPISODES):
        record_spans(Tracer("full"))


def opentelemetry_episodes() -> Callable[[], None]:
    """Return a function that records the same episodes with the SDK, which has no categories."""
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
        measured = ratio(lambda: record_and_export(trace), opentelemetry_episodes(), pairs=PAIRS)
    alone = min(seconds(record_only) for _ in range(PAIRS))
    return [
        Row.of_ratio("a span with its export / OpenTelemetry's, CPU", measured, at_most=0.6),
        Row("a span with its export, CPU", f"{measured.a_median / N_SPANS * 1e6:.2f} µs"),
        Row("OpenTelemetry's, CPU", f"{measured.b_median / N_SPANS * 1e6:.2f} µs"),
        Row("a span without export, CPU, best of all runs", f"{alone / N_SPANS * 1e6:.2f} µs", "target: 3 µs"),
    ]
