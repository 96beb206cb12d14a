from __future__ import annotations

import os
import resource
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.store import EpisodeIndex, EpisodeStore, open_index
from runner.store.episode_file import timestep_record
from runner.store.journal import JournalExtras, JournalWriter, read_journal
from runner.store.safe_json import encode
from runner.types import Outcome, Tokens
from runner.util.clock import Clock
from tests.support.episodes import RecordedEpisode, damaged_bytes, episode_header, make_step, new_id, tool_schemas


@pytest.fixture
def store(tmp_path: Path) -> EpisodeStore:
    return EpisodeStore(tmp_path / "data")


@pytest.fixture
def index(store: EpisodeStore) -> Iterator[EpisodeIndex]:
    index = open_index(store)
    yield index
    index.close()


def _append(writer: JournalWriter, number: int) -> None:
    extras = JournalExtras() if number else JournalExtras(tool_schemas=[tool_schemas("move")])
    writer.append(encode(timestep_record(make_step(number), 0)), encode(extras))


def _orphan(store: EpisodeStore, n_steps: int) -> Path:
    """Return a journal whose writer has died."""
    about = episode_header()
    writer = JournalWriter(store.journal_path(about.batch_id, about.episode_id), about)
    for number in range(n_steps):
        _append(writer, number)
    writer.close()
    return writer.path


def test_each_step_is_in_the_journal_once_it_is_over(store: EpisodeStore, index: EpisodeIndex) -> None:
    recording = RecordedEpisode(store, index)
    recording.start()
    for number in range(3):
        recording.play(make_step(number))
        first, *lines = recording.journal.read_bytes().splitlines()
        assert msgspec.json.decode(first)["episode_id"] == recording.header.episode_id
        assert [msgspec.json.decode(line)["index"] for line in lines] == list(range(number + 1))


def test_a_line_holds_tools_and_reset_only_where_they_are_new(store: EpisodeStore, index: EpisodeIndex) -> None:
    recording = RecordedEpisode(store, index)
    recording.start()
    recording.reset()
    for number, name in enumerate(["a", "a", "b"]):
        recording.play(make_step(number, available_tool_schemas=tool_schemas(name)))
    lines = [msgspec.json.decode(line) for line in recording.journal.read_bytes().splitlines()[1:]]
    assert [line.get("tool_schemas") for line in lines] == [None, [tool_schemas("a")], None, [tool_schemas("b")]]
    assert ["reset_observation" in line for line in lines] == [True, False, False, False]
    assert ["index" in line for line in lines] == [False, True, True, True]


def test_an_orphan_becomes_an_interrupted_episode(store: EpisodeStore, index: EpisodeIndex) -> None:
    recording = RecordedEpisode(store, index)
    tracer = recording.spans.tracer
    recording.start()
    with tracer.span("episode", "episode", task_id="Maze:0") as outer:
        outer.start_flow(7)
        recording.reset()
        for number in range(2):
            with tracer.span("timestep", "timestep", index=number) as inner:
                inner.end_flow(9)
            recording.play(make_step(number, tokens=Tokens(5, 1), cost=0.5))
        recording.recorder._journal.close()  # type: ignore[union-attr]  # as at the death of the process
        (record,) = store.recover()
    assert record == store.load(recording.file)
    assert not recording.journal.exists()
    assert (record.outcome, record.success, record.rounds, record.reward) == (Outcome.INTERRUPTED, False, 2, 0.5)
    assert (record.tokens, record.cost) == (Tokens(10, 2), 1.0)
    assert record.reset_observation == [{"role": "user", "content": "observation 0"}]
    assert record.duration_s >= 1.5
    assert record.ended_at > record.started_at
    names = {span.id: span.name for span in record.spans}
    assert list(names.values()) == ["timestep", "timestep", "episode"]
    assert all(names[span.parent] == "episode" for span in record.spans if span.parent is not None)
    last, episode = record.spans[-2:]
    assert episode.start_ns <= last.start_ns <= last.end_ns <= episode.end_ns
    assert episode.attributes["task_id"] == "Maze:0"
    assert [flow.id for flow in record.flows] == [9, 9]


def test_a_torn_end_keeps_all_complete_lines(store: EpisodeStore) -> None:
    path = _orphan(store, 3)
    whole = path.read_bytes()
    ends = [place for place, byte in enumerate(whole) if byte == ord("\n")]
    for size in range(ends[0] + 1, len(whole) + 1, 7):
        path.write_bytes(whole[:size])
        journal = read_journal(path)
        assert len(journal.steps) == sum(end < size for end in ends) - 1
        assert journal.damage is None


@pytest.mark.parametrize("size", [0, 10])
def test_a_journal_without_a_complete_header_is_reported(size: int, store: EpisodeStore) -> None:
    path = _orphan(store, 1)
    os.truncate(path, size)
    assert store.recover() == []
    assert [report.path for report in store.damaged] == [path]
    assert "no complete line" in store.damaged[0].reason
    assert path.exists()


