from __future__ import annotations

import random
import time

import pytest

from runner.envs.babyai import BabyAI
from runner.envs.babyai.levels import LEVELS
from runner.types import Action, Mode

IMPOSSIBLE = {15, 55, 95}
"""OpenDoorsOrderN4Debug in two parts: the toggle that fulfils the first one fails the second, which is strict."""
KEY_IN_BOX = {25, 65, 105}
"""No command opens the box in which the key lies."""


def play_oracle(task_index: int, limit: int = 100, mode: Mode = "strict", seed: int = 0) -> tuple[list[str], float]:
    """Return the oracle's texts and the sum of the rewards."""
    env = BabyAI(mode=mode)
    env.reset(task_index=task_index)
    planner = env.oracle(seed)
    texts: list[str] = []
    for _ in range(limit):
        texts.append(planner.next_action())
        _, reward, done = env.step(Action(text=texts[-1]))
        if done:
            return texts, reward
    return texts, 0.0


@pytest.mark.long
def test_the_oracle_solves_each_solvable_task_of_the_first_120() -> None:
    rewards = {task: play_oracle(task)[1] for task in range(120)}
    assert {task for task, reward in rewards.items() if reward > 0} == set(range(120)) - IMPOSSIBLE - KEY_IN_BOX
    assert sum(rewards[task] for task in range(20)) / 20 > 0.88


@pytest.mark.parametrize(
    "level",
    [
        "UnlockPickupDist",
        "BlockedUnlockPickup",
        "UnlockToUnlock",
        "KeyCorridorS6R3",
        "OneRoomS20",
        "MoveTwoAcrossS8N9",
        "PutNextS7N4Carrying",
        "SynthSeq",
        "BossLevel",
    ],
)
def test_keys_blockers_and_long_missions_are_handled(level: str) -> None:
    assert play_oracle(LEVELS.index(level) + 40)[1] > 0


def test_most_of_the_first_twenty_tasks_take_at_most_fifteen_actions() -> None:
    solved = [task for task in range(20) if play_oracle(task, limit=15)[1] > 0]
    assert len(solved) >= 18


def test_macro_commands_cost_no_more_than_single_steps() -> None:
    """Task 2 contains only a ball, four steps ahead and three to the right."""
    texts, reward = play_oracle(2)
    assert texts == ["go to red ball 1"]
    assert reward == pytest.approx(1 - 0.9 * 7 / 64)


@pytest.mark.parametrize("task_index", [6, 38])
def test_the_same_task_and_seed_give_the_same_actions(task_index: int) -> None:
    assert play_oracle(task_index) == play_oracle(task_index)


def test_every_text_is_a_command_of_the_grammar() -> None:
    env = BabyAI()
    for task_index in (6, 33):
        assert all(isinstance(env.parse(text), Action) for text in play_oracle(task_index)[0])


def test_the_oracle_recovers_from_random_actions() -> None:
    env = BabyAI()
    env.reset(task_index=LEVELS.index("BossLevel"))
    planner = env.oracle(0)
    choice = random.Random(1)
    reward, done, n_steps = 0.0, False, 0
    while not done and n_steps < 200:
        n_steps += 1
        text = choice.choice(env.admissible_actions() or []) if n_steps % 5 == 0 else planner.next_action()
        _, reward, done = env.step(Action(text=text))
    assert reward > 0


def test_a_reset_starts_a_new_plan() -> None:
    env = BabyAI()
    env.reset(task_index=6)
    planner = env.oracle(0)
    planner.next_action()
    env.reset(task_index=2)
    assert planner.next_action() == "go to red ball 1"


@pytest.mark.long
def test_the_oracle_explores_when_it_has_no_plan() -> None:
    """The key of this task's locked room lies inside that room."""
    started_at = time.monotonic()
    texts, reward = play_oracle(246, limit=12)
    assert (len(texts), reward) == (12, 0.0)
    assert time.monotonic() - started_at < 12 * 2
    assert play_oracle(246, limit=12)[0] == texts
    assert play_oracle(246, limit=12, seed=1)[0] != texts
    assert not any("check" in text for text in texts)


def test_the_oracle_solves_a_task_in_compat_mode() -> None:
    assert play_oracle(27, mode="compat")[1] > 0.5
