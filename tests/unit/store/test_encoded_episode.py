"""Encoded parts of episodes: they are carried and recorded without decoding, and nothing is lost."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pytest

from runner.errors import StoreError
from runner.store import EpisodeIndex, EpisodeRecord, EpisodeRecorder, EpisodeStore, episode_store, open_index
from runner.store.journal import EpisodeJournal, stored_step
from runner.store.parts import EncodedTraces, Ended, Part, Reset, Started
from runner.tracing import SpanList, TraceEncoder, Tracer
from runner.types import (
    Chat,
    EpisodeEnded,
    EpisodeStarted,
    ErrorInfo,
    EvaluatedTrajectory,
    Flow,
    Outcome,
    Span,
    TimeStep,
    TimestepPlayed,
    Tokens,
)
from runner.util.clock import Clock
from runner.util.safe_values import encode
from runner.worker.episode_reporter import MAX_PACKETS_BYTES
from runner.worker.frames import decode_worker_frame, encode_frame
from tests.support.episodes import (
    END,
    episode_header,
    make_reporter,
    make_step,
    make_trajectory,
    newest_rows,
    tool_schemas,
)
from tests.support.fake_worker import end_frame, step_part

OBSERVATION: Chat = [{"role": "user", "content": "observation 0 \u2028 \\u0000 ✓"}]
STEPS = [
    make_step(0, tokens=Tokens(10, 2), cost=0.5, endpoint="a", model="m", warnings=("b: failed",)),
    make_step(1, available_tool_schemas=tool_schemas("move", "look"), reward=0.5),
    make_step(2, done=True, tokens=Tokens(3, 1, 1, 0)),
]
HEADER = episode_header()
STEP = step_part(HEADER, STEPS[0], seq=1)


def make_span(number: int) -> Span:
    return Span(
        id=number, parent=None, name=f"s{number}", category="c", track="slot 0", start_ns=number, end_ns=number + 5
    )


class ListedSpans(Tracer):
    """A tracer whose spans the test fills."""

    def __init__(self) -> None:
        super().__init__()
        self.closed = SpanList()
        self.open: list[Span] = []

    def open_spans(self) -> list[Span]:
        return self.open


class TwoRecorders:
    """Records one episode twice, in two stores: where it is played, and from the parts that a channel carried."""

    def __init__(self, folder: Path) -> None:
        self.header = episode_header()
        self.stores = [EpisodeStore(folder / name) for name in ("here", "there")]
        self.indexes = [open_index(store) for store in self.stores]
        self.source, frozen = ListedSpans(), Clock(monotonic=lambda: 7.0, now=lambda: END)
        self.recorders = [
            EpisodeRecorder(self.header, store, index, frozen)
            for store, index in zip(self.stores, self.indexes, strict=True)
        ]
        self.journals = [EpisodeJournal(store.runs, self.header) for store in self.stores]
        self.reporter = make_reporter(
            self.header, self._receive, tracer=self.source, spans=self.source.closed, journal=self.journals[0]
        )
        self.reporter.emit(EpisodeStarted(at=END, episode_id=self.header.episode_id, seq=0, header=self.header))

    def _receive(self, part: Part) -> None:
        carried = decode_worker_frame(encode_frame(part))
        assert isinstance(carried, Part)
        self.journals[1].write(carried)
        for recorder, each in zip(self.recorders, (part, carried), strict=True):
            if isinstance(each, Ended):
                recorder.finish(each)
            else:
                recorder.receive(each)

    def reset(self) -> None:
        self.source.closed.spans.append(make_span(1))
        self.reporter.on_reset(OBSERVATION, "env \x1b 7")

    def step(self, step: TimeStep) -> None:
        number = 10 * (step.index + 1)
        self.source.closed.spans += [make_span(number), make_span(number + 1)]
        self.source.closed.flows.append(Flow(id=number, span=number, phase="start"))
        self.source.open = [make_span(5)]
        self.reporter.emit(TimestepPlayed(at=END, episode_id=self.header.episode_id, seq=1, step=step))

    def play(self) -> None:
        self.reset()
        for step in STEPS:
            self.step(step)

    def end(self) -> None:
        self.source.closed.spans.append(make_span(5))
        trajectory = make_trajectory(self.header, [*STEPS], paused_s=0.5)
        evaluated = EvaluatedTrajectory(
            **msgspec.structs.asdict(trajectory), evaluation={"score": [1, 2.5], "rated": False}
        )
        self.reporter.emit(EpisodeEnded(at=END, episode_id=self.header.episode_id, seq=9, trajectory=evaluated))

    def files(self, pattern: str) -> list[bytes]:
        return [path.read_bytes() for store in self.stores for path in store.runs.rglob(pattern)]

    def records(self) -> list[EpisodeRecord]:
        return [store.load(self.header.episode_id) for store in self.stores]

    def close(self) -> None:
        for index in self.indexes:
            index.close()


@pytest.fixture
def two(tmp_path: Path) -> Iterator[TwoRecorders]:
    recorders = TwoRecorders(tmp_path)
    yield recorders
    recorders.close()


def test_a_channel_changes_no_byte_and_the_record_has_the_sums_without_the_texts(two: TwoRecorders) -> None:
    two.reset()
    for step in STEPS:
        two.step(step)
        first, second = two.files("*.journal.jsonl")
        assert first == second
    two.end()
    first, second = two.files("*.json")
    assert first == second
    assert two.files("*.journal.jsonl") == []
    (rows, others) = [newest_rows(index) for index in two.indexes]
    assert rows == others
    stored, full = two.records()
    assert stored.timesteps == [stored_step(step, ref) for step, ref in zip(STEPS, (0, 1, 0), strict=True)]
    assert stored.tool_schemas == [STEPS[0].available_tool_schemas, STEPS[1].available_tool_schemas]
    assert (stored.reset_observation, stored.env_episode_id) == (OBSERVATION, "env \x1b 7")
    assert (stored.evaluation, stored.paused_s) == ({"score": [1, 2.5], "rated": False}, 0.5)
    assert [span.id for span in stored.spans] == [1, 10, 11, 20, 21, 30, 31, 5]
    assert [flow.id for flow in stored.flows] == [10, 20, 30]
    light = two.recorders[1].record
    assert light is not None
    totals = (
        *("reward", "rounds", "tokens", "cost", "model_s", "fallback", "outcome", "success", "duration_s", "worker"),
        "unscored",
    )
    assert [getattr(light, name) for name in totals] == [getattr(full, name) for name in totals]
    assert light.unscored
    assert (light.reset_observation, light.spans, light.tool_schemas) == ([], [], [])
    assert all(step.observation == [] for step in light.timesteps)


@pytest.mark.parametrize("has_journal", [True, False])
def test_an_abandoned_episode_is_stored_with_all_its_steps(two: TwoRecorders, has_journal: bool) -> None:
    two.play()
    if not has_journal:
        two.stores[1].journal_path(two.header.batch_id, two.header.episode_id).unlink()
    error = ErrorInfo("worker_lost", "worker 1 was lost", "")
    for recorder in two.recorders:
        recorder.abandon(Outcome.INTERRUPTED, error)
    first, second = two.records()
    assert first == second
    assert second.rounds == len(STEPS)
    assert second.timesteps[1].observation == STEPS[1].observation
    assert two.files("*.journal.jsonl") == []


def test_a_killed_driver_leaves_a_journal_that_is_recovered(two: TwoRecorders) -> None:
    two.play()
    for journal in two.journals:
        journal.close()
    first, second = (store.recover(Clock(now=lambda: END))[0] for store in two.stores)
    assert msgspec.structs.replace(first, ended_at=END) == msgspec.structs.replace(second, ended_at=END)
    assert (second.outcome, second.rounds, len(second.spans)) == (Outcome.INTERRUPTED, len(STEPS), 8)


@pytest.mark.parametrize("abandoned", [False, True])
def test_an_episode_that_no_disk_took_is_stored_whole_later(
    two: TwoRecorders, monkeypatch: pytest.MonkeyPatch, abandoned: bool
) -> None:
    def fail(path: Path, data: bytes) -> None:
        raise OSError(errno.ENOSPC, f"no room for {len(data)} bytes in {path}")

    two.play()
    recorder = two.recorders[1]
    monkeypatch.setattr(episode_store, "replace_file", fail)
    with pytest.raises(StoreError):
        if abandoned:
            recorder.abandon(Outcome.TIMEOUT)
        else:
            recorder.finish(end_frame(two.header, len(STEPS)))
    monkeypatch.undo()
    recorder.store_again()
    stored = two.stores[1].load(two.header.episode_id)
    assert [step.observation for step in stored.timesteps] == [step.observation for step in STEPS]
    assert (stored.reset_observation, len(stored.tool_schemas)) == (OBSERVATION, 2)
    assert stored.spans


def test_a_hanging_disk_does_not_lose_the_steps_in_memory(store: EpisodeStore, index: EpisodeIndex) -> None:
    recorder = EpisodeRecorder(HEADER, store, index, lock_timeout_s=0.05)
    recorder.receive(Started(episode_id=HEADER.episode_id, at=END, seq=0))
    recorder.receive(Reset(episode_id=HEADER.episode_id, observation=encode(OBSERVATION), env_episode_id="e"))
    recorder.receive(STEP)
    with recorder._lock, pytest.raises(StoreError, match="hangs"):
        recorder.abandon(Outcome.TIMEOUT)
    assert recorder.record is not None
    assert recorder.record is recorder.content
    assert recorder.record.timesteps[0].observation == STEPS[0].observation


@pytest.mark.parametrize(
    "part",
    [
        Reset(episode_id="e", observation=b"{}", env_episode_id="e"),
        Reset(episode_id="e", observation=b'["\n"]', env_episode_id="e"),
        Reset(episode_id="e", observation=b"[]", env_episode_id="e", world=b"[1"),
        msgspec.structs.replace(STEP, data=b"[1]"),
        msgspec.structs.replace(STEP, tool_schemas=b""),
        msgspec.structs.replace(STEP, traces=EncodedTraces(spans=b"x")),
        end_frame(HEADER, 1, evaluation=b"[]"),
        end_frame(HEADER, 1, traces=EncodedTraces(flows=b"[\n]")),
    ],
)
def test_bytes_that_would_damage_a_journal_or_a_file_are_refused(part: Part) -> None:
    with pytest.raises(ValueError, match=rf"^{type(part).__name__}: an (array|object) is incomplete"):
        decode_worker_frame(encode_frame(part))
    assert decode_worker_frame(encode_frame(STEP)) == STEP


class FailingEncoder(TraceEncoder):
    """Cannot encode the slices of a trace."""

    def encode(self, spans: Sequence[Span], flows: Sequence[Flow]) -> bytes:
        raise OverflowError("a flow id is too large")


class LargeEncoder(TraceEncoder):
    """Encodes more than a frame should carry."""

    def encode(self, spans: Sequence[Span], flows: Sequence[Flow]) -> bytes:
        return bytes(MAX_PACKETS_BYTES + 1)


@pytest.mark.parametrize("encoder", [FailingEncoder, LargeEncoder])
def test_a_trace_that_cannot_be_sent_costs_no_episode_its_end(encoder: type[TraceEncoder]) -> None:
    parts: list[Part] = []
    reporter = make_reporter(HEADER, parts.append, trace=encoder("boot", "slot 0"))
    reporter.emit(EpisodeEnded(at=END, episode_id=HEADER.episode_id, seq=0, trajectory=make_trajectory(HEADER, STEPS)))
    (end,) = parts
    assert isinstance(end, Ended)
    assert (end.outcome, end.packets, end.n_lanes) == (Outcome.SUCCESS, b"", 0)
