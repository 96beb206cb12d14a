from __future__ import annotations

import asyncio
import itertools
import logging
import math
import stat
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

from runner.errors import StoreError
from runner.tracing import PerfettoFile, Tracer, create_flow_id
from runner.tracing.perfetto import append_packets, complete_length
from tests.support.perfetto import (
    MONOTONIC,
    Slice,
    TrackCollector,
    all_slices,
    append_spans,
    read_packets,
    read_slices,
    track_names,
    write_episode,
)


def test_an_episode_becomes_nested_slices_on_its_track(trace_file: PerfettoFile) -> None:
    before = time.monotonic_ns()
    write_episode(trace_file)
    after = time.monotonic_ns()
    ((episode,),) = read_slices(trace_file.path).values()
    assert (episode.name, episode.category, episode.track) == ("episode", "episode", "slot 0")
    assert [step.attributes for step in episode.children] == [{"index": 0}, {"index": 1}]
    assert [[inner.name for inner in step.children] for step in episode.children] == [["env.step"], ["env.step"]]
    times = [before]
    for step in episode.children:
        (inner,) = step.children
        times += [step.start_ns, inner.start_ns, inner.end_ns, step.end_ns]
    assert [*times, after] == sorted([*times, after])


@pytest.mark.parametrize("now_ns", [0, 2**28 - 2, 2**28, 2**60])
def test_times_are_exact_to_the_nanosecond(trace_file: PerfettoFile, now_ns: int) -> None:
    ticks = iter([now_ns + 1, now_ns + 2])
    collector = TrackCollector(trace_file, "slot 0")
    with Tracer("full", [collector], clock_ns=lambda: next(ticks)).span("a", "agent"):
        pass
    collector.flush()
    (only_slice,) = all_slices(trace_file.path)
    assert (only_slice.start_ns, only_slice.end_ns) == (now_ns + 1, now_ns + 2)


def test_flows_connect_slices_of_two_tracks(trace_file: PerfettoFile) -> None:
    flow_id = create_flow_id("response", "7")
    for track, phase in (("slot 0", "start_flow"), ("slot 1", "end_flow")):
        collector = TrackCollector(trace_file, track)
        tracer = Tracer("full", [collector])
        with tracer.span(phase, "agent") as span:
            getattr(span, phase)(flow_id)
        with tracer.span("without", "agent"):
            pass
        collector.flush()
    slices = {item.name: item for item in all_slices(trace_file.path)}
    assert (slices["start_flow"].flows_out, slices["start_flow"].flows_in) == ([flow_id], [])
    assert (slices["end_flow"].flows_out, slices["end_flow"].flows_in) == ([], [flow_id])
    assert (slices["without"].flows_out, slices["without"].flows_in) == ([], [])


def test_attributes_keep_their_types(trace_file: PerfettoFile) -> None:
    attributes = {"int": -(2**63), "float": math.inf, "bool": False, "text": "ü\x00\ud800", "none": None, "big": 2**64}
    collector = TrackCollector(trace_file, "slot 0")
    with Tracer("full", [collector]).span("a", "agent", **attributes):
        pass
    collector.flush()
    (packet,) = [packet for packet in read_packets(trace_file.path) if packet.track_event.name == "a"]
    kinds = {a.name: a.WhichOneof("value") for a in packet.track_event.debug_annotations}
    assert kinds == {
        "int": "int_value",
        "float": "double_value",
        "bool": "bool_value",
        "text": "string_value",
        "none": "string_value",
        "big": "string_value",
    }
    expected = attributes | {"text": "ü\x00\\ud800", "none": "None", "big": str(2**64)}
    assert all_slices(trace_file.path)[0].attributes == expected


async def test_overlapping_siblings_get_separate_lanes(trace_file: PerfettoFile) -> None:
    collector = TrackCollector(trace_file, "slot 0")
    tracer = Tracer("full", [collector])

    async def work(barrier: asyncio.Barrier) -> None:
        with tracer.span("outer", "agent"):
            await barrier.wait()
            with tracer.span("inner", "agent"):
                await barrier.wait()

    for _ in range(2):  # the second pass reuses the lanes of the first one
        barrier = asyncio.Barrier(3)
        with tracer.span("gather", "agent"):
            await asyncio.gather(*(work(barrier) for _ in range(3)))
        collector.flush()
    main, *lanes = read_slices(trace_file.path).values()
    outer = ["outer", [["inner", []]]]
    assert [slice_shape(item) for item in main] == [["gather", [outer]]] * 2
    assert [[slice_shape(item) for item in lane] for lane in lanes] == [[outer] * 2] * 2
    assert [(main[0].track, *(lane[0].track for lane in lanes))] == [("slot 0", "slot 0 (2)", "slot 0 (3)")]
    packets = read_packets(trace_file.path)
    tracks = {each.name: each for each in (p.track_descriptor for p in packets if p.HasField("track_descriptor"))}
    uuid = tracks["slot 0"].uuid
    assert {name: each.parent_uuid for name, each in tracks.items()} == {
        "slot 0": 0,
        "slot 0 (2)": uuid,
        "slot 0 (3)": uuid,
    }
    snapshots = [packet.clock_snapshot for packet in packets if packet.HasField("clock_snapshot")]
    assert [snapshot.primary_trace_clock for snapshot in snapshots] == [MONOTONIC]
    assert [clock.clock_id for clock in snapshots[0].clocks] == [MONOTONIC, 1]


