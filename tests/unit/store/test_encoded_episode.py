"""Episodes of other processes: their encoded parts are recorded without decoding, and nothing is lost."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from runner.errors import StoreError
from runner.store import EpisodeIndex, EpisodeRecord, EpisodeRecorder, EpisodeStore, episode_store, open_index
from runner.store.encoded import EncodedEnd, EncodedReset, EncodedStep, EncodedTraces, encoding_problem
from runner.store.journal import TraceDelta
from runner.tracing import SpanList, TraceEncoder, Tracer
from runner.types import (
    Chat,
    EpisodeEnded,
    EpisodeHeader,
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
from runner.worker.episode_reporter import MAX_PACKETS_BYTES, EpisodeParts, EpisodeReporter
from tests.support.episodes import END, episode_header, make_step, make_trajectory, newest_rows, tool_schemas
from tests.support.fake_worker import encoded_step

OBSERVATION: Chat = [{"role": "user", "content": "observation 0 \u2028 \\u0000 ✓"}]
STEPS = [
    make_step(0, tokens=Tokens(10, 2), cost=0.5, endpoint="a", model="m", warnings=("b: failed",)),
    make_step(1, available_tool_schemas=tool_schemas("move", "look"), reward=0.5),
    make_step(2, done=True, tokens=Tokens(3, 1, 1, 0)),
]


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

    def all(self) -> TraceDelta:
        return TraceDelta(self.closed.spans.copy(), self.closed.flows.copy(), self.open)


class TwoRecorders:
    """Records one episode twice, in two stores: as a slot of this process reports it, and as a worker sends it."""

    def __init__(self, folder: Path) -> None:
        self.header: EpisodeHeader = episode_header()
        self.stores = [EpisodeStore(folder / name) for name in ("objects", "encoded")]
        self.indexes = [open_index(store) for store in self.stores]
        self.source, frozen = ListedSpans(), Clock(monotonic=lambda: 7.0, now=lambda: END)
        self.objects, self.encoded = (
            EpisodeRecorder(store, index, frozen) for store, index in zip(self.stores, self.indexes, strict=True)
        )
        self.objects.traces = self.source.all
        self.reporter = EpisodeReporter(self.source, self.source.closed, self.objects)
        self._n_schemas = 0
        self._n_spans = self._n_flows = 0
        started = EpisodeStarted(at=END, episode_id=self.header.episode_id, seq=0, header=self.header)
        for recorder in (self.objects, self.encoded):
            recorder.on_event(started)

    def reset(self) -> None:
        self.source.closed.spans.append(make_span(1))
        self.reporter.on_reset(OBSERVATION, "env \x1b 7")
        part = EncodedReset(observation=encode(OBSERVATION), env_episode_id="env \x1b 7", traces=self._traces())
        self.encoded.on_reset(part)

    def step(self, step: TimeStep) -> None:
        number = 10 * (step.index + 1)
        self.source.closed.spans += [make_span(number), make_span(number + 1)]
        self.source.closed.flows.append(Flow(id=number, span=number, phase="start"))
        self.source.open = [make_span(5)]
        self.reporter.emit(TimestepPlayed(at=END, episode_id=self.header.episode_id, seq=1, step=step))
        self.encoded.on_step(self.part(step))

    def part(self, step: TimeStep) -> EncodedStep:
        ref = 1 if step.index == 1 else 0
        part = encoded_step(step, seq=step.index, schemas_ref=ref)
        schemas = encode([step.available_tool_schemas]) if step.index < 2 else b"[]"
        return msgspec.structs.replace(part, tool_schemas=schemas, traces=self._traces())

    def end(self) -> None:
        self.source.closed.spans.append(make_span(5))
        trajectory = make_trajectory(
            self.header, [*STEPS], reset_observation=OBSERVATION, env_episode_id="env \x1b 7", paused_s=0.5
        )
        evaluated = EvaluatedTrajectory(
            **msgspec.structs.asdict(trajectory), evaluation={"score": [1, 2.5], "rated": False}
        )
        part = EncodedEnd(
            at=END,
            seq=9,
            outcome=Outcome.SUCCESS,
            success=True,
            duration_s=1.5,
            paused_s=0.5,
            evaluation=encode(evaluated.evaluation),
            traces=self._traces(),
        )
        self.reporter.emit(EpisodeEnded(at=END, episode_id=self.header.episode_id, seq=9, trajectory=evaluated))
        self.encoded.on_end(part)

    def play(self) -> None:
        self.reset()
        for step in STEPS:
            self.step(step)

    def files(self, pattern: str) -> list[bytes]:
        return [path.read_bytes() for store in self.stores for path in store.runs.rglob(pattern)]

    def records(self) -> list[EpisodeRecord]:
        return [store.load(self.header.episode_id) for store in self.stores]

    def close(self) -> None:
        for index in self.indexes:
            index.close()

    def _traces(self) -> EncodedTraces:
        source = self.source.closed
        spans, flows = source.spans[self._n_spans :], source.flows[self._n_flows :]
        self._n_spans, self._n_flows = len(source.spans), len(source.flows)
        return EncodedTraces(
            spans=encode(spans), flows=encode(flows), open_spans=encode(self.source.open), n_spans=len(spans)
        )


@pytest.fixture
def two(tmp_path: Path) -> Any:  # noqa: ANN401
    recorders = TwoRecorders(tmp_path)
    yield recorders
    recorders.close()


def test_journal_and_file_have_the_bytes_of_an_episode_in_this_process(two: TwoRecorders) -> None:
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


def test_the_record_has_the_sums_without_the_texts(two: TwoRecorders) -> None:
    two.play()
    two.end()
    full, light = two.objects.record, two.encoded.record
    assert full is not None
    assert light is not None
    totals = (
        *("reward", "rounds", "tokens", "cost", "model_s", "fallback", "outcome", "success", "duration_s", "worker"),
        "unscored",
    )
    assert [getattr(light, name) for name in totals] == [getattr(full, name) for name in totals]
    assert light.unscored
    assert (light.reset_observation, light.spans, light.tool_schemas) == ([], [], [])
    assert all(step.observation == [] for step in light.timesteps)


@pytest.mark.parametrize("broken_journal", [False, True])
def test_an_abandoned_episode_is_stored_with_all_its_steps(two: TwoRecorders, broken_journal: bool) -> None:
    two.play()
    if broken_journal:
        two.encoded._disable_journal(OSError(errno.ENOSPC, "full"))
    error = ErrorInfo("worker_lost", "worker 1 was lost", "")
    for recorder in (two.objects, two.encoded):
        recorder.abandon(Outcome.INTERRUPTED, error)
    first, second = two.records()
    assert first == second
    assert second.rounds == len(STEPS)
    assert second.timesteps[1].observation == STEPS[1].observation
    assert two.files("*.journal.jsonl") == []


def test_a_killed_driver_leaves_a_journal_that_is_recovered(two: TwoRecorders) -> None:
    two.play()
    for recorder in (two.objects, two.encoded):
        assert recorder._journal is not None
        recorder._journal.close()
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
    monkeypatch.setattr(episode_store, "replace_file", fail)
    if abandoned:
        with pytest.raises(StoreError):
            two.encoded.abandon(Outcome.TIMEOUT)
    else:
        with pytest.raises(StoreError):
            two.encoded.on_end(
                EncodedEnd(at=END, seq=9, outcome=Outcome.FAILURE, success=False, duration_s=1.0, paused_s=0.0)
            )
    content = two.encoded.content
    assert content is not None
    monkeypatch.undo()
    two.stores[1].save(content)
    stored = two.stores[1].load(two.header.episode_id)
    assert [step.observation for step in stored.timesteps] == [step.observation for step in STEPS]
    assert (stored.reset_observation, len(stored.tool_schemas)) == (OBSERVATION, 2)
    assert stored.spans


def test_a_hanging_disk_does_not_lose_the_steps_in_memory(episode_store: EpisodeStore, index: EpisodeIndex) -> None:
    header = episode_header()
    recorder = EpisodeRecorder(episode_store, index, lock_timeout_s=0.05)
    recorder.on_event(EpisodeStarted(at=END, episode_id=header.episode_id, seq=0, header=header))
    recorder.on_reset(EncodedReset(observation=encode(OBSERVATION), env_episode_id="e"))
    recorder.on_step(encoded_step(STEPS[0], seq=1))
    with recorder._lock, pytest.raises(StoreError, match="hangs"):
        recorder.abandon(Outcome.TIMEOUT)
    assert recorder.record is not None
    assert recorder.record is recorder.content
    assert recorder.record.timesteps[0].observation == STEPS[0].observation


@pytest.mark.parametrize(
    "part",
    [
        EncodedReset(observation=b"{}", env_episode_id="e"),
        EncodedReset(observation=b'["\n"]', env_episode_id="e"),
        msgspec.structs.replace(encoded_step(STEPS[0], seq=1), data=b"[1]"),
        msgspec.structs.replace(encoded_step(STEPS[0], seq=1), tool_schemas=b""),
        msgspec.structs.replace(encoded_step(STEPS[0], seq=1), traces=EncodedTraces(spans=b"x")),
    ],
)
def test_bytes_that_would_damage_a_journal_are_found(part: EncodedReset | EncodedStep) -> None:
    assert encoding_problem(part) is not None
    assert encoding_problem(encoded_step(STEPS[0], seq=1)) is None


class FailingEncoder(TraceEncoder):
    """Cannot encode the slices of a trace."""

    def encode(self, spans: Sequence[Span], flows: Sequence[Flow]) -> bytes:
        raise OverflowError("a flow id is too large")


class LargeEncoder(TraceEncoder):
    """Encodes more than a frame should carry."""

    def encode(self, spans: Sequence[Span], flows: Sequence[Flow]) -> bytes:
        return bytes(MAX_PACKETS_BYTES + 1)


class Ends(list[EncodedEnd]):
    """The ends of episodes."""

    def on_end(self, end: EncodedEnd) -> None:
        self.append(end)


@pytest.mark.parametrize("encoder", [FailingEncoder, LargeEncoder])
def test_a_trace_that_cannot_be_sent_costs_no_episode_its_end(encoder: type[TraceEncoder]) -> None:
    header, ends, spans = episode_header(), Ends(), SpanList()
    reporter = EpisodeReporter(Tracer(), spans, cast("EpisodeParts", ends), trace=encoder("boot", "slot 0"))
    reporter.emit(EpisodeEnded(at=END, episode_id=header.episode_id, seq=0, trajectory=make_trajectory(header, STEPS)))
    (end,) = ends
    assert (end.outcome, end.packets, end.n_lanes) == (Outcome.SUCCESS, b"", 0)
