from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from runner.errors import StoreError
from runner.store import EpisodeIndex, EpisodeStore
from runner.store.index_schema import episode_row
from runner.store.parts import Part
from runner.store.token_file import TokenizedEpisode
from runner.types import ErrorInfo, Outcome
from runner.types.sequences import TokenSequence
from tests.support.episodes import RecordedEpisode, decoded, make_step, newest_rows


def test_an_abandoned_episode_is_stored_from_its_journal(
    store: EpisodeStore, index: EpisodeIndex, recording: RecordedEpisode
) -> None:
    tracer = recording.spans.tracer
    recording.start()
    with tracer.span("episode", "episode"):
        recording.play(make_step(0))
        with tracer.span("agent.act", "agent"):
            record = recording.recorder.abandon(Outcome.TIMEOUT, ErrorInfo("late", "too late", ""))
            recording.play(make_step(1))
    recording.end()
    assert recording.recorder.record is record
    assert store.load(recording.file) == record
    assert not recording.journal.exists()
    assert (record.outcome, record.success, record.rounds) == (Outcome.TIMEOUT, False, 1)
    assert record.error == ErrorInfo("late", "too late", "")
    assert [span.name for span in record.spans] == ["episode"]
    assert [row.outcome for row in newest_rows(index)] == [Outcome.TIMEOUT]


def test_an_ended_episode_cannot_be_abandoned(store: EpisodeStore, recording: RecordedEpisode) -> None:
    recording.record_episode()
    assert recording.recorder.abandon(Outcome.TIMEOUT) is recording.recorder.record is not None
    assert store.load(recording.file).outcome is Outcome.SUCCESS


def test_an_episode_that_was_done_before_it_hung_keeps_its_success(recording: RecordedEpisode) -> None:
    recording.start()
    recording.play(make_step(0, done=True))
    assert recording.recorder.abandon(Outcome.SUCCESS).success


def test_an_episode_that_never_started_cannot_be_stored(recording: RecordedEpisode) -> None:
    with pytest.raises(StoreError, match="before it started"):
        recording.recorder.abandon(Outcome.TIMEOUT)
    recording.start()
    recording.play(make_step(0))
    recording.end()
    assert recording.recorder.record is None
    assert not recording.file.exists()


def test_abandoning_at_any_moment_stores_one_complete_episode(store: EpisodeStore, index: EpisodeIndex) -> None:
    for n_before in range(8):
        recording = RecordedEpisode(store, index)
        recording.start()
        reached = threading.Event()

        def play(recording: RecordedEpisode = recording, reached: threading.Event = reached, n: int = n_before) -> None:
            for number in range(12):
                recording.play(make_step(number))
                if number == n:
                    reached.set()
            recording.end()

        worker = threading.Thread(target=play)
        worker.start()
        assert reached.wait(10)
        record = recording.recorder.abandon(Outcome.TIMEOUT)
        worker.join(10)
        stored = store.load(recording.file)
        assert record is recording.recorder.record
        assert recording.recorder.content is not None
        assert stored == decoded(recording.recorder.content)
        assert episode_row(record, recording.recorder.content) == episode_row(stored)
        assert [step.index for step in stored.timesteps] == list(range(stored.rounds))
        assert n_before < stored.rounds <= 12
        assert not recording.journal.exists()
    assert len(newest_rows(index)) == 8


class Blocking:
    """Content of a message whose ``__str__`` blocks."""

    def __init__(self) -> None:
        self.entered, self.released = threading.Event(), threading.Event()

    def __str__(self) -> str:
        self.entered.set()
        self.released.wait(20)
        return "late"


def test_a_blocking_object_does_not_prevent_abandoning(store: EpisodeStore, recording: RecordedEpisode) -> None:
    recording.start()
    recording.reset()
    recording.play(make_step(0))
    content = Blocking()
    stuck = threading.Thread(
        target=recording.play, args=[make_step(1, observation=[{"role": "user", "content": content}])]
    )
    stuck.start()
    assert content.entered.wait(10)
    record = recording.recorder.abandon(Outcome.TIMEOUT)
    content.released.set()
    stuck.join(10)
    assert (record.outcome, record.rounds) == (Outcome.TIMEOUT, 1)
    assert store.load(recording.file) == record
    assert not recording.journal.exists()


