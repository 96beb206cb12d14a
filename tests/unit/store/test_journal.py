from __future__ import annotations

import itertools
import os
import resource
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.store import EpisodeIndex, EpisodeRecord, EpisodeStore
from runner.store.journal import EpisodeJournal, read_journal
from runner.store.parts import Ended, Part, Reset, Started, Step, Unjournaled
from runner.store.token_file import decode_token_file
from runner.types import EpisodeEnded, EpisodeHeader, EpisodeStarted, Outcome, TimestepPlayed, Tokens
from runner.types.sequences import TokenSequence
from runner.util.clock import Clock
from runner.util.files import file_lock
from tests.support.command import REPOSITORY
from tests.support.episodes import (
    END,
    RecordedEpisode,
    damaged_bytes,
    episode_header,
    make_reporter,
    make_step,
    make_trajectory,
    new_id,
    tool_schemas,
)
from tests.support.examples import examples
from tests.support.fake_worker import step_frame


def begin_journal(store: EpisodeStore, header: EpisodeHeader) -> EpisodeJournal:
    journal = EpisodeJournal(store.runs, header)
    journal.write(Started(episode_id=header.episode_id, at=END, seq=0))
    return journal


def append_step(journal: EpisodeJournal, number: int) -> None:
    assert journal.write(step_frame(episode_header(), number)) is None


def write_orphan_journal(store: EpisodeStore, n_steps: int) -> Path:
    """Return the journal of a process that died."""
    header = episode_header()
    writer = begin_journal(store, header)
    for number in range(n_steps):
        append_step(writer, number)
    writer.close()
    return writer.path


def test_each_completed_step_is_in_the_journal(index: EpisodeIndex, recording: RecordedEpisode) -> None:
    recording.start()
    for number in range(3):
        recording.play(make_step(number))
        first, *lines = recording.journal.read_bytes().splitlines()
        assert msgspec.json.decode(first)["episode_id"] == recording.header.episode_id
        assert [msgspec.json.decode(line)["index"] for line in lines] == list(range(number + 1))


def test_a_line_contains_tools_and_reset_only_when_they_change(index: EpisodeIndex, recording: RecordedEpisode) -> None:
    recording.start()
    recording.reset()
    for number, name in enumerate(["a", "a", "b"]):
        recording.play(make_step(number, available_tool_schemas=tool_schemas(name)))
    lines = [msgspec.json.decode(line) for line in recording.journal.read_bytes().splitlines()[1:]]
    assert [line.get("tool_schemas") for line in lines] == [None, [tool_schemas("a")], None, [tool_schemas("b")]]
    assert ["reset_observation" in line for line in lines] == [True, False, False, False]
    assert ["index" in line for line in lines] == [False, True, True, True]


def test_an_orphan_becomes_an_interrupted_episode(
    store: EpisodeStore, index: EpisodeIndex, recording: RecordedEpisode
) -> None:
    tracer = recording.spans.tracer
    recording.start()
    with tracer.span("episode", "episode", task_id="Maze:0") as outer:
        outer.start_flow(7)
        recording.reset()
        for number in range(2):
            with tracer.span("timestep", "timestep", index=number) as inner:
                inner.end_flow(9)
            recording.play(make_step(number, tokens=Tokens(5, 1), cost=0.5))
        recording.writer.close()  # simulates the death of the process
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
    path = write_orphan_journal(store, 3)
    content = path.read_bytes()
    ends = [offset for offset, byte in enumerate(content) if byte == ord("\n")]
    for size in range(ends[0] + 1, len(content) + 1, 7):
        path.write_bytes(content[:size])
        journal = read_journal(path)
        assert len(journal.steps) == sum(end < size for end in ends) - 1
        assert journal.damage is None


@pytest.mark.parametrize("content", [b"", bytes(5000)])
def test_an_empty_journal_as_after_a_power_loss_is_removed(content: bytes, store: EpisodeStore) -> None:
    path = write_orphan_journal(store, 1)
    path.write_bytes(content)
    assert (store.recover(), store.damaged, path.exists()) == ([], [], False)


def test_a_journal_without_a_complete_header_is_reported(store: EpisodeStore) -> None:
    path = write_orphan_journal(store, 1)
    os.truncate(path, 10)
    assert store.recover() == []
    assert [report.path for report in store.damaged] == [path]
    assert "no complete line" in store.damaged[0].reason
    assert path.exists()


