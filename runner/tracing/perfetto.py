"""Perfetto trace of a batch for ui.perfetto.dev: one file, one track per episode worker, valid after each episode.

Encodes Perfetto's protobuf format: https://perfetto.dev/docs/reference/synthetic-track-event
"""

from __future__ import annotations

import functools
import threading
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from runner.tracing.perfetto_append import append_packets, field_header
from runner.tracing.perfetto_tracks import SliceEdge, assign_lanes
from runner.tracing.tracer import create_flow_id, drain
from runner.types import Flow, Span
from runner.util.safe_values import PlainValue, plain_text

_REALTIME, _MONOTONIC = 1, 3
"""Perfetto's ids of the two clocks (``BuiltinClock``)."""

_EVENT_TAG = 0x5A
"""Protobuf tag of ``TracePacket.track_event``: field 11, length-delimited."""


class PerfettoFile:
    """Appends the episodes of one process to a trace file; thread-safe.

    Several processes may append to the same file; ``boot`` distinguishes the tracks of the processes.

    Args:
        path: the file, usually ``<data>/traces/<batch_id>.pftrace``; created by the first flush.
        boot: unique id of this process; random by default.
    """

    def __init__(self, path: Path, *, boot: str | None = None) -> None:
        """Create the object; the first flush creates the file and imports protobuf."""
        self.path = path
        self._boot = boot or uuid.uuid4().hex
        self._sequence = create_flow_id("sequence", self._boot) % (2**32 - 1) + 1
        self._lock = threading.Lock()
        self._valid_bytes = 0
        self._free_from: dict[str, list[int]] = {}
        self._encoders: dict[tuple[str, int], _SliceEncoder] = {}

    def for_track(self, track: str) -> PerfettoTrack:
        """Return a collector for one episode, displayed on the row ``track``."""
        return PerfettoTrack(self, plain_text(track))

    def append(self, track: str, spans: Sequence[Span], flows: Sequence[Flow]) -> None:
        """Append the spans and flows of one tracer in a single write.

        Raises:
            StoreError: the file cannot be written; these spans are lost, but later calls may succeed.
        """
        with self._lock:
            known = self._free_from.get(track, [])
            lanes = assign_lanes(spans, known)
            packets = [] if self._free_from else [self._clocks()]
            packets += [self._descriptor(track, number) for number in range(len(known), len(lanes))]
            arrows = _arrows_by_span(flows)
            for number, lane in enumerate(lanes):
                packets += self._encoder(track, number).slices(lane.events, arrows)
            self._valid_bytes = append_packets(self.path, b"".join(packets), valid_bytes=self._valid_bytes)
            self._free_from[track] = [lane.free_from for lane in lanes]

    def _encoder(self, track: str, number: int) -> _SliceEncoder:
        encoder = self._encoders.get((track, number))
        if encoder is None:
            encoder = _SliceEncoder(self._sequence, self._track_uuid(track, number))
            self._encoders[track, number] = encoder
        return encoder

    def _clocks(self) -> bytes:
        """Encode a clock snapshot, which relates the monotonic times of the trace to the time of day."""
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
    """Buffers the spans of one episode, from one tracer, until ``flush``."""

    def __init__(self, file: PerfettoFile, track: str) -> None:
        """Create an empty buffer; use ``PerfettoFile.for_track`` instead."""
        self._file = file
        self._track = track
        self._spans: list[Span] = []
        self._flows: list[Flow] = []
        self.on_span = self._spans.append
        self.on_flow = self._flows.append

    def flush(self) -> None:
        """Append the spans collected since the last flush to the file, so that they survive a crash of the process.

        Raises:
            StoreError: the file cannot be written; the collected spans are discarded.
        """
        spans, flows = drain(self._spans), drain(self._flows)
        if spans:
            self._file.append(self._track, spans, flows)


def _arrows_by_span(flows: Sequence[Flow]) -> dict[int, list[Flow]]:
    arrows: dict[int, list[Flow]] = {}
    for flow in flows:
        arrows.setdefault(flow.span, []).append(flow)
    return arrows


