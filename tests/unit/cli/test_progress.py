from __future__ import annotations

import pytest

from runner.batch.spec import BatchSpec
from runner.cli.progress import batch_progress
from runner.types import BatchProgress, EpisodeEnded, Outcome
from tests.support.episodes import END, episode_header, make_trajectory


def test_the_live_rate_excludes_the_same_outcomes_as_the_summary(capsys: pytest.CaptureFixture[str]) -> None:
    header = episode_header()
    with batch_progress(BatchSpec(env="Maze", agent="oracle", repeat=4)) as on_event:
        for outcome in (Outcome.SUCCESS, Outcome.CANCELLED, Outcome.INTERRUPTED, Outcome.FAILURE):
            ended = make_trajectory(header, [], outcome=outcome)
            on_event(EpisodeEnded(at=END, episode_id=header.episode_id, seq=0, trajectory=ended))
        on_event(
            BatchProgress(
                at=END, batch_id="b", seq=0, n_done=4, n_planned=4, n_success=1, mean_reward=0.5, eta_s=0.0
            )
        )  # fmt: skip
    assert "4/4 episodes, success 50%, mean reward 0.500" in capsys.readouterr().err
