"""An agent of your own with a model: it keeps the task and the latest turns, and asks for one tool call per step.

    agentgym-runner serve-model --port 8001                          # or a real one
    python own_agent.py http://127.0.0.1:8001/v1 test-oracle

With an entry point in a package of yours it plays in the console and in `agentgym-runner --agent NAME`, too.
"""

import asyncio
import os
import sys
from typing import ClassVar

from runner import Action, Chat, Runner, Tracer
from runner.config.profile import AgentSettings, EndpointConfig
from runner.inference.manager import InferenceManager
from runner.types import EpisodeInfo, InvalidAction, Limits, ModelSettings, ModelSource, ToolSchema, Usage

N_TURNS = 4


class ShortMemory:
    uses_model: ClassVar[bool] = True
    tracer: Tracer  # set by the runner

    def __init__(self, *, inference_mngr: ModelSource, settings: ModelSettings | None = None) -> None:
        self.last_usage: Usage | None = None
        self._models = inference_mngr

    def enter(self, episode: EpisodeInfo) -> None:
        self._episode, self._session = episode, self._models.session(episode.header)

    def init_after_reset(self) -> None:
        self._turns: list[Chat] = [[]]  # the task, then each answer with what the environment replied

    async def act(self, observation: Chat, tool_schemas: list[ToolSchema]) -> tuple[list[Chat], Action | InvalidAction]:
        self._turns[-1] += observation
        chat = [message for turn in self._turns[:1] + self._turns[1:][-N_TURNS:] for message in turn]
        answer = await self._session.infer(
            chat,
            tools=tool_schemas,
            time_left_s=self._episode.time_left_s(),
            on_delta=self._episode.stream,
            on_tokens=self._episode.record_tokens,
            tracer=self.tracer,
        )
        self.last_usage = answer.usage
        self._turns.append([answer.message])
        calls = answer.tool_calls
        action = Action(tool_calls=calls) if calls else InvalidAction(answer.text, "a tool call")
        return [[*answer.sent, answer.message]], action


async def main(url: str, model: str) -> None:
    endpoint = EndpointConfig(url=url)
    settings = AgentSettings(mode="local", model=model, endpoints=(endpoint,), local_fallback=None)
    runner = Runner(
        env_cfg={"_target_": "runner.envs.maze.Maze"},
        agent_cfg={"_target_": f"{__name__}.ShortMemory"},
        inference_mngr=InferenceManager(settings, os.environ),
        limits=Limits(max_rounds=15, max_duration_s=300),
    )
    trajectory = await runner.play_episode({"task_index": 3})
    print(trajectory.error_info or f"{trajectory.outcome} in {len(trajectory.timesteps)} rounds")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
