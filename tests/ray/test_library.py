"""``runner.Runner`` as an actor: the program of a user of the specification, and that of ``docs/build/library.md``."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

from runner import AREEvaluatedTrajectory, Runner
from tests.ray.conftest import ClusterOfTwo
from tests.specification.original_program import SETTINGS, Model, play, play_in_an_actor, task
from tests.specification.test_pages import write_programs
from tests.support.perfetto import read_slices

LIMIT_S = 60


async def test_the_original_program_plays_the_same_in_an_actor(cluster: ClusterOfTwo) -> None:
    here, there = await play([1, 3]), await asyncio.to_thread(play_in_an_actor, [1, 3])
    assert [each.error_info for each in there] == [None, None]
    assert [each.episode_id for each in there] == ["sum-1", "sum-3"]
    assert [each.timesteps[-1].chats for each in there] == [each.timesteps[-1].chats for each in here]
    assert [[step.reward for step in each.timesteps] for each in there] == [[None, 1.0], [None, None, None, 1.0]]


async def test_an_are_environment_in_an_actor_gives_its_evaluation(cluster: ClusterOfTwo) -> None:
    import ray

    module = "tests.specification.test_runner"
    actor = ray.remote(num_cpus=1, max_concurrency=1)(Runner).remote(
        env_cfg={"_target_": f"{module}.AREEnvironment", "details": {"score": 1}},
        agent_cfg={"_target_": f"{module}.Follower"},
        inference_mngr=None,
    )
    trajectory = await asyncio.wait_for(actor.play_episode.remote({}), LIMIT_S)
    assert type(trajectory) is AREEvaluatedTrajectory and trajectory.are_evaluation == {"score": 1}


async def test_the_worker_id_is_the_id_of_the_actor(cluster: ClusterOfTwo, tmp_path: Path) -> None:
    import ray

    assert Runner(**SETTINGS, inference_mngr=Model()).tracer.worker_id == "runner_unknown"
    actor = ray.remote(num_cpus=1, max_concurrency=1)(Runner).remote(
        **SETTINGS, inference_mngr=Model(), tracing_level="full"
    )
    overlapping = [actor.play_episode.remote(task(goal)) for goal in (2, 3)]
    assert [(await asyncio.wait_for(each, LIMIT_S)).episode_id for each in overlapping] == ["sum-2", "sum-3"]
    await asyncio.wait_for(actor.save_trace.remote(tmp_path / "trace.pftrace"), LIMIT_S)
    rows = read_slices(tmp_path / "trace.pftrace").values()
    assert {each.track for row in rows for each in row} == {f"runner {actor._actor_id.hex()}"}


def test_the_program_of_the_page_plays_in_actors(cluster: ClusterOfTwo, plugin_path: Path, tmp_path: Path) -> None:
    write_programs(plugin_path)
    program = tmp_path / "actors.py"
    program.write_text((plugin_path / "actors.py").read_text("utf-8").replace("/tmp/", f"{tmp_path}/"))
    environ = {**os.environ, "RAY_ADDRESS": cluster.address}
    played = subprocess.run([sys.executable, program], env=environ, capture_output=True, text=True, timeout=120)
    assert played.returncode == 0, played.stderr
    assert played.stdout.splitlines()[-1] == "['counting-3', 'counting-3']"
    assert all(read_slices(tmp_path / f"rollouts-{number}.pftrace") for number in range(2))
