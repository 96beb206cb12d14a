"""Tracing of episodes: each span is recorded once and collected both for the episode file and for Perfetto."""

from runner.tracing.perfetto import PerfettoFile, ProtobufCollector, TraceEncoder, get_protobuf_collector
from runner.tracing.tracer import (
    Collector,
    SpanHandle,
    SpanList,
    Tracer,
    create_error_info,
    create_flow_id,
    traced_method,
)

__all__ = [
    "Collector",
    "PerfettoFile",
    "ProtobufCollector",
    "SpanHandle",
    "SpanList",
    "TraceEncoder",
    "Tracer",
    "create_error_info",
    "create_flow_id",
    "get_protobuf_collector",
    "traced_method",
]
