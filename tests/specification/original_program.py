"""A program written from the specification of the Runner alone; it runs here and in an actor of Ray."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

from omegaconf import OmegaConf

from runner import Chat, Runner, Tracer, TracingLevel, Trajectory, create_flow_id, get_protobuf_collector, traced_method

TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add a number to the sum.",
        "parameters": {"type": "object", "properties": {"number": {"type": "integer"}}},
    },
}


class Sum:
    """An environment: reach the goal of the task by adding numbers."""

    def __init__(self, words: Any) -> None:  # noqa: ANN401 - a config of Hydra
        self.words = words
        self.calls: list[str] = []

    async def reset(self, task: Any, **others: Any) -> Chat:  # noqa: ANN401
        self.calls.append("reset")
        self.goal, self.sum = task.goal, 0
        return [{"role": "user", "content": f"{self.words.greeting} {self.goal}"}]

    async def step(self, action: Any) -> tuple[Chat, float | None, bool]:  # noqa: ANN401
        self.calls.append("step")
        answers: Chat = []
        for call in action.tool_calls or []:
            assert call.function.get("name") == "add"
            self.sum += json.loads(call.function["arguments"])["number"]
            answers.append({"role": "tool", "tool_call_id": call.id, "content": str(self.sum)})
        done = self.sum >= self.goal
        return answers, 1.0 if done else None, done

    async def get_tool_schemas(self) -> list[dict[str, Any]]:
        self.calls.append("get_tool_schemas")
        return [TOOL]

    def get_episode_id(self) -> str:
        self.calls.append("get_episode_id")
        return f"sum-{self.goal}"

    async def cleanup(self) -> None:
        self.calls.append("cleanup")


class Adder:
    """An agent that asks its inference manager for the next call."""

    tracer: Any

    def __init__(self, inference_mngr: Any) -> None:  # noqa: ANN401
        self.inference_mngr = inference_mngr
        self._trace_last_response_flow_id: int | None = None

    async def init_after_reset(self) -> None:
        self.chat: list[Any] = []

    @traced_method
    async def act(self, observation: Chat, tool_schemas: list[dict[str, Any]]) -> tuple[list[list[Any]], Any]:
        self.chat += observation
        with self.tracer.span("infer", category="inference") as span:
            message = await self.inference_mngr.infer(self.chat, tool_schemas)
            self._trace_last_response_flow_id = create_flow_id("response", str(len(self.chat)))
            span.start_flow(self._trace_last_response_flow_id)
        self.chat.append(message)
        return [self.chat.copy()], message


class Model:
    """An inference manager; its messages are objects, as those of a client library."""

    async def infer(self, chat: list[Any], tools: list[dict[str, Any]]) -> Any:  # noqa: ANN401
        function = SimpleNamespace(name="add", arguments='{"number": 1}')
        function.get = vars(function).get
        call = SimpleNamespace(id=f"call-{len(chat)}", type="function", function=function)
        # the first answer has no call
        return SimpleNamespace(role="assistant", content=None, tool_calls=None if len(chat) == 1 else [call])


SETTINGS: dict[str, Any] = {
    "env_cfg": OmegaConf.create(
        {"_target_": "tests.specification.original_program.Sum", "words": {"greeting": "Reach"}}
    ),
    "agent_cfg": OmegaConf.create({"_target_": "tests.specification.original_program.Adder", "inference_mngr": "???"}),
}


def task(goal: int) -> dict[str, Any]:
    """Return the arguments of the reset of a task."""
    return {"task": SimpleNamespace(task_id=f"task-{goal}", goal=goal), "task_unique_id": goal}


async def play(goals: list[int]) -> list[Trajectory]:
    """Play the tasks one after another, with the flows of an orchestrator."""
    runner = Runner(**SETTINGS, inference_mngr=Model(), tracing_level="full")
    orchestrator = Tracer(
        worker_id="main", worker_type="orchestrator", level=TracingLevel.FULL, collector=get_protobuf_collector()
    )
    trajectories = []
    for goal in goals:
        with orchestrator.span("traj_out", category="orchestrator") as span:
            span.start_flow(create_flow_id("task", str(goal)))
            trajectories.append(await runner.play_episode(task(goal)))
            span.end_flow(create_flow_id("episode_return", str(goal)))
    await runner.close()
    return trajectories


def play_in_an_actor(goals: list[int]) -> list[Trajectory]:
    import ray

    actor = ray.remote(num_cpus=1, max_concurrency=1)(Runner).remote(**SETTINGS, inference_mngr=Model())
    trajectories: list[Trajectory] = ray.get([actor.play_episode.remote(task(goal)) for goal in goals], timeout=60)
    return trajectories


if __name__ == "__main__":
    for trajectory in asyncio.run(play([1, 3])):
        print(trajectory.episode_id, len(trajectory.timesteps), trajectory.error_info)  # noqa: T201
