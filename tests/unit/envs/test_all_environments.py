"""What holds for each embedded environment in both modes: its contract, texts and calls, hostile texts, success."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner import plugins
from runner.testing import HOSTILE_TEXTS, check_env
from runner.types import Action, InvalidAction, Mode, ToolCall
from tests.support.episodes import rewarded_trajectory

MODES: tuple[Mode, ...] = get_args(Mode)
TASKS = {"ALFWorld": (0, 1, 3), "BabyAI": (0,), "Maze": (0,), "TextCraft": (0, 250, 543), "WebShop": (0, 3, 999)}
TASKS |= {"Wordle": (0,)}
COMMANDS = {
    "ALFWorld": "look|go to fridge 1|open fridge 1|take apple 1 from fridge 1|move a 1 to b 1|put a 1 in/on b 1",
    "BabyAI": "go to red ball 1|pickup red ball 2|turn LEFT|drop|toggle|MOVE forward|recheck\n|chec\N{KELVIN SIGN}",
    "Maze": "move up|move right|move left|move down|MOVE UP|move right\n",
    "TextCraft": "get 4 bamboo|get 2 oak log|craft 1 stick using 2 bamboo|craft 4 stick using 2 planks|get 1",
    "WebShop": "search[cutting board]|search[]|click[next >]|click[< prev]|click[buy now]|click[back to search]",
    "Wordle": "panic|p a n i c|crane|zzzzz|PANIC|panics",
}
ANY_TEXT = st.text(st.characters(codec=None), max_size=60) | st.sampled_from(HOSTILE_TEXTS)
FILLED = {"ALFWorld": "put {} in/on {}", "WebShop": "search[{}]"}
"""Commands around any text."""
MAY_END = ("BabyAI", "Maze", "Wordle")
"""Environments where an invalid text counts as a move, so it may end the episode or cost reward."""


def start_env(env: str, mode: Mode, task_index: int = 0) -> Any:  # noqa: ANN401 - environments differ
    environment: Any = plugins.load(plugins.ENVS, env)
    created = environment(mode=mode)
    created.reset(task_index=task_index)
    return created


def step(environment: Any, action: Action) -> tuple[list[str | None], float, bool]:  # noqa: ANN401
    chat, reward, done = environment.step(action)
    return [message["content"] for message in chat], reward, done


def state_of(environment: Any) -> tuple[object, ...]:  # noqa: ANN401
    """Return what an agent could notice of the state."""
    held = [getattr(environment, name, None) for name in ("position", "inventory")]
    return environment.admissible_actions(), environment.render_cells(), *held


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("env", [*TASKS, pytest.param("SQLGym", marks=pytest.mark.long)])
def test_the_environment_fulfills_the_contract(env: str, mode: Mode) -> None:
    environment: Any = plugins.load(plugins.ENVS, env)
    check_env(lambda: environment(mode=mode), tasks=TASKS.get(env, (203,)))
    kind = environment(mode=mode)
    assert kind.reset(task_index=-1) == kind.reset(task_index=kind.n_tasks - 1)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("env", TASKS)
def test_the_oracles_calls_have_the_same_effect_as_its_texts(env: str, mode: Mode) -> None:
    by_text, by_call = start_env(env, mode, 3), start_env(env, mode, 3)
    oracle, done, n_steps = by_text.oracle(0), False, 0
    while not done and n_steps < 20:
        text = oracle.next_action()
        parsed = by_call.parse(text)
        assert isinstance(parsed, Action) and parsed.tool_calls, text
        result = step(by_text, Action(text=text))
        assert step(by_call, Action(tool_calls=parsed.tool_calls)) == result
        done, n_steps = result[2], n_steps + 1
    assert n_steps > 0


@pytest.mark.parametrize("env", TASKS)
@settings(deadline=None)
@given(mode=st.sampled_from(MODES), data=st.data())
def test_any_text_is_safe_and_equals_its_parsed_call(env: str, mode: Mode, data: st.DataObject) -> None:
    task = data.draw(st.integers(0, 120), label="task")
    by_text, by_call = start_env(env, mode, task), start_env(env, mode, task)
    words = st.lists(st.sampled_from(COMMANDS[env].replace("|", " ").split(" ")), max_size=8).map(" ".join)
    any_text = st.text(max_size=60)  # a lone surrogate is in no JSON, so in no call
    filled = st.tuples(any_text, any_text).map(lambda texts: FILLED.get(env, "{}").format(*texts))
    commands = st.sampled_from(COMMANDS[env].split("|"))
    for n, text in enumerate(data.draw(st.lists(commands | words | filled | ANY_TEXT, max_size=12)), start=1):
        before, parsed = state_of(by_text), by_call.parse(text)
        (content, *_), reward, done = result = step(by_text, Action(text=text))
        assert isinstance(content, str) and -1.0 <= reward <= 1.0
        if isinstance(parsed, InvalidAction):
            assert parsed.text == text and reward <= 0.0
            assert env in MAY_END or ((reward, done) == (0.0, False) and state_of(by_text) == before)
            assert step(by_call, Action(text=text)) == result
        else:
            assert step(by_call, Action(tool_calls=parsed.tool_calls)) == result, text
        assert state_of(by_call) == state_of(by_text)
        assert env != "Wordle" or (done == (reward == 1.0 or n == 6) and reward in (0.0, 1.0))
        if done:
            break


@pytest.mark.parametrize(
    ("env", "name", "arguments"),
    [
        ("ALFWorld", "go_to", "{}"),
        ("ALFWorld", "go_to", '{"receptacle": "the fridge"}'),
        ("ALFWorld", "go_to", '{"receptacle": "fridge 1\\n"}'),
        ("ALFWorld", "put", '{"object": "apple 1 to fridge 1", "receptacle": "fridge 1"}'),
        ("ALFWorld", "help", '{"me": "please"}'),
        ("ALFWorld", "fly", "{}"),
        ("BabyAI", "go_to", '{"target": "unicorn", "number": 1}'),
        ("Maze", "move", '{"direction": "north"}'),
        ("SQLGym", "query", '{"sql": " "}'),
        ("TextCraft", "get", '{"count": -1, "item": "bamboo"}'),
        ("TextCraft", "get", '{"item": "bamboo"}'),
        ("TextCraft", "get", f'{{"count": {"9" * 5000}, "item": "bamboo"}}'),
        ("WebShop", "search", '{"keywords": ""}'),
        ("WebShop", "click", '{"element": "a\\nb"}'),
    ],
)
def test_a_call_that_violates_its_schema_changes_nothing(env: str, name: str, arguments: str) -> None:
    environment = start_env(env, "strict")
    before = state_of(environment)
    (content,), reward, done = step(environment, Action(tool_calls=[ToolCall("call_7", name, arguments)]))
    assert content is not None and content.startswith("Invalid action. Expected ")
    assert (reward, done, state_of(environment)) == (0.0, False, before)


@pytest.mark.parametrize(
    ("env", "texts"),
    [
        ("ALFWorld", ["put a " * 200_000, "move " + "a 1 to " * 150_000, "go to " + "a" * 1_000_000 + " 1"]),
        ("BabyAI", ["x" * 1_000_000, "go to red ball " + "9" * 5000]),
        ("WebShop", ["[" * 1_000_000, "]" * 1_000_000, "search[" * 150_000, f"search[{'a ' * 500_000}]"]),
    ],
)
@pytest.mark.parametrize("mode", MODES)
def test_long_texts_change_nothing(env: str, texts: list[str], mode: Mode) -> None:
    environment = start_env(env, mode)
    before = state_of(environment)[0]
    for text in texts:
        assert isinstance(environment.parse(text), InvalidAction) or env == "WebShop"
        assert step(environment, Action(text=text))[1:] == (0.0, False)
    assert state_of(environment)[0] == before or env == "WebShop"


@pytest.mark.parametrize(
    ("env", "successes", "failures"),
    [
        ("BabyAI", [[0.0, 0.04]], [[0.0, 0.0], [-0.125]]),
        ("Maze", [[0.0, 1.0]], [[0.0, -1.0], []]),
        ("SQLGym", [[1.0]], [[0.0]]),
        ("WebShop", [[0.0, 1.0]], [[0.0, 0.8], []]),
    ],
)
def test_each_environment_defines_success(env: str, successes: list[list[float]], failures: list[list[float]]) -> None:
    environment = start_env(env, "strict")
    verdicts = [environment.success(rewarded_trajectory(*rewards)) for rewards in (*successes, *failures)]
    assert verdicts == [True] * len(successes) + [False] * len(failures)


N_PROCESSES = 6
"""Two of five processes crash, or more, where the decoders are not built with their module."""
CODE = """
import sys, threading
from runner import plugins

