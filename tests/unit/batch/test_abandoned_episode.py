"""What observers receive of an episode whose worker was abandoned."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from runner.batch.observers import BatchItem, EpisodeStored, LiveItems
from runner.batch.running_episode import RunningEpisode
from runner.batch.workspace import Workspace
from runner.events.live import EpisodeEnded, EpisodeStarted
from runner.pool.worker import WorkerLost
from runner.store import episode_store
from runner.store.parts import Ended, Started, Tokens
from runner.types import ErrorInfo, Outcome
from tests.support.batch_items import live_items
from tests.support.episodes import END, RecordedEpisode
from tests.support.running_episodes import running_episode


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
