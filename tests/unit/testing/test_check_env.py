from __future__ import annotations

import importlib
import itertools
import math
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import pytest

from runner.envs.maze import Maze
from runner.testing import CheckFailed, check_env
from runner.types import Action, Environment, StepResult

SAMPLE = Path(__file__).resolve().parents[2] / "sample_env"


@pytest.fixture
def countdown(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Environment]:
    monkeypatch.syspath_prepend(str(SAMPLE))
    factory: Callable[[], Environment] = importlib.import_module("agentgym_countdown").Countdown
    return factory


def test_the_async_sample_environment_without_base_classes_passes(countdown: Callable[[], Environment]) -> None:
    assert [base.__module__ for base in type(countdown()).__mro__] == ["agentgym_countdown", "builtins"]
    check_env(countdown, tasks=range(20))


def maze_with(**members: object) -> Callable[[], Environment]:
    """Return mazes of which some members are others."""
    return type("Changed", (Maze,), members)


def reset_with(reset: Callable[[Maze, int, int | None], object]) -> Callable[[], Environment]:
    return maze_with(reset=lambda self, *, task_index=0, seed=None, **_: reset(self, task_index, seed))


def step_with(change: Callable[[Action, StepResult], object]) -> Callable[[], Environment]:
    """Return mazes that pass their results through ``change``."""
    return maze_with(step=lambda self, action: change(action, Maze.step(self, action)))


def oracle_with(text: str) -> Callable[[], Environment]:
    return maze_with(oracle=lambda self, seed: SimpleNamespace(next_action=lambda: text))


def fail(error: BaseException) -> NoReturn:
    raise error


def as_async(method: Callable[..., object]) -> Callable[..., Awaitable[object]]:
    async def call(self: Maze, *arguments: object) -> object:
        return method(self, *arguments)

    return call


def test_an_environment_may_be_async_throughout() -> None:
    names = ("get_tool_schemas", "get_episode_id", "admissible_actions", "parse", "success")
    check_env(maze_with(**{name: as_async(getattr(Maze, name)) for name in names}))


def reported_problems(factory: Callable[[], Environment], max_steps: int = 60) -> str:
    with pytest.raises(CheckFailed) as caught:
        check_env(factory, max_steps=max_steps)
    assert len(set(caught.value.problems)) == len(caught.value.problems) > 0
    assert all(problem in str(caught.value) for problem in caught.value.problems)
    return str(caught.value)


class OneCleanup(Maze):
    cleaned = False

    def cleanup(self) -> None:
        if self.cleaned:
            raise OSError("already closed")
        self.cleaned = True


