from __future__ import annotations

import importlib
import itertools
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runner.envs.maze import Maze, MazeOracle
from runner.envs.wordle import Wordle
from runner.testing import CheckFailed, check_env
from runner.types import Action, Chat, Environment, InvalidAction, Mode, StepResult, ToolSchema, Trajectory

SAMPLE = Path(__file__).resolve().parents[2] / "sample_env"


@pytest.fixture
def countdown(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Environment]:
    monkeypatch.syspath_prepend(str(SAMPLE))
    factory: Callable[[], Environment] = importlib.import_module("agentgym_countdown").Countdown
    return factory


@pytest.mark.parametrize("mode", ["strict", "compat"])
@pytest.mark.parametrize("environment", [Maze, Wordle])
def test_embedded_environments_pass(environment: type[Maze] | type[Wordle], mode: Mode) -> None:
    check_env(lambda: environment(mode=mode), tasks=(0, 1, 7))


def test_the_async_sample_environment_without_base_classes_passes(countdown: Callable[[], Environment]) -> None:
    assert [base.__module__ for base in type(countdown()).__mro__] == ["agentgym_countdown", "builtins"]
    check_env(countdown, tasks=range(20))


class AllAsync(Maze):
    async def get_tool_schemas(self) -> list[ToolSchema]:  # type: ignore[override]
        return super().get_tool_schemas()

    async def get_episode_id(self) -> str:  # type: ignore[override]
        return super().get_episode_id()

    async def admissible_actions(self) -> list[str]:  # type: ignore[override]
        return super().admissible_actions()

    async def parse(self, text: str) -> Action | InvalidAction:  # type: ignore[override]
        return super().parse(text)

    async def success(self, trajectory: Trajectory) -> bool:  # type: ignore[override]
        return super().success(trajectory)


def test_an_environment_may_be_async_throughout() -> None:
    check_env(AllAsync)


def reported_problems(factory: Callable[[], Environment], max_steps: int = 60) -> str:
    with pytest.raises(CheckFailed) as caught:
        check_env(factory, max_steps=max_steps)
    assert len(set(caught.value.problems)) == len(caught.value.problems) > 0
    assert all(problem in str(caught.value) for problem in caught.value.problems)
    return str(caught.value)


class CountingReset(Maze):
    """Observes the number of resets of all instances."""

    counter = itertools.count()

    def _reset(self, task_index: int) -> str:
        return super()._reset(task_index) + f" Game {next(self.counter)}."


class LeakyReset(Maze):
    """Keeps its position across episodes."""

    def _reset(self, task_index: int) -> str:
        if not self._steps:
            return super()._reset(task_index)
        return f"You are at {self.position}."


class SeededReset(Maze):
    def reset(self, *, task_index: int = 0, seed: int | None = None, **extra: object) -> Chat:
        return super().reset(task_index=task_index + (seed or 0))


class NoWrap(Maze):
    def reset(self, *, task_index: int = 0, seed: int | None = None, **extra: object) -> Chat:
        if task_index >= self.n_tasks:
            raise IndexError(task_index)
        return super().reset(task_index=task_index)


class NoExtras(Maze):
    def reset(self, *, task_index: int = 0, seed: int | None = None) -> Chat:  # type: ignore[override]
        return super().reset(task_index=task_index)


class TextObservation(Maze):
    def reset(self, *, task_index: int = 0, seed: int | None = None, **extra: object) -> Chat:
        return super().reset(task_index=task_index)[0]["content"]  # type: ignore[return-value]


class EmptyMessage(Maze):
    def reset(self, *, task_index: int = 0, seed: int | None = None, **extra: object) -> Chat:
        super().reset(task_index=task_index)
        return [{"role": "user", "content": None}]


class Changed(Maze):
    """Passes its step results through ``change``."""

    def change(self, action: Action, result: StepResult) -> object:
        raise NotImplementedError

    def step(self, action: Action) -> StepResult:
        return self.change(action, super().step(action))  # type: ignore[return-value]


class NanReward(Changed):
    def change(self, action: Action, result: StepResult) -> object:
        return result[0], math.nan, result[2]


class IntDone(Changed):
    def change(self, action: Action, result: StepResult) -> object:
        return result[0], result[1], int(result[2])


class FourTuple(Changed):
    def change(self, action: Action, result: StepResult) -> object:
        return *result, {}


class RandomStep(Changed):
    counter = itertools.count()

    def change(self, action: Action, result: StepResult) -> object:
        return [{"role": "user", "content": f"step {next(self.counter)}"}], result[1], result[2]


class CallsCountDouble(Changed):
    def change(self, action: Action, result: StepResult) -> object:
        return result if action.tool_calls else (result[0], result[1] + 1.0, result[2])


class RaisesOnOddText(Maze):
    def step(self, action: Action) -> StepResult:
        (action.text or "").encode()
        return super().step(action)


class RaisesOnOddCall(Maze):
    def step(self, action: Action) -> StepResult:
        for call in action.tool_calls:
            {"move": ()}[call.name]
        return super().step(action)


class ExitsOnNul(Maze):
    def step(self, action: Action) -> StepResult:
        if action.text == "\x00":
            sys.exit(3)
        return super().step(action)


class ParseGivesText(Maze):
    def parse(self, text: str) -> Action | InvalidAction:
        return text  # type: ignore[return-value]


class ParseRaises(Maze):
    def parse(self, text: str) -> Action | InvalidAction:
        if not text.isprintable():
            raise ValueError("unprintable")
        return super().parse(text)


class UnknownAdmissible(Maze):
    def admissible_actions(self) -> list[str]:
        return [*super().admissible_actions(), "jump"]


