"""Trajectories of environments whose class is named ``AREEnvironment``, whichever package they are from."""

from __future__ import annotations

from typing import Any

import pytest

from runner.episode.loop import evaluate, rate
from runner.tracing import create_error_info
from runner.types import Action, AREEvaluatedTrajectory, Chat, EvaluatedTrajectory, StepResult, ToolSchema, Trajectory


class AREEnvironment:
    """A foreign environment; its details are the attribute ``details``."""

    n_tasks = 1

    def __init__(self, details: object) -> None:
        self.details = details

    def reset(self, **reset_kwargs: object) -> Chat:
        return []

    def step(self, action: Action) -> StepResult:
        return [], 0.0, True

    def get_tool_schemas(self) -> list[ToolSchema]:
        return []

    def get_episode_id(self) -> str:
        return "foreign"

    def admissible_actions(self) -> None:
        return None

    def parse(self, text: str) -> Action:
        return Action(text=text)

    def success(self, trajectory: Trajectory) -> bool:
        return isinstance(self.details, dict) and self.details.get("success") is True

    async def get_evaluation_details(self) -> Any:  # noqa: ANN401 - a foreign value
        if isinstance(self.details, Exception):
            raise self.details
        return self.details


class OtherEnvironment(AREEnvironment):
    pass


async def evaluated(environment: AREEnvironment) -> tuple[Trajectory, list[BaseException]]:
    errors: list[BaseException] = []
    given = Trajectory(episode_id="e1", reset_kwargs={"task": "t"}, trace_last_response_flow_id=7)
    await rate(environment, given, errors.append)
    return await evaluate(environment, given, errors.append), errors


async def test_its_details_are_the_are_evaluation() -> None:
    details = {"success": True, "rationale": None}
    trajectory, errors = await evaluated(AREEnvironment(details))
    assert type(trajectory) is AREEvaluatedTrajectory and errors == []
    assert trajectory.are_evaluation == details and trajectory.are_evaluation is trajectory.evaluation
    assert trajectory.success and trajectory.reset_kwargs == {"task": "t"}
    assert trajectory.trace_last_response_flow_id == 7


@pytest.mark.parametrize("details", [None, RuntimeError("no details"), {1: object()}, "text"])
async def test_without_details_the_trajectory_is_a_plain_one(details: object, caplog: pytest.LogCaptureFixture) -> None:
    trajectory, errors = await evaluated(AREEnvironment(details))
    assert type(trajectory) is Trajectory and errors == []
    assert ("get_evaluation_details failed" in caplog.text) is (details is not None)


async def test_a_judge_without_a_verdict_is_an_error_of_the_evaluation() -> None:
    trajectory, errors = await evaluated(AREEnvironment({"success": None, "exception": "no model"}))
    assert isinstance(trajectory, AREEvaluatedTrajectory)
    assert [create_error_info(error).type for error in errors] == ["evaluation"]
    assert "no model" in str(errors[0])


async def test_another_environment_has_an_evaluated_trajectory() -> None:
    trajectory, errors = await evaluated(OtherEnvironment({"success": None}))
    assert type(trajectory) is EvaluatedTrajectory and errors == []