sys.setswitchinterval(1e-6)
kind = plugins.load(plugins.ENVS, {env!r})
start = threading.Barrier(4)
observed = []

def play():
    environment = kind()
    start.wait()
    observed.append(environment.reset(task_index=0))

threads = [threading.Thread(target=play) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert len(observed) == 4 and all(each == observed[0] for each in observed), observed
"""


@pytest.mark.long
@pytest.mark.parametrize("env", ["ALFWorld", "WebShop"])
def test_episodes_of_several_threads_may_be_the_first_of_a_process(env: str) -> None:
    for _ in range(N_PROCESSES):
        ended = subprocess.run(
            [sys.executable, "-c", CODE.format(env=env)], capture_output=True, check=False, timeout=60
        )
        assert (ended.returncode, ended.stderr) == (0, b"")


DIGEST = """
import hashlib
from runner import plugins
from runner.types import Action

env, outputs = plugins.load(plugins.ENVS, {env!r})(), []
for task in range(0, env.n_tasks, 60):
    outputs.append(env.reset(task_index=task))
    oracle, done = env.oracle(0), False
    while not done:
        outputs.append(env.step(Action(text=oracle.next_action())))
        done = outputs[-1][2]
print(hashlib.sha256(repr(outputs).encode()).hexdigest())
"""


@pytest.mark.parametrize("env", ["TextCraft", "WebShop"])
def test_episodes_do_not_depend_on_the_process(env: str) -> None:
    command = [sys.executable, "-c", DIGEST.format(env=env)]
    environs = [{**os.environ, "PYTHONHASHSEED": seed} for seed in "12"]
    first, second = (subprocess.run(command, env=each, stdout=subprocess.PIPE, check=True) for each in environs)
    assert first.stdout == second.stdout != b""
