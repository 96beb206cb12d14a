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
from collections.abc import Iterable, Sequence
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
_SLICE_BEGIN, _SLICE_END = 1, 2  # values of ``TrackEvent.type``, field 9
_FLOW_TAGS = {"start": b"\xf9\x02", "end": b"\x81\x03"}
"""Protobuf tags of ``TrackEvent.flow_ids`` and ``terminating_flow_ids``: fields 47 and 48, of 64 bits each."""

SliceEdge: TypeAlias = tuple[int, Span | None]
"""A time in nanoseconds, and the span that begins at that time, or None if the innermost open span ends."""


class Lane:
    """A track of nested slices in time order; new ones must not begin before ``free_from``, in nanoseconds."""

    def __init__(self, free_from: int) -> None:
        self.events: list[SliceEdge] = []
        self.free_from = free_from
        self._open: list[Span] = []

    def place(self, span: Span) -> bool:
        """Return False if it does not fit: if a span that is not its parent is open, or the lane is not free yet."""
        while self._open:
            last = self._open[-1]
            if last.id == span.parent and span.end_ns <= last.end_ns:  # a child, even if both have zero duration
                break
            if last.end_ns > span.start_ns:
                return False
            self._close()
        else:
            if span.start_ns < self.free_from:
                return False
        self.events.append((span.start_ns, span))
        self._open.append(span)
        return True

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
    lanes = [Lane(time_ns) for time_ns in free_from]
    lane_of: dict[int | None, Lane] = {}
    for span in sorted(spans, key=lambda span: (span.start_ns, span.id)):
        lane = lane_of.get(span.parent)
        if lane is None or not lane.place(span):
            lane = next((each for each in lanes if each.place(span)), None)
        if lane is None:
            lanes.append(lane := Lane(span.start_ns))
            lane.place(span)
        lane_of[span.id] = lane
    for lane in lanes:
        lane.close_all()
    return lanes


@functools.lru_cache(maxsize=4096)  # most are tags and lengths
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
    return varint(field << 3 | 2) + varint(len(data)) + data


def append_packets(path: Path, packets: bytes, *, valid_bytes: int = 0) -> int:
    """Append encoded packets in one write; creates the file with mode 0600 and its folder with 0700.

    An incomplete packet at the end of the file, left by a killed process, is removed first: all data after it would be
    unreadable. ``valid_bytes`` at the beginning are known to be complete packets, the rest is scanned; return the new
    number of such bytes. Raises ``StoreError`` if the file cannot be written; its previous content is unchanged.
    """
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, flags, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            size = _truncate_incomplete(path, descriptor, valid_bytes)
            if (written := os.write(descriptor, packets)) < len(packets):
                os.ftruncate(descriptor, size)
                raise OSError(f"only {written} of {len(packets)} bytes were written")
            return size + written
        finally:
            os.close(descriptor)
    except OSError as exc:
        advice = file_advice(exc, "check disk space and permissions")
        raise StoreError(f"cannot append to the trace {path}: {exc}; {advice}") from exc


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

    @property
    def n_lanes(self) -> int:
        return len(self._free_from)

    def encode(self, spans: Sequence[Span], flows: Sequence[Flow]) -> bytes:
        lanes = assign_lanes(spans, self._free_from)
        self._free_from = [lane.free_from for lane in lanes]
        arrows: dict[int, list[Flow]] = {}
        for flow in flows:
            arrows.setdefault(flow.span, []).append(flow)
        origin, packets = number_field(58, _MONOTONIC) + number_field(10, _sequence(self._boot)), []
        for number, lane in enumerate(lanes):
            track = number_field(11, _track_uuid(self._boot, self._track, number))
            begin, end = (number_field(9, edge) + track for edge in (_SLICE_BEGIN, _SLICE_END))
            for time_ns, span in lane.events:
                event = end if span is None else begin + _slice_fields(span, arrows.get(span.id, ()))
                packets.append(_packet(origin + content_field(11, event) + number_field(8, time_ns)))
        return b"".join(packets)


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
        return self._with_sequence(content_field(6, snapshot + number_field(2, _MONOTONIC)))

    def _descriptor(self, track: str, number: int) -> bytes:
        """Encode the descriptor of a lane, whose parent is the first lane of the track."""
        name = f"{track} ({number + 1})" if number else track
        descriptor = number_field(1, _track_uuid(self.boot, track, number)) + content_field(2, name)
        if number:
            descriptor += number_field(5, _track_uuid(self.boot, track, 0))
        return self._with_sequence(content_field(60, descriptor))

    def _with_sequence(self, content: bytes) -> bytes:
        return _packet(content + number_field(10, _sequence(self.boot)))


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


def _packet(content: bytes) -> bytes:
    return content_field(1, content)


def _slice_fields(span: Span, arrows: Iterable[Flow]) -> bytes:
    fields = [content_field(23, span.name), content_field(22, span.category)]
    fields += [_encode_annotation(key, value) for key, value in span.attributes.items()]
    fields += [_FLOW_TAGS[flow.phase] + flow.id.to_bytes(8, "little") for flow in arrows]
    return b"".join(fields)


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
