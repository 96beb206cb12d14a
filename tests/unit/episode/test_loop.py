"""Episodes from reset to cleanup: results, errors, limits, events and spans."""

import asyncio
import gc
import logging
import pickle
import sys
import threading
import weakref
from collections.abc import Callable

import pytest

from runner.episode.control import EpisodeControl
from runner.episode.factory import EpisodeFactory
from runner.tracing import SpanList, create_flow_id
from runner.types import (
    AREEvaluatedTrajectory,
    EpisodeEnded,
    EpisodeEvent,
    EpisodePaused,
    EpisodeResumed,
    EpisodeStarted,
    EvaluatedTrajectory,
    Limits,
    Outcome,
    TimestepPlayed,
)
from tests.support.fakes import AsyncHanging, BindingAsync, Counter, InferenceAgent, SlowCleanup, UpAgent
from tests.support.runners import make_context, make_runner


@pytest.mark.parametrize("env", ["Counter", "AsyncCounter"])
@pytest.mark.parametrize("agent", ["UpAgent", "AsyncUpAgent"])
async def test_sync_and_async_implementations_behave_the_same(env: str, agent: str) -> None:
    trajectory = await make_runner(env, agent).play_episode({"task_index": 4})
    assert trajectory.outcome is Outcome.SUCCESS
    assert [(step.reward, step.valid) for step in trajectory.timesteps] == [(0.0, True), (0.0, True), (1.0, True)]
    assert {(step.action.text, step.action.tool_calls[0].name) for step in trajectory.timesteps} == {("up", "up")}
    assert trajectory.reset_observation == [{"role": "user", "content": "task 4: count to 3"}]
    assert [step.observation[0]["content"] for step in trajectory.timesteps] == ["at 1", "at 2", "at 3"]
    assert Counter.closed == [env]
    assert UpAgent.closed == ["UpAgent"]


async def test_several_chats_per_step_and_the_last_flow_are_recorded() -> None:
    trajectory = await make_runner("Counter", "TwoChats").play_episode()
    assert [len(step.chats) for step in trajectory.timesteps] == [2, 2, 2]
    assert trajectory.trace_last_response_flow_id == 77


@pytest.mark.parametrize(
    ("env", "agent", "kind", "steps"),
    [
        ("Counter", "FailingInit", "ConnectionError", 0),
        ("Exiting", "UpAgent", "SystemExit", 0),
        ("Panicking", "UpAgent", "ForeignPanic", 0),
        ("NanReward", "UpAgent", "environment_fault", 0),
        ("ShapelessStep", "UpAgent", "environment_fault", 0),
        ("NoSuchEnvironment", "UpAgent", None, 0),
        ("Counter", "NoSuchAgent", None, 0),
    ],
)
async def test_failures_are_returned_as_error_info(env: str, agent: str, kind: str | None, steps: int) -> None:
    trajectory = await make_runner(env, agent).play_episode()
    assert trajectory.outcome is Outcome.ERROR
    assert trajectory.error_info is not None
    assert trajectory.error_info.message
    assert kind in (None, trajectory.error_info.type)
    assert len(trajectory.timesteps) == steps


