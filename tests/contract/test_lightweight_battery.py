"""What the oracle solves of tasks 0-19 at 100 rounds is known task by task; a change of any environment shows here."""

import json
from pathlib import Path

import pytest

from runner.batch import Batch
from runner.spec import BatchSpec
from runner.types import Limits, Outcome
from runner.workspace import Workspace

EXPECTED: dict[str, list[int]] = json.loads(Path(__file__).with_name("solved_by_oracle.json").read_text())
AT_LEAST = {"Maze": 20, "Wordle": 18, "TextCraft": 20, "BabyAI": 17}


@pytest.mark.parametrize("env", sorted(AT_LEAST))
def test_the_oracle_solves_what_it_did(env: str, tmp_path: Path) -> None:
    workspace = Workspace(tmp_path, node="test", profile="test")
    result = Batch(BatchSpec(env=env, repeat=20, limits=Limits(max_rounds=100)).checked(), workspace).run()
    solved = [episode.task_index for episode in result.episodes if episode.outcome is Outcome.SUCCESS]
    assert solved == EXPECTED[env]
    assert len(solved) >= AT_LEAST[env]
    for episode in result.episodes:
        record = workspace.store.load(episode.episode_id)
        assert record.error is None
        assert record.reward == sum(step.reward for step in record.timesteps) == episode.reward
        assert record.rounds == len(record.timesteps) == episode.rounds
    workspace.close()
