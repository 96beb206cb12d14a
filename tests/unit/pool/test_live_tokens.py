"""Workers stream tokens and the driver decodes steps only for observers that want them."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from runner.batch import episode_feed
from runner.batch.batch import Batch
from runner.batch.observers import Observer, SelectiveObserver, wants_all
from runner.batch.spec import BatchSpec
from runner.batch.workspace import Workspace
from runner.cli.run_output import batch_progress
from runner.pool.choose import open_pool
from runner.types import EpisodeEnded, Item, TimeStep, TimestepPlayed, TokensStreamed
from tests.conftest import Install
from tests.support.batches import resolved_batch
from tests.support.streaming_batch import AGENTS, ENVS, StreamingBatch

N_EPISODES, N_STEPS = 3, 3


@pytest.fixture(autouse=True)
def fakes(install: Install) -> None:
    install(envs=ENVS, agents=AGENTS, name="streaming")


@pytest.mark.parametrize("workers", [0, 2], ids=["in this process", "two worker processes"])
def test_tokens_are_reported_while_an_observer_wants_them(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    received: list[Item] = []
    wanted: set[type[Item]] = {TimestepPlayed}
    observer = SelectiveObserver(received.append, lambda kind: kind in wanted)
    batch = StreamingBatch(workspace, workers, monkeypatch, [observer])
    with batch.running():
        batch.wait_for_latest(8, wanted=TimestepPlayed)
        assert TokensStreamed not in batch.emitted
        wanted.add(TokensStreamed)
        batch.wait_for_latest(8, wanted=TokensStreamed)
        wanted.remove(TokensStreamed)
        batch.wait_for_latest(8, wanted=TimestepPlayed, absent=TokensStreamed)
    streamed = [item for item in received if isinstance(item, TokensStreamed)]
    assert {item.delta.text for item in streamed} == {"word"}
    assert len({item.episode_id for item in streamed}) == 2
    for episode_id in {item.episode_id for item in streamed}:
        numbers = [item.seq for item in received if getattr(item, "episode_id", None) == episode_id]
        assert numbers == sorted(set(numbers))


class CountingDecoder:
    def __init__(self) -> None:
        self.n_decoded = 0
        self._decoder = msgspec.json.Decoder(TimeStep)

    def decode(self, data: bytes) -> TimeStep:
        self.n_decoded += 1
        return self._decoder.decode(data)


def play(workspace: Workspace, monkeypatch: pytest.MonkeyPatch, *observers: Observer | SelectiveObserver) -> int:
    """Play a batch in two worker processes; return how many steps the driver has decoded."""
    decoder = CountingDecoder()
    monkeypatch.setattr(episode_feed, "_STEP", decoder)
    spec = resolved_batch(env="Counter", agent="up", repeat=N_EPISODES, concurrency=2)
    pool = open_pool(2, spec.spec, spec.setup, None, print)
    result = Batch(spec, workspace, observers=observers, pool=pool).run()
    assert (result.status, result.outcomes, result.mean_rounds) == ("completed", {"success": N_EPISODES}, N_STEPS)
    return decoder.n_decoded


def test_a_run_without_observers_decodes_no_step(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    assert play(workspace, monkeypatch) == 0


def test_the_progress_of_a_run_decodes_no_step(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = BatchSpec(env="Counter", agent="up", repeat=N_EPISODES)
    with batch_progress(spec) as progress:
        assert play(workspace, monkeypatch, progress) == 0
    assert capsys.readouterr().err.count("success in 3 rounds, reward 1") == N_EPISODES


@pytest.mark.parametrize(
    "select",
    [lambda observe: observe, lambda observe: SelectiveObserver(observe, wants_all, is_inline=True)],
    ids=["on a thread", "inline and brief"],
)
def test_observers_of_steps_and_ends_decode_each_step_once(
    workspace: Workspace,
    monkeypatch: pytest.MonkeyPatch,
    select: Callable[[Observer], Observer | SelectiveObserver],
) -> None:
    items: list[Item] = []
    assert play(workspace, monkeypatch, select(items.append)) == N_EPISODES * N_STEPS
    ended = [item.trajectory for item in items if isinstance(item, EpisodeEnded)]
    assert [(each.reward, len(each.timesteps), each.success) for each in ended] == [(1.0, N_STEPS, True)] * N_EPISODES
