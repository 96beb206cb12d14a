"""Delivery of items to observers, and what they receive of an episode whose worker was abandoned."""

from __future__ import annotations

import errno
import queue
import threading
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from runner.batch.observers import BatchItem, EpisodeStored, Kind, LiveItems, ObserverHub, SelectiveObserver, wants_all
from runner.batch.running_episode import RunningEpisode
from runner.batch.workspace import Workspace
from runner.events.live import EpisodeEnded, EpisodeStarted, LiveItem, SpanClosed, Timestep
from runner.pool.worker import WorkerLost
from runner.store import EpisodeRecorder, episode_store
from runner.store.parts import Ended, Part, Started, Step, Tokens
from runner.types import BatchProgress, Chat, ErrorInfo, Message, Outcome, TimestepPlayed
from runner.worker.frames import Watch
from tests.support.batch_items import live_items
from tests.support.episodes import END, RecordedEpisode, TracedSpans, episode_header, make_reporter, make_step
from tests.support.running_episodes import running_episode


def make_item(number: int) -> BatchProgress:
    return BatchProgress(
        at=datetime.now(UTC),
        batch_id="b",
        seq=number,
        n_done=0,
        n_planned=0,
        n_success=0,
        n_rated=0,
        mean_reward=None,
        eta_s=None,
    )


def seq_of(item: BatchItem) -> int:
    assert isinstance(item, BatchProgress)
    return item.seq


def test_every_observer_receives_every_item_in_order() -> None:
    first: list[BatchItem] = []
    second: list[BatchItem] = []
    hub = ObserverHub([first.append, second.append])
    sent = [make_item(number) for number in range(500)]
    for item in sent:
        hub.emit(item)
    hub.close(timeout_s=10)
    assert first == sent
    assert second == sent


def test_items_after_an_idle_period_are_delivered() -> None:
    received: queue.SimpleQueue[int] = queue.SimpleQueue()
    hub = ObserverHub([lambda item: received.put(seq_of(item))])
    for number in range(3):
        hub.emit(make_item(number))
        assert received.get(timeout=10) == number
    hub.close(timeout_s=10)


def test_observers_receive_copies_of_messages(tmp_path: Path) -> None:
    received: list[BatchItem] = []
    hub, workspace = ObserverHub([received.append]), Workspace(tmp_path, node="n", profile="p")
    header = episode_header()
    feed = running_episode(header, EpisodeRecorder(header, workspace.store, workspace.index), hub.emit).feed
    reporter = make_reporter(header, feed.receive)
    message: Message = {"role": "user", "content": "original"}
    chat: Chat = [message]
    step = make_step(0)
    step.observation, step.chats = chat, [chat]
    reporter.on_reset(chat, "env episode 7")
    at = datetime.now(UTC)
    reporter.emit(TimestepPlayed(at=at, episode_id=header.episode_id, seq=0, step=step, reset_observation=chat))
    message["content"] = "changed"
    chat.clear()
    hub.close(timeout_s=10)
    workspace.close()
    (copy,) = [live for item in received for live in live_items(item)]
    assert isinstance(copy, Timestep)
    original = [{"role": "user", "content": "original"}]
    assert (copy.observation, copy.chats, copy.reset_observation) == (original, [original], original)


def test_a_failing_observer_is_logged_and_still_receives_items(caplog: pytest.LogCaptureFixture) -> None:
    received: list[int] = []

    def observe(item: BatchItem) -> None:
        received.append(seq_of(item))
        raise RuntimeError("bad observer")

    hub = ObserverHub([observe])
    for number in range(3):
        hub.emit(make_item(number))
    hub.close(timeout_s=10)
    assert received == [0, 1, 2]
    assert "bad observer" in caplog.text


