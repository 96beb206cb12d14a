"""SciWorld over HTTP, on a server that replies like AgentGym's ``agentenv_sciworld``."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from runner.batch.batch import Batch
from runner.batch.workspace import Workspace
from runner.envs.http.dialects import MAX_ACTIONS_PER_TEMPLATE, sciworld_actions
from runner.envs.http.environment import HttpEnvironment
from runner.envs.http.server import ServerAddress
from runner.envs.placement import Placement
from runner.types import Action, AgentGymScore, Trajectory, agentgym_score
from tests.support.batches import resolved_batch
from tests.support.episodes import make_step
from tests.support.rude_env_server import ReceivedRequest, RudeServer, json_response

TEMPLATES = ["look around", "open OBJ", "pour OBJ into OBJ", "reset task"]
OBJECTS = ["door", "cup", "sink"]
SCORES = {"open door": 48, "pour cup into sink": 100}
"""Action -> score after it; any other action leaves the score as it is."""


class SciWorldHandler:
    """A server with one task, whose score is 2 after the reset, since the server looks around by itself."""

    def __init__(self) -> None:
        self.score = 0
        self.done = False

    async def __call__(self, request: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        url = urlsplit(request.path)
        writer.write(json_response(self.reply(url.path, request.payload, parse_qs(url.query))))

    def reply(self, path: str, sent: Any, query: dict[str, list[str]]) -> Any:  # noqa: ANN401 - JSON
        if path == "/create":
            return {"id": 7}
        if path == "/reset":
            self.score, self.done = 2, False
            task = {"task_name": "boil", "var_num": 0, "task_description": "Boil water."}
            return {**task, "observation": "A kitchen.", "reward": 2, "score": 2, "deleted": False, "done": False}
        if path == "/action_hint":
            assert query == {"id": ["7"]}
            return {"possible_actions": TEMPLATES, "possible_objects": OBJECTS}
        if path == "/step" and self.done:
            return {"error": "The task with environment 7 has finished."}
        if path == "/step":
            before, self.score = self.score, SCORES.get(sent["action"], self.score)
            self.done = self.score == 100
            reply = {"observation": "Done.", "reward": self.score - before, "score": self.score, "done": self.done}
            return reply
        return {"detail": "Not Found"}


@pytest.fixture
def sciworld(rude_server: RudeServer) -> ServerAddress:
    rude_server.reset(SciWorldHandler())
    return ServerAddress(rude_server.url, 10)


async def test_what_the_reset_earned_is_in_the_first_step_so_that_the_rewards_are_the_score(
    sciworld: ServerAddress,
) -> None:
    env = HttpEnvironment(env="SciWorld", address=sciworld, mode="compat")
    rewards, steps = [], []
    assert (await env.reset(task_index=11))[0]["content"] == "Boil water.\nA kitchen."
    for index, text in enumerate(("look around", "open door", "look around", "pour cup into sink")):
        chat, reward, done = await env.step(action := Action(text=text))
        rewards.append(reward)
        steps.append(make_step(index, action=action, observation=chat, reward=reward, done=done))
        assert env.success(Trajectory(episode_id="x", timesteps=steps)) == done
    assert rewards == [2.0, 46.0, 0.0, 52.0]
    assert agentgym_score("SciWorld", rewards, sum(rewards)) == AgentGymScore(100.0, success=True)
    await env.reset(task_index=11)
    assert (await env.step(Action(text="wait")))[1:] == (2.0, False)
    assert not env.success(Trajectory(episode_id="x", timesteps=[]))
    await env.cleanup()


async def test_the_action_hint_gives_the_admissible_actions(sciworld: ServerAddress) -> None:
    env = HttpEnvironment(env="SciWorld", address=sciworld, mode="compat")
    await env.reset(task_index=0)
    listed = env.admissible_actions()
    assert listed is not None and not isinstance(listed, list)
    assert await listed == [
        "look around",
        "open door",
        "open cup",
        "open sink",
        "pour door into cup",
        "pour door into sink",
        "pour cup into door",
        "pour cup into sink",
        "pour sink into door",
        "pour sink into cup",
    ]
    await env.cleanup()


def test_the_number_of_actions_per_template_is_bounded() -> None:
    names = [f"thing {number}" for number in range(200)]
    assert len(sciworld_actions(["use OBJ on OBJ", "wait", "go to LOC"], names)) == MAX_ACTIONS_PER_TEMPLATE + 1 + 200
    assert sciworld_actions(["use OBJ on OBJ", "open OBJ", "wait"], []) == ["wait"]
    assert sciworld_actions(["OBJ OBJ OBJ OBJ"], ["a", "b"]) == []
    assert sciworld_actions([], names) == []


def test_the_random_agent_plays_with_the_hints(
    sciworld: ServerAddress, tmp_path: Path, rude_server: RudeServer
) -> None:
    workspace = Workspace(tmp_path, node="n", profile="p")
    placement = Placement(transport="http", address=sciworld, mode="compat")
    result = Batch(resolved_batch(placement, env="SciWorld", agent="random"), workspace).run()
    workspace.close()
    assert result.problems == []
    played = [request.payload["action"] for request in rude_server.requests if request.path == "/step"]
    assert played
    assert {*played} <= {*sciworld_actions(TEMPLATES, OBJECTS)}