class TupleAdmissible(Maze):
    def admissible_actions(self) -> list[str]:
        return tuple(super().admissible_actions())  # type: ignore[return-value]


class BareSchema(Maze):
    def get_tool_schemas(self) -> list[ToolSchema]:
        return [{"type": "function", "function": {"name": "move"}}]


class NoTasks(Maze):
    n_tasks = 0

    def reset(self, *, task_index: int = 0, seed: int | None = None, **extra: object) -> Chat:
        self._running = True
        return [{"role": "user", "content": self._reset(0)}]


class NumberedEpisode(Maze):
    def get_episode_id(self) -> str:
        return 7  # type: ignore[return-value]


class AsyncNoneSuccess(Maze):
    async def success(self, trajectory: Trajectory) -> bool:  # type: ignore[override]
        return None  # type: ignore[return-value]


class NoneSuccess(Maze):
    def success(self, trajectory: Trajectory) -> bool:
        return None  # type: ignore[return-value]


class LastStepSuccess(Maze):
    def success(self, trajectory: Trajectory) -> bool:
        return trajectory.timesteps[-1].reward > 0


class OneCleanup(Maze):
    cleaned = False

    def cleanup(self) -> None:
        if self.cleaned:
            raise OSError("already closed")
        self.cleaned = True


class UnencodableEvaluation(Maze):
    def get_evaluation_details(self) -> dict[str, Any]:
        return {"maze": self}


class _RepeatingOracle(MazeOracle):
    def __init__(self, maze: Maze, text: str) -> None:
        super().__init__(maze)
        self._text = text

    def next_action(self) -> str:
        return self._text


class StuckOracle(Maze):
    def oracle(self, seed: int | None) -> MazeOracle:
        return _RepeatingOracle(self, "move up")


class BabblingOracle(Maze):
    def oracle(self, seed: int | None) -> MazeOracle:
        return _RepeatingOracle(self, "go home")


class FailingConstructor(Maze):
    def __init__(self) -> None:
        raise ImportError("no module named physics")


@pytest.mark.parametrize(
    ("broken", "expected"),
    [
        (CountingReset, "task 0: reset on another instance returns a different observation"),
        (LeakyReset, "task 0: reset on a used instance returns a different observation"),
        (SeededReset, "task 0: reset with another seed returns a different observation"),
        (NoWrap, "task 1: reset with the index plus n_tasks failed: IndexError: 26"),
        (NoExtras, "task 0: reset with task and task_unique_id failed: TypeError"),
        (TextObservation, "should be a list of messages with a role; got str"),
        (EmptyMessage, "an observation should have text in each message; got [None]"),
        (NanReward, "step should return a finite number as reward; got nan"),
        (IntDone, "step should return a bool as done; got 0"),
        (FourTuple, "step should return (messages, reward, done); got tuple"),
        (RandomStep, "task 1: repeating the same actions gives different results"),
        (CallsCountDouble, "the tool call of 'move left' does something else than the text"),
        (RaisesOnOddText, "step('\\ud800') failed: UnicodeEncodeError"),
        (RaisesOnOddCall, "name='no such tool', arguments='null')) failed: KeyError"),
        (ExitsOnNul, "step('\\x00') failed: SystemExit: 3"),
        (ParseGivesText, "parse should return Action or InvalidAction; got str"),
        (ParseRaises, "parse('\\x00') failed: ValueError: unprintable"),
        (UnknownAdmissible, "the listed action 'jump' does not parse as a tool call"),
        (TupleAdmissible, "admissible_actions should return a list or None; got ('move left'"),
        (BareSchema, "a tool schema is not an OpenAI function: {'type': 'function'"),
        (NoTasks, "n_tasks should be a positive int; it is 0"),
        (NumberedEpisode, "get_episode_id should return a str; got 7"),
        (AsyncNoneSuccess, "success should return a bool; got None"),
        (NoneSuccess, "success should return a bool; got None"),
        (LastStepSuccess, "verdicts failed: IndexError"),
        (OneCleanup, "cleanup, which may be called twice or before a reset, failed: OSError: already closed"),
        (UnencodableEvaluation, "evaluation details should be a mapping that JSON can hold: Encoding objects of type"),
        (StuckOracle, "task 0: the oracle changed nothing in 40 steps"),
        (BabblingOracle, "task 0: the oracle's action 'go home' is not a valid action"),
        (FailingConstructor, "failed: ImportError: no module named physics"),
    ],
)
def test_broken_environments_report_their_problem(broken: Callable[[], Environment], expected: str) -> None:
    assert expected in reported_problems(broken, max_steps=40)


def test_a_single_fault_is_reported_alone() -> None:
    assert reported_problems(NumberedEpisode).count("\n- ") == 1
    assert reported_problems(OneCleanup).count("\n- ") == 1


def test_several_faults_are_reported_together() -> None:
    class Broken(NumberedEpisode, NoneSuccess, UnknownAdmissible):
        pass

    problems = reported_problems(Broken)
    for expected in ("get_episode_id", "success should", "'jump'"):
        assert expected in problems


def test_instances_are_cleaned_up_even_when_checks_fail() -> None:
    created: list[Maze] = []

    class Counted(NanReward):
        def __init__(self) -> None:
            super().__init__()
            self.cleaned = 0
            created.append(self)

        def cleanup(self) -> None:
            self.cleaned += 1

    reported_problems(Counted)
    assert created
    assert all(isinstance(environment, Counted) and environment.cleaned == 2 for environment in created)


def test_importing_the_check_imports_no_environment() -> None:
    code = "import sys, runner.testing; sys.exit(any(m in sys.modules for m in ('minigrid', 'hydra', 'runner.envs')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