@pytest.mark.parametrize(
    ("env", "warning"), [("FailingCleanup", "cleanup failed"), ("HangingCleanup", "cleanup did not end within 0.05 s")]
)
async def test_a_failed_cleanup_does_not_change_the_result(
    env: str, warning: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        trajectory = await make_runner(env).play_episode(context=make_context(cleanup_timeout_s=0.05))
    assert trajectory.outcome is Outcome.SUCCESS
    assert trajectory.error_info is None
    assert Counter.closed == [env]
    assert warning in caplog.text


async def test_evaluation_details_are_recorded_if_supported() -> None:
    trajectory = await make_runner("Evaluated").play_episode()
    assert isinstance(trajectory, EvaluatedTrajectory)
    assert trajectory.evaluation == {"count": 3, "notes": ["fine"]}
    assert not isinstance(await make_runner("Counter").play_episode(), EvaluatedTrajectory)


class AREEnvironment(Counter):
    """A class of this name is taken for ARE's; its judge gives no verdict."""

    def get_evaluation_details(self) -> dict[str, object]:
        return {"success": None, "exception": "no model"}


async def test_a_judge_without_a_verdict_is_an_error_of_the_evaluation() -> None:
    trajectory = await EpisodeFactory(
        env_cfg={"_target_": f"{__name__}.AREEnvironment"}, agent_cfg={"_target_": "tests.support.fakes.UpAgent"}
    ).play_episode()
    assert isinstance(trajectory, AREEvaluatedTrajectory) and trajectory.error_info is not None
    assert (trajectory.error_info.type, "no model" in trajectory.error_info.message) == ("evaluation", True)


async def test_the_time_limit_ends_an_async_hang() -> None:
    trajectory = await make_runner("AsyncHanging", limits=Limits(max_duration_s=0.05)).play_episode()
    assert AsyncHanging.entered.acquire(blocking=False)
    assert trajectory.outcome is Outcome.TIMEOUT
    assert Counter.closed == ["AsyncHanging"]


async def test_events_are_numbered_and_the_first_step_contains_the_reset_observation() -> None:
    events: list[EpisodeEvent] = []
    trajectory = await make_runner("Counter").play_episode(context=make_context(events))
    assert [type(event) for event in events] == [EpisodeStarted, *[TimestepPlayed] * 3, EpisodeEnded]
    assert [event.seq for event in events] == [0, 1, 2, 3, 4]
    resets = [event.reset_observation for event in events if isinstance(event, TimestepPlayed)]
    assert resets == [trajectory.reset_observation, None, None]


async def test_spans_are_nested_and_flows_connect_to_the_episode() -> None:
    spans = SpanList()
    await make_runner("Counter").play_episode({"task_unique_id": "t-9"}, context=make_context([], spans))
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


async def test_the_agent_receives_the_inference_manager_itself() -> None:
    manager = object()
    agent_cfg = {"_target_": "tests.support.fakes.InferenceAgent"}
    env_cfg = {"_target_": "tests.support.fakes.Counter"}
    await EpisodeFactory(env_cfg=env_cfg, agent_cfg=agent_cfg, inference_mngr=manager).play_episode()
    assert InferenceAgent.managers == [manager]


async def test_a_pickled_runner_plays() -> None:
    pickled = pickle.dumps(make_runner("Counter", goal=2))
    trajectory = await pickle.loads(pickled).play_episode({"task_index": 2})
    assert [step.reward for step in trajectory.timesteps] == [0.0, 1.0]


async def test_all_environment_methods_may_be_async() -> None:
    trajectory = await make_runner("AllAsync").play_episode()
    assert trajectory.error_info is None
    assert [step.valid for step in trajectory.timesteps] == [True] * 3
    assert (trajectory.success, trajectory.outcome) == (False, Outcome.FAILURE)
    BindingAsync.bound.clear()
    await make_runner("Counter", "BindingAsync").play_episode({"task_index": 3})
    assert BindingAsync.bound == [{"task_index": 3}]
    assert trajectory.env_episode_id == "../counter\x1b[2J/0"


async def test_the_random_agent_plays_an_async_environment() -> None:
    runner = EpisodeFactory(
        env_cfg={"_target_": "tests.support.fakes.AllAsync"},
        agent_cfg={"_target_": "runner.agents.baselines.RandomAgent"},
    )
    trajectory = await runner.play_episode()
    assert trajectory.error_info is None
    assert {step.action.text for step in trajectory.timesteps} == {"up", "wait"}


async def test_an_action_is_validated_before_it_is_executed() -> None:
    trajectory = await make_runner("ParsesOnlyFirstStep").play_episode()
    assert [step.valid for step in trajectory.timesteps] == [True, False, False]
    assert (await make_runner("Truncating").play_episode()).outcome is Outcome.TRUNCATED  # by its own limit


async def test_an_action_whose_parsing_fails_is_not_executed() -> None:
    runner = EpisodeFactory(
        env_cfg={"_target_": "tests.support.fakes.ParsesOnlyFirstStep"},
        agent_cfg={"_target_": "tests.support.fakes.FixedTextAgent", "text": "broken"},
    )
    trajectory = await runner.play_episode()
    assert trajectory.timesteps == []
    assert trajectory.error_info is not None
    assert trajectory.error_info.message == "unbalanced"


async def test_an_agent_cannot_modify_recorded_data() -> None:
    trajectory = await make_runner("Counter", "MutatingAgent").play_episode()
    assert trajectory.reset_observation == [{"role": "user", "content": "task 0: count to 3"}]
    assert [len(step.observation) for step in trajectory.timesteps] == [1, 1, 1]
    assert [len(step.available_tool_schemas or []) for step in trajectory.timesteps] == [1, 1, 1]
    assert [len(step.chats[0]) for step in trajectory.timesteps] == [1, 2, 3]


async def test_properties_that_raise_are_only_logged(caplog: pytest.LogCaptureFixture) -> None:
    trajectory = await make_runner("RaisingProperties", "FlowRaising").play_episode()
    assert (trajectory.outcome, trajectory.trace_last_response_flow_id) == (Outcome.SUCCESS, None)
    assert "get_evaluation_details failed: RuntimeError: no details" in caplog.text
    assert "last_response_flow_id failed: RuntimeError: no flow" in caplog.text
    assert Counter.closed == ["RaisingProperties"]
    assert UpAgent.closed == ["UpAgent"]


async def test_an_ended_episode_is_freed_without_a_garbage_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[weakref.ref[object]] = []
    runner = make_runner("Counter")
    for name in ("build_environment", "build_agent"):
        build = getattr(runner, name)

        def build_and_note(build: Callable[[], object] = build) -> object:
            value = build()
            built.append(weakref.ref(value))
            return value

        monkeypatch.setattr(runner, name, build_and_note)
    gc.collect()
    gc.disable()
    try:
        trajectory = await runner.play_episode()
        assert [ref() for ref in built] == [None, None]
        assert sys.getrefcount(trajectory) == 2  # ``trajectory`` and the argument
    finally:
        gc.enable()


async def test_cancellation_is_raised_after_cleanup_and_emitted() -> None:
    events: list[EpisodeEvent] = []
    task = asyncio.ensure_future(make_runner("AsyncHanging").play_episode(context=make_context(events)))
    await asyncio.to_thread(AsyncHanging.entered.acquire, timeout=10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert Counter.closed == ["AsyncHanging"]
    assert isinstance(events[-1], EpisodeEnded)
    assert events[-1].trajectory.outcome is Outcome.CANCELLED


async def test_pause_step_and_resume_take_effect_between_steps() -> None:
    events: list[EpisodeEvent] = []
    control = EpisodeControl()
    control.pause()
    changed = asyncio.Event()

    def emit(event: EpisodeEvent) -> None:
        events.append(event)
        changed.set()

    async def wait_for(kind: type[EpisodeEvent], count: int) -> None:
        while sum(isinstance(event, kind) for event in events) < count:
            changed.clear()
            await asyncio.wait_for(changed.wait(), 10)

    task = asyncio.ensure_future(
        make_runner("Counter", limits=Limits(max_duration_s=5)).play_episode(
            context=make_context(control=control, emit=emit)
        )
    )
    await wait_for(EpisodePaused, 1)
    assert not any(isinstance(event, TimestepPlayed) for event in events)
    control.step()
    await wait_for(EpisodePaused, 2)
    assert sum(isinstance(event, TimestepPlayed) for event in events) == 1
    control.resume()
    trajectory = await asyncio.wait_for(task, 10)
    assert trajectory.outcome is Outcome.SUCCESS
    assert trajectory.paused_s > 0
    assert sum(isinstance(event, EpisodeResumed) for event in events) == 2


async def test_paused_time_does_not_count_towards_the_time_limit() -> None:
    control = EpisodeControl()
    control.pause()
    runner = make_runner("Counter", limits=Limits(max_duration_s=0.2))
    task = asyncio.ensure_future(runner.play_episode(context=make_context(control=control)))
    await asyncio.wait({task}, timeout=0.4)  # longer than the time limit
    assert not task.done()
    control.resume()
    assert (await asyncio.wait_for(task, 10)).outcome is Outcome.SUCCESS


async def test_cancel_ends_a_paused_episode() -> None:
    control = EpisodeControl()
    control.pause()
    task = asyncio.ensure_future(make_runner("Counter").play_episode(context=make_context(control=control)))
    await asyncio.sleep(0)
    control.cancel()
    assert (await asyncio.wait_for(task, 10)).outcome is Outcome.CANCELLED


async def test_a_cancellation_during_cleanup_is_raised_afterwards() -> None:
    SlowCleanup.entered.clear()
    SlowCleanup.gate.clear()
    events: list[EpisodeEvent] = []
    task = asyncio.ensure_future(make_runner("SlowCleanup").play_episode(context=make_context(events)))
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


async def test_a_pause_requested_at_the_end_of_a_step_takes_effect() -> None:
    control = EpisodeControl()
    calls: list[str] = []
    with control._lock:  # blocks the command until the lock is released
        command = threading.Thread(target=control.pause)
        command.start()
    command.join(10)
    waiting = asyncio.ensure_future(control.wait_at_step(lambda: calls.append("wait"), lambda: calls.append("resume")))
    await asyncio.sleep(0)
    assert calls == ["wait"]
    control.resume()
    assert await asyncio.wait_for(waiting, 10)
    assert calls == ["wait", "resume"]
    assert await control.wait_at_step(lambda: calls.append("wait"), lambda: calls.append("resume"))
    assert calls == ["wait", "resume"]
