"""What observers receive of an episode whose worker was abandoned."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.batch.observers import LazyItem
from runner.batch.running_episode import RunningEpisode
from runner.batch.workspace import Workspace
from runner.pool.protocol import WorkerLost
from runner.store import episode_store
from runner.store.encoded import EncodedEnd
from runner.types import EpisodeEnded, EpisodeStarted, ErrorInfo, Outcome
from tests.support.episodes import END, RecordedEpisode
from tests.support.running_episodes import running_episode


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Workspace]:
    workspace = Workspace(tmp_path, node="n", profile="p")
    yield workspace
    workspace.close()


@pytest.fixture
def published() -> list[object]:
    return []


@pytest.fixture
def episode(workspace: Workspace, published: list[object]) -> RunningEpisode:
    """Return an episode that has started."""
    recording = RecordedEpisode(workspace.store, workspace.index)
    episode = running_episode(recording.header, recording.recorder, published.append)
    started = EpisodeStarted(at=END, episode_id=episode.header.episode_id, seq=0, header=episode.header)
    episode.feed.on_event(started)
    assert published == [started]
    published.clear()
    return episode


def test_the_late_end_of_an_abandoned_episode_is_not_shown(
    workspace: Workspace, episode: RunningEpisode, published: list[object]
) -> None:
    header = episode.header
    episode.abandon()
    end = EncodedEnd(at=END, seq=1, outcome=Outcome.SUCCESS, success=True, duration_s=1.5, paused_s=0.0)
    episode.feed.on_end(end)
    assert [(ended.seq, ended.trajectory.outcome) for ended in ends(published)] == [(1, Outcome.TIMEOUT)]
    assert workspace.store.load(header.episode_id).outcome is Outcome.TIMEOUT


def test_the_end_of_an_episode_whose_worker_was_lost_is_shown_once(
    episode: RunningEpisode, published: list[object]
) -> None:
    lost = WorkerLost("worker 0 was lost: its process was ended by SIGKILL")
    episode.abandon_lost(lost)
    episode.abandon_lost(lost)
    (ended,) = ends(published)
    assert (ended.episode_id, ended.seq, ended.trajectory.outcome) == (
        episode.header.episode_id,
        1,
        Outcome.INTERRUPTED,
    )
    assert ended.trajectory.error_info == ErrorInfo("worker_lost", str(lost), "")


def ends(published: list[object]) -> list[EpisodeEnded]:
    assert all(isinstance(item, LazyItem) for item in published)
    items = [item.get_brief() for item in published if isinstance(item, LazyItem)]
    return [item for item in items if isinstance(item, EpisodeEnded)]


def test_an_abandoned_episode_on_a_full_disk_is_stored_later(
    workspace: Workspace, episode: RunningEpisode, published: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path, data: bytes) -> None:
        raise OSError(errno.ENOSPC, f"no room for {len(data)} bytes in {path}")

    monkeypatch.setattr(episode_store, "replace_file", fail)
    episode.abandon()
    record = episode.feed.recorder.record
    assert record is not None
    unstored = episode.feed.finish(record)
    assert unstored is not None
    assert unstored.record.outcome is Outcome.TIMEOUT
    assert published == []
    assert unstored.end is not None
    assert [ended.trajectory.outcome for ended in ends([unstored.end])] == [Outcome.TIMEOUT]
    monkeypatch.undo()
    workspace.store.save(unstored.content)
    assert workspace.store.load(episode.header.episode_id) == record
    assert list(workspace.store.runs.rglob("*.journal.jsonl")) == []
