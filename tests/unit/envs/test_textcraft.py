from __future__ import annotations

from collections import Counter
from statistics import median

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.envs.textcraft import TextCraft, TextCraftOracle
from runner.envs.textcraft.recipes import RecipeFile, shipped_table
from runner.errors import EnvironmentFault
from runner.types import Action, Mode
from runner.util.files import package_resource
from tests.support.examples import examples

MODES: tuple[Mode, ...] = ("strict", "compat")


def step_text(env: TextCraft, text: str) -> tuple[str, float, bool]:
    chat, reward, done = env.step(Action(text=text))
    return chat[0]["content"] or "", reward, done


def start_env(goal: str = "oak_sign", mode: Mode = "strict") -> TextCraft:
    env = TextCraft(mode=mode)
    env.reset(task_index=shipped_table().goals.index(goal))
    return env


def start_with(goal: str, *texts: str) -> TextCraft:
    env = start_env(goal)
    for text in texts:
        assert step_text(env, text)[0].startswith(("Got", "Crafted"))
    return env


def test_an_episode_runs_from_reset_to_the_goal() -> None:
    env = start_env()
    assert step_text(env, "inventory") == ("Inventory: You are not carrying anything.", 0.0, False)
    assert step_text(env, "get 2 oak logs") == ("Got 2 oak logs", 0.0, False)
    assert step_text(env, "craft 4 oak planks using 1 oak logs") == ("Crafted 4 minecraft:oak_planks", 0.0, False)
    assert step_text(env, "craft 4 oak planks using 1 oak logs") == ("Crafted 4 minecraft:oak_planks", 0.0, False)
    assert step_text(env, "get 2 bamboo") == ("Got 2 bamboo", 0.0, False)
    assert step_text(env, "inventory") == ("Inventory: [oak planks] (8) [bamboo] (2) ", 0.0, False)
    assert step_text(env, "craft 4 stick using 2 oak planks") == ("Crafted 4 minecraft:stick", 0.0, False)
    assert step_text(env, "craft 3 oak sign using 6 oak planks, 1 stick") == ("Crafted 3 minecraft:oak_sign", 1.0, True)
    assert env.inventory == {"bamboo": 2, "stick": 3, "oak_sign": 3}
    with pytest.raises(EnvironmentFault, match="call reset first"):
        step_text(env, "inventory")


@pytest.mark.parametrize(
    ("text", "observation"),
    [
        ("", "Could not execute "),
        ("inventory please", "Inventory: You are not carrying anything."),
        (" inventory", "Could not execute  inventory"),
        ("get oak log", "Could not execute get oak log"),
        ("get 0 oak log", "Got 0 oak log"),
        ("get 007 oak log", "Got 7 oak log"),
        ("get -1 oak log", "Could not execute get -1 oak log"),
        ("get 99999999999999999999999 oak log", "Got 99999999999999999999999 oak log"),
        ("get \u0661 oak log", "Could not execute get \u0661 oak log"),
        ("get 1 oak log\nget 1 bamboo", "Got 1 oak log"),
        ("get 1 oak_log", "Got 1 oak_log"),
        ("get 1 oak log ", "Could not find oak log "),
        ("get 1 ", "Could not find "),
        ("get 1 charcoal", "Could not find charcoal"),
        ("get 1 oak planks", "Could not find oak planks"),
        ("get 1 minecraft:bamboo", "Could not find minecraft:bamboo"),
        ("craft 1 stick", "Could not execute craft 1 stick"),
        ("craft 0 stick using 2 bamboo", "Could not find enough items to craft minecraft:stick"),
        ("craft 1 stick using 0 bamboo", "Could not find enough items to craft minecraft:stick"),
        ("craft 1 stick using bamboo", "Wrong item format: bamboo"),
        ("craft 1 stick using 2 bamboo, and luck", "Wrong item format: and luck"),
        ("craft 1 stick using 2 bamboo,", "Wrong item format: "),
        ("craft 4 stick using 2 planks", "Could not find enough items to craft minecraft:stick"),
    ],
)
def test_observations_of_a_first_action(text: str, observation: str) -> None:
    for mode in MODES:
        assert step_text(start_env(mode=mode), text) == (observation, 0.0, False)


