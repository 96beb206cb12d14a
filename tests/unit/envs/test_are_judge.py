"""The model of a scenario's judge over the protocol of ARE's process, with a scripted process and a scripted model."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import psutil
import pytest

from runner.batch.batch import Batch
from runner.batch.workspace import Workspace
from runner.config import AgentSettings, ARESettings
from runner.config.profile import EndpointConfig, Price
from runner.envs.are.client import Ask, close_processes, warm_process
from runner.envs.are.environment import AREEnvironment, EpisodeJudge
from runner.errors import EvaluationFault
from runner.inference.manager import InferenceManager
from runner.inference.profile_models import Models
from runner.store import EpisodeRecord
from runner.types import Action, Tokens
from tests.support.batches import resolved_batch
from tests.support.episodes import stored_files
from tests.support.inference import agent_settings
from tests.support.rude_model import Behavior, RudeModel, completion_response, hang, http_response
from tests.support.scripted_are_process import write_program

KEY = "hunter2-hunter2"
ADD = Action(text='{"name": "Notes__add", "arguments": {"text": "milk"}}')


@pytest.fixture
def settings(tmp_path: Path) -> Iterator[ARESettings]:
    yield ARESettings(python=str(write_program(tmp_path)), judge_model="judge-1", step_timeout_sec=60.0)
    close_processes()


def model_settings(url: str) -> AgentSettings:
    other = EndpointConfig(url=url, name="other", kind="openai", model="other-model")
    judge = EndpointConfig(url=url, name="judge", kind="openai", api_key_env="JUDGE_KEY")
    price = {"judge-1": Price(prompt_per_mtok=1.0, completion_per_mtok=1.0)}
    return agent_settings(other, judge, price=price)


def play(settings: ARESettings, data_dir: Path, workers: int, *script: Behavior) -> tuple[EpisodeRecord, RudeModel]:
    """Play an episode of the oracle in a batch; return it, and the judge's model, which answers with a script."""
    with RudeModel(*script) as model, closing(Workspace(data_dir, node="n", profile="p")) as workspace:
        models = Models(model_settings(model.url), {**os.environ, "JUDGE_KEY": KEY})
        planned = resolved_batch(models=models, are=settings, env="are:judged", agent="oracle", workers=workers)
        with closing(models):
            Batch(planned, workspace, models=models).run()
        (file,) = stored_files(workspace.store)
        return workspace.store.load(file.episode_id), model


@pytest.mark.parametrize(("workers", "last", "outcome"), [(0, "yes", "success"), (1, "no", "failure")])
def test_the_model_rates_in_this_process_and_in_a_worker(
    settings: ARESettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int, last: str, outcome: str
) -> None:
    monkeypatch.setenv("JUDGE_KEY", KEY)
    answers = (completion_response("sure"), completion_response(last))
    record, model = play(settings, tmp_path / "data", workers, *answers)
    assert (record.outcome.value, record.tokens, record.cost) == (outcome, Tokens(), None)
    assert record.evaluation is not None
    assert record.evaluation["judge"] == "graph per event with model judge-1"
    calls = record.evaluation["judge_calls"]
    assert (calls["model"], calls["calls"]) == ("judge-1", 2)
    assert calls["tokens"]["prompt"] > 0 and calls["cost"] > 0
    requests = [request.json() for request in model.chat_requests]
    assert [(request["model"], request["messages"][0]["content"]) for request in requests] == [
        ("judge-1", "Was milk added?"),
        ("judge-1", "Sure?"),
    ]


def test_an_endpoint_that_fails_is_an_error_of_the_evaluation(
    settings: ARESettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUDGE_KEY", KEY)
    settings = msgspec.structs.replace(settings, judge_timeout_sec=0.5)
    broken = http_response(401, f'{{"error": "no access for {KEY}"}}'.encode())
    record, _ = play(settings, tmp_path / "data", 0, broken, broken)
    assert record.error is not None and record.evaluation is not None
    assert (record.outcome, record.error.type, record.error.category) == ("error", "evaluation", "evaluation")
    assert "The model of the judge failed" in record.error.message
    assert KEY not in record.error.message and KEY not in str(record.evaluation)


async def test_without_a_model_the_judge_is_off(settings: ARESettings) -> None:
    environment = AREEnvironment(id="judged", settings=msgspec.structs.replace(settings, judge_model=None))
    await environment.reset()
    await environment.step(ADD)
    details = await environment.get_evaluation_details()
    assert details is not None and (details["success"], "judge_calls" in details) == (None, False)
    assert details["exception"].endswith("by are: {judge_model: …}")
    environment.cleanup()


async def test_a_judge_that_fails_during_a_step_is_an_error_of_the_evaluation(settings: ARESettings) -> None:
    environment = AREEnvironment(id="late-judge", settings=settings)
    await environment.reset()
    with pytest.raises(EvaluationFault, match="the judge has no model"):
        await environment.step(ADD)
    environment.cleanup()


async def test_the_limit_of_a_step_does_not_count_for_the_model(settings: ARESettings) -> None:
    settings = msgspec.structs.replace(settings, step_timeout_sec=1.0, judge_timeout_sec=1.5)
    with RudeModel(hang) as model:
        manager = InferenceManager(model_settings(model.url), {"JUDGE_KEY": KEY})
        environment = AREEnvironment(id="judged", settings=settings, inference_mngr=manager)
        await environment.reset()
        details = await environment.get_evaluation_details()
        assert details is not None and "The model of the judge failed" in details["exception"]
        environment.cleanup()


async def test_an_episode_that_ends_while_the_judge_waits_leaves_nothing(settings: ARESettings) -> None:
    with RudeModel(hang) as model:
        manager = InferenceManager(model_settings(model.url), {"JUDGE_KEY": KEY})
        environment = AREEnvironment(id="judged", settings=settings, inference_mngr=manager)
        await environment.reset()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await environment.get_evaluation_details()
        children = psutil.Process(warm_process(settings).ready.pid).children()
        environment.cleanup()
        gone, alive = await asyncio.to_thread(psutil.wait_procs, children, 60)
    assert (len(gone), alive) == (1, [])


async def test_an_answer_that_was_cut_is_none(settings: ARESettings) -> None:
    with RudeModel(completion_response("[[Succ", finish="length")) as model:
        judge = EpisodeJudge(InferenceManager(model_settings(model.url), {"JUDGE_KEY": KEY}), settings)
        answer = await judge.answer(Ask([{"role": "user", "content": "Sure?"}]))
    assert answer.text is None and "was cut" in answer.problem
