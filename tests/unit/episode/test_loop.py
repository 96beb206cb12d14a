import asyncio
import logging
import multiprocessing
import pickle
import threading
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime

import pytest

from runner.episode.control import EpisodeControl
from runner.episode.runner import EpisodeContext, Runner
from runner.tracing import SpanList, Tracer, create_flow_id
from runner.types import (
    EpisodeEnded,
    EpisodeEvent,
    EpisodeHeader,
    EpisodePaused,
    EpisodeResumed,
    EpisodeStarted,
    EvaluatedTrajectory,
    Limits,
    Outcome,
    TimestepPlayed,
    Trajectory,
)
from tests.support.fakes import AsyncHanging, BindingAsync, Counter, SlowCleanup, UpAgent, WithManager


def runner_of(env: str, agent: str = "UpAgent", limits: Limits | None = None, **env_args: object) -> Runner:
    return Runner(
        env_cfg={"_target_": f"tests.support.fakes.{env}", **env_args},
        agent_cfg={"_target_": f"tests.support.fakes.{agent}"},
        limits=limits,
    )


def context(events: list[EpisodeEvent], spans: SpanList | None = None) -> EpisodeContext:
    header = EpisodeHeader(episode_id="e1", batch_id="b1", env="Counter", started_at=datetime.now(UTC))
    return EpisodeContext(header=header, emit=events.append, tracer=Tracer(collectors=[spans]) if spans else None)


@pytest.fixture(autouse=True)
def _fresh_fakes() -> None:
    Counter.closed.clear()
    UpAgent.closed.clear()


@pytest.mark.parametrize("env", ["Counter", "AsyncCounter"])
@pytest.mark.parametrize("agent", ["UpAgent", "AsyncUpAgent"])
async def test_sync_and_async_play_alike(env: str, agent: str) -> None:
    played = await runner_of(env, agent).play_episode({"task_index": 4})
    assert played.outcome is Outcome.SUCCESS
    assert [step.reward for step in played.timesteps] == [0.0, 0.0, 1.0]
    assert played.reset_observation == [{"role": "user", "content": "task 4: count to 3"}]
    assert [step.observation[0]["content"] for step in played.timesteps] == ["at 1", "at 2", "at 3"]
    assert Counter.closed == [env]
    assert UpAgent.closed == ["UpAgent"]


async def test_text_is_resolved_into_the_tool_call_it_means() -> None:
    played = await runner_of("Counter").play_episode()
    step = played.timesteps[0]
    assert step.action.text == "up"
    assert [call.name for call in step.action.tool_calls] == ["up"]
    assert step.valid


async def test_several_chats_per_step_and_the_last_flow_are_kept() -> None:
    played = await runner_of("Counter", "TwoChats").play_episode()
    assert [len(step.chats) for step in played.timesteps] == [2, 2, 2]
    assert played.trace_last_response_flow_id == 77


async def test_an_unknown_action_is_marked_and_the_episode_goes_on() -> None:
    played = await runner_of("Counter", "Mumbling", Limits(max_rounds=2)).play_episode()
    assert [step.valid for step in played.timesteps] == [False, False]
    assert played.outcome is Outcome.TRUNCATED


async def test_a_failed_reset_gives_an_empty_trajectory_with_the_error() -> None:
    played = await runner_of("FailingReset").play_episode()
    assert played.timesteps == []
    assert played.error_info is not None
    assert (played.error_info.type, played.error_info.message) == ("RuntimeError", "no power")
    assert played.outcome is Outcome.ERROR
    assert Counter.closed == ["FailingReset"]


async def test_an_error_mid_episode_keeps_the_steps_so_far() -> None:
    played = await runner_of("FailingStep").play_episode()
    assert len(played.timesteps) == 2
    assert played.error_info is not None
    assert played.error_info.message == "broke at two [/]"
    assert "fakes.py" in played.error_info.traceback
    assert Counter.closed == ["FailingStep"]