@pytest.mark.parametrize(
    ("text", "observation"),
    [
        ("craft 0 stick using 2 bamboo", "Crafted 1 minecraft:stick"),
        (f"craft {'9' * 60} stick using 2 bamboo", "Crafted 1 minecraft:stick"),
        ("craft 7 stick using 1 bamboo, 1 bamboo", "Could not find a valid recipe for minecraft:stick"),
        ("craft 4 stick using 2 oak planks", "Crafted 4 minecraft:stick"),
        ("craft 4 stick using 1 oak planks, 1 birch planks", "Could not find a valid recipe for minecraft:stick"),
        ("craft 4 stick using 2 planks", "Could not find enough items to craft minecraft:stick"),
        ("craft 1 stick using 3 bamboo", "Could not find a valid recipe for minecraft:stick"),
        ("craft 1 stick using 0 bamboo", "Could not find a valid recipe for minecraft:stick"),
        ("craft 4 stick using 2 bamboo, 2 oak planks", "Could not find a valid recipe for minecraft:stick"),
        ("craft 1 moon using 2 bamboo", "Could not find a valid recipe for minecraft:moon"),
        ("craft 4 planks using 1 oak logs", "Could not find a valid recipe for minecraft:planks"),
        ("craft 4 oak planks using 1 oak log", "Could not find a valid recipe for minecraft:oak_planks"),
    ],
)
def test_crafting_uses_the_inventory(text: str, observation: str) -> None:
    craft_planks = ("craft 4 oak planks using 1 oak logs", "craft 4 birch planks using 1 birch logs")
    gets = ("get 4 bamboo", "get 2 oak log", "get 2 oak logs", "get 1 birch logs")
    env = start_with("oak_sign", *gets, *craft_planks)
    before = dict(env.inventory)
    assert step_text(env, text) == (observation, 0.0, False)
    assert observation.startswith("Crafted") == (env.inventory != before)


def test_compat_shows_outputs_without_a_recipe_as_agentgym_does() -> None:
    env = start_env(mode="compat")
    step_text(env, "get 2 oak logs")
    stick = "ItemTagWithCount(item_tag=ItemTag(tag=None, item_id='minecraft:stick'), count=7)"
    planks = "ItemTagWithCount(item_tag=ItemTag(tag='minecraft:planks', item_id=None), count=4)"
    for text, observation in [
        ("craft 7 stick using 2 oak logs", f"Could not find a valid recipe for {stick}"),
        ("craft 4 planks using 1 oak logs", f"Could not find a valid recipe for {planks}"),
        ("craft 4 planks using 3 oak logs", "Could not find enough items to craft None"),
    ]:
        assert step_text(env, text) == (observation, 0.0, False)


def test_admissible_actions_are_those_that_currently_work() -> None:
    env = start_env("stone_pickaxe")
    assert env.admissible_actions()[0] == "inventory"
    assert "get 3 stone tool materials" in env.admissible_actions()
    assert not any(action.startswith("craft") for action in env.admissible_actions())
    step_text(env, "get 2 bamboo")
    assert "craft 1 stick using 2 bamboo" in env.admissible_actions()
    for action in env.admissible_actions():
        copy = start_with("stone_pickaxe", "get 2 bamboo")
        assert step_text(copy, action)[0].startswith(("Got", "Crafted", "Inventory"))


