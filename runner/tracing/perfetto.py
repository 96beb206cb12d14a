"""Perfetto trace of a batch for ui.perfetto.dev: one file, one track per episode worker, valid after each episode.

Encodes https://perfetto.dev/docs/reference/synthetic-track-event; Perfetto's protobuf classes need 65 ms to load.
Several processes append to one file. The slices of a track must nest, so spans that overlap without nesting, such as
those of concurrent tasks, go to different lanes, each a track of its own.
"""

from __future__ import annotations

import fcntl
import functools
import logging
import mmap
import os
import struct
import threading
import time
import uuid
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import TypeAlias

from runner.errors import StoreError
from runner.tracing.tracer import create_flow_id
from runner.types import Flow, Span
from runner.util.resources import file_advice
from runner.util.safe_values import PlainValue

logger = logging.getLogger(__name__)

_PACKET_TAG = 0x0A
"""Protobuf tag of ``Trace.packet``: field 1, length-delimited. A trace file is a sequence of such packets."""
_MAX_UINT64 = 2**64 - 1
_REALTIME, _MONOTONIC = 1, 3  # values of ``BuiltinClock``
MAX_COLLECTED = 100_000
_EVENT_TAG = 0x5A
"""Protobuf tag of ``TracePacket.track_event``: field 11, length-delimited."""
_TIME_TAG = 0x40
"""Protobuf tag of ``TracePacket.timestamp``: field 8, a varint."""
_SLICE_BEGIN, _SLICE_END = 1, 2  # values of ``TrackEvent.type``, field 9

SliceEdge: TypeAlias = tuple[int, Span | None]
"""A time in nanoseconds, and the span that begins at that time, or None if the innermost open span ends."""

_id, _start_ns = attrgetter("id"), attrgetter("start_ns")


class Lane:
    """A track of nested slices in time order; new ones must not begin before ``free_from``, in nanoseconds."""

    def __init__(self, free_from: int) -> None:
        self.events: list[SliceEdge] = []
        self.free_from = free_from
        self._open: list[Span] = []

    def place(self, spans: Iterable[Span]) -> int:
        """Place spans in order, up to the first that does not fit; return the number of placed spans.

        A span fits if no span is open in the lane, or if the innermost open one is its parent.
        """
        n_placed, opened, add = 0, self._open, self.events.append
        for span in spans:
            parent, start_ns, end_ns = span.parent, span.start_ns, span.end_ns
            while opened:
                last = opened[-1]
                if last.id == parent and end_ns <= last.end_ns:  # a child, even if both have zero duration
                    break
                if last.end_ns > start_ns:
                    return n_placed
                self._close()
            else:
                if start_ns < self.free_from:
                    return n_placed
            add((start_ns, span))
            opened.append(span)
            n_placed += 1
        return n_placed

    def _close(self) -> None:
        self.free_from = self._open.pop().end_ns
        self.events.append((self.free_from, None))

    def close_all(self) -> None:
        while self._open:
            self._close()


def assign_lanes(spans: Iterable[Span], free_from: Iterable[int]) -> list[Lane]:
    """Place spans on lanes whose events nest and are in time order.

    A span goes to its parent's lane if it fits there, else to the first lane where it fits, else to a new lane.
    ``free_from`` has the end of the last slice of each existing lane, in nanoseconds.
    """
    ordered = sorted(sorted(spans, key=_id), key=_start_ns)
    lanes = [Lane(time_ns) for time_ns in free_from] or [Lane(0)]
    n_placed = lanes[0].place(ordered)  # nearly always all of them
    rest = ordered[n_placed:]
    lane_of: dict[int | None, Lane] = {span.id: lanes[0] for span in ordered[:n_placed]} if rest else {}
    for span in rest:
        lane = lane_of.get(span.parent)
        if lane is None or not lane.place([span]):
            lane = _first_free(lanes, span)
        lane_of[span.id] = lane
    for lane in lanes:
        lane.close_all()
    return lanes


def _first_free(lanes: list[Lane], span: Span) -> Lane:
    for lane in lanes:
        if lane.place([span]):
            return lane
    lanes.append(Lane(span.start_ns))
    lanes[-1].place([span])
    return lanes[-1]


@functools.lru_cache(maxsize=1024)
def field_header(length: int, tag: int = _PACKET_TAG) -> bytes:
    return varint(tag) + varint(length)


def varint(value: int) -> bytes:
    """A negative number is encoded as 64 bits in two's complement."""
    value &= _MAX_UINT64
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def number_field(field: int, value: int) -> bytes:
    """Encode a field of a type such as ``uint64``, ``int64``, ``bool`` or an enum."""
    return varint(field << 3) + varint(value)


def content_field(field: int, content: bytes | str) -> bytes:
    data = content.encode() if isinstance(content, str) else content
    return field_header(len(data), field << 3 | 2) + data


