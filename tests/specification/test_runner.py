"""What the specification of the ``Runner`` fixes, row by row of ``docs/design/specification.md``."""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import runner as public
from runner import (
    Action,
    AREEvaluatedTrajectory,
    Runner,
    TimeStep,
    ToolCall,
    Tracer,
    TracingLevel,
    Trajectory,
    create_error_info,
    create_flow_id,
    traced_method,
)
from runner.config.profile import EndpointConfig
from runner.testing import check_env
from runner.tracing import SpanList
from runner.types import Limits, Outcome
from tests.specification.original_program import TOOL, play
from tests.support.command import run_agentgym
from tests.support.inference import agent_settings, inference_manager
from tests.support.model_server import ModelServer
from tests.support.perfetto import read_slices

HERE = "tests.specification.test_runner"
CALLS: list[str] = []
"""Calls of the environment and the agent below, in their order."""


class Recorded:
    """An environment of four methods that is done after ``steps``; ``failing`` names the method that raises."""

    def __init__(self, steps: int = 2, failing: str = "", details: Any = None) -> None:  # noqa: ANN401
        self._steps, self._failing, self._details = steps, failing, details

    def _note(self, name: str) -> None:
        CALLS.append(name)
        if name == self._failing:
            raise RuntimeError(f"{name} broke")

    def reset(self, **reset_kwargs: Any) -> Any:  # noqa: ANN401
        self._left = self._steps
        self._note("reset")
        return [{"role": "user", "content": "go"}]

    def step(self, action: Action) -> Any:  # noqa: ANN401
        self._left -= 1
        if self._left == 0:
            self._note("last step")
        self._note("step")
        return [{"role": "user", "content": "went"}], -0.25 if self._left else 1, not self._left

    def get_tool_schemas(self) -> Any:  # noqa: ANN401
        self._note("get_tool_schemas")
        return [TOOL]

    def get_episode_id(self) -> Any:  # noqa: ANN401
        self._note("get_episode_id")
        return "its id"


class WithCleanup(Recorded):
    def cleanup(self) -> Any:  # noqa: ANN401
        self._note("cleanup")


class AREEnvironment(WithCleanup):
    def get_evaluation_details(self) -> Any:  # noqa: ANN401
        self._note("get_evaluation_details")
        return self._details


class OtherEvaluated(AREEnvironment):
    pass