@settings(deadline=None, max_examples=examples(50))
@given(task_index=st.integers(0, 543), data=st.data())
def test_items_come_only_from_gets_and_recipes(task_index: int, data: st.DataObject) -> None:
    env = TextCraft()
    env.reset(task_index=task_index)
    table = msgspec.json.decode(package_resource("data", "textcraft", "recipes.json").read_bytes(), type=RecipeFile)
    rows = {(output, count, sum(used.values())) for output, count, used in table.recipes}
    done = False
    for _ in range(15):
        if done:
            break
        before = Counter(env.inventory)
        text = data.draw(st.sampled_from(env.admissible_actions()))
        observation, _, done = step_text(env, text)
        gained, lost = Counter(env.inventory) - before, before - Counter(env.inventory)
        assert all(count > 0 for count in env.inventory.values())
        if observation.startswith("Crafted"):
            [(item, count)] = gained.items()
            assert observation == f"Crafted {count} minecraft:{item}"
            assert (item, count, lost.total()) in rows
        else:
            assert not lost
            assert gained.total() == (int(text.split()[1]) if text.startswith("get") else 0)


N_TASKS = 544


def step_texts(env: TextCraft, *texts: str) -> list[tuple[str | None, float, bool]]:
    results = [env.step(Action(text=text)) for text in texts]
    return [(chat[0]["content"], reward, done) for chat, reward, done in results]


def finish(env: TextCraft, oracle: TextCraftOracle | None = None) -> list[str]:
    """Play the oracle to the end; each action must succeed."""
    oracle, actions, done = oracle or env.oracle(None), [], False
    while not done:
        actions.append(oracle.next_action())
        assert len(actions) <= 200, actions
        [(observation, reward, done)] = step_texts(env, actions[-1])
        assert observation and observation.startswith(("Got", "Crafted")), (actions[-1], observation)
        assert reward == float(done)
    return actions


@pytest.mark.long
def test_the_initial_plan_solves_every_task() -> None:
    env = TextCraft()
    lengths = []
    for index in range(env.n_tasks):
        env.reset(task_index=index)
        plan = env.oracle(None).plan()
        assert finish(env) == plan
        lengths.append(len(plan))
    assert len(lengths) == N_TASKS
    assert max(lengths) == 48
    assert median(lengths) == 5
    assert sum(length <= 15 for length in lengths) == 523
    assert max(lengths[:20]) == 4


def test_the_plan_lists_gets_before_crafts() -> None:
    assert finish(start_env("stone_pickaxe")) == [
        "get 3 stone tool materials",
        "get 4 bamboo",
        "craft 1 stick using 2 bamboo",
        "craft 1 stick using 2 bamboo",
        "craft 1 stone pickaxe using 3 stone tool materials, 2 stick",
    ]


def test_the_oracle_uses_the_inventory_and_surplus() -> None:
    env = start_env("bookshelf")
    step_texts(env, "get 3 paper", "get 2 oak logs", "get 1 spruce logs")
    step_texts(env, "craft 4 spruce planks using 1 spruce logs", *["craft 4 oak planks using 1 oak logs"] * 2)
    actions = finish(env)
    assert not any("planks using" in action for action in actions)
    assert actions[-1] == "craft 1 bookshelf using 6 oak planks, 3 book"


def test_the_oracle_crafts_more_when_no_member_of_a_tag_suffices() -> None:
    env = start_env("bookshelf")
    step_texts(env, "get 1 oak logs", "craft 4 oak planks using 1 oak logs")
    step_texts(env, "get 1 spruce logs", "craft 4 spruce planks using 1 spruce logs")
    assert [action for action in finish(env) if "planks using" in action]


@settings(deadline=None, max_examples=examples(60))
@given(task_index=st.integers(0, N_TASKS - 1), data=st.data())
def test_the_oracle_continues_from_any_inventory(task_index: int, data: st.DataObject) -> None:
    env = TextCraft()
    env.reset(task_index=task_index)
    oracle = env.oracle(None)
    for _ in range(data.draw(st.integers(0, 12))):
        text = data.draw(st.sampled_from(env.admissible_actions()))
        if step_texts(env, text)[0][2]:
            return
    oracle = data.draw(st.sampled_from([oracle, env.oracle(None)]))
    plan = oracle.plan()
    assert oracle.next_action() == plan[0] == oracle.next_action()
    assert finish(env, oracle) == plan
