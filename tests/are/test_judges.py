"""Scenarios whose judge is one of ARE's: with a scripted model, without a model, and with one that fails."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import psutil
import pytest

from runner.config import ARESettings
from runner.config.profile import EndpointConfig, Price
from runner.envs.are.client import warm_process
from runner.inference.manager import InferenceManager
from runner.types import AREEvaluatedTrajectory, Limits, Outcome
from tests.support.batches import make_setup
from tests.support.inference import agent_settings
from tests.support.rude_model import RudeModel, completion_response, http_response

KEY = "hunter2-hunter2"
SUBTASK = "<subtask>Compute six times seven.</subtask>"
SEND = "AgentUserInterface__send_message_to_user"


async def judged(
    settings: ARESettings, model: RudeModel, said: str, scenario: str = "judged", name: str | None = "judge-1"
) -> AREEvaluatedTrajectory:
    """Play an episode in which the agent sends a message to the user, and return it with its evaluation."""
    models = agent_settings(
        EndpointConfig(url=model.url, name="other", kind="openai", model="other-model"),
        EndpointConfig(url=model.url, name="a", kind="openai", api_key_env="JUDGE_KEY"),
        price={"judge-1": Price(prompt_per_mtok=1.0, completion_per_mtok=1.0)},
    )
    setup = make_setup(
        f"are:{scenario}",
        "scripted",
        are=msgspec.structs.replace(settings, judge_model=name),
        models=models,
        script=(json.dumps({"name": SEND, "arguments": {"content": said}}),),
        limits=Limits(5),
    )
    runner = setup.build_factory(InferenceManager(models, {"JUDGE_KEY": KEY}))
    trajectory = await runner.play_episode({"task_index": 0})
    assert isinstance(trajectory, AREEvaluatedTrajectory), trajectory.error_info
    return trajectory


def requests_of(model: RudeModel) -> list[dict[str, Any]]:
    return [request.json() for request in model.chat_requests]


@pytest.mark.parametrize(
    ("last", "outcome"), [("[[Success]]", Outcome.SUCCESS), ("Not the same. [[Failure]]", Outcome.FAILURE)]
)
async def test_the_model_of_the_profile_compares_what_differs(
    own_settings: ARESettings, last: str, outcome: Outcome
) -> None:
    answers = [completion_response(text) for text in (SUBTASK, "[[True]]", last)]
    with RudeModel(*answers) as model:
        trajectory = await judged(own_settings, model, "The result is 42.")
    assert (trajectory.outcome, trajectory.reward) == (outcome, float(outcome == Outcome.SUCCESS))
    details = trajectory.are_evaluation
    assert details["judge"] == "graph per event with model judge-1"
    calls = details["judge_calls"]
    assert (calls["model"], calls["calls"]) == ("judge-1", 3)
    assert calls["tokens"]["prompt"] > 0 and calls["cost"] > 0
    assert {request["model"] for request in requests_of(model)} == {"judge-1"}
    assert "The result is 42." in json.dumps(requests_of(model)) and "It is 42." in json.dumps(requests_of(model))
    process = psutil.Process(warm_process(msgspec.structs.replace(own_settings, judge_model="judge-1")).ready.pid)
    assert KEY not in json.dumps([process.environ(), process.cmdline(), details])


async def test_without_a_model_hard_checks_rate_and_nothing_else(own_settings: ARESettings) -> None:
    with RudeModel() as model:
        same = await judged(own_settings, model, "It is 42.", name=None)
        differs = await judged(own_settings, model, "The result is 42.", name=None)
    assert (same.outcome, same.are_evaluation["judge"]) == (Outcome.SUCCESS, "graph per event, hard checks only")
    assert (differs.outcome, differs.are_evaluation["success"]) == (Outcome.ERROR, None)
    assert differs.error_info is not None and differs.error_info.category == "evaluation"
    assert "are: {judge_model: …}" in differs.error_info.message
    assert model.chat_requests == []


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        ([http_response(500, b"{}")], "The model of the judge failed"),
        ([completion_response(SUBTASK), completion_response("maybe")], "answered without a verdict"),
    ],
)
async def test_a_model_that_fails_is_an_error_of_the_evaluation(
    own_settings: ARESettings, answers: list[bytes], reason: str
) -> None:
    with RudeModel(*answers) as model:
        trajectory = await judged(msgspec.structs.replace(own_settings, judge_timeout_sec=0.5), model, "42")
    assert (trajectory.outcome, trajectory.are_evaluation["success"]) == (Outcome.ERROR, None)
    assert trajectory.error_info is not None and trajectory.error_info.type == "evaluation"
    assert reason in trajectory.error_info.message and reason in trajectory.are_evaluation["exception"]


async def test_other_judges_of_are(own_settings: ARESettings) -> None:
    with RudeModel(completion_response("[[success]]")) as model:
        in_context = await judged(own_settings, model, "42", scenario="in_context_judged")
        assert (in_context.outcome, len(model.chat_requests)) == (Outcome.SUCCESS, 1)
        hard = await judged(own_settings, model, "anything", scenario="hard_judged")
        assert (hard.outcome, len(model.chat_requests)) == (Outcome.SUCCESS, 1)
    assert in_context.are_evaluation["judge"] == "in context with model judge-1"
    assert hard.are_evaluation["judge"] == "graph per event, hard checks only"
