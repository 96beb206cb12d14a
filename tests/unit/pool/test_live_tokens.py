"""Steps and streamed tokens are encoded for observers only while one wants them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from runner.batch.batch import Batch
from runner.batch.observers import (
    BatchItem,
    EpisodeStored,
    Kind,
    LiveItems,
    Observer,
    ObserverHub,
    SelectiveObserver,
    wants_all,
)
from runner.batch.spec import BatchSpec
from runner.batch.workspace import Workspace
from runner.cli.run import batch_progress
from runner.events.live import Timestep, TokenText
from runner.pool.choose import open_pool
from runner.types.episode_events import EpisodeItemBase
from tests.conftest import Install
from tests.support.batch_items import live_items
from tests.support.batches import resolved_batch
from tests.support.streaming_batch import AGENTS, ENVS, StreamingBatch

N_EPISODES, N_STEPS = 3, 3
BOTH = pytest.mark.parametrize("workers", [0, 2], ids=["in this process", "two worker processes"])


@pytest.fixture(autouse=True)
def fakes(install: Install) -> None:
    install(envs=ENVS, agents=AGENTS, name="streaming")


@BOTH
def test_tokens_are_reported_while_an_observer_wants_them(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    received: list[BatchItem] = []
    wanted: set[Kind] = {"timestep", "request"}
    observer = SelectiveObserver(received.append, lambda kind: kind in wanted)
    batch = StreamingBatch(workspace, workers, monkeypatch, [observer])
    with batch.running():
        batch.wait_for_latest(8, wanted="request")
        assert "token" not in batch.emitted
        wanted.add("token")
        batch.wait_for_latest(8, wanted="token")
        wanted.remove("token")
        batch.wait_for_latest(8, wanted="timestep", absent="token")
    items = [live for item in received for live in live_items(item) if isinstance(live, EpisodeItemBase)]
    streamed = [item for item in items if isinstance(item, TokenText)]
    assert {(item.endpoint, item.text) for item in streamed} == {("model", ""), (None, "word")}
    assert len({item.episode_id for item in streamed}) == 2
    for episode_id in {item.episode_id for item in streamed}:
        numbers = [item.seq for item in items if item.episode_id == episode_id]
        assert numbers == sorted(set(numbers))


def play(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, workers: int, *observers: Observer | SelectiveObserver
) -> set[Kind]:
    """Play a batch; return the kinds of what workers encoded for observers."""
    emitted: set[Kind] = set()
    emit = ObserverHub.emit

    def note(hub: ObserverHub, item: BatchItem) -> None:
        emitted.update([item.kind] if isinstance(item, LiveItems) else [])
        emit(hub, item)

    monkeypatch.setattr(ObserverHub, "emit", note)
    spec = resolved_batch(env="Counter", agent="up", repeat=N_EPISODES, concurrency=2)
    pool = open_pool(workers, spec.spec, spec.setup, None, workspace.store.runs, print)
    result = Batch(spec, workspace, observers=observers, pool=pool).run()
    assert (result.status, result.outcomes, result.mean_rounds) == ("completed", {"success": N_EPISODES}, N_STEPS)
    return emitted


@BOTH
def test_a_run_without_observers_and_its_progress_encode_no_step(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], workers: int
) -> None:
    assert play(workspace, monkeypatch, workers) == set()
    with batch_progress(BatchSpec(env="Counter", agent="up", repeat=N_EPISODES)) as progress:
        assert play(workspace, monkeypatch, workers, progress) == set()
    assert capsys.readouterr().err.count("success in 3 rounds, reward 1") == N_EPISODES


@pytest.mark.parametrize(
    ("select", "workers"),
    [(lambda observe: observe, 2), (lambda observe: SelectiveObserver(observe, wants_all, is_inline=True), 0)],
    ids=["on a thread", "inline"],
)
def test_observers_of_everything_receive_each_step_and_end_once(
    workspace: Workspace,
    monkeypatch: pytest.MonkeyPatch,
    select: Callable[[Observer], Observer | SelectiveObserver],
    workers: int,
) -> None:
    items: list[BatchItem] = []
    assert play(workspace, monkeypatch, workers, select(items.append)) == {"timestep", "span"}
    lives = [live for item in items for live in live_items(item)]
    steps = Counter((live.episode_id, live.index) for live in lives if isinstance(live, Timestep))
    ended = [item.record for item in items if isinstance(item, EpisodeStored)]
    assert steps == Counter((record.episode_id, index) for record in ended for index in range(N_STEPS))
    assert [(each.reward, each.rounds, each.success) for each in ended] == [(1.0, N_STEPS, True)] * N_EPISODES
    assert all(
        sorted(set(numbers)) == numbers
        for numbers in (
            [live.seq for live in lives if isinstance(live, EpisodeItemBase) and live.episode_id == record.episode_id]
            for record in ended
        )
    )