class _SliceEncoder:
    """Encodes the slices of one lane.

    Most slices differ only in their times, so all other fields are encoded once and cached. In protobuf, concatenated
    messages of the same type merge into one. A packet is therefore its cached fields followed by its time, and an
    event is its cached name followed by its attributes and flows.
    """

    def __init__(self, sequence: int, track_uuid: int) -> None:
        from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TracePacket, TrackEvent

        self._track_uuid = track_uuid
        self._time = TracePacket()
        packet = TracePacket(timestamp_clock_id=_MONOTONIC, trusted_packet_sequence_id=sequence)
        self._packet: bytes = packet.SerializeToString()
        packet.track_event.type = TrackEvent.TYPE_SLICE_END
        packet.track_event.track_uuid = track_uuid
        self._end_packet: bytes = packet.SerializeToString()
        self._named_event = functools.lru_cache(maxsize=128)(self._encode_event)
        self._plain_begin = functools.lru_cache(maxsize=128)(self._encode_begin)
        self._end = functools.lru_cache(maxsize=16)(self._encode_end)

    def slices(self, events: Iterable[SliceEdge], arrows: Mapping[int, Sequence[Flow]]) -> list[bytes]:
        """Return the encoded packets of the events as chunks, which the caller joins."""
        chunks: list[bytes] = []
        message, encode, plain_begin, end = self._time, self._time.SerializeToString, self._plain_begin, self._end
        for time_ns, span in events:
            message.timestamp = time_ns
            time: bytes = encode()
            if span is None:
                chunks += (end(len(time)), time)
            elif span.attributes or span.id in arrows:
                details = span.attributes, arrows.get(span.id, ())
                chunks += (self._encode_begin(len(time), span.name, span.category, *details), time)
            else:
                chunks += (plain_begin(len(time), span.name, span.category), time)
        return chunks

    def _encode_begin(
        self,
        n_more: int,
        name: str,
        category: str,
        attributes: Mapping[str, PlainValue] | None = None,
        arrows: Sequence[Flow] = (),
    ) -> bytes:
        """Encode the packet that begins a slice, except its last ``n_more`` bytes, which the caller appends."""
        event = self._named_event(name, category)
        if attributes:
            event += b"".join([_encode_annotation(key, value) for key, value in attributes.items()])
        if arrows:
            event += _encode_flows(arrows)
        event = self._packet + field_header(len(event), _EVENT_TAG) + event
        return field_header(len(event) + n_more) + event

    def _encode_end(self, n_more: int) -> bytes:
        return field_header(len(self._end_packet) + n_more) + self._end_packet

    def _encode_event(self, name: str, category: str) -> bytes:
        from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TrackEvent

        event = TrackEvent(type=TrackEvent.TYPE_SLICE_BEGIN, track_uuid=self._track_uuid, name=name)
        event.categories.append(category)
        encoded: bytes = event.SerializeToString()
        return encoded


def _encode_flows(arrows: Sequence[Flow]) -> bytes:
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TrackEvent

    event = TrackEvent()
    event.flow_ids.extend(flow.id for flow in arrows if flow.phase == "start")
    event.terminating_flow_ids.extend(flow.id for flow in arrows if flow.phase == "end")
    encoded: bytes = event.SerializeToString()
    return encoded


@functools.lru_cache(maxsize=1024, typed=True)
def _encode_annotation(key: str, value: PlainValue) -> bytes:
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TrackEvent

    event = TrackEvent()
    annotation = event.debug_annotations.add(name=key)
    kind = type(value)
    if kind is int:
        annotation.int_value = value
    elif isinstance(value, float):
        annotation.double_value = value + 0.0  # normalizes -0.0, which the cache cannot distinguish from 0.0
    elif kind is bool:
        annotation.bool_value = value
    else:
        annotation.string_value = str(value)
    encoded: bytes = event.SerializeToString()
    return encoded