def test_damage_in_the_middle_keeps_the_steps_before_it_and_is_reported(store: EpisodeStore) -> None:
    path = _orphan(store, 4)
    lines = path.read_bytes().split(b"\n")
    lines[3] = lines[3][:20] + b"\xff" + lines[3][20:]
    path.write_bytes(b"\n".join(lines))
    (record,) = store.recover()
    assert record.rounds == 2
    (report,) = store.damaged
    assert report.path == path.with_name(path.name + ".damaged")
    assert report.path.exists()
    assert not path.exists()
    assert "line 4" in report.reason
    assert store.recover() == []
    assert store.damaged == []


@pytest.mark.parametrize("other", ["episode_id", "batch_id"])
def test_a_journal_of_another_name_is_not_used(other: str, store: EpisodeStore) -> None:
    path = _orphan(store, 1)
    content = path.read_bytes().replace(getattr(read_journal(path).header, other).encode(), new_id().encode())
    path.write_bytes(content)
    assert store.recover() == []
    assert "does not match its name" in store.damaged[0].reason


def test_a_journal_in_use_is_left_alone(store: EpisodeStore) -> None:
    about = episode_header()
    writer = JournalWriter(store.journal_path(about.batch_id, about.episode_id), about)
    _append(writer, 0)
    assert EpisodeStore(store.data_dir).recover() == []
    _append(writer, 1)
    writer.close()
    assert [record.rounds for record in store.recover()] == [2]


def test_a_journal_beside_its_episode_file_is_only_removed(store: EpisodeStore, index: EpisodeIndex) -> None:
    recording = RecordedEpisode(store, index)
    recording.start()
    recording.play(make_step(0))
    lines = recording.journal.read_bytes()
    recording.end()
    recording.journal.write_bytes(lines)
    assert store.recover() == []
    assert not recording.journal.exists()
    assert store.load(recording.file).outcome is Outcome.SUCCESS


def test_abandoned_temporary_files_are_removed(store: EpisodeStore, index: EpisodeIndex) -> None:
    recording = RecordedEpisode(store, index)
    recording.record_episode()
    half = recording.file.with_name(recording.file.name + ".tmp")
    half.write_bytes(b"{")
    store.recover()
    assert half.exists()
    later = Clock(now=lambda: Clock().now().replace(year=2999))
    store.recover(later)
    assert not half.exists()
    assert recording.file.exists()


def test_nothing_is_written_after_the_fence(store: EpisodeStore) -> None:
    about = episode_header()
    writer = JournalWriter(store.journal_path(about.batch_id, about.episode_id), about)
    _append(writer, 0)
    writer.fence()
    _append(writer, 1)
    assert len(read_journal(writer.path).steps) == 1
    writer.close()
    _append(writer, 1)
    assert len(read_journal(writer.path).steps) == 1


@contextmanager
def _files_limited_to(size: int) -> Iterator[None]:
    """Simulate a full disk: a write beyond ``size`` is partial, the next one fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_costs_the_journal_but_not_the_episode(store: EpisodeStore, index: EpisodeIndex) -> None:
    recording = RecordedEpisode(store, index)
    recording.start()
    recording.play(make_step(0))
    with _files_limited_to(recording.journal.stat().st_size + 100):
        recording.play(make_step(1))
    assert recording.recorder.journal_error is not None
    recording.play(make_step(2))
    assert len(read_journal(recording.journal).steps) == 1
    recording.end()
    assert store.load(recording.file).rounds == 3


@settings(deadline=None, max_examples=80)
@given(st.data())
def test_no_bytes_in_a_journal_crash_the_recovery(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = EpisodeStore(Path(folder))
        path = _orphan(store, 2)
        path.write_bytes(data.draw(st.binary(max_size=200) | damaged_bytes(path.read_bytes())))
        recovered = store.recover()
        assert recovered or store.damaged
        for record in recovered:
            assert store.load(record.episode_id) == record
            assert record.rounds <= 2


def test_a_kill_in_the_first_step_keeps_the_reset_observation(store: EpisodeStore, index: EpisodeIndex) -> None:
    recording = RecordedEpisode(store, index)
    tracer = recording.spans.tracer
    recording.start()
    with tracer.span("episode", "episode"):
        with tracer.span("env.reset", "environment"):
            pass
        recording.reset()
        with tracer.span("timestep", "timestep"):
            recording.recorder._journal.close()  # type: ignore[union-attr]  # as at the death of the process
            (record,) = store.recover()
    assert (record.outcome, record.rounds) == (Outcome.INTERRUPTED, 0)
    assert record.reset_observation == [{"role": "user", "content": "observation 0"}]
    assert record.env_episode_id == "episode 7 of its own"
    assert [span.name for span in record.spans] == ["env.reset", "episode"]
    assert store.damaged == []