def test_a_blocked_observer_delays_nothing_and_its_oldest_items_are_dropped() -> None:
    gate, entered = threading.Event(), threading.Event()
    received: list[int] = []

    def block(item: BatchItem) -> None:
        entered.set()
        gate.wait(30)
        received.append(seq_of(item))

    hub = ObserverHub([block], capacity=10)
    hub.emit(make_item(0))
    assert entered.wait(10)
    for number in range(1, 101):
        hub.emit(make_item(number))
    gate.set()
    hub.close(timeout_s=10)
    assert received == [0, *range(91, 101)]


def test_live_items_are_delivered_only_to_observers_of_their_kind() -> None:
    progress: list[BatchItem] = []
    everything: list[BatchItem] = []
    played, streamed = LiveItems("timestep", (b"{}",)), LiveItems("token", (b"{}",))
    only_progress = SelectiveObserver(progress.append, lambda kind: kind is BatchProgress)
    hub = ObserverHub([only_progress])
    assert (hub.watches(BatchProgress), hub.watches("timestep")) == (True, False)
    hub.close(timeout_s=10)
    hub = ObserverHub([only_progress, everything.append])
    sent: list[BatchItem] = [played, make_item(1), streamed]
    for item in sent:
        hub.emit(item)
    assert hub.watches("timestep") and hub.watches("token")
    hub.close(timeout_s=10)
    assert (progress, everything) == ([sent[1]], sent)


def test_a_step_and_its_spans_are_encoded_for_watchers_only_while_there_are_any_and_numbered_always() -> None:
    header, spans, watches = episode_header(), TracedSpans(), [Watch(steps=False)]
    parts: list[Part] = []
    reporter = make_reporter(header, parts.append, tracer=spans.tracer, spans=spans, watched=lambda: watches[0])
    for index in range(2):
        with spans.tracer.span("timestep", "timestep"):
            step = make_step(index)
        reporter.emit(TimestepPlayed(at=datetime.now(UTC), episode_id=header.episode_id, seq=0, step=step))
        watches[0] = Watch()
    unwatched, seen = [part for part in parts if isinstance(part, Step)]
    assert (unwatched.seq, unwatched.live, unwatched.live_spans) == (0, b"", ())
    items = [msgspec.json.decode(data, type=LiveItem) for data in (seen.live, *seen.live_spans)]
    assert [(type(item), item.seq) for item in items if isinstance(item, Timestep | SpanClosed)] == [
        (Timestep, 2),
        (SpanClosed, 3),
    ]


def test_an_inline_observer_receives_the_item_itself_where_it_is_emitted(caplog: pytest.LogCaptureFixture) -> None:
    received: list[tuple[BatchItem, threading.Thread]] = []

    def observe(item: BatchItem) -> None:
        received.append((item, threading.current_thread()))
        if seq_of(item) == 1:
            raise RuntimeError("bad observer")

    hub = ObserverHub([SelectiveObserver(observe, wants_all, is_inline=True)])
    items = [make_item(number) for number in range(3)]
    for item in items:
        hub.emit(item)
    assert all(got is sent for (got, _), sent in zip(received, items, strict=True))
    assert {thread for _, thread in received} == {threading.current_thread()}
    assert "bad observer" in caplog.text
    hub.close()


@pytest.mark.parametrize("is_inline", [True, False])
def test_an_observer_changes_what_it_wants_at_any_time(is_inline: bool) -> None:
    received: list[int] = []
    wanted: set[Kind] = set()
    observer = SelectiveObserver(
        lambda item: received.append(seq_of(item)), lambda kind: kind in wanted, is_inline=is_inline
    )
    hub = ObserverHub([observer])
    for number in range(6):
        (wanted.add if number % 2 else wanted.discard)(BatchProgress)
        assert hub.watches(BatchProgress) is bool(number % 2)
        hub.emit(make_item(number))
    hub.close(timeout_s=10)
    assert received == [1, 3, 5]


@pytest.fixture
def published() -> list[BatchItem]:
    return []


