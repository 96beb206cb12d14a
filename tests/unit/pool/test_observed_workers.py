"""What observers and the trace receive of episodes in worker processes."""

from __future__ import annotations

import msgspec

from runner.batch.workspace import Workspace
from runner.store.encoded import EncodedEnd, EncodedTraces
from runner.types import (
    BatchProgress,
    EpisodeEnded,
    EpisodeStarted,
    Outcome,
    Span,
    SpansClosed,
    StreamDelta,
    TimestepPlayed,
    TokensStreamed,
    WorkerState,
)
from runner.util.safe_values import encode
from runner.worker.frames import Ended, Free, Play, Reset, Stepped, Streamed, Watch
from tests.support.episodes import START, make_step
from tests.support.fake_pools import PooledBatch
from tests.support.fake_worker import FakeWorker, encoded_step, episode_frames, opening_frames
from tests.support.perfetto import all_slices


def test_observers_receive_the_events_of_encoded_episodes(workspace: Workspace) -> None:
    batch = PooledBatch(workspace, FakeWorker.play_all, repeat=1)
    batch.result()
    items = [item for item in batch.items if not isinstance(item, BatchProgress | WorkerState)]
    assert [type(item) for item in items] == [EpisodeStarted, *[TimestepPlayed] * 3, EpisodeEnded]
    assert [item.seq for item in items] == [0, 1, 2, 3, 4]
    first, last, ended = items[1], items[3], items[4]
    assert isinstance(first, TimestepPlayed)
    assert isinstance(last, TimestepPlayed)
    assert isinstance(ended, EpisodeEnded)
    assert (first.reset_observation, last.reset_observation) == ([{"role": "user", "content": "observation 0"}], None)
    assert first.step.available_tool_schemas == last.step.available_tool_schemas != []
    assert (ended.trajectory.outcome, len(ended.trajectory.timesteps)) == (Outcome.SUCCESS, 3)
    assert ended.trajectory.reset_kwargs == {"task_index": 0, "seed": 0}
    states = [item.state for item in batch.items if isinstance(item, WorkerState)]
    assert states[0] == "starting"


def test_tokens_are_sent_only_if_an_observer_shows_them(workspace: Workspace) -> None:
    watched: list[bool] = []

    def note(worker: FakeWorker) -> None:
        worker.greet()
        while (frame := worker.read()) is not None:
            if isinstance(frame, Watch):
                watched.append(frame.tokens)
            elif isinstance(frame, Play):
                worker.send(*episode_frames(frame.header))

    PooledBatch(workspace, note, repeat=1).result()
    assert watched == [True]


def test_spans_and_streamed_tokens_are_numbered_as_in_this_process(workspace: Workspace) -> None:
    def span(number: int) -> Span:
        return Span(id=number, parent=None, name="n", category="c", track="t", start_ns=number, end_ns=number + 1)

    def trace(worker: FakeWorker) -> None:
        worker.greet()
        play = worker.read_play()
        assert play is not None
        header, now = play.header, START
        started, reset = opening_frames(header)
        assert isinstance(reset, Reset)
        reset_traces = EncodedTraces(spans=encode([span(1), span(2)]), n_spans=2)
        tokens = Streamed(episode_id=header.episode_id, at=now, seq=1, step=0, delta=StreamDelta(text="hi", n=1))
        step = Stepped(episode_id=header.episode_id, step=encoded_step(make_step(0), seq=2, spans=[span(3)]))
        end = EncodedEnd(
            at=now,
            seq=8,
            outcome=Outcome.SUCCESS,
            success=True,
            duration_s=1.0,
            paused_s=0.0,
            traces=EncodedTraces(spans=encode([span(4), span(5)]), n_spans=2),
        )
        worker.send(
            started,
            Reset(episode_id=header.episode_id, reset=msgspec.structs.replace(reset.reset, traces=reset_traces)),
            tokens,
            step,
            Ended(episode_id=header.episode_id, end=end),
            Free(episode_id=header.episode_id),
        )
        worker.read()

    batch = PooledBatch(workspace, trace, repeat=1)
    batch.result()
    items = [item for item in batch.items if not isinstance(item, BatchProgress | WorkerState)]
    assert [(type(item), item.seq) for item in items] == [
        (EpisodeStarted, 0),
        (TokensStreamed, 1),
        (TimestepPlayed, 2),
        (SpansClosed, 3),
        (SpansClosed, 6),
        (EpisodeEnded, 8),
    ]
    assert [[each.id for each in item.spans] for item in items if isinstance(item, SpansClosed)] == [[1, 2, 3], [4, 5]]
    (record,) = batch.stored()
    assert [each.id for each in record.spans] == [1, 2, 3, 4, 5]
    (trace_file,) = workspace.data_dir.glob("traces/*.pftrace")
    assert [each.name for each in all_slices(trace_file)] == ["n"] * 5  # this worker sends no packets