def test_a_span_that_outlives_its_episode_is_on_a_lane(trace_file: PerfettoFile) -> None:
    collector = TrackCollector(trace_file, "slot 0")
    tracer = Tracer("full", [collector])
    late = tracer.span("late", "agent")
    with tracer.span("episode", "episode"):
        late.__enter__()
    collector.flush()
    write_episode(trace_file)
    late.__exit__(None, None, None)
    collector.flush()
    tracks = read_slices(trace_file.path)
    assert [[item.name for item in roots] for roots in tracks.values()] == [["episode", "episode"], ["late"]]


def test_several_tracks_are_written_at_the_same_time(trace_file: PerfettoFile) -> None:
    def play(slot: int) -> None:
        for _ in range(5):
            write_episode(trace_file, f"slot {slot}")

    threads = [threading.Thread(target=play, args=(slot,)) for slot in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    tracks = read_slices(trace_file.path)
    assert len(tracks) == 4
    for roots in tracks.values():
        assert [(item.name, item.attributes["track"]) for item in roots] == [("episode", roots[0].track)] * 5
    assert len({roots[0].track for roots in tracks.values()}) == 4


def test_the_file_is_private_and_created_only_when_needed(trace_file: PerfettoFile) -> None:
    append_spans(trace_file, "slot 0", [])
    assert not trace_file.path.parent.exists()
    write_episode(trace_file)
    assert stat.S_IMODE(trace_file.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(trace_file.path.parent.stat().st_mode) == 0o700


@dataclass
class Node:
    """A span to record, with its child spans."""

    name: str
    attributes: dict[str, Any]
    children: list[Node]


texts = st.text(st.characters(), max_size=8)
values = texts | st.integers() | st.floats() | st.booleans() | st.none() | st.binary(max_size=8)
attributes = st.dictionaries(texts.filter(lambda key: key not in ("name", "category", "self")), values, max_size=2)
trees = st.recursive(
    st.builds(Node, texts, attributes, st.just([])),
    lambda inner: st.builds(Node, texts, attributes, st.lists(inner, max_size=4)),
    max_leaves=10,
)


def record_tree(tracer: Tracer, node: Node) -> None:
    with tracer.span(node.name, "agent", **node.attributes):
        for child in node.children:
            record_tree(tracer, child)


def node_shape(node: Node) -> list[Any]:
    return [node.name.encode("utf-8", "backslashreplace").decode(), [node_shape(child) for child in node.children]]


def slice_shape(item: Slice) -> list[Any]:
    return [item.name, [slice_shape(child) for child in item.children]]


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(trees, max_size=3), st.lists(st.integers(0, 2), min_size=1, max_size=9))
def test_any_tree_of_spans_becomes_the_same_tree_of_slices(
    tmp_path_factory: pytest.TempPathFactory, episodes: list[Node], steps: list[int]
) -> None:
    trace = PerfettoFile(tmp_path_factory.mktemp("trees") / "batch.pftrace")
    ticks = itertools.accumulate(itertools.chain([1], itertools.cycle([step + 1 for step in steps])))
    for episode in episodes:
        collector = TrackCollector(trace, "slot 0")
        record_tree(Tracer("full", [collector], clock_ns=lambda: next(ticks)), episode)
        collector.flush()
    roots = list(itertools.chain(*read_slices(trace.path).values())) if episodes else []
    assert [slice_shape(item) for item in roots] == [node_shape(episode) for episode in episodes]


@given(
    st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["enter", "exit", "flush"])), max_size=40),
    st.lists(st.integers(0, 2), min_size=1, max_size=9),
)
def test_spans_in_any_order_are_well_nested_slices(
    tmp_path_factory: pytest.TempPathFactory, actions: list[tuple[int, str]], steps: list[int]
) -> None:
    trace = PerfettoFile(tmp_path_factory.mktemp("orders") / "batch.pftrace")
    ticks = itertools.accumulate(itertools.chain([1], itertools.cycle(steps)))
    collector = TrackCollector(trace, "slot 0")
    tracer = Tracer("full", [collector], clock_ns=lambda: next(ticks))
    opened: list[Any] = []
    n_closed = 0
    for index, operation in actions:
        if operation == "enter":
            opened.append(tracer.span(f"span {index}", "agent").__enter__())
        elif operation == "exit" and opened:
            opened.pop(index % len(opened)).__exit__(None, None, None)
            n_closed += 1
        elif operation == "flush":
            collector.flush()
    while opened:
        opened.pop().__exit__(None, None, None)
        n_closed += 1
    collector.flush()
    assert len(all_slices(trace.path) if n_closed else []) == n_closed