def test_damage_in_the_middle_keeps_the_steps_before_it_and_is_reported(store: EpisodeStore) -> None:
    path = write_orphan_journal(store, 4)
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
def test_a_journal_that_does_not_match_its_name_is_not_used(other: str, store: EpisodeStore) -> None:
    path = write_orphan_journal(store, 1)
    content = path.read_bytes().replace(getattr(read_journal(path).header, other).encode(), new_id().encode())
    path.write_bytes(content)
    assert store.recover() == []
    assert "does not match its name" in store.damaged[0].reason


def test_a_journal_in_use_is_not_recovered(store: EpisodeStore) -> None:
    header = episode_header()
    writer = begin_journal(store, header)
    append_step(writer, 0)
    later = itertools.count(0, 10)
    assert EpisodeStore(store.data_dir).recover(Clock(monotonic=lambda: float(next(later)))) == []
    append_step(writer, 1)
    writer.close()
    assert [record.rounds for record in store.recover()] == [2]


def test_a_journal_beside_its_episode_file_is_removed_without_recovery(
    store: EpisodeStore, recording: RecordedEpisode
) -> None:
    recording.start()
    recording.play(make_step(0))
    lines = recording.journal.read_bytes()
    recording.end()
    recording.journal.write_bytes(lines)
    assert store.recover() == []
    assert not recording.journal.exists()
    assert store.load(recording.file).outcome is Outcome.SUCCESS


def test_abandoned_temporary_files_are_removed(store: EpisodeStore, recording: RecordedEpisode) -> None:
    recording.record_episode()
    temporary = recording.file.with_name(recording.file.name + ".tmp")
    temporary.write_bytes(b"{")
    store.recover()
    assert temporary.exists()
    later = Clock(now=lambda: Clock().now().replace(year=2999))
    store.recover(later)
    assert not temporary.exists()
    assert recording.file.exists()


def test_nothing_is_written_after_the_end(store: EpisodeStore) -> None:
    header = episode_header()
    writer = begin_journal(store, header)
    append_step(writer, 0)
    writer.close()
    append_step(writer, 1)
    assert len(read_journal(writer.path).steps) == 1


@contextmanager
def limit_file_size(size: int) -> Iterator[None]:
    """Simulate a full disk: a write beyond ``size`` is partial, the next one fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def no_files_left() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_full_disk_loses_the_journal_but_not_the_episode(store: EpisodeStore, recording: RecordedEpisode) -> None:
    recording.start()
    recording.play(make_step(0))
    with limit_file_size(recording.journal.stat().st_size + 100):
        recording.play(make_step(1))
    (unjournaled,) = (part for part in recording.parts if isinstance(part, Unjournaled))
    assert ("File too large" in unjournaled.problem, unjournaled.shortage) == (True, None)
    recording.play(make_step(2))
    assert len(read_journal(recording.journal).steps) == 1
    recording.end()
    assert [type(part) for part in recording.parts] == [Started, Step, Unjournaled, Step, Step, Ended]
    assert store.load(recording.file).rounds == 3


def test_a_journal_for_which_no_file_is_left_names_the_shortage(recording: RecordedEpisode) -> None:
    with no_files_left():
        recording.start()
    recording.reset()
    recording.play(make_step(0))
    assert isinstance(recording.parts[0], Unjournaled)
    assert recording.parts[0].shortage == "open files"
    assert [type(part) for part in recording.parts] == [Unjournaled, Started, Reset, Step]
    assert not recording.journal.exists()


def test_each_part_is_on_the_disk_before_anybody_learns_of_it(store: EpisodeStore) -> None:
    header, sent = episode_header(), list[tuple[type[Part], int, bool]]()
    path = store.journal_path(header.batch_id, header.episode_id)

    def send(part: Part) -> None:
        journal = read_journal(path)
        tokens = store.tokens_path(header.batch_id, header.episode_id)
        n_records = len(decode_token_file(tokens.read_bytes())) if tokens.exists() else 0
        sent.append((type(part), len(journal.steps), journal.env_episode_id is not None))
        assert n_records == len(journal.steps) + isinstance(part, Ended)

    reporter = make_reporter(header, send, journal=EpisodeJournal(store.runs, header))
    reporter.emit(EpisodeStarted(at=END, episode_id=header.episode_id, seq=0, header=header))
    reporter.on_reset([], "e")
    sequence = TokenSequence(prompt_ids=[1], completion_ids=[2], logprobs=[-0.5])
    for number in range(2):
        reporter.on_sequence(sequence)
        step = make_step(number)
        reporter.emit(TimestepPlayed(at=END, episode_id=header.episode_id, seq=0, step=step))
    reporter.on_sequence(sequence)
    reporter.emit(EpisodeEnded(at=END, episode_id=header.episode_id, seq=0, trajectory=make_trajectory(header, [])))
    assert sent == [(Started, 0, False), (Reset, 0, True), (Step, 1, True), (Step, 2, True), (Ended, 2, True)]


def test_the_journals_of_a_batch_that_is_played_are_left_alone(store: EpisodeStore) -> None:
    path, other = write_orphan_journal(store, 2), write_orphan_journal(store, 3)
    with store.playing(path.parent.name):
        content = path.read_bytes()
        assert [record.rounds for record in EpisodeStore(store.data_dir).recover()] == [3]
        assert (path.read_bytes(), other.exists()) == (content, False)
    assert [record.rounds for record in EpisodeStore(store.data_dir).recover()] == [2]


def test_a_batch_gets_its_lock_although_recoveries_of_others_try_it(store: EpisodeStore) -> None:
    batch_id = new_id()
    folder = store.runs / batch_id
    store.create_batch_folder(batch_id)
    for _ in range(10):  # the lock is free for a part of the time
        ended = threading.Event()

        def try_lock(ended: threading.Event = ended) -> None:
            while not ended.is_set():
                with file_lock(folder):
                    pass

        recovery = threading.Thread(target=try_lock)
        recovery.start()
        with store.playing(batch_id):
            ended.set()
            recovery.join()
            with file_lock(folder) as is_free:
                assert not is_free


ORPHAN = """
import os, sys
from pathlib import Path
from runner.store import EpisodeStore
from tests.support.episodes import episode_header
from tests.unit.store.test_journal import append_step, begin_journal

