"""What observers and the trace receive of episodes in worker processes."""

from __future__ import annotations

import msgspec

from runner.batch.workspace import Workspace
from runner.episode.live_items import span_items, timestep_item, token_item
from runner.events.live import EpisodeEnded, EpisodeStarted, SpanClosed, Timestep, TokenText
from runner.store.parts import EncodedTraces, Free, Reset, Tokens
from runner.types import BatchProgress, Outcome, Span, StreamDelta, TimestepPlayed, TokensStreamed, WorkerState
from runner.types.episode_events import EpisodeItemBase
from runner.util.safe_values import encode
from runner.worker.frames import Play, Watch
from tests.support.batch_items import live_items
from tests.support.episodes import START, make_step
from tests.support.fake_pools import PooledBatch
from tests.support.fake_worker import FakeWorker, end_frame, episode_frames, opening_frames, step_part
from tests.support.perfetto import all_slices


def episode_items(batch: PooledBatch) -> list[EpisodeItemBase]:
    """Return what observers received of episodes, decoded."""
    items = (item for item in batch.items if not isinstance(item, BatchProgress | WorkerState))
    return [live for item in items for live in live_items(item) if isinstance(live, EpisodeItemBase)]


def test_observers_receive_start_and_end_of_episodes_whose_steps_nobody_encoded(workspace: Workspace) -> None:
    batch = PooledBatch(workspace, FakeWorker.play_all, repeat=1)
    batch.result()
    started, ended = episode_items(batch)
    assert isinstance(started, EpisodeStarted)
    assert isinstance(ended, EpisodeEnded)
    assert (started.seq, ended.seq) == (0, 4)
    assert (started.task_index, started.seed) == (0, 0)
    assert (ended.outcome, ended.rounds) == (Outcome.SUCCESS, 3)
    states = [item.state for item in batch.items if isinstance(item, WorkerState)]
    assert states[0] == "starting"


def test_steps_and_tokens_are_sent_only_if_an_observer_shows_them(workspace: Workspace) -> None:
    watched: list[tuple[bool, bool]] = []

    def note(worker: FakeWorker) -> None:
        worker.greet()
        while (frame := worker.read()) is not None:
            if isinstance(frame, Watch):
                watched.append((frame.steps, frame.tokens))
            elif isinstance(frame, Play):
                worker.send(*episode_frames(frame.header))

    PooledBatch(workspace, note, repeat=1).result()
    assert watched == [(True, True)]


def test_live_items_arrive_as_the_worker_encoded_them_and_the_end_has_the_next_number(workspace: Workspace) -> None:
    def span(number: int) -> Span:
        return Span(id=number, parent=None, name="n", category="c", track="t", start_ns=number, end_ns=number + 1)

    def trace(worker: FakeWorker) -> None:
        worker.greet()
        play = worker.read_play()
        assert play is not None
        header, episode_id = play.header, play.header.episode_id
        started, reset = opening_frames(header)
        assert isinstance(reset, Reset)
        delta = TokensStreamed(at=START, episode_id=episode_id, seq=1, step=0, delta=StreamDelta(text="hi", n=1))
        played = TimestepPlayed(at=START, episode_id=episode_id, seq=2, step=make_step(0))
        step = msgspec.structs.replace(
            step_part(header, make_step(0), seq=2, spans=[span(3)]),
            live=bytes(timestep_item(played)),
            live_spans=span_items(START, episode_id, 3, [span(1), span(2), span(3)]),
        )
        end = end_frame(
            header,
            7,
            traces=EncodedTraces(spans=encode([span(4), span(5)]), n_spans=2),
            live_spans=span_items(START, episode_id, 6, [span(4), span(5)]),
        )
        traces = EncodedTraces(spans=encode([span(1), span(2)]), n_spans=2)
        worker.send(
            started,
            msgspec.structs.replace(reset, traces=traces),
            Tokens(episode_id=episode_id, seq=delta.seq, live=token_item(delta)),
            step,
            end,
            Free(episode_id=episode_id),
        )
        worker.read()

    batch = PooledBatch(workspace, trace, repeat=1)
    batch.result()
    items = episode_items(batch)
    assert [(type(item), item.seq) for item in items if not isinstance(item, SpanClosed)] == [
        (EpisodeStarted, 0),
        (TokenText, 1),
        (Timestep, 2),
        (EpisodeEnded, 8),
    ]
    closed = [item for item in items if isinstance(item, SpanClosed)]
    assert [(item.seq, item.span.id) for item in closed] == [(3, 1), (4, 2), (5, 3), (6, 4), (7, 5)]
    (record,) = batch.stored()
    assert [each.id for each in record.spans] == [1, 2, 3, 4, 5]
    (trace_file,) = workspace.data_dir.glob("traces/*.pftrace")
    assert [each.name for each in all_slices(trace_file)] == ["n"] * 5  # this worker sends no packets
