"""The trace of a batch for ui.perfetto.dev: one file, one row per slot, complete after each episode."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from runner.tracing.appending import append_packets, framed
from runner.tracing.collectors import take_all
from runner.tracing.lanes import Event, arrange
from runner.tracing.tracer import create_flow_id
from runner.tracing.values import Value, plain_text
from runner.types import Flow, Span

_REALTIME, _MONOTONIC = 1, 3
"""Perfetto's numbers of the two clocks."""


class PerfettoFile:
    """Appends the episodes of one process to a trace file; usable by several threads.

    Processes that append to the same file do not disturb each other's rows: these are told apart by ``boot``.

    Args:
        path: the file, usually ``<data>/traces/<batch_id>.pftrace``; made at the first flush.
        boot: names this process; drawn by default.
    """

    def __init__(self, path: Path, *, boot: str | None = None) -> None:
        """Prepare; nothing is written and no protobuf class loaded before the first flush."""
        self.path = path
        self._boot = boot or uuid.uuid4().hex
        self._sequence = create_flow_id("sequence", self._boot) % (2**32 - 1) + 1
        self._lock = threading.Lock()
        self._whole_until = 0
        self._free_from: dict[str, list[int]] = {}

    def for_track(self, track: str) -> PerfettoTrack:
        """A collector for one episode that is shown on the row ``track``."""
        return PerfettoTrack(self, plain_text(track))

    def append(self, track: str, spans: Sequence[Span], flows: Sequence[Flow]) -> None:
        """Write spans, as they come from a tracer, in one piece.

        Raises:
            StoreError: the file cannot be written; these spans are not in it, later ones may be.
        """
        with self._lock:
            known = self._free_from.get(track, [])
            lanes = arrange(spans, known)
            packets = [] if self._free_from else [self._clocks()]
            packets += [self._descriptor(track, number) for number in range(len(known), len(lanes))]
            arrows = _arrows_by_span(flows)
            for number, lane in enumerate(lanes):
                packets += self._slices(self._track_uuid(track, number), lane.events, arrows)
            self._whole_until = append_packets(self.path, b"".join(packets), whole_until=self._whole_until)
            self._free_from[track] = [lane.free_from for lane in lanes]

    def _slices(self, track_uuid: int, events: Sequence[Event], arrows: Mapping[int, Sequence[Flow]]) -> list[bytes]:
        encoder = _SliceEncoder(self._sequence, track_uuid)
        return [
            encoder.end(time_ns) if span is None else encoder.begin(span, arrows.get(span.id, ()))
            for time_ns, span in events
        ]

    def _clocks(self) -> bytes:
        """Says that times are of the monotonic clock, and what time of day it was."""
        from perfetto.trace_builder.proto_builder import TraceProtoBuilder

        builder = TraceProtoBuilder()
        packet = builder.add_packet()
        packet.trusted_packet_sequence_id = self._sequence
        packet.clock_snapshot.primary_trace_clock = _MONOTONIC
        for clock_id, now_ns in ((_MONOTONIC, time.monotonic_ns()), (_REALTIME, time.time_ns())):
            packet.clock_snapshot.clocks.add(clock_id=clock_id, timestamp=now_ns)
        encoded: bytes = builder.serialize()
        return encoded

    def _descriptor(self, track: str, number: int) -> bytes:
        from perfetto.trace_builder.proto_builder import TraceProtoBuilder

        builder = TraceProtoBuilder()
        packet = builder.add_packet()
        packet.trusted_packet_sequence_id = self._sequence
        descriptor = packet.track_descriptor
        descriptor.uuid = self._track_uuid(track, number)
        descriptor.name = f"{track} ({number + 1})" if number else track
        if number:
            descriptor.parent_uuid = self._track_uuid(track, 0)
        encoded: bytes = builder.serialize()
        return encoded

    def _track_uuid(self, track: str, number: int) -> int:
        return create_flow_id("track", f"{self._boot}/{number}/{track}")


class PerfettoTrack:
    """Buffers the spans of one episode, which come from one tracer, until ``flush``."""

    def __init__(self, file: PerfettoFile, track: str) -> None:
        """Start empty; see ``PerfettoFile.for_track``."""
        self._file = file
        self._track = track
        self._spans: list[Span] = []
        self._flows: list[Flow] = []
        self.on_span = self._spans.append
        self.on_flow = self._flows.append

    def flush(self) -> None:
        """Append what was collected since the last flush; the file is then complete up to here, even if we are killed.

        Raises:
            StoreError: the file cannot be written; what was collected is given up.
        """
        spans, flows = take_all(self._spans), take_all(self._flows)
        if spans:
            self._file.append(self._track, spans, flows)


def _arrows_by_span(flows: Sequence[Flow]) -> dict[int, list[Flow]]:
    arrows: dict[int, list[Flow]] = {}
    for flow in flows:
        arrows.setdefault(flow.span, []).append(flow)
    return arrows


class _SliceEncoder:
    """Encodes the slices of one lane with the same two packets again and again, as making new ones takes far longer."""

    def __init__(self, sequence: int, track_uuid: int) -> None:
        from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TracePacket, TrackEvent

        self._begin, self._end = TracePacket(), TracePacket()
        for packet, kind in ((self._begin, TrackEvent.TYPE_SLICE_BEGIN), (self._end, TrackEvent.TYPE_SLICE_END)):
            packet.timestamp_clock_id = _MONOTONIC
            packet.trusted_packet_sequence_id = sequence
            packet.track_event.type = kind
            packet.track_event.track_uuid = track_uuid
        self._event = self._begin.track_event
        self._event.categories.append("")
        self._categories = self._event.categories
        self._annotations = self._event.debug_annotations

    def begin(self, span: Span, arrows: Sequence[Flow]) -> bytes:
        self._begin.timestamp = span.start_ns
        self._event.name = span.name
        self._categories[0] = span.category
        annotations = self._annotations
        del annotations[:]
        for key, value in span.attributes.items():
            _annotate(annotations.add(), key, value)
        if arrows:
            return self._begin_with(arrows)
        encoded: bytes = self._begin.SerializeToString()
        return framed(encoded)

    def _begin_with(self, arrows: Sequence[Flow]) -> bytes:
        event = self._event
        event.flow_ids.extend(flow.id for flow in arrows if flow.phase == "start")
        event.terminating_flow_ids.extend(flow.id for flow in arrows if flow.phase == "end")
        encoded: bytes = self._begin.SerializeToString()
        del event.flow_ids[:], event.terminating_flow_ids[:]
        return framed(encoded)

    def end(self, time_ns: int) -> bytes:
        self._end.timestamp = time_ns
        encoded: bytes = self._end.SerializeToString()
        return framed(encoded)


def _annotate(annotation: Any, key: str, value: Value) -> None:  # noqa: ANN401
    annotation.name = key
    kind = type(value)
    if kind is str:
        annotation.string_value = value
    elif kind is int:
        annotation.int_value = value
    elif kind is float:
        annotation.double_value = value
    elif kind is bool:
        annotation.bool_value = value
    else:
        annotation.string_value = "None"