def append_packets(path: Path, packets: bytes, *, valid_bytes: int = 0) -> int:
    """Append encoded packets in one write; creates the file with mode 0600 and its folder with 0700.

    An incomplete packet at the end of the file, left by a killed process, is removed first: all data after it would be
    unreadable. ``valid_bytes`` at the beginning are known to be complete packets, the rest is scanned; return the new
    number of such bytes. Raises ``StoreError`` if the file cannot be written; its previous content is unchanged.
    """
    try:
        descriptor = _open(path)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            size = _truncate_incomplete(path, descriptor, valid_bytes)
            return _write_all_or_nothing(descriptor, packets, size)
        finally:
            os.close(descriptor)
    except OSError as exc:
        advice = file_advice(exc, "check disk space and permissions")
        raise StoreError(f"cannot append to the trace {path}: {exc}; {advice}") from exc


def _open(path: Path) -> int:
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        return os.open(path, flags, 0o600)
    except FileNotFoundError:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return os.open(path, flags, 0o600)


def _write_all_or_nothing(descriptor: int, packets: bytes, size: int) -> int:
    written = os.write(descriptor, packets)
    if written < len(packets):
        os.ftruncate(descriptor, size)
        raise OSError(f"only {written} of {len(packets)} bytes were written")
    return size + written


def _truncate_incomplete(path: Path, descriptor: int, valid_bytes: int) -> int:
    size = os.fstat(descriptor).st_size
    if size in (0, valid_bytes):
        return size
    with mmap.mmap(descriptor, size, prot=mmap.PROT_READ) as data:
        complete = complete_length(data, valid_bytes if valid_bytes < size else 0)
    if complete < size:
        logger.warning("removed %d bytes of an incomplete packet at the end of the trace %s", size - complete, path)
        os.ftruncate(descriptor, complete)
    return complete


def complete_length(data: bytes | mmap.mmap, start: int = 0) -> int:
    """Return the size of all complete packets at the beginning; the first ``start`` bytes are not scanned."""
    size, complete = len(data), start
    while complete < size and data[complete] == _PACKET_TAG:
        end = _packet_end(data, complete + 1)
        if end > size:
            break
        complete = end
    return complete


def _packet_end(data: bytes | mmap.mmap, position: int) -> int:
    """Return the end of the packet whose length (a varint) is at ``position``; may be beyond the end of ``data``."""
    length = shift = 0
    for index in range(position, min(position + 10, len(data))):
        length |= (data[index] & 0x7F) << shift
        shift += 7
        if data[index] < 0x80:
            return index + 1 + length
    return len(data) + 1


class TraceEncoder:
    """Encodes the slices of one track, in the process that plays its episodes; used on one thread at a time.

    ``boot`` is the unique id of the process that writes the file, see ``PerfettoFile``.
    """

    def __init__(self, boot: str, track: str) -> None:
        self._boot = boot
        self._track = track
        self._free_from: list[int] = []
        self._encoders: list[_SliceEncoder] = []

    @property
    def n_lanes(self) -> int:
        return len(self._encoders)

    def encode(self, spans: Sequence[Span], flows: Sequence[Flow]) -> bytes:
        if not spans:
            return b""
        lanes = assign_lanes(spans, self._free_from)
        while len(self._encoders) < len(lanes):
            uuid = _track_uuid(self._boot, self._track, len(self._encoders))
            self._encoders.append(_SliceEncoder(_sequence(self._boot), uuid))
        self._free_from = [lane.free_from for lane in lanes]
        arrows = _arrows_by_span(flows)
        chunks: list[bytes] = []
        for encoder, lane in zip(self._encoders, lanes, strict=True):
            chunks += encoder.slices(lane.events, arrows)
        return b"".join(chunks)


class PerfettoFile:
    """Appends the episodes of one process to a trace file; thread-safe. The first ``append`` creates the file.

    Several processes may append to the same file; ``boot``, by default random, distinguishes their tracks.
    """

    def __init__(self, path: Path, *, boot: str | None = None) -> None:
        self.path = path
        self.boot = boot or uuid.uuid4().hex
        self._lock = threading.Lock()
        self._valid_bytes = 0
        self._n_lanes: dict[str, int] = {}

    def append(self, track: str, packets: bytes, n_lanes: int) -> None:
        """Append encoded slices in a single write; do nothing without packets.

        Raises ``StoreError`` if the file cannot be written; these slices are lost, but later calls may succeed.
        """
        if not packets:
            return
        with self._lock:
            n_known = self._n_lanes.get(track, 0)
            new = [] if self._n_lanes else [self._clocks()]
            new += [self._descriptor(track, number) for number in range(n_known, n_lanes)]
            self._valid_bytes = append_packets(self.path, b"".join([*new, packets]), valid_bytes=self._valid_bytes)
            self._n_lanes[track] = max(n_known, n_lanes)

    def _clocks(self) -> bytes:
        """Encode a clock snapshot, which relates the monotonic times of the trace to the time of day."""
        clocks = ((_MONOTONIC, time.monotonic_ns()), (_REALTIME, time.time_ns()))
        snapshot = b"".join(content_field(1, number_field(1, id) + number_field(2, now_ns)) for id, now_ns in clocks)
        return self._packet(content_field(6, snapshot + number_field(2, _MONOTONIC)))

    def _descriptor(self, track: str, number: int) -> bytes:
        """Encode the descriptor of a lane, whose parent is the first lane of the track."""
        name = f"{track} ({number + 1})" if number else track
        descriptor = number_field(1, _track_uuid(self.boot, track, number)) + content_field(2, name)
        if number:
            descriptor += number_field(5, _track_uuid(self.boot, track, 0))
        return self._packet(content_field(60, descriptor))

    def _packet(self, content: bytes) -> bytes:
        content += number_field(10, _sequence(self.boot))
        return field_header(len(content)) + content


