"""The oracle solves exactly the expected tasks of 0-19, with 100 rounds and with the profile's 15.

A change in an environment or an oracle changes these lists.
"""

import json
from pathlib import Path

import pytest

from runner.batch.batch import Batch
from runner.batch.workspace import Workspace
from runner.config import load_profile
from runner.types import Limits, Outcome
from tests.support.batches import resolved_batch

pytestmark = pytest.mark.long

EXPECTED: dict[str, dict[str, list[int]]] = json.loads(Path(__file__).with_name("solved_by_oracle.json").read_text())
MIN_SOLVED = {"ALFWorld": 20, "Maze": 20, "Wordle": 18, "TextCraft": 20, "BabyAI": 17, "WebShop": 20, "SQLGym": 20}


@pytest.mark.parametrize("max_rounds", [15, 100])
@pytest.mark.parametrize("env", sorted(MIN_SOLVED))
def test_the_oracle_solves_the_expected_tasks(env: str, max_rounds: int, tmp_path: Path) -> None:
    workspace = Workspace(tmp_path, node="test", profile="test")
    result = Batch(
        resolved_batch(env=env, agent="oracle", repeat=20, limits=Limits(max_rounds=max_rounds)), workspace
    ).run()
    solved = [episode.task_index for episode in result.episodes if episode.outcome is Outcome.SUCCESS]
    assert solved == EXPECTED[str(max_rounds)][env]
    assert len(solved) >= MIN_SOLVED[env]
    for episode in result.episodes:
        record = workspace.store.load(episode.episode_id)
        assert record.error is None
        assert record.reward == sum(step.reward for step in record.timesteps) == episode.reward
        assert record.rounds == len(record.timesteps) == episode.rounds <= max_rounds
    workspace.close()


def test_the_shipped_profile_plays_15_rounds() -> None:
    assert load_profile(None, environ={}, cwd=Path("/")).episode.max_rounds == 15