COUNTER = itertools.count()
NONE_SUCCESS: dict[str, object] = {"success": lambda self, trajectory: None}
NUMBERED: dict[str, object] = {"get_episode_id": lambda self: 7}
UNKNOWN: dict[str, object] = {"admissible_actions": lambda self: [*Maze.admissible_actions(self), "jump"]}
BROKEN: dict[str, Callable[[], Environment]] = {
    "task 0: reset on another instance returns a different observation": maze_with(
        _reset=lambda self, task: f"{Maze._reset(self, task)} Game {next(COUNTER)}."
    ),
    "task 0: reset on a used instance returns a different observation": maze_with(
        _reset=lambda self, task: f"You are at {self.position}." if self._steps else Maze._reset(self, task)
    ),
    "task 0: reset with another seed returns a different observation": reset_with(
        lambda maze, task, seed: Maze.reset(maze, task_index=task + (seed or 0))
    ),
    "task 1: reset with the index plus n_tasks failed: IndexError": reset_with(
        lambda maze, task, _: Maze.reset(maze, task_index=range(maze.n_tasks)[task])
    ),
    "task 0: reset with task and task_unique_id failed: TypeError": maze_with(
        reset=lambda self, *, task_index=0, seed=None: Maze.reset(self, task_index=task_index)
    ),
    "should be a list of messages with a role; got str": reset_with(
        lambda maze, task, _: Maze.reset(maze, task_index=task)[0]["content"]
    ),
    "an observation should have text in each message; got [None]": reset_with(
        lambda maze, task, _: [{**Maze.reset(maze, task_index=task)[0], "content": None}]
    ),
    "step should return a finite number as reward; got nan": step_with(
        lambda action, result: (result[0], math.nan, result[2])
    ),
    "step should return a bool as done; got 0": step_with(lambda action, result: (*result[:2], int(result[2]))),
    "step should return (messages, reward, done); got tuple": step_with(lambda action, result: (*result, {})),
    "task 1: repeating the same actions gives different results": step_with(
        lambda action, result: ([{"role": "user", "content": f"step {next(COUNTER)}"}], *result[1:])
    ),
    "the tool call of 'move left' does something else than the text": step_with(
        lambda action, result: result if action.tool_calls else (result[0], result[1] + 1.0, result[2])
    ),
    "step('\\ud800') failed: UnicodeEncodeError": step_with(
        lambda action, result: ((action.text or "").encode(), result)[1]
    ),
    "name='no such tool', arguments='null')) failed: KeyError": step_with(
        lambda action, result: [result, *({"move": result}[call.name] for call in action.tool_calls)][0]
    ),
    "step('\\x00') failed: SystemExit: 3": step_with(
        lambda action, result: fail(SystemExit(3)) if action.text == "\x00" else result
    ),
    "parse should return Action or InvalidAction; got str": maze_with(parse=lambda self, text: text),
    "parse('\\x00') failed: ValueError: unprintable": maze_with(
        parse=lambda self, text: Maze.parse(self, text) if text.isprintable() else fail(ValueError("unprintable"))
    ),
    "the listed action 'jump' does not parse as a tool call": maze_with(**UNKNOWN),
    "admissible_actions should return a list or None; got ('move left'": maze_with(
        admissible_actions=lambda self: tuple(Maze.admissible_actions(self))
    ),
    "a tool schema is not an OpenAI function: {'type': 'function'": maze_with(
        get_tool_schemas=lambda self: [{"type": "function", "function": {"name": "move"}}]
    ),
    "n_tasks should be a positive int; it is -25": maze_with(n_tasks=-25),
    "get_episode_id should return a str; got 7": maze_with(**NUMBERED),
    "success should return a bool; got None": maze_with(success=as_async(lambda self, trajectory: None)),
    "verdicts failed: IndexError": maze_with(success=lambda self, trajectory: trajectory.timesteps[-1].reward > 0),
    "cleanup, which may be called twice or before a reset, failed: OSError: already closed": OneCleanup,
    "evaluation details should be a mapping that JSON can hold: Encoding objects of type": maze_with(
        get_evaluation_details=lambda self: {"maze": self}
    ),
    "task 0: the oracle changed nothing in 40 steps": oracle_with("move up"),
    "task 0: the oracle's action 'go home' is not a valid action": oracle_with("go home"),
    "failed: ImportError: no module named physics": maze_with(
        __init__=lambda self: fail(ImportError("no module named physics"))
    ),
}


@pytest.mark.parametrize("expected", BROKEN)
def test_broken_environments_report_their_problem(expected: str) -> None:
    assert expected in reported_problems(BROKEN[expected], max_steps=40)


def test_a_single_fault_is_reported_alone() -> None:
    assert reported_problems(maze_with(**NUMBERED)).count("\n- ") == 1
    assert reported_problems(OneCleanup).count("\n- ") == 1


def test_several_faults_are_reported_together() -> None:
    problems = reported_problems(maze_with(**NUMBERED, **NONE_SUCCESS, **UNKNOWN))
    for expected in ("get_episode_id", "success should", "'jump'"):
        assert expected in problems


def test_instances_are_cleaned_up_even_when_checks_fail() -> None:
    created: list[Counted] = []

    class Counted(Maze):
        n_cleaned = 0

        def __init__(self) -> None:
            super().__init__()
            created.append(self)

        def step(self, action: Action) -> StepResult:
            return []  # type: ignore[return-value]

        def cleanup(self) -> None:
            self.n_cleaned += 1

    reported_problems(Counted)
    assert {each.n_cleaned for each in created} == {2}


IMPORTS = {
    "runner.types": "httpx aiohttp hydra ssl",
    "runner.inference.profile_models": "aiohttp httpx asyncio hydra",
    "runner.formats.atif": "asyncio ssl runner.inference.chat_format",
    "runner.testing": "minigrid hydra runner.envs",
    "runner.envs.babyai": "minigrid gymnasium numpy pygame",
}


def test_modules_load_nothing_heavy_that_they_do_not_need() -> None:
    """Each is imported after those above it."""
    code = (
        f"import importlib, sys\nfor name, heavy in {IMPORTS}.items():\n    importlib.import_module(name)\n"
        "    assert not {*heavy.split()} & {*sys.modules}, name"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
