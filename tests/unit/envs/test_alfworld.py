from __future__ import annotations

import json

import pytest

from runner.envs.alfworld import ALFWorld
from runner.envs.alfworld.engine import HELP, NOTHING_HAPPENS
from runner.errors import EnvironmentFault
from runner.types import Action, Mode

MODES: tuple[Mode, ...] = ("strict", "compat")
TASK = 3
ROOM = (
    "You are in the middle of a room. Looking quickly around you, you see a cabinet 4, a cabinet 3, a cabinet 2, "
    "a cabinet 1, a coffeemachine 1, a countertop 3, a countertop 2, a countertop 1, a drawer 3, a drawer 2, a drawer "
    "1, a fridge 1, a garbagecan 1, a microwave 1, a shelf 1, a sinkbasin 1, a stoveburner 2, a stoveburner 1, and a "
    "toaster 1."
)
GOAL = "Your task is to: put a hot apple in garbagecan."
STEPS = {
    "go to microwave 1": "You arrive at microwave 1. The microwave 1 is closed.",
    "open microwave 1": "You open the microwave 1. The microwave 1 is open. In it, you see a apple 1, and a cup 1.",
    "take apple 1 from microwave 1": "You pick up the apple 1 from the microwave 1.",
    "heat apple 1 with microwave 1": "You heat the apple 1 using the microwave 1.",
    "go to garbagecan 1": "You arrive at garbagecan 1. On the garbagecan 1, you see a egg 1, and a potato 1.",
    "move apple 1 to garbagecan 1": "You move the apple 1 to the garbagecan 1.",
}


def step_texts(env: ALFWorld, *texts: str) -> tuple[str, float, bool]:
    """Return the last observation without its list of actions, after checking that list."""
    for text in texts:
        chat, reward, done = env.step(Action(text=text))
        assert chat[0]["content"] == f"{env.observation}\nAvailable actions: {json.dumps(env.admissible_actions())}"
    return env.observation, reward, done


def start_env(mode: Mode = "strict", task_index: int = TASK) -> ALFWorld:
    env = ALFWorld(mode=mode)
    env.reset(task_index=task_index)
    return env


def non_move_actions(env: ALFWorld) -> list[str]:
    return [text for text in env.admissible_actions() if not text.startswith("go to ")]


def test_an_episode_runs_from_reset_to_the_goal() -> None:
    env = ALFWorld()
    opening = env.reset(task_index=TASK)[0]["content"] or ""
    places = [f"{name}" for name in ROOM.removesuffix(".").replace("and a", "a").split(", a ")[1:]]
    assert sorted(["go to cabinet 4", *(f"go to {place}" for place in places)]) == env.admissible_actions()[:-3]
    assert opening == f"{ROOM}\n\n{GOAL}\nAvailable actions: {json.dumps(env.admissible_actions())}"
    for step, (text, answer) in enumerate(STEPS.items(), start=1):
        assert text in env.admissible_actions()
        assert step_texts(env, text) == (answer, float(step == len(STEPS)), step == len(STEPS))
    assert not env.truncated
    with pytest.raises(EnvironmentFault, match="call reset first"):
        step_texts(env, "look")


def test_admissible_actions_follow_the_state() -> None:
    env = start_env()
    assert non_move_actions(env) == ["help", "inventory", "look"]
    assert step_texts(env, "help")[0] == HELP
    step_texts(env, "go to microwave 1")
    assert non_move_actions(env) == ["examine microwave 1", "help", "inventory", "look", "open microwave 1"]
    assert "go to microwave 1" not in env.admissible_actions()
    step_texts(env, "open microwave 1")
    takes = ["take apple 1 from microwave 1", "take cup 1 from microwave 1"]
    assert non_move_actions(env) == ["close microwave 1", "examine microwave 1", "help", "inventory", "look", *takes]
    step_texts(env, takes[0])
    holding = ["close microwave 1", "examine apple 1", "examine microwave 1", "heat apple 1 with microwave 1", "help"]
    assert non_move_actions(env) == [*holding, "inventory", "look", "move apple 1 to microwave 1"]