class ProtobufCollector:
    """Collects the spans of the tracers of this process in memory, until ``save`` encodes them; thread-safe.

    Of each tracer's row, the newest ``MAX_COLLECTED`` spans are kept.
    """

    def __init__(self) -> None:
        self._boot = uuid.uuid4().hex
        self._lock = threading.Lock()
        self._tracks: dict[str, _Track] = {}
        self._files: dict[Path, PerfettoFile] = {}
        self._of_thread = threading.local()

    def on_span(self, span: Span) -> None:
        with self._lock:
            if (track := self._tracks.get(span.track)) is None:
                track = self._tracks[span.track] = _Track(TraceEncoder(self._boot, span.track))
            track.spans.append(span)
        self._of_thread.track = track

    def on_flow(self, flow: Flow) -> None:
        """The flow belongs to the span that this thread closed last."""
        self._of_thread.track.flows.append(flow)

    def save(self, path: Path) -> None:
        """Append what has been collected since the last call to a trace file; call it while no episode runs.

        Raises ``StoreError`` if the file cannot be written; these spans are lost.
        """
        with self._lock:
            file = self._files.setdefault(path, PerfettoFile(path, boot=self._boot))
            for name, track in self._tracks.items():
                packets = track.encoder.encode(list(track.spans), list(track.flows))
                track.spans.clear()
                track.flows.clear()
                file.append(name, packets, track.encoder.n_lanes)


class _Track:
    def __init__(self, encoder: TraceEncoder) -> None:
        self.encoder = encoder
        self.spans: deque[Span] = deque(maxlen=MAX_COLLECTED)
        self.flows: deque[Flow] = deque(maxlen=MAX_COLLECTED)


@functools.cache
def get_protobuf_collector() -> ProtobufCollector:
    return ProtobufCollector()


def _track_uuid(boot: str, track: str, number: int) -> int:
    return create_flow_id("track", f"{boot}/{number}/{track}")


def _sequence(boot: str) -> int:
    return create_flow_id("sequence", boot) % (2**32 - 1) + 1


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
        self._track_uuid = number_field(11, track_uuid)
        self._packet = number_field(58, _MONOTONIC) + number_field(10, sequence)
        self._end_packet = self._packet + content_field(11, number_field(9, _SLICE_END) + self._track_uuid)
        self._named_event = functools.lru_cache(maxsize=128)(self._encode_event)
        self._plain_begin = functools.lru_cache(maxsize=128)(self._encode_begin)
        self._end = functools.lru_cache(maxsize=16)(self._encode_end)

    def slices(self, events: Iterable[SliceEdge], arrows: Mapping[int, Sequence[Flow]]) -> list[bytes]:
        chunks: list[bytes] = []
        plain_begin, end = self._plain_begin, self._end
        for time_ns, span in events:
            time = _encode_time(time_ns)
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
        kind = number_field(9, _SLICE_BEGIN)
        return kind + self._track_uuid + content_field(23, name) + content_field(22, category)


def _encode_time(time_ns: int) -> bytes:
    """Encode ``TracePacket.timestamp``; times near each other share all but four bytes, so the rest is cached."""
    return bytes(
        (
            _TIME_TAG,
            time_ns & 0x7F | 0x80,
            time_ns >> 7 & 0x7F | 0x80,
            time_ns >> 14 & 0x7F | 0x80,
            time_ns >> 21 & 0x7F | 0x80,
        )
    ) + _encode_high_bits(time_ns >> 28)


_encode_high_bits = functools.lru_cache(maxsize=16)(varint)


def _encode_flows(arrows: Sequence[Flow]) -> bytes:
    """Encode ``TrackEvent.flow_ids`` and ``terminating_flow_ids``, each 64 bits in little-endian order."""
    tags = {"start": varint(47 << 3 | 1), "end": varint(48 << 3 | 1)}
    return b"".join(tags[flow.phase] + flow.id.to_bytes(8, "little") for flow in arrows)


@functools.lru_cache(maxsize=1024, typed=True)
def _encode_annotation(key: str, value: PlainValue) -> bytes:
    if isinstance(value, bool):
        encoded = number_field(2, value)
    elif isinstance(value, int):
        encoded = number_field(4, value)
    elif isinstance(value, float):
        # Adding 0.0 normalizes -0.0, which the cache cannot distinguish from 0.0.
        encoded = varint(5 << 3 | 1) + struct.pack("<d", value + 0.0)
    else:
        encoded = content_field(6, str(value))
    return content_field(4, content_field(10, key) + encoded)