def as_async(name: str) -> Any:  # noqa: ANN401
    async def method(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        await asyncio.sleep(0)
        return getattr(WithCleanup, name)(self, *args, **kwargs)

    return method


AsyncRecorded = type(
    "AsyncRecorded",
    (WithCleanup,),
    {name: as_async(name) for name in ("reset", "step", "get_tool_schemas", "get_episode_id", "cleanup")},
)


class Follower:
    tracer: Any

    def __init__(self, inference_mngr: object, failing: str = "") -> None:
        self.inference_mngr, self._failing = inference_mngr, failing

    def init_after_reset(self) -> None:
        CALLS.append("init_after_reset")
        if self._failing:
            raise RuntimeError("init broke")

    async def act(self, observation: Any, tool_schemas: Any) -> Any:  # noqa: ANN401
        CALLS.append("act")
        return [observation], Action(tool_calls=None)

    async def close(self) -> None:
        CALLS.append("close")


def build(
    env: str = "WithCleanup", *, level: str = "off", limits: Limits | None = None, agent: str = "", **values: object
) -> Runner:
    CALLS.clear()
    return Runner(
        env_cfg={"_target_": f"{HERE}.{env}", **values},
        agent_cfg={"_target_": f"{HERE}.Follower", "failing": agent},
        inference_mngr=None,
        tracing_level=level,
        limits=limits,
    )


def record(runner: Runner) -> SpanList:
    spans = SpanList()
    runner.tracer = Tracer(worker_id="w", worker_type="runner", level=TracingLevel.FULL, collector=spans)
    return spans


async def test_the_original_program_plays(tmp_path: Path) -> None:
    short, long = await play([1, 3])
    assert [(each.episode_id, each.error_info) for each in (short, long)] == [("sum-1", None), ("sum-3", None)]
    assert [step.reward for step in long.timesteps] == [None, None, None, 1.0]
    assert [len(step.action.tool_calls) for step in long.timesteps] == [0, 1, 1, 1]
    assert long.timesteps[0].chats[0][0] == {"role": "user", "content": "Reach 3"}
    assert long.timesteps[1].chats[0][-1]["tool_calls"][0]["function"] == {"name": "add", "arguments": '{"number": 1}'}
    assert long.timesteps[0].available_tool_schemas == [TOOL] and long.timesteps[-1].done
    assert long.trace_last_response_flow_id == create_flow_id("response", "6")


@pytest.mark.parametrize("env", ["WithCleanup", "AsyncRecorded"])
async def test_calls_have_the_order_of_the_specification(env: str) -> None:
    runner = build(env)
    agent, environment, step = runner.agent, runner.env, ["get_tool_schemas", "act"]
    once = ["reset", "init_after_reset", *step, "step", *step, "last step", "step", "cleanup", "get_episode_id"]
    reset_kwargs = {"task": None}
    for _ in range(2):
        trajectory = await runner.play_episode(reset_kwargs)
        assert once == CALLS
        CALLS.clear()
    assert runner.agent is agent and runner.env is environment and trajectory.reset_kwargs is reset_kwargs
    await runner.close()
    assert CALLS == ["close"]


async def test_spans_have_the_names_categories_and_attributes_of_the_specification() -> None:
    runner = build()
    spans = record(runner)
    await runner.play_episode({"task": SimpleNamespace(task_id="t-1"), "task_unique_id": 9})
    step: list[Any] = ["get_tool_schemas", {}]
    expected: list[Any] = [["env.reset", {}], ["agent.init_after_reset", {}]]
    for index, result in enumerate([{"reward": -0.25, "done": False}, {"reward": 1.0, "done": True}]):
        number = {"timestep_idx": index}
        expected += [step, ["env.step", {**number, **result}], ["timestep", number]]
    *inner, episode = spans.spans
    assert [[span.name, span.attributes] for span in inner] == expected
    assert {span.category for span in inner} == {"inference"}
    assert len(str(episode.attributes.pop("trace_id"))) == 36
    assert (episode.name, episode.category, episode.attributes) == (
        "episode",
        "episode",
        {
            "task_id": "t-1",
            "semantic": "play_single_episode_with_environment",
            "num_timesteps": 2,
            "error": False,
            "final_reward": 1.0,
        },
    )
    timesteps = [span.id for span in inner if span.name == "timestep"]
    assert [span.parent for span in inner if span.name == "env.step"] == timesteps
    assert runner.agent.tracer is runner.tracer


@pytest.mark.parametrize(("task", "known"), [(None, "0"), (SimpleNamespace(), ""), (SimpleNamespace(), "given")])
async def test_the_flow_of_the_task_ends_at_the_episode_and_its_return_starts_there(task: object, known: str) -> None:
    runner = build()
    spans = record(runner)
    await runner.play_episode({"task": task, **({"task_unique_id": known} if known == "given" else {})})
    key = known or str(id(task))
    episode = spans.spans[-1]
    assert episode.attributes["task_id"] == "unknown"
    assert [(flow.id, flow.phase, flow.span) for flow in spans.flows] == [
        (create_flow_id("task", key), "end", episode.id),
        (create_flow_id("episode_return", key), "start", episode.id),
    ]


async def test_a_failed_reset_returns_an_empty_trajectory_without_id_and_return_flow() -> None:
    runner = build(failing="reset")
    spans = record(runner)
    trajectory = await runner.play_episode({})
    assert (
        trajectory.timesteps == [] and trajectory.error_info is not None and "reset broke" in str(trajectory.error_info)
    )
    assert (trajectory.episode_id, trajectory.trace_last_response_flow_id) == (None, None)
    assert (trajectory.outcome, trajectory.error_info.type) == (Outcome.ERROR, "RuntimeError")
    assert CALLS == ["reset", "cleanup"]
    assert [flow.phase for flow in spans.flows] == ["end"]
    attributes = spans.spans[-1].attributes
    assert (attributes["error"], attributes["num_timesteps"]) == (True, 0) and "final_reward" not in attributes


@pytest.mark.parametrize(("failing", "played"), [("get_tool_schemas", 0), ("last step", 1)])
async def test_an_error_ends_the_episode_with_the_timesteps_so_far(failing: str, played: int) -> None:
    runner = build(failing=failing)
    spans = record(runner)
    trajectory = await runner.play_episode({})
    assert trajectory.error_info is not None and trajectory.error_info.message == f"{failing} broke"
    assert "test_runner.py" in trajectory.error_info.traceback
    assert (len(trajectory.timesteps), trajectory.episode_id) == (played, "its id")
    assert CALLS[-2:] == ["cleanup", "get_episode_id"]
    attributes = spans.spans[-1].attributes
    assert (attributes["error"], attributes.get("final_reward")) == (True, -0.25 if played else None)
    assert [flow.phase for flow in spans.flows] == ["end", "start"]


async def test_an_error_in_the_agents_start_is_one_of_the_episode() -> None:
    trajectory = await build(agent="failing").play_episode({})
    assert trajectory.error_info is not None and (trajectory.timesteps, trajectory.episode_id) == ([], "its id")
    assert CALLS[-2:] == ["cleanup", "get_episode_id"]


async def test_an_environment_without_its_id_costs_no_trajectory() -> None:
    trajectory = await build(failing="get_episode_id").play_episode({})
    assert len(trajectory.timesteps) == 2 and trajectory.episode_id is None
    assert trajectory.error_info is not None and trajectory.error_info.message == "get_episode_id broke"


async def test_a_failing_cleanup_is_only_logged_and_none_is_needed(caplog: pytest.LogCaptureFixture) -> None:
    assert (await build(failing="cleanup").play_episode({})).error_info is None
    assert "cleanup broke" in caplog.text
    assert (await build("Recorded").play_episode({})).episode_id == "its id"


async def test_only_an_are_environment_with_details_gives_an_evaluated_trajectory(
    caplog: pytest.LogCaptureFixture,
) -> None:
    evaluated = await build("AREEnvironment", details={"score": 1}).play_episode({"task": "t"})
    assert type(evaluated) is AREEvaluatedTrajectory and evaluated.are_evaluation == {"score": 1}
    assert evaluated.are_evaluation is evaluated.evaluation and evaluated.reset_kwargs == {"task": "t"}
    assert CALLS[-3:] == ["cleanup", "get_episode_id", "get_evaluation_details"]
    assert (evaluated.episode_id, len(evaluated.timesteps)) == ("its id", 2)
    plain = await build("Recorded").play_episode({"task": "t"})
    assert (evaluated.success, evaluated.outcome) == (plain.success, plain.outcome)
    assert type(evaluated.trace_last_response_flow_id) is type(plain.trace_last_response_flow_id)
    assert type(await build("AREEnvironment").play_episode({})) is Trajectory and not caplog.text
    with caplog.at_level(logging.WARNING):
        failed = await build("AREEnvironment", failing="get_evaluation_details").play_episode({})
    assert type(failed) is Trajectory and failed.error_info is None and "get_evaluation_details broke" in caplog.text
    assert type(await build("OtherEvaluated", details={"score": 1}).play_episode({})) is Trajectory


async def test_an_episode_has_no_limits_unless_they_are_given() -> None:
    assert len((await build(steps=40).play_episode({})).timesteps) == 40
    limited = await build(steps=40, limits=Limits(max_rounds=3)).play_episode({})
    assert (len(limited.timesteps), limited.outcome) == (3, Outcome.TRUNCATED)


async def test_overlapping_episodes_are_refused() -> None:
    runner = build("AsyncRecorded")
    first = asyncio.create_task(runner.play_episode({}))
    await asyncio.sleep(0)
    with pytest.raises(RuntimeError, match="is playing an episode"):
        await runner.play_episode({})
    assert (await first).error_info is None
    assert (await runner.play_episode({})).error_info is None


def test_the_tracer_names_its_worker_and_a_falsy_level_is_full() -> None:
    tracer = build(level="").tracer
    assert (tracer.level, tracer.worker_type) == (TracingLevel.FULL, "runner")
    assert tracer.worker_id.startswith("runner_") and len(tracer.worker_id) == len("runner_") + 8
    assert build().tracer.level == TracingLevel.OFF
    with pytest.raises(ValueError, match="loud"):
        build(level="loud")


def test_the_signature_is_the_one_of_the_specification() -> None:
    parameters = inspect.signature(Runner).parameters.values()
    assert {each.kind for each in parameters} == {inspect.Parameter.KEYWORD_ONLY}
    assert [each.name for each in parameters][:4] == ["env_cfg", "agent_cfg", "inference_mngr", "tracing_level"]
    with pytest.raises(TypeError, match="inference_mngr"):
        Runner(env_cfg={}, agent_cfg={})  # type: ignore[call-arg]


def test_the_public_names_are_imported_when_they_are_used() -> None:
    code = "import sys, runner; print(*[name for name in sys.modules if name.startswith('runner')])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert loaded.stdout.split() == ["runner"]
    assert sorted(public.__all__) == public.__all__ and all(getattr(public, name) for name in public.__all__)
    assert "Tracer" in dir(public) and not hasattr(public, "NoSuchName")


def test_the_constructors_take_the_arguments_of_the_specification() -> None:
    step = TimeStep(chats=[[]], reward=1.0, done=True, available_tool_schemas=[TOOL])
    error = create_error_info(ValueError("no"))
    fields: dict[str, Any] = {
        "timesteps": [step],
        "reset_kwargs": {"task": 1},
        "error_info": error,
        "episode_id": "e",
        "trace_last_response_flow_id": 7,
    }
    trajectory = Trajectory(**fields)
    assert [getattr(trajectory, name) for name in fields] == list(fields.values())
    evaluated = AREEvaluatedTrajectory(**fields, are_evaluation={"score": 1})
    assert evaluated.are_evaluation is evaluated.evaluation and evaluated.evaluation == {"score": 1}


def test_tool_calls_are_read_and_built_in_the_openai_shape() -> None:
    function = {"name": "add", "arguments": '{"number": 1}'}
    as_dict = {"id": "c", "type": "function", "function": function}
    as_object = SimpleNamespace(id="c", function=SimpleNamespace(**function))
    with_object = {"function": {"name": "add", "arguments": {"number": 1}}}
    action = Action(tool_calls=[ToolCall("c", **function), as_dict, as_object, with_object])
    assert [call.function for call in action.tool_calls] == [function] * 4
    assert [call.id for call in action.tool_calls] == ["c", "c", "c", "call_3"]
    first = action.tool_calls[0]
    assert (first.function.get("name"), first.function["arguments"]) == (first.name, first.arguments)
    assert Action(tool_calls=None).tool_calls == []


async def test_an_action_may_be_a_dict_or_an_object_of_the_openai_shape() -> None:
    runner = build(steps=3)
    answers: list[Any] = [
        {"content": "a", "tool_calls": None},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c", "function": {"name": "add", "arguments": ""}}],
        },
        SimpleNamespace(role="assistant", content="b", tool_calls=[]),
    ]

    async def act(observation: Any, tool_schemas: Any) -> Any:  # noqa: ANN401
        message = answers.pop(0)
        return [[*observation, message]], message

    runner.agent.act = act  # type: ignore[method-assign]
    trajectory = await runner.play_episode({})
    assert trajectory.error_info is None
    actions = [(step.action.text, [call.name for call in step.action.tool_calls]) for step in trajectory.timesteps]
    assert actions == [("a", []), (None, ["add"]), ("b", [])]
    assert trajectory.timesteps[-1].chats[0][-1] == {"role": "assistant", "content": "b", "tool_calls": []}


