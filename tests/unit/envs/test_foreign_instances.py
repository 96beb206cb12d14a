"""Instances whose ids a server has reissued: no episode is played in the instance of another one."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from pathlib import Path

import httpx
import pytest

from runner.envs.http.environment import HttpEnvironment
from runner.envs.http.server import ServerAddress
from runner.envs.maze import Maze
from runner.errors import EnvironmentFault
from runner.types import Action
from tests.support.command import COMMAND, ENVIRON
from tests.support.rude_env_server import EnvironmentHandler, RudeServer
from tests.support.slot_server import QuestionHandler, run_slot_server

N_EPISODES = 60


async def test_an_instance_that_a_restart_gave_to_another_episode_is_left_alone(rude_server: RudeServer) -> None:
    rude_server.reset(EnvironmentHandler(Maze))
    env = HttpEnvironment(env="Maze", address=ServerAddress(rude_server.url, 10))
    await env.reset(task_index=3)
    await env.step(Action(text="move right"))
    rude_server.reset(EnvironmentHandler(Maze))  # restarted
    async with httpx.AsyncClient(base_url=rude_server.url) as stranger:
        created = (await stranger.post("/maze/create")).json()
        await stranger.post("/maze/reset", json={**created, "game": 8})
    n_requests = len(rude_server.requests)
    with pytest.raises(EnvironmentFault) as caught:
        await env.step(Action(text="move right"))
    await env.cleanup()
    assert [request.path for request in rude_server.requests[n_requests:]] == ["/maze/observation?id=0"]
    place = "…s at position 8, 6. Your current position is at position 1, "
    assert str(caught.value) == (
        f"Maze: GET {rude_server.url}/maze/observation?id=0 shows another episode: line 1 is "
        f"'{place}10. There are walls above you, below you.'; expected '{place}5. There are walls to your right, above "
        "you, below you.'. The server was restarted, or another program uses it and got the same instance: let one "
        "program at a time use it, then run the task again"
    )


@pytest.mark.long
@pytest.mark.timeout(180)
def test_two_runs_on_the_slots_of_one_server_store_no_result_of_another_task(tmp_path: Path) -> None:
    with run_slot_server(8, QuestionHandler) as (server, _):
        profile, script = tmp_path / "p.yaml", tmp_path / "script"
        profile.write_text(
            f"id: p\nenvironments:\n  moderate:\n    - {{name: SQLGym, base_url: '{server.url}', transport: http}}\n"
        )
        script.write_text("SELECT 1\n")
        command = [COMMAND, "--config", str(profile), "--run", "SQLGym", "--agent", "scripted", "--script", str(script)]
        command += ["--repeat", str(N_EPISODES), "--concurrency", "8"]
        runs = [
            subprocess.Popen(
                [*command, "--task-index", str(first)],
                cwd=tmp_path,
                env=ENVIRON | {"AGENTGYM_DATA_DIR": f"data-{first}"},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for first in (100, 1000)
        ]
        outputs = [run.communicate(timeout=120) for run in runs]
    outcomes: Counter[str] = Counter()
    for folder in (tmp_path / "data-100", tmp_path / "data-1000"):
        for path in folder.glob("runs/*/*.json"):
            episode = json.loads(path.read_bytes())
            outcomes[episode["outcome"]] += 1
            assert episode["outcome"] == "error" or episode["reward"] == episode["task_index"], outputs
            assert episode["outcome"] != "error" or "shows another episode" in json.dumps(episode["error"])
    assert outcomes.total() == 2 * N_EPISODES
    assert outcomes["error"] and set(outcomes) == {"error", "success"}
