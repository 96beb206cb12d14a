"""Spans of an episode: recorded once, collected for the episode file and for Perfetto at the same time."""

from runner.tracing.error_info import create_error_info
from runner.tracing.perfetto import PerfettoFile, PerfettoTrack
from runner.tracing.tracer import Collector, SpanHandle, SpanList, Tracer, create_flow_id, traced_method

__all__ = [
    "Collector",
    "PerfettoFile",
    "PerfettoTrack",
    "SpanHandle",
    "SpanList",
    "Tracer",
    "create_error_info",
    "create_flow_id",
    "traced_method",
]