async def test_traced_method_works_with_and_without_a_call(tmp_path: Path) -> None:
    class Traced:
        def __init__(self) -> None:
            self.tracer = Tracer(collectors=[spans])

        @traced_method
        async def act(self) -> int:
            return 1

        @traced_method("plan", category="inference")
        def think(self) -> int:
            return 2

    spans = SpanList()
    assert (await Traced().act(), Traced().think()) == (1, 2)
    assert [(span.name, span.category) for span in spans.spans] == [("act", "agent"), ("plan", "inference")]


async def test_the_trace_of_a_runner_opens_in_perfetto(tmp_path: Path) -> None:
    runner = build(level="full")
    await runner.play_episode({"task_unique_id": 3})
    runner.save_trace(tmp_path / "trace.pftrace")
    await runner.play_episode({"task_unique_id": 4})
    runner.save_trace(tmp_path / "trace.pftrace")
    rows = read_slices(tmp_path / "trace.pftrace").values()
    episodes = [each for row in rows for each in row if each.track == f"runner {runner.tracer.worker_id}"]
    assert [each.name for each in episodes] == ["episode", "episode"]
    assert [child.name for child in episodes[0].children][:3] == ["env.reset", "agent.init_after_reset", "timestep"]
    assert [each.flows_in for each in episodes] == [[create_flow_id("task", str(key))] for key in (3, 4)]


