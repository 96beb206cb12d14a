from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

from runner.errors import StoreError
from runner.tracing import PerfettoFile
from runner.tracing.perfetto import append_packets, complete_length
from tests.support.perfetto import Slice, all_slices, read_packets, read_slices, track_names, write_episode


def test_a_file_that_cannot_be_written_raises_a_store_error(tmp_path: Path) -> None:
    (tmp_path / "traces").write_text("in the way")
    with pytest.raises(StoreError, match=r"traces/batch\.pftrace"):
        write_episode(PerfettoFile(tmp_path / "traces" / "batch.pftrace"))


def test_after_a_failed_flush_the_next_one_is_complete(trace_file: PerfettoFile) -> None:
    trace_file.path.mkdir(parents=True)
    with pytest.raises(StoreError):
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


def test_another_process_adds_separate_tracks(trace_file: PerfettoFile) -> None:
    write_episode(trace_file)
    with write_in_another_process(trace_file.path, 2) as process:
        process.communicate()
    write_episode(trace_file)
    tracks = read_slices(trace_file.path)
    assert list(track_names(read_packets(trace_file.path)).values()) == ["slot 0", "slot 0"]
    assert [[item.name for item in roots] for roots in tracks.values()] == [["episode"] * 2] * 2


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
    assert len(episode_slices(trace_file.path)) == 3


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