def test_after_a_failed_flush_the_next_one_is_complete(trace_file: PerfettoFile) -> None:
    trace_file.path.mkdir(parents=True)
    with pytest.raises(StoreError, match=r"batch\.pftrace"):
        write_episode(trace_file)
    trace_file.path.rmdir()
    write_episode(trace_file)
    assert [item.name for item in all_slices(trace_file.path)][:1] == ["episode"]


WRITER = """
import sys
from pathlib import Path
from runner.tracing import PerfettoFile, Tracer
from tests.support.perfetto import TrackCollector

trace = PerfettoFile(Path(sys.argv[1]))
episode = 0
while episode < int(sys.argv[2]):
    collector = TrackCollector(trace, "slot 0")
    tracer = Tracer("full", [collector])
    with tracer.span("episode", "episode", number=episode):
        for index in range(30):
            with tracer.span("timestep", "timestep", index=index):
                pass
    collector.flush()
    print(episode, flush=True)
    episode += 1
"""


def write_in_another_process(path: Path, episodes: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, str(path), str(episodes)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[3])


def episode_slices(path: Path) -> list[Slice]:
    return [item for item in all_slices(path) if item.name == "episode"]


def test_flushed_spans_survive_a_kill(trace_file: PerfettoFile) -> None:
    with write_in_another_process(trace_file.path, sys.maxsize) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if int(line) == 9:
                break
        process.kill()
    n_complete = complete_length(trace_file.path.read_bytes())
    assert len(Trace.FromString(trace_file.path.read_bytes()[:n_complete]).packet) >= 10 * 62
    write_episode(trace_file)  # removes an incomplete packet, then appends
    episodes = episode_slices(trace_file.path)
    assert [item.attributes.get("number") for item in episodes[:-1]] == list(range(len(episodes) - 1))
    assert len(episodes) >= 11


@given(st.floats(0, 1))
def test_an_incomplete_end_is_removed(tmp_path_factory: pytest.TempPathFactory, fraction: float) -> None:
    path = tmp_path_factory.mktemp("torn") / "batch.pftrace"
    write_episode(PerfettoFile(path))
    first = path.stat().st_size
    write_episode(PerfettoFile(path))
    content = path.read_bytes()
    torn = content[: first + int(fraction * (len(content) - first))]
    path.write_bytes(torn)
    write_episode(PerfettoFile(path), steps=1)
    n_packets = len(Trace.FromString(torn[: complete_length(torn)]).packet)
    assert len(read_packets(path)) == n_packets + 2 + 6  # the clocks, a track, and three slices
    assert n_packets >= 2 + 10


def test_the_warning_about_an_incomplete_packet_names_the_file(
    trace_file: PerfettoFile, caplog: pytest.LogCaptureFixture
) -> None:
    write_episode(trace_file)
    with trace_file.path.open("ab") as file:
        file.write(b"\x0a\xff\x01half")
    with caplog.at_level(logging.WARNING):
        write_episode(PerfettoFile(trace_file.path))
    assert "removed 7 bytes of an incomplete packet" in caplog.text
    assert str(trace_file.path) in caplog.text
    assert len(episode_slices(trace_file.path)) == 2


def test_an_incomplete_packet_of_another_process_is_removed_at_any_time(trace_file: PerfettoFile) -> None:
    write_episode(trace_file)
    write_episode(PerfettoFile(trace_file.path))
    with trace_file.path.open("ab") as file:
        file.write(b"\x0a\x05torn")
    write_episode(trace_file)
    assert list(track_names(read_packets(trace_file.path)).values()) == ["slot 0", "slot 0"]
    assert [len(roots) for roots in read_slices(trace_file.path).values()] == [2, 1]


def test_a_replaced_file_is_scanned_again(trace_file: PerfettoFile) -> None:
    write_episode(trace_file)
    size = trace_file.path.stat().st_size
    trace_file.path.write_bytes(trace_file.path.read_bytes()[: size - 1])
    write_episode(trace_file)
    n_complete = complete_length(trace_file.path.read_bytes())
    assert n_complete == trace_file.path.stat().st_size > size


@given(st.binary(max_size=300))
def test_complete_packets_are_found_in_any_bytes(data: bytes) -> None:
    length = complete_length(data)
    assert 0 <= length <= len(data)
    assert complete_length(data[:length]) == length
    assert complete_length(b"\x0a\x02ok" + data) == 4 + length


def test_packets_that_do_not_fit_leave_the_file_unchanged(tmp_path: Path) -> None:
    code = f"""
import resource, signal
from pathlib import Path
from runner.errors import StoreError
from runner.tracing.perfetto import append_packets
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
try:
    append_packets(Path({str(tmp_path / "full.pftrace")!r}), bytes(200))
except StoreError as exc:
    print(exc)
"""
    append_packets(tmp_path / "full.pftrace", b"\x0a\x02ok")
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[3])
    assert "96 of 200 bytes" in done.stdout
    assert (tmp_path / "full.pftrace").read_bytes() == b"\x0a\x02ok"
