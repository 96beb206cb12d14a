"""TextCraft replays recorded exchanges of AgentGym's own server.

Its task numbers and the order of its lists depend on the machine, so the tests find a recorded task by its goal and
compare lists as sets.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from runner.envs.textcraft.recipes import make_task, shipped_table
from tests.support.recordings import load_rows

FIRST_OBSERVATION = re.compile(
    r"Crafting commands:\n(?P<commands>(craft [1-9]\d* [a-z ]+ using [1-9]\d* [a-z ]+(, [1-9]\d* [a-z ]+)*\n)+)"
    r"\nGoal: craft (?P<goal>[a-z ]+)\."
)


def load_observations(*paths: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return the requests and replies of these paths that contain an observation, in order."""
    rows = [row for row in load_rows("textcraft.jsonl") if row["request"]["path"] in paths]
    return [pair for row in rows for pair in _observations(row)]


def _observations(row: dict[str, Any]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    if row["response"]["status"] == 200:
        received = json.loads(row["response"]["body"])
        if isinstance(received, dict) and "observation" in received:
            yield json.loads(row["request"]["body"]), received


def parse_first_observation(observation: str) -> tuple[str, list[str]]:
    """Return the goal and the commands of a first observation, with sorted ingredients."""
    match = FIRST_OBSERVATION.fullmatch(observation)
    assert match, observation
    return match["goal"].replace(" ", "_"), [sorted_command(line) for line in match["commands"].splitlines()]


def sorted_command(command: str) -> str:
    output, ingredients = command.split(" using ")
    return f"{output} using {', '.join(sorted(ingredients.split(', ')))}"


def test_recorded_first_observations_have_the_same_form_and_recipes() -> None:
    table = shipped_table()
    own_commands = {sorted_command(recipe.command) for goal in table.goals for recipe in table.recipes[goal]}
    recorded = load_observations("/create", "/reset")
    assert len(recorded) == 49
    for _, received in recorded:
        goal, commands = parse_first_observation(received["observation"])
        task = make_task(table, table.goals.index(goal))
        our_goal, own_listing = parse_first_observation(task.observation)
        assert our_goal == goal
        assert len(set(commands)) == len(commands)
        assert {*commands} <= own_commands
        assert {sorted_command(recipe.command) for recipe in task.tree} <= {*commands}
        assert len(commands) <= len(own_listing)


def test_recorded_goals_are_sorted_by_depth_too() -> None:
    table = shipped_table()
    goals = {
        sent["data_idx"]: parse_first_observation(received["observation"])[0]
        for sent, received in load_observations("/reset")
        if "data_idx" in sent
    }
    levels = [
        min(map(table.depth_of_recipe, table.recipes[goals[index]])) for index in sorted(goals) if 0 <= index < 544
    ]
    assert len(levels) == 42
    assert levels == sorted(levels)
    assert {*levels} == {1, 2, 3}
