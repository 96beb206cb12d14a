"""What the oracle solves of tasks 0-19 is known task by task, at 100 rounds and at the profile's 15.

A change of any environment or of an oracle shows here.
"""

import json
from pathlib import Path

import pytest

from runner.batch.batch import Batch
from runner.batch.spec import BatchSpec
from runner.batch.state_dir import Workspace
from runner.config import load_profile
from runner.types import Limits, Outcome

EXPECTED: dict[str, dict[str, list[int]]] = json.loads(Path(__file__).with_name("solved_by_oracle.json").read_text())
AT_LEAST = {"ALFWorld": 20, "Maze": 20, "Wordle": 18, "TextCraft": 20, "BabyAI": 17, "WebShop": 20, "SQLGym": 20}


@pytest.mark.long
@pytest.mark.parametrize("max_rounds", [15, 100])
@pytest.mark.parametrize("env", sorted(AT_LEAST))
def test_the_oracle_solves_what_it_did(env: str, max_rounds: int, tmp_path: Path) -> None:
    workspace = Workspace(tmp_path, node="test", profile="test")
    result = Batch(
        BatchSpec(env=env, agent="oracle", repeat=20, limits=Limits(max_rounds=max_rounds)).validated(), workspace
    ).run()
    solved = [episode.task_index for episode in result.episodes if episode.outcome is Outcome.SUCCESS]
    assert solved == EXPECTED[str(max_rounds)][env]
    assert len(solved) >= AT_LEAST[env]
    for episode in result.episodes:
        record = workspace.store.load(episode.episode_id)
        assert record.error is None
        assert record.reward == sum(step.reward for step in record.timesteps) == episode.reward
        assert record.rounds == len(record.timesteps) == episode.rounds <= max_rounds
    workspace.close()


def test_the_shipped_profile_plays_15_rounds() -> None:
    assert load_profile(None, environ={}, cwd=Path("/")).episode.max_rounds == 15