async def test_our_own_agents_start_a_new_conversation_per_episode() -> None:
    with ModelServer() as server:
        settings = agent_settings(EndpointConfig(url=server.url, name="test"), model="test-oracle", format="react")
        runner = Runner(
            env_cfg={"_target_": "runner.envs.maze.Maze"},
            agent_cfg={"_target_": "runner.agents.model.ReactAgent", "settings": settings},
            inference_mngr=inference_manager(server.url, model="test-oracle", format="react"),
            limits=Limits(max_rounds=2),
        )
        played = [await runner.play_episode({"task_index": 3}) for _ in range(2)]
    assert [each.error_info for each in played] == [None, None]
    chats = [json.loads(received.body)["messages"] for received in server.received]
    assert chats[:2] == chats[2:]


async def test_agents_without_a_model_play_again() -> None:
    script = {"_target_": "runner.agents.baselines.Script", "actions": ["move up", "move left"]}
    runner = Runner(
        env_cfg={"_target_": "runner.envs.maze.Maze"},
        agent_cfg={"_target_": "runner.agents.baselines.ScriptedAgent", "script": script},
        inference_mngr=None,
        limits=Limits(max_rounds=2),
    )
    first, second = [await runner.play_episode({"task_index": 3}) for _ in range(2)]
    assert first.error_info is None and [s.observation for s in first.timesteps] == [
        s.observation for s in second.timesteps
    ]