@pytest.mark.parametrize(
    ("env", "agent", "kind", "steps"),
    [
        ("Counter", "FailingInit", "ConnectionError", 0),
        ("Exiting", "UpAgent", "SystemExit", 0),
        ("NanReward", "UpAgent", "environment_fault", 0),
        ("ShapelessStep", "UpAgent", "environment_fault", 0),
        ("NoSuchEnvironment", "UpAgent", None, 0),
        ("Counter", "NoSuchAgent", None, 0),
    ],
)
async def test_whatever_goes_wrong_is_data(env: str, agent: str, kind: str | None, steps: int) -> None:
    played = await runner_of(env, agent).play_episode()
    assert played.outcome is Outcome.ERROR
    assert played.error_info is not None
    assert played.error_info.message
    assert kind in (None, played.error_info.type)
    assert len(played.timesteps) == steps


@pytest.mark.parametrize("env", ["FailingCleanup", "HangingCleanup"])
async def test_cleanup_cannot_change_the_result(
    env: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runner.episode.teardown.CLEANUP_TIMEOUT_S", 0.05)
    with caplog.at_level(logging.WARNING):
        played = await runner_of(env).play_episode()
    assert played.outcome is Outcome.SUCCESS
    assert played.error_info is None
    assert Counter.closed == [env]
    assert "cleanup failed" in caplog.text


async def test_an_environments_own_limit_is_a_truncation() -> None:
    assert (await runner_of("Truncating").play_episode()).outcome is Outcome.TRUNCATED


async def test_evaluation_details_come_by_capability() -> None:
    played = await runner_of("Evaluated").play_episode()
    assert isinstance(played, EvaluatedTrajectory)
    assert played.evaluation == {"count": 3, "notes": ["fine"]}
    assert not isinstance(await runner_of("Counter").play_episode(), EvaluatedTrajectory)


async def test_failing_evaluation_details_leave_a_plain_trajectory(caplog: pytest.LogCaptureFixture) -> None:
    played = await runner_of("BadlyEvaluated").play_episode()
    assert type(played) is Trajectory
    assert played.outcome is Outcome.SUCCESS
    assert "get_evaluation_details failed" in caplog.text


async def test_the_round_limit_truncates() -> None:
    played = await runner_of("Counter", limits=Limits(max_rounds=2)).play_episode()
    assert len(played.timesteps) == 2
    assert played.outcome is Outcome.TRUNCATED


async def test_the_time_limit_ends_an_async_hang() -> None:
    played = await runner_of("AsyncHanging", limits=Limits(max_duration_s=0.05)).play_episode()
    assert played.outcome is Outcome.TIMEOUT
    assert Counter.closed == ["AsyncHanging"]


async def test_cancellation_is_raised_after_cleaning_up_and_told_to_listeners() -> None:
    events: list[EpisodeEvent] = []
    task = asyncio.ensure_future(runner_of("AsyncHanging").play_episode(context=context(events)))
    await asyncio.to_thread(AsyncHanging.entered.acquire, timeout=10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert Counter.closed == ["AsyncHanging"]
    assert isinstance(events[-1], EpisodeEnded)
    assert events[-1].trajectory.outcome is Outcome.CANCELLED


async def test_events_are_numbered_and_the_first_step_brings_the_reset() -> None:
    events: list[EpisodeEvent] = []
    played = await runner_of("Counter").play_episode(context=context(events))
    assert [type(event) for event in events] == [EpisodeStarted, *[TimestepPlayed] * 3, EpisodeEnded]
    assert [event.seq for event in events] == [0, 1, 2, 3, 4]
    resets = [event.reset_observation for event in events if isinstance(event, TimestepPlayed)]
    assert resets == [played.reset_observation, None, None]


async def test_spans_nest_and_flows_meet_at_the_episode() -> None:
    spans = SpanList()
    await runner_of("Counter").play_episode({"task_unique_id": "t-9"}, context=context([], spans))
    by_id = {span.id: span for span in spans.spans}
    episode = next(span for span in spans.spans if span.name == "episode")
    parents = {span.name: by_id[span.parent].name for span in spans.spans if span.parent is not None}
    assert parents == {
        "env.reset": "episode",
        "agent.init_after_reset": "episode",
        "timestep": "episode",
        "cleanup": "episode",
        "get_tool_schemas": "timestep",
        "agent.act": "timestep",
        "env.step": "timestep",
    }
    assert episode.attributes["num_timesteps"] == 3
    assert episode.attributes["final_reward"] == 1.0
    assert episode.attributes["trace_id"] == "e1"
    flows = {(flow.id, flow.phase) for flow in spans.flows if flow.span == episode.id}
    assert flows == {(create_flow_id("task", "t-9"), "end"), (create_flow_id("episode_return", "e1"), "start")}


async def test_pause_step_and_resume_at_step_boundaries() -> None:
    events: list[EpisodeEvent] = []
    control = EpisodeControl()
    control.pause()
    changed = asyncio.Event()

    def emit(event: EpisodeEvent) -> None:
        events.append(event)
        changed.set()

    async def until(kind: type[EpisodeEvent], count: int) -> None:
        while sum(isinstance(event, kind) for event in events) < count:
            changed.clear()
            await asyncio.wait_for(changed.wait(), 10)

    header = EpisodeHeader(episode_id="e1", batch_id="b1", env="Counter", started_at=datetime.now(UTC))
    playing = asyncio.ensure_future(
        runner_of("Counter", limits=Limits(max_duration_s=5)).play_episode(
            context=EpisodeContext(header=header, control=control, emit=emit)
        )
    )
    await until(EpisodePaused, 1)
    assert not any(isinstance(event, TimestepPlayed) for event in events)
    control.step()
    await until(EpisodePaused, 2)
    assert sum(isinstance(event, TimestepPlayed) for event in events) == 1
    control.resume()
    played = await asyncio.wait_for(playing, 10)
    assert played.outcome is Outcome.SUCCESS
    assert played.paused_s > 0
    assert sum(isinstance(event, EpisodeResumed) for event in events) == 2


async def test_paused_time_is_not_played_time() -> None:
    control = EpisodeControl()
    control.pause()
    header = EpisodeHeader(episode_id="e1", batch_id="b1", env="Counter", started_at=datetime.now(UTC))
    runner = runner_of("Counter", limits=Limits(max_duration_s=0.2))
    playing = asyncio.ensure_future(runner.play_episode(context=EpisodeContext(header=header, control=control)))
    await asyncio.wait({playing}, timeout=0.4)  # the pause has to outlast the limit
    assert not playing.done()
    control.resume()
    assert (await asyncio.wait_for(playing, 10)).outcome is Outcome.SUCCESS


async def test_cancel_ends_a_pause() -> None:
    control = EpisodeControl()
    control.pause()
    header = EpisodeHeader(episode_id="e1", batch_id="b1", env="Counter", started_at=datetime.now(UTC))
    playing = asyncio.ensure_future(
        runner_of("Counter").play_episode(context=EpisodeContext(header=header, control=control))
    )
    await asyncio.sleep(0)
    control.cancel()
    assert (await asyncio.wait_for(playing, 10)).outcome is Outcome.CANCELLED


async def test_the_inference_manager_reaches_the_agent_as_it_is() -> None:
    manager = object()
    runner = Runner(
        env_cfg={"_target_": "tests.support.fakes.Counter"},
        agent_cfg={"_target_": "tests.support.fakes.WithManager"},
        inference_mngr=manager,
    )
    await runner.play_episode()
    assert WithManager.seen == [manager]


def _play_pickled(pickled: bytes) -> tuple[str, list[float]]:
    played = asyncio.run(pickle.loads(pickled).play_episode({"task_index": 2}))
    return played.outcome, [step.reward for step in played.timesteps]


def test_a_runner_plays_in_another_process() -> None:
    pickled = pickle.dumps(runner_of("Counter", goal=2))
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        assert pool.submit(_play_pickled, pickled).result(timeout=60) == ("success", [0.0, 1.0])


async def test_an_environment_may_be_async_throughout() -> None:
    played = await runner_of("AllAsync").play_episode()
    assert played.error_info is None
    assert [step.valid for step in played.timesteps] == [True] * 3
    assert (played.success, played.outcome) == (False, Outcome.FAILURE)
    assert played.env_episode_id == "../counter\x1b[2J/0"


async def test_bind_may_be_async() -> None:
    BindingAsync.bound.clear()
    await runner_of("Counter", "BindingAsync").play_episode({"task_index": 3})
    assert BindingAsync.bound == [{"task_index": 3}]


async def test_random_plays_an_environment_that_is_async() -> None:
    runner = Runner(
        env_cfg={"_target_": "tests.support.fakes.AllAsync"}, agent_cfg={"_target_": "runner.agents.random.RandomAgent"}
    )
    played = await runner.play_episode()
    assert played.error_info is None
    assert {step.action.text for step in played.timesteps} == {"up", "wait"}


async def test_a_foreign_base_exception_is_an_error_like_any_other() -> None:
    played = await runner_of("Panicking").play_episode()
    assert played.outcome is Outcome.ERROR
    assert played.error_info is not None
    assert (played.error_info.type, played.error_info.message) == ("ForeignPanic", "index out of bounds")
    assert Counter.closed == ["Panicking"]


def test_an_outcome_has_to_be_decided() -> None:
    assert Trajectory(episode_id="e1").outcome is Outcome.ERROR


async def test_an_action_is_judged_before_it_is_carried_out() -> None:
    played = await runner_of("Sticky").play_episode()
    assert [step.valid for step in played.timesteps] == [True, False, False]


async def test_an_action_that_cannot_be_parsed_is_not_carried_out() -> None:
    runner = Runner(
        env_cfg={"_target_": "tests.support.fakes.Sticky"},
        agent_cfg={"_target_": "tests.support.fakes.Saying", "text": "broken"},
    )
    played = await runner.play_episode()
    assert played.timesteps == []
    assert played.error_info is not None
    assert played.error_info.message == "unbalanced"


async def test_an_agent_cannot_spoil_what_is_recorded() -> None:
    played = await runner_of("Counter", "Spoiling").play_episode()
    assert played.reset_observation == [{"role": "user", "content": "task 0: count to 3"}]
    assert [len(step.observation) for step in played.timesteps] == [1, 1, 1]
    assert [len(step.available_tool_schemas) for step in played.timesteps] == [1, 1, 1]
    assert [len(step.chats[0]) for step in played.timesteps] == [1, 2, 3]


async def test_properties_that_raise_are_only_logged(caplog: pytest.LogCaptureFixture) -> None:
    played = await runner_of("RaisingProperties", "FlowRaising").play_episode()
    assert (played.outcome, played.trace_last_response_flow_id) == (Outcome.SUCCESS, None)
    assert "get_evaluation_details failed: RuntimeError: no details" in caplog.text
    assert "last_response_flow_id failed: RuntimeError: no flow" in caplog.text
    assert Counter.closed == ["RaisingProperties"]
    assert UpAgent.closed == ["UpAgent"]


async def test_cleaning_up_survives_being_cancelled_and_the_cancellation_is_raised_after_it() -> None:
    SlowCleanup.entered.clear()
    SlowCleanup.gate.clear()
    events: list[EpisodeEvent] = []
    task = asyncio.ensure_future(runner_of("SlowCleanup").play_episode(context=context(events)))
    assert await asyncio.to_thread(SlowCleanup.entered.wait, 10)
    task.cancel()
    await asyncio.sleep(0)
    assert not task.done()
    SlowCleanup.gate.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert Counter.closed == ["SlowCleanup"]
    assert UpAgent.closed == ["UpAgent"]
    assert isinstance(events[-1], EpisodeEnded)
    assert events[-1].trajectory.outcome is Outcome.SUCCESS


async def test_a_pause_that_comes_while_a_step_ends_is_a_pause() -> None:
    control = EpisodeControl()
    heard: list[str] = []
    with control._lock:  # the command waits here until the episode looks
        command = threading.Thread(target=control.pause)
        command.start()
    command.join(10)
    passing = asyncio.ensure_future(control.wait_at_step(lambda: heard.append("wait"), lambda: heard.append("resume")))
    await asyncio.sleep(0)
    assert heard == ["wait"]
    control.resume()
    assert await asyncio.wait_for(passing, 10)
    assert heard == ["wait", "resume"]
    assert await control.wait_at_step(lambda: heard.append("wait"), lambda: heard.append("resume"))
    assert heard == ["wait", "resume"]
