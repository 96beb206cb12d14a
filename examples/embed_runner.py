"""Play episodes inside a program of your own, such as a training loop: many at once, with a policy of yours.

    python embed_runner.py [EPISODES]

Nothing is stored: rewards and chats come back as a `Trajectory`, and the trace is for https://ui.perfetto.dev.
"""

import asyncio
import random
import sys

from runner import Action, Chat, Runner, ToolCall
from runner.types import Limits, ToolSchema

N_AT_ONCE = 4


class Policy:
    """In place of a client of your model server."""

    async def choose(self, chat: Chat, tools: list[ToolSchema]) -> ToolCall:
        directions = tools[0]["function"]["parameters"]["properties"]["direction"]["enum"]
        way = random.Random(str(chat)).choice(directions)
        return ToolCall(id=f"call-{len(chat)}", name="move", arguments=f'{{"direction": "{way}"}}')


class Walker:
    """An agent: it keeps the conversation, and lets the policy choose the next call."""

    def __init__(self, inference_mngr: Policy) -> None:
        self.policy = inference_mngr

    def init_after_reset(self) -> None:
        self.chat: Chat = []

    async def act(self, observation: Chat, tool_schemas: list[ToolSchema]) -> tuple[list[Chat], Action]:
        self.chat += observation
        call = await self.policy.choose(self.chat, tool_schemas)
        self.chat.append({"role": "assistant", "content": f"{call.name} {call.arguments}"})
        return [self.chat.copy()], Action(tool_calls=[call])


async def play(policy: Policy, tasks: list[int], rewards: dict[int, float]) -> None:
    maze, walker = {"_target_": "runner.envs.maze.Maze"}, {"_target_": f"{__name__}.Walker"}
    limits = Limits(max_rounds=20, max_duration_s=60)
    runner = Runner(env_cfg=maze, agent_cfg=walker, inference_mngr=policy, tracing_level="full", limits=limits)
    while tasks:
        task = tasks.pop()
        trajectory = await runner.play_episode({"task_index": task, "task_unique_id": task})
        if trajectory.error_info is not None:
            raise RuntimeError(trajectory.error_info)
        rewards[task] = sum(step.reward or 0.0 for step in trajectory.timesteps)
    await runner.close()
    runner.save_trace("rollouts.pftrace")


async def main(n_episodes: int) -> None:
    tasks, rewards = list(range(n_episodes)), dict[int, float]()
    await asyncio.gather(*(play(Policy(), tasks, rewards) for _ in range(N_AT_ONCE)))
    print(f"{len(rewards)} episodes, mean reward {sum(rewards.values()) / len(rewards):.2f}; see rollouts.pftrace")


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 8))
