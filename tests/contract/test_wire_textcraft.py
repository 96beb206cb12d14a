"""TextCraft replays recorded exchanges of AgentGym's own server.

Its task numbers and the order of its lists depend on the machine, so a recorded task is looked up here by its goal and
lines are compared as sets; what an action is answered is compared to the letter.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runner.envs.textcraft import TextCraft
from runner.envs.textcraft.recipes import make_task, shipped_table
from runner.types import Action

FOLDER = Path(__file__).resolve().parents[2].parent / "shared" / "agentgym-wire"
FIRST_OBSERVATION = re.compile(
    r"Crafting commands:\n(?P<commands>(craft [1-9]\d* [a-z ]+ using [1-9]\d* [a-z ]+(, [1-9]\d* [a-z ]+)*\n)+)"
    r"\nGoal: craft (?P<goal>[a-z ]+)\."
)


def observed(*paths: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return the requests and replies of these paths that contain an observation, in order."""
    if not FOLDER.is_dir():
        pytest.skip(f"no recorded exchanges: the folder {FOLDER} is missing")
    rows = map(json.loads, (FOLDER / "textcraft.jsonl").read_text("utf-8").splitlines())
    return [pair for row in rows if row["request"]["path"] in paths for pair in _observed(row)]


def _observed(row: dict[str, Any]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    if row["response"]["status"] == 200:
        received = json.loads(row["response"]["body"])
        if isinstance(received, dict) and "observation" in received:
            yield json.loads(row["request"]["body"]), received


def read(observation: str) -> tuple[str, list[str]]:
    """Return the goal and the commands of a first observation, with sorted ingredients."""
    match = FIRST_OBSERVATION.fullmatch(observation)
    assert match, observation
    return match["goal"].replace(" ", "_"), [sorted_command(line) for line in match["commands"].splitlines()]


def sorted_command(command: str) -> str:
    output, ingredients = command.split(" using ")
    return f"{output} using {', '.join(sorted(ingredients.split(', ')))}"


def test_recorded_first_observations_have_our_form_and_list_our_recipes() -> None:
    table = shipped_table()
    ours = {sorted_command(recipe.command) for goal in table.goals for recipe in table.recipes[goal]}
    recorded = observed("/create", "/reset")
    assert len(recorded) == 49
    for _, received in recorded:
        goal, commands = read(received["observation"])
        task = make_task(table, table.goals.index(goal))
        our_goal, listed = read(task.observation)
        assert our_goal == goal
        assert len(set(commands)) == len(commands)
        assert {*commands} <= ours
        assert {sorted_command(recipe.command) for recipe in task.tree} <= {*commands}
        assert len(commands) <= len(listed)


def test_every_recorded_action_is_answered_to_the_letter() -> None:
    env = TextCraft(mode="compat")
    n_resets = n_steps = 0
    for sent, received in observed("/reset", "/step"):
        if "action" in sent:
            chat, reward, done = env.step(Action(text=sent["action"]))
            assert {"observation": chat[0]["content"], "reward": reward, "done": done} == received
            n_steps += 1
        else:
            goal, _ = read(received["observation"])
            env.reset(task_index=shipped_table().goals.index(goal))
            n_resets += 1
    assert (n_resets, n_steps) == (46, 234)


def test_recorded_goals_get_harder_with_the_task_index_as_ours_do() -> None:
    table = shipped_table()
    goals = {
        sent["data_idx"]: read(received["observation"])[0]
        for sent, received in observed("/reset")
        if "data_idx" in sent
    }
    levels = [
        min(map(table.depth_of_recipe, table.recipes[goals[index]])) for index in sorted(goals) if 0 <= index < 544
    ]
    assert len(levels) == 42
    assert levels == sorted(levels)
    assert {*levels} == {1, 2, 3}