class Hanging:
    """A write that hangs until ``released``, and the thread that is stuck in it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        self._entered, self._released = threading.Event(), threading.Event()
        monkeypatch.setattr(f"runner.store.{name}", self._hang)

    def _hang(self, target: object, data: bytes) -> None:
        self._entered.set()
        self._released.wait(20)

    def start(self, work: Callable[..., object], *arguments: object) -> None:
        self._stuck = threading.Thread(target=work, args=arguments)
        self._stuck.start()
        assert self._entered.wait(10)

    def release(self) -> None:
        self._released.set()
        self._stuck.join(10)


def test_a_hanging_disk_loses_the_file_but_not_the_result(
    store: EpisodeStore, index: EpisodeIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording = RecordedEpisode(store, index, lock_timeout_s=0.05)
    recording.start()
    recording.reset()
    recording.play(make_step(0))
    disk = Hanging(monkeypatch, "episode_store.replace_file")
    disk.start(recording.end)
    with pytest.raises(StoreError, match=f"write of episode {recording.header.episode_id} hangs"):
        recording.recorder.abandon(Outcome.TIMEOUT)
    record = recording.recorder.record
    assert record is not None
    assert (record.outcome, record.rounds, record.env_episode_id) == (Outcome.SUCCESS, 1, "env episode 7")
    assert recording.journal.exists()
    disk.release()


def test_a_hanging_write_of_the_journal_does_not_prevent_abandoning(
    store: EpisodeStore, monkeypatch: pytest.MonkeyPatch, recording: RecordedEpisode
) -> None:
    recording.start()
    recording.reset()
    recording.play(make_step(0))
    disk = Hanging(monkeypatch, "journal.write_all")
    disk.start(recording.play, make_step(1))
    record = recording.recorder.abandon(Outcome.TIMEOUT)
    assert (record.outcome, record.rounds, record.env_episode_id) == (Outcome.TIMEOUT, 1, "env episode 7")
    disk.release()
    assert store.load(recording.file) == record
    assert not recording.journal.exists()


class LostWorker(RecordedEpisode):
    """Plays on after its channel has broken: the journal gets every part, the recorder no more."""

    is_cut = False

    def _receive(self, part: Part) -> None:
        if not self.is_cut:
            super()._receive(part)


@pytest.mark.parametrize("n_sent", [-2, -1, 0, 1, 2])
def test_what_a_lost_worker_has_written_counts_even_if_it_could_not_send_it(
    store: EpisodeStore, index: EpisodeIndex, n_sent: int
) -> None:
    """``n_sent`` is the number of steps that arrived; -1: only the start did, -2: nothing."""
    recording = LostWorker(store, index)
    recording.is_cut = n_sent == -2
    recording.start()
    recording.is_cut = n_sent < 0
    recording.reset()
    for number in range(3):
        recording.is_cut = number >= n_sent
        recording.reporter.on_sequence(TokenSequence(prompt_ids=[number], completion_ids=[1], logprobs=[-0.5]))
        recording.play(make_step(number))
    recording.writer.close()
    with recording.journal.open("ab") as journal:
        journal.write(b'{"index":3,"to')  # it was killed in this write
    error = ErrorInfo("worker_lost", "worker 1 was lost", "")
    record = recording.recorder.abandon(Outcome.INTERRUPTED, error)
    assert (record.outcome, record.rounds, record.env_episode_id) == (Outcome.INTERRUPTED, 3, "env episode 7")
    assert (record.error, record.reset_observation[0]["content"]) == (error, "observation 0")
    assert record.timesteps[2].observation == make_step(2).observation
    assert store.load(recording.file) == record
    assert not recording.journal.exists()
    assert [row.rounds for row in newest_rows(index)] == [3]
    found = store.load_with_tokens(recording.file)
    assert isinstance(found, TokenizedEpisode)
    assert [[each.prompt_ids for each in step] for step in found.sequences] == [[[0]], [[1]], [[2]]]


@pytest.mark.parametrize("content", [b"", b"{", b"\0" * 4096])
def test_a_damaged_journal_costs_no_step_that_arrived(
    store: EpisodeStore, content: bytes, recording: RecordedEpisode
) -> None:
    recording.start()
    recording.reset()
    recording.play(make_step(0))
    recording.journal.write_bytes(content)
    record = recording.recorder.abandon(Outcome.INTERRUPTED)
    assert (record.rounds, store.load(recording.file)) == (1, record)


def test_an_end_that_a_worker_could_not_send_is_an_interruption(store: EpisodeStore, index: EpisodeIndex) -> None:
    recording = LostWorker(store, index)
    recording.is_cut = True
    recording.start()
    recording.reset()
    for number in range(2):
        recording.play(make_step(number))
    recording.end()
    record = recording.recorder.abandon(Outcome.INTERRUPTED)
    assert (record.outcome, record.success, record.rounds) == (Outcome.INTERRUPTED, False, 2)
    assert not recording.journal.exists()


@pytest.mark.parametrize("n_before", [0, 1])
def test_a_step_that_ends_after_its_episode_was_abandoned_adds_no_token_ids(
    n_before: int, recording: RecordedEpisode
) -> None:
    recording.start()
    recording.reset()
    sequence = TokenSequence(prompt_ids=[1], completion_ids=[1], logprobs=[-0.5])
    for number in range(n_before):
        recording.reporter.on_sequence(sequence)
        recording.play(make_step(number))
    recording.recorder.abandon(Outcome.TIMEOUT)
    files = {path.name: path.read_bytes() for path in recording.file.parent.iterdir()}
    recording.reporter.on_sequence(sequence)
    recording.play(make_step(n_before))
    recording.reporter.on_sequence(sequence)
    recording.end()
    assert {path.name: path.read_bytes() for path in recording.file.parent.iterdir()} == files
    assert len(files) == 1 + n_before