@pytest.fixture
def episode(workspace: Workspace, published: list[BatchItem]) -> RunningEpisode:
    """Return an episode that has started."""
    recording = RecordedEpisode(workspace.store, workspace.index)
    episode = running_episode(recording.header, recording.recorder, published.append)
    episode.feed.receive(Started(episode_id=episode.header.episode_id, at=END, seq=0))
    assert [(type(item), item.seq) for item in published if isinstance(item, EpisodeStarted)] == [(EpisodeStarted, 0)]
    assert len(published) == 1
    published.clear()
    return episode


def test_the_late_end_of_an_abandoned_episode_is_not_shown(
    workspace: Workspace, episode: RunningEpisode, published: list[BatchItem]
) -> None:
    header = episode.header
    episode.abandon()
    end = Ended(
        episode_id=header.episode_id, at=END, seq=1, outcome=Outcome.SUCCESS, success=True, duration_s=1.5, paused_s=0.0
    )
    episode.feed.receive(end)
    assert [(ended.seq, ended.outcome) for ended in ends(published)] == [(1, Outcome.TIMEOUT)]
    assert workspace.store.load(header.episode_id).outcome is Outcome.TIMEOUT


def test_the_end_of_an_abandoned_episode_is_numbered_after_tokens_of_which_some_were_dropped(
    episode: RunningEpisode, published: list[BatchItem]
) -> None:
    episode.feed.receive(Tokens(episode_id=episode.header.episode_id, seq=4, live=b"{}"))
    assert published.pop() == LiveItems("token", (b"{}",))
    episode.abandon()
    assert [ended.seq for ended in ends(published)] == [5]


def test_a_start_that_a_lost_worker_could_not_send_is_shown_before_the_end(
    workspace: Workspace, published: list[BatchItem]
) -> None:
    recording = RecordedEpisode(workspace.store, workspace.index)
    recording.writer.write(Started(episode_id=recording.header.episode_id, at=END, seq=0))
    recording.writer.close()
    running_episode(recording.header, recording.recorder, published.append).abandon_lost(WorkerLost("it was lost"))
    items = [live for item in published for live in live_items(item)]
    assert [type(item) for item in items] == [EpisodeStarted, EpisodeEnded]
    assert [item.seq for item in items if isinstance(item, EpisodeStarted | EpisodeEnded)] == [0, 1]
    assert workspace.store.load(recording.header.episode_id).outcome is Outcome.INTERRUPTED


def test_the_end_of_an_episode_whose_worker_was_lost_is_shown_once(
    episode: RunningEpisode, published: list[BatchItem]
) -> None:
    lost = WorkerLost("worker 0 was lost: its process was ended by SIGKILL")
    episode.abandon_lost(lost)
    episode.abandon_lost(lost)
    (ended,) = ends(published)
    assert (ended.episode_id, ended.seq, ended.outcome) == (episode.header.episode_id, 1, Outcome.INTERRUPTED)
    assert ended.error == {"type": "worker_lost", "message": str(lost)}
    assert [item.record.error for item in published if isinstance(item, EpisodeStored)] == [
        ErrorInfo("worker_lost", str(lost), "")
    ]


def ends(published: list[BatchItem]) -> list[EpisodeEnded]:
    assert all(isinstance(item, EpisodeStored) for item in published)
    return [item.end for item in published if isinstance(item, EpisodeStored)]


def test_an_abandoned_episode_on_a_full_disk_is_stored_later(
    workspace: Workspace, episode: RunningEpisode, published: list[BatchItem], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path, data: bytes) -> None:
        raise OSError(errno.ENOSPC, f"no room for {len(data)} bytes in {path}")

    monkeypatch.setattr(episode_store, "replace_file", fail)
    episode.abandon()
    record = episode.feed.recorder.record
    assert record is not None
    unstored = episode.feed.finish(record)
    assert unstored is not None
    assert unstored.stored.record.outcome is Outcome.TIMEOUT
    assert published == []
    assert unstored.stored.end.outcome is Outcome.TIMEOUT
    monkeypatch.undo()
    workspace.store.save(unstored.content)
    assert workspace.store.load(episode.header.episode_id) == record
    assert list(workspace.store.runs.rglob("*.journal.jsonl")) == []
