"""Written and decoded Perfetto traces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent

from runner.tracing import PerfettoFile, SpanList, TraceEncoder, Tracer, create_flow_id
from runner.types import Flow, Span

MONOTONIC = 3

_encoders: WeakKeyDictionary[PerfettoFile, dict[str, TraceEncoder]] = WeakKeyDictionary()


def append_spans(file: PerfettoFile, track: str, spans: Sequence[Span], flows: Sequence[Flow] = ()) -> None:
    """Append spans as the worker of a track and its driver do, which use one encoder for all its episodes."""
    encoder = _encoders.setdefault(file, {}).setdefault(track, TraceEncoder(file.boot, track))
    file.append(track, encoder.encode(spans, flows), encoder.n_lanes)


class TrackCollector(SpanList):
    """Collects the spans of one episode, and appends them to the row ``track`` of a trace file."""

    def __init__(self, file: PerfettoFile, track: str) -> None:
        super().__init__()
        self._file, self._track = file, track

    def flush(self) -> None:
        spans, flows = self.spans[:], self.flows[:]
        del self.spans[: len(spans)], self.flows[: len(flows)]
        append_spans(self._file, self._track, spans, flows)


@dataclass
class Slice:
    name: str
    category: str
    track: str
    start_ns: int
    end_ns: int = -1
    attributes: dict[str, Any] = field(default_factory=dict)
    flows_out: list[int] = field(default_factory=list)
    flows_in: list[int] = field(default_factory=list)
    children: list[Slice] = field(default_factory=list)


def read_packets(path: Path) -> list[Any]:
    """Decode the packets of a file with Perfetto's protobuf classes; invalid data raises."""
    return list(Trace.FromString(path.read_bytes()).packet)


def track_names(packets: list[Any]) -> dict[int, str]:
    named = [packet.track_descriptor for packet in packets if packet.HasField("track_descriptor")]
    assert len({descriptor.uuid for descriptor in named}) == len(named)
    return {descriptor.uuid: descriptor.name for descriptor in named}


def read_slices(path: Path) -> dict[int, list[Slice]]:
    """Return the root slices of each track, after checks for nesting and time order."""
    packets = read_packets(path)
    names = track_names(packets)
    roots: dict[int, list[Slice]] = {uuid: [] for uuid in names}
    open_slices: dict[int, list[Slice]] = {uuid: [] for uuid in names}
    last: dict[int, int] = dict.fromkeys(names, 0)
    for packet in packets:
        if not packet.HasField("track_event"):
            continue
        assert packet.timestamp_clock_id == MONOTONIC
        assert packet.trusted_packet_sequence_id > 0
        event = packet.track_event
        assert packet.timestamp >= last[event.track_uuid]
        last[event.track_uuid] = packet.timestamp
        stack = open_slices[event.track_uuid]
        if event.type == TrackEvent.TYPE_SLICE_END:
            stack.pop().end_ns = packet.timestamp
            continue
        assert event.type == TrackEvent.TYPE_SLICE_BEGIN
        (category,) = event.categories
        new_slice = Slice(event.name, category, names[event.track_uuid], packet.timestamp)
        new_slice.attributes = {a.name: getattr(a, a.WhichOneof("value")) for a in event.debug_annotations}
        new_slice.flows_out, new_slice.flows_in = list(event.flow_ids), list(event.terminating_flow_ids)
        (stack[-1].children if stack else roots[event.track_uuid]).append(new_slice)
        stack.append(new_slice)
    assert not any(open_slices.values())
    return roots


def flatten(slices: list[Slice]) -> list[Slice]:
    return [item for one in slices for item in (one, *flatten(one.children))]


def all_slices(path: Path) -> list[Slice]:
    return [item for roots in read_slices(path).values() for item in flatten(roots)]


def write_episode(trace_file: PerfettoFile, track: str = "slot 0", steps: int = 2) -> None:
    collector = TrackCollector(trace_file, track)
    tracer = Tracer("full", [collector], track=track)
    with tracer.span("episode", "episode", track=track) as episode:
        episode.end_flow(create_flow_id("task", "Maze:3"))
        episode.start_flow(create_flow_id("episode_return", track))
        for index in range(steps):
            with tracer.span("timestep", "timestep", index=index), tracer.span("env.step", "environment") as span:
                span.set_attribute("reward", 0.5)
    collector.flush()
