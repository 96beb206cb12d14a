from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from runner.episode.factory import EpisodeFactory
from runner.types import Limits, Outcome, Trajectory
from tests.ray.conftest import ClusterOfTwo

TARGETS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "Maze": ({"_target_": "runner.envs.maze.Maze"}, {"_target_": "runner.agents.baselines.RandomAgent"}),
    "BabyAI": (
        {"_target_": "runner.envs.babyai.BabyAI"},
        {"_target_": "runner.agents.baselines.OracleAgent", "twin": {"_target_": "runner.envs.babyai.BabyAI"}},
    ),
}
LIMIT_S = 60


def played(trajectory: Trajectory) -> list[object]:
    steps = [(step.action.text, step.observation, step.reward, step.done) for step in trajectory.timesteps]
    return [trajectory.reset_observation, steps, trajectory.outcome, trajectory.success]


@pytest.mark.parametrize("env", TARGETS)
async def test_an_actor_plays_the_same_episodes_as_the_runner(cluster: ClusterOfTwo, env: str) -> None:
    from runner.worker.remote_runner import RemoteRunner

    env_cfg, agent_cfg = TARGETS[env]
    settings: dict[str, Any] = {"env_cfg": env_cfg, "agent_cfg": agent_cfg, "limits": Limits(max_rounds=9)}
    actor, runner = RemoteRunner.remote(**settings), EpisodeFactory(**settings)
    for task in range(3):
        reset_kwargs = {"task_index": task, "seed": task}
        remote = await asyncio.wait_for(actor.play_episode.remote(reset_kwargs), LIMIT_S)
        assert played(remote) == played(await runner.play_episode(reset_kwargs))
        assert remote.error_info is None and len(remote.timesteps) > 0


async def test_the_worker_id_is_the_id_of_the_actor_and_needs_no_wait_for_the_episode(cluster: ClusterOfTwo) -> None:
    import ray

    from runner.worker.remote_runner import RemoteRunner

    env_cfg = {"_target_": "tests.support.fakes.Gated"}
    actor = RemoteRunner.remote(env_cfg=env_cfg, agent_cfg={"_target_": "tests.support.fakes.UpAgent"})
    episode = actor.play_episode.remote()
    worker = await asyncio.wait_for(actor.worker.remote(), LIMIT_S)
    assert (worker.kind, worker.id) == ("ray", actor._actor_id.hex())
    assert ray.wait([episode], timeout=0.1) == ([], [episode])
    ray.kill(actor)


async def test_an_error_is_data_and_leaves_the_actor_usable(cluster: ClusterOfTwo) -> None:
    from runner.worker.remote_runner import RemoteRunner

    _, agent_cfg = TARGETS["Maze"]
    actor = RemoteRunner.remote(env_cfg={"_target_": "tests.support.fakes.NoSuch"}, agent_cfg=agent_cfg)
    for _ in range(2):
        trajectory = await asyncio.wait_for(actor.play_episode.remote(), LIMIT_S)
        assert trajectory.outcome is Outcome.ERROR and trajectory.error_info is not None


def test_a_program_of_ten_lines_plays_100_episodes(cluster: ClusterOfTwo) -> None:
    program = Path(__file__).with_name("program.py")
    lines = [line for line in program.read_text("utf-8").splitlines() if line]
    assert len(lines) <= 10
    environ = {**os.environ, "RAY_ADDRESS": cluster.address}
    completed = subprocess.run([sys.executable, program], env=environ, capture_output=True, text=True, timeout=120)
    assert completed.returncode == 0, completed.stderr
    assert completed.stdout.splitlines()[-1].endswith("of 100 episodes succeeded")


async def test_a_cancelled_episode_leaves_the_actor_usable(cluster: ClusterOfTwo) -> None:
    import ray

    from runner.worker.remote_runner import RemoteRunner

    env_cfg = {"_target_": "tests.support.fakes.AsyncHanging"}
    actor = RemoteRunner.remote(env_cfg=env_cfg, agent_cfg={"_target_": "tests.support.fakes.AsyncUpAgent"})
    for _ in range(2):
        episode = actor.play_episode.remote()
        await asyncio.wait_for(actor.worker.remote(), LIMIT_S)
        ray.cancel(episode)
        with pytest.raises(ray.exceptions.TaskCancelledError):
            await asyncio.wait_for(episode, LIMIT_S)