store, header = EpisodeStore(Path(sys.argv[1])), episode_header()
writer = begin_journal(store, header)
append_step(writer, 0)
print("playing", flush=True)
sys.stdin.read()
append_step(writer, 1)
os._exit(0)
"""
"""A worker whose driver has died; it ends its step when its standard input is closed."""


def test_recovery_waits_for_the_step_of_a_worker_without_its_driver_but_not_for_long(store: EpisodeStore) -> None:
    seconds, n_looks = itertools.count(0, 2), itertools.count()
    has_looked, recovered = threading.Event(), list[EpisodeRecord]()

    def monotonic() -> float:  # read before the first look, and after each that found the journal locked
        if next(n_looks):
            has_looked.set()
        return 0.0

    def recover() -> None:
        recovered.extend(store.recover(Clock(monotonic=monotonic)))

    thread = threading.Thread(target=recover, daemon=True)
    arguments = [sys.executable, "-c", ORPHAN, str(store.data_dir)]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=REPOSITORY) as orphan:
        assert orphan.stdout is not None and orphan.stdin is not None
        assert orphan.stdout.readline() == b"playing\n"
        assert store.recover(Clock(monotonic=lambda: float(next(seconds)))) == []
        assert 2 < next(seconds) <= 12
        thread.start()
        assert has_looked.wait(60)
        orphan.stdin.close()
        thread.join(60)
    assert [(record.outcome, record.rounds) for record in recovered] == [(Outcome.INTERRUPTED, 2)]


@settings(deadline=None, max_examples=examples(80))
@given(st.data())
def test_no_bytes_in_a_journal_crash_the_recovery(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = EpisodeStore(Path(folder))
        path = write_orphan_journal(store, 2)
        path.write_bytes(content := data.draw(st.binary(max_size=200) | damaged_bytes(path.read_bytes())))
        recovered = store.recover()
        assert bool(recovered or store.damaged) == bool(content.strip(b"\0"))
        for record in recovered:
            assert store.load(record.episode_id) == record
            assert record.rounds <= 2


def test_a_kill_in_the_first_step_keeps_the_reset_observation(store: EpisodeStore, recording: RecordedEpisode) -> None:
    tracer = recording.spans.tracer
    recording.start()
    with tracer.span("episode", "episode"):
        with tracer.span("env.reset", "environment"):
            pass
        recording.reset()
        with tracer.span("timestep", "timestep"):
            recording.writer.close()  # simulates the death of the process
            (record,) = store.recover()
    assert (record.outcome, record.rounds) == (Outcome.INTERRUPTED, 0)
    assert record.reset_observation == [{"role": "user", "content": "observation 0"}]
    assert record.env_episode_id == "env episode 7"
    assert [span.name for span in record.spans] == ["env.reset", "episode"]
    assert store.damaged == []