@pytest.mark.parametrize("env", ["Recorded", "AsyncRecorded"])
def test_an_environment_of_four_methods_passes_the_check(env: str) -> None:
    check_env(getattr(sys.modules[HERE], env))


OWN = """
class Own:
    async def reset(self, **reset_kwargs):
        self.left = 2
        return [{"role": "user", "content": str(reset_kwargs["task_index"])}]

    def step(self, action):
        self.left -= 1
        return [{"role": "user", "content": action.text}], float(self.left == 0), self.left == 0

    def get_tool_schemas(self):
        return []

    async def get_episode_id(self):
        return "own"
"""


@pytest.mark.long
def test_an_environment_of_four_methods_plays_by_its_import_path(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "script").write_text("a\nb\n")
    profile = {"id": "own", "environments": {"lightweight": [{"name": "own:Own"}]}}
    (tmp_path / "own.yaml").write_text(json.dumps(profile))
    common = ["--agent", "scripted", "--script", "script", "--config", "own.yaml", "--json"]
    for options in (["--run", "own:Own", "--repeat", "4", "--workers", "2"], ["--battery", "lightweight"]):
        played = run_agentgym(tmp_path, *options, *common)
        assert played.returncode == 0, played.stderr
        (batch,) = json.loads(played.stdout)["batches"]
        assert (batch["env"], batch["success_rate"], batch["mean_reward"]) == ("own:Own", 1.0, 1.0)
    missing = run_agentgym(tmp_path, "--run", "own:Other", *common)
    assert missing.returncode == 2
    assert "own:Other cannot be loaded: AttributeError: module 'own' has no attribute 'Other'" in missing.stderr