@pytest.mark.parametrize(
    "text",
    ["", "dance", "look at it", "Look", "go to moon 1", "open fridge 1", "take apple 1 from fridge 1", "examine"],
)
def test_an_inapplicable_action_changes_nothing(text: str) -> None:
    for mode in MODES:
        env = start_env(mode)
        before = env.admissible_actions()
        assert step_texts(env, text) == (NOTHING_HAPPENS, 0.0, False)
        assert env.admissible_actions() == before


@pytest.mark.parametrize(
    "put", ["put {} in {}", "put {} on {}", "put {} in/on {}", "move {} to {}", " move {} to {}\n"]
)
def test_put_accepts_all_wordings_in_strict_mode_and_agentgyms_in_compat_mode(put: str) -> None:
    for mode in MODES:
        env = start_env(mode)
        step_texts(env, *list(STEPS)[:-1])
        is_accepted = mode == "strict" or "in/on" in put
        expected = (1.0, True) if is_accepted else (0.0, False)
        assert step_texts(env, put.format("apple 1", "garbagecan 1"))[1:] == expected


def test_the_oracle_of_compat_mode_has_agentgyms_wording() -> None:
    env = start_env("compat")
    oracle, done, actions = env.oracle(0), False, list[str]()
    while not done and len(actions) < 15:
        actions.append(oracle.next_action())
        done = step_texts(env, actions[-1])[2]
    assert done and any(action.startswith("put ") for action in actions)
    assert not any(action.startswith("move ") for action in actions)


def test_compat_uses_agentgyms_wording() -> None:
    env = ALFWorld(mode="compat")
    chat = env.reset(task_index=TASK)
    assert (chat[0]["content"] or "").startswith(f"{ROOM}\n{GOAL}\nAvailable actions: [")
    assert non_move_actions(env) == ["inventory", "look"]
    assert step_texts(env, "help")[0] == NOTHING_HAPPENS
    assert step_texts(env, "go to microwave 1")[0] == "The microwave 1 is closed."
    step_texts(env, *list(STEPS)[1:4])
    assert "put apple 1 in/on microwave 1" in non_move_actions(env)
    assert env.admissible_actions() == sorted(env.admissible_actions())
    last = "put apple 1 in/on garbagecan 1"
    assert step_texts(env, "go to garbagecan 1", last) == ("You put the apple 1 in/on the garbagecan 1.", 1.0, True)


@pytest.mark.parametrize("mode", MODES)
def test_the_fiftieth_step_truncates_the_episode(mode: Mode) -> None:
    env = start_env(mode)
    for _ in range(2):
        steps = [(*step_texts(env, text)[1:], env.truncated) for text in [*["dance"] * 49, "look"]]
        assert steps == [(0.0, False, False)] * 49 + [(0.0, True, True)]
        env.reset(task_index=TASK)


def test_the_fiftieth_step_can_win() -> None:
    env = start_env()
    step_texts(env, *["look"] * (50 - len(STEPS)))
    assert step_texts(env, *STEPS)[1:] == (1.0, True)
    assert not env.truncated


def test_task_type_and_data_label_are_set() -> None:
    env = start_env()
    assert env.task_type == "pick_heat_then_place_in_recep-apple-garbagecan/room_4"
    assert (ALFWorld.data_label, env.data_label, env.packages) == ("local scenes", "local scenes", ())


def test_the_tools_are_named_after_the_commands() -> None:
    names = [schema["function"]["name"] for schema in ALFWorld().get_tool_schemas()]
    manipulations = ["take", "put", "heat", "cool", "clean", "slice", "use", "examine"]
    assert names == ["go_to", "open", "close", *manipulations, "look", "inventory", "help"]
    compat = [schema["function"]["name"] for schema in ALFWorld(mode="compat").get_tool_schemas()]
    assert compat == names[:-1]
