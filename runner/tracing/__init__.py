"""Tracing of episodes: each span is recorded once and collected both for the episode file and for Perfetto."""

from runner.tracing.perfetto import PerfettoFile as PerfettoFile
from runner.tracing.perfetto import ProtobufCollector as ProtobufCollector
from runner.tracing.perfetto import TraceEncoder as TraceEncoder
from runner.tracing.perfetto import get_protobuf_collector as get_protobuf_collector
from runner.tracing.tracer import Collector as Collector
from runner.tracing.tracer import SpanHandle as SpanHandle
from runner.tracing.tracer import SpanList as SpanList
from runner.tracing.tracer import Tracer as Tracer
from runner.tracing.tracer import create_error_info as create_error_info
from runner.tracing.tracer import create_flow_id as create_flow_id
from runner.tracing.tracer import traced_method as traced_method
