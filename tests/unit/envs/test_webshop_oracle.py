from __future__ import annotations

import pytest

from runner.envs.webshop import WebShop
from runner.types import Action, Mode

MODES: tuple[Mode, ...] = ("strict", "compat")
ITEM = "B0EWA2ABE6"
SEARCH = "search[oven safe non stick cutting board]"


def step_text(env: WebShop, text: str) -> tuple[float, bool]:
    return env.step(Action(text=text))[1:]


def start_env(mode: Mode = "strict") -> WebShop:
    env = WebShop(mode=mode)
    env.reset(task_index=3)
    return env


def finish(env: WebShop) -> tuple[list[str], float]:
    """Return the oracle's actions, at most the profile's step limit, and the last reward."""
    oracle, actions = env.oracle(0), list[str]()
    reward, done = 0.0, False
    while not done and len(actions) < 15:
        actions.append(oracle.next_action())
        reward, done = step_text(env, actions[-1])
    return actions, reward


@pytest.mark.long
def test_the_oracle_solves_every_task_including_those_on_later_pages() -> None:
    env = WebShop()
    rounds, n_paged = [], 0
    for task_index in range(env.n_tasks):
        env.reset(task_index=task_index)
        actions, reward = finish(env)
        assert reward == 1.0, task_index
        rounds.append(len(actions))
        n_paged += "click[next >]" in actions
    assert (min(rounds), max(rounds)) == (3, 6)
    assert n_paged >= 10


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "detour",
    [
        ("search[turntable]", "click[next >]"),
        ("search[turntable]", "click[next >]", "click[back to search]"),
        (SEARCH, "click[next >]", "click[next >]"),
        (SEARCH, "click[b0kjbx6k2g]"),
        (SEARCH, "click[b0kjbx6k2g]", "click[features]"),
        (SEARCH, f"click[{ITEM}]", "click[white]", "click[description]"),
    ],
)
def test_the_oracle_recovers_from_every_detour(detour: tuple[str, ...], mode: Mode) -> None:
    env = start_env(mode)
    for text in detour:
        step_text(env, text)
    assert finish(env)[1] == 1.0


def test_the_oracle_continues_after_the_end_in_compat() -> None:
    env = start_env("compat")
    oracle = env.oracle(0)
    rewards = [step_text(env, oracle.next_action())[0] for _ in range(10)]
    assert rewards == [0, 0, 0, 0, 1] * 2
