"""The oracle agent over real HTTP servers, and what it reports when the server plays something else."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.agents.baselines import OracleAgent
from runner.batch.batch import Batch
from runner.batch.result import BatchResult
from runner.batch.workspace import Workspace
from runner.envs.base import BIRD_VARIABLE, TEXTCRAFT_VARIABLE
from runner.envs.http.server import ServerAddress
from runner.envs.maze import Maze
from runner.envs.placement import Placement
from runner.envs.sqlgym import SQLGym
from runner.envs.textcraft import ListingPlanner, TextCraft
from runner.errors import AgentFault, OracleDiverged
from runner.types import Action
from tests.support.batches import resolved_batch
from tests.support.bird_sample import write_bird
from tests.support.rude_env_server import (
    EnvironmentHandler,
    ReceivedRequest,
    RudeServer,
    json_response,
    run_rude_server,
)


@pytest.fixture
def server() -> Iterator[RudeServer]:
    with run_rude_server() as running:
        yield running


def play(env: str, url: str, folder: Path, repeat: int = 1) -> tuple[BatchResult, list[str]]:
    """Play the oracle on a server; return the result and the error messages of the episodes."""
    workspace = Workspace(folder, node="n", profile="p")
    placement = Placement(transport="http", address=ServerAddress(url, 10), mode="compat")
    result = Batch(resolved_batch(placement, env=env, agent="oracle", repeat=repeat, world=True), workspace).run()
    workspace.close()
    episodes = [json.loads(path.read_bytes()) for path in folder.glob(f"runs/{result.batch_id}/*.json")]
    return result, [episode["error"]["message"] for episode in episodes if episode.get("error")]


def write_recipes(folder: Path) -> Path:
    """Write recipes that the shipped table does not have, with a group that is a tag of its own."""
    rows = {
        "lamp": (["key:item", "bulbs:tag", "bulbs:tag"], None),
        "red_bulbs": (["red_glass:item"], "bulbs"),
        "blue_bulbs": (["blue_glass:item"], "bulbs"),
        "red_glass": (["sand:item", "rose:item"], None),
        "sign": (["planks:tag", "key:item"], None),
        "oak_planks": (["oak_logs:tag"], "planks"),
    }
    (folder / "recipes").mkdir(parents=True)
    for name, (ingredients, group) in rows.items():
        parts = [{kind: f"minecraft:{part}"} for part, kind in (row.split(":") for row in ingredients)]
        optional = {"group": group} if group else {}
        recipe = {"type": "minecraft:crafting_shapeless", "ingredients": parts, "result": f"minecraft:{name}"}
        (folder / "recipes" / f"{name}.json").write_text(json.dumps({**recipe, **optional}))
    return folder


def test_textcraft_needs_no_recipes_of_the_server(
    server: RudeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TEXTCRAFT_VARIABLE, str(write_recipes(tmp_path / "agentenv_textcraft")))
    played = TextCraft(mode="compat")
    monkeypatch.delenv(TEXTCRAFT_VARIABLE)
    server.reset(EnvironmentHandler(lambda: played))
    result, errors = play("TextCraft", server.url, tmp_path, repeat=played.n_tasks)
    assert errors == []
    assert result.success_rate == 1.0


def test_the_listing_alone_suffices_for_every_shipped_task() -> None:
    env = TextCraft(mode="compat")
    for index in range(0, env.n_tasks, 7):
        planner, done, n_actions = ListingPlanner(), False, 0
        planner.start(env.reset(task_index=index)[0]["content"] or "")
        while not done and n_actions < 60:
            chat, _, done = env.step(Action(text=planner.next_action()))
            assert planner.observe(chat[0]["content"] or "") == chat[0]["content"]
            n_actions += 1
        assert done, index
        env.reset(task_index=index)
        assert n_actions <= len(env.oracle(None).plan()) + 1


@pytest.mark.parametrize(
    ("opening", "problem"),
    [
        ("", "no usable goal"),
        ("Crafting commands:\ncraft 1 a using 1 b\n\nGoal: craft c.", "no usable goal"),
        ("craft 1 a using 1 b\n" * 1001 + "\nGoal: craft a.", "1001 crafting commands"),
        ("craft 1 a using 1 b\ncraft 1 b using 1 a\n\nGoal: craft a.", "needed to make itself"),
        ("craft 1 a using 9999 b\ncraft 1 b using 1 c\n\nGoal: craft a.", "more than 1000 craftings"),
    ],
)
def test_a_first_observation_that_cannot_be_planned_with_is_reported(opening: str, problem: str) -> None:
    with pytest.raises(AgentFault, match=problem):
        ListingPlanner().start(opening)


async def test_an_unexpected_reply_names_both_texts() -> None:
    agent = OracleAgent(twin=ListingPlanner())
    await agent.init_after_reset()
    opening = "Crafting commands:\ncraft 1 a using 2 b\n\nGoal: craft a."
    _, action = await agent.act([{"role": "user", "content": opening}], [])
    assert action == Action(text="get 2 b")
    with pytest.raises(OracleDiverged) as caught:
        await agent.act([{"role": "user", "content": "Could not find b"}], [])
    assert str(caught.value) == (
        "Line 1 of the observation differs: the oracle expected 'Got 2 b'; the environment showed 'Could not find b'"
    )


async def test_a_divergence_names_the_first_differing_line() -> None:
    agent = OracleAgent(twin=Maze())
    agent.bind(Maze(), {"task_index": 0})
    await agent.init_after_reset()
    shown = Maze().reset(task_index=0)[0]["content"] or ""
    for content, message in [
        (f"{shown}\nmore\n", "Line 2 of the observation differs: the oracle expected no such line; the environment"),
        (f"{shown[:70]}\x1b{shown[71:]}", f"the oracle expected '…{shown[10:]}'; the environment showed '…"),
        ("x" * 500, f"the environment showed '{'x' * 200}…'"),
    ]:
        with pytest.raises(OracleDiverged) as caught:
            await agent.act([{"role": "user", "content": content}], [])
        assert message in str(caught.value)
        assert "\x1b" not in str(caught.value)


class SQLGymHandler:
    """Replies of AgentGym's SQLGym server, with BIRD's tasks."""

    def __init__(self, env: SQLGym) -> None:
        self.env = env

    async def __call__(self, request: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        if request.path == "/create":
            reply: object = 0
        elif request.path == "/reset":
            reply = [self.env.reset(task_index=request.payload["item_id"])[0]["content"], None]
        elif request.path != "/step":
            reply = {"error": "unknown"}
        else:
            chat, reward, done = self.env.step(Action(text=request.payload["action"]))
            reply = {"state": chat[0]["content"], "reward": reward, "done": done, "info": {}}
        writer.write(json_response(reply))


def test_sqlgym_names_the_variable_of_the_data_that_the_server_plays(
    server: RudeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bird = write_bird(tmp_path / "bird")
    monkeypatch.setenv(BIRD_VARIABLE, str(bird))
    server.reset(SQLGymHandler(SQLGym(mode="compat")))
    assert play("SQLGym", server.url, tmp_path)[0].success_rate == 1.0
    monkeypatch.delenv(BIRD_VARIABLE)
    result, [message] = play("SQLGym", server.url, tmp_path)
    assert result.success_rate in (0.0, None)
    assert "Line 1 of the observation differs" in message
    assert f"Set {BIRD_VARIABLE} to the folder of BIRD that the server plays; it is not set" in message


async def test_the_oracle_draws_its_twin_before_and_after_each_action() -> None:
    agent, played = OracleAgent(twin=Maze()), Maze()
    agent.bind(played, {"task_index": 4})
    observation = played.reset(task_index=4)
    assert await agent.render_cells() == played.render_cells()
    await agent.init_after_reset()
    for _ in range(3):
        assert await agent.render_cells() == played.render_cells()
        _, action = await agent.act(observation, [])
        observation, _, _ = played.step(action)
    assert await agent.render_cells() == played.render_cells()


async def test_an_oracle_that_only_observes_draws_nothing() -> None:
    assert await OracleAgent(twin=ListingPlanner()).render_cells() is None


def test_episodes_on_a_server_of_agentgym_have_the_pictures_of_the_twin(server: RudeServer, tmp_path: Path) -> None:
    server.reset(EnvironmentHandler(lambda: Maze(mode="compat")))
    result, errors = play("Maze", server.url, tmp_path)
    assert not errors
    (path,) = tmp_path.glob(f"runs/{result.batch_id}/*.json")
    episode = json.loads(path.read_bytes())
    pictures = [episode["reset_world"], *(step["world"] for step in episode["timesteps"])]
    assert all(pictures)
    assert len({json.dumps(each) for each in pictures}) == len(pictures)
