from __future__ import annotations

from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.envs.textcraft import TextCraft, TextCraftOracle
from runner.envs.textcraft.recipes import shipped_table
from runner.types import Action
from tests.support.examples import examples

N_TASKS = 544


def start_env(goal: str) -> TextCraft:
    env = TextCraft()
    env.reset(task_index=shipped_table().goals.index(goal))
    return env


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


@pytest.mark.parametrize(
    ("goal", "plan"),
    [
        ("emerald_block", ["get 9 emerald", "craft 1 emerald block using 9 emerald"]),
        (
            "stone_pickaxe",
            [
                "get 3 stone tool materials",
                "get 4 bamboo",
                "craft 1 stick using 2 bamboo",
                "craft 1 stick using 2 bamboo",
                "craft 1 stone pickaxe using 3 stone tool materials, 2 stick",
            ],
        ),
        (
            "oak_sign",
            [
                "get 2 oak logs",
                "craft 4 oak planks using 1 oak logs",
                "craft 4 oak planks using 1 oak logs",
                "craft 4 stick using 2 oak planks",
                "craft 3 oak sign using 6 oak planks, 1 stick",
            ],
        ),
    ],
)
def test_the_plan_lists_gets_before_crafts(goal: str, plan: list[str]) -> None:
    assert finish(start_env(goal)) == plan


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
