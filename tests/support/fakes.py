"""Small environments and agents, each with one peculiarity."""

from __future__ import annotations

import asyncio
import sys
import threading
from typing import Any, ClassVar

from runner.errors import EnvironmentFault
from runner.types import Action, Chat, InvalidAction, Message, StepResult, ToolCall, ToolSchema, Trajectory


def user(text: str) -> Message:
    return {"role": "user", "content": text}


class Counter:
    """Counts up to ``goal``; each ``up`` is one step and the last one is rewarded."""

    n_tasks = 1000
    closed: ClassVar[list[str]] = []

    def __init__(self, *, goal: int = 3, mode: str = "strict") -> None:
        self.goal = goal
        self.count = 0

    def reset(self, **kwargs: Any) -> Chat:  # noqa: ANN401
        self.task_index = kwargs.get("task_index", 0)
        self.count = 0
        return [user(f"task {self.task_index}: count to {self.goal}")]

    def step(self, action: Action) -> StepResult:
        if action.text == "up" or action.tool_calls:
            self.count += 1
        done = self.count >= self.goal
        return [user(f"at {self.count}")], 1.0 if done else 0.0, done

    def get_tool_schemas(self) -> list[ToolSchema]:
        return [{"type": "function", "function": {"name": "up", "description": "", "parameters": {"type": "object"}}}]

    def get_episode_id(self) -> str:
        return f"../counter\x1b[2J/{self.task_index}"

    def admissible_actions(self) -> list[str] | None:
        return ["up", "wait"]

    def parse(self, text: str) -> Action | InvalidAction:
        if text == "up":
            return Action(text=text, tool_calls=[ToolCall("call_0", "up", "{}")])
        return InvalidAction(text, "up")

    def success(self, trajectory: Trajectory) -> bool:
        return any(step.reward > 0 for step in trajectory.timesteps)

    def cleanup(self) -> None:
        Counter.closed.append(type(self).__name__)


class ToolAnswerCounter(Counter):
    """Returns one observation per tool call, as the embedded environments do."""

    def step(self, action: Action) -> StepResult:
        (message,), reward, done = super().step(action)
        texts = [message["content"], *["Not executed."] * (len(action.tool_calls) - 1)]
        answers: Chat = [
            {"role": "tool", "content": text, "tool_call_id": call.id}
            for text, call in zip(texts, action.tool_calls, strict=False)
        ]
        return answers or [message], reward, done


class WordyCounter(ToolAnswerCounter):
    """Each observation has 3,000 characters."""

    def step(self, action: Action) -> StepResult:
        messages, reward, done = super().step(action)
        return [{**message, "content": f"{message['content']} ".ljust(3000, ".")} for message in messages], reward, done


class AsyncCounter(Counter):
    async def reset(self, **kwargs: Any) -> Chat:  # type: ignore[override]  # noqa: ANN401
        await asyncio.sleep(0)
        return super().reset(**kwargs)

    async def step(self, action: Action) -> StepResult:  # type: ignore[override]
        await asyncio.sleep(0)
        return super().step(action)

    async def cleanup(self) -> None:  # type: ignore[override]
        await asyncio.sleep(0)
        super().cleanup()


class AllAsync(AsyncCounter):
    """Every method that may be async is async."""

    async def get_tool_schemas(self) -> list[ToolSchema]:  # type: ignore[override]
        return super().get_tool_schemas()

    async def get_episode_id(self) -> str:  # type: ignore[override]
        return super().get_episode_id()

    async def admissible_actions(self) -> list[str] | None:  # type: ignore[override]
        return super().admissible_actions()

    async def parse(self, text: str) -> Action | InvalidAction:  # type: ignore[override]
        return super().parse(text)

    async def success(self, trajectory: Trajectory) -> bool:  # type: ignore[override]
        return False


class ForeignPanic(BaseException):
    """An error as raised by a library that is not written in Python."""


class Panicking(Counter):
    def step(self, action: Action) -> StepResult:
        raise ForeignPanic("index out of bounds")


class Interrupting(Counter):
    def step(self, action: Action) -> StepResult:
        raise KeyboardInterrupt


class FailingOddTasks(Counter):
    """A server that fails in every second task."""

    def step(self, action: Action) -> StepResult:
        if self.task_index % 2:
            raise EnvironmentFault("the server answered with status 502")
        return super().step(action)


class StrayExit(Counter):
    """Starts a task that exits the program."""

    async def step(self, action: Action) -> StepResult:  # type: ignore[override]
        async def exit_program() -> None:
            sys.exit(5)

        stray = asyncio.ensure_future(exit_program())
        await asyncio.sleep(0.01)
        stray.exception()  # retrieved, so that asyncio does not log it
        return super().step(action)


class ParsesOnlyFirstStep(Counter):
    """Parses ``up`` only before the first step; parsing ``broken`` fails."""

    def parse(self, text: str) -> Action | InvalidAction:
        if text == "broken":
            raise ValueError("unbalanced")
        return super().parse(text) if self.count == 0 else InvalidAction(text, "nothing")


class RaisingProperties(Counter):
    @property
    def get_evaluation_details(self) -> object:
        raise RuntimeError("no details")

    def cleanup(self) -> None:
        super().cleanup()


class SlowCleanup(Counter):
    """Sets ``entered`` when its cleanup starts, then waits for ``gate``."""

    entered = threading.Event()
    gate = threading.Event()

    async def cleanup(self) -> None:  # type: ignore[override]
        SlowCleanup.entered.set()
        await asyncio.to_thread(SlowCleanup.gate.wait, 20)
        super().cleanup()


class FailingStep(Counter):
    def step(self, action: Action) -> StepResult:
        if self.count == 2:
            raise ValueError("broke at two [/]")
        return super().step(action)


class Exiting(Counter):
    def step(self, action: Action) -> StepResult:
        sys.exit(3)


class FailingCleanup(Counter):
    def cleanup(self) -> None:
        super().cleanup()
        raise RuntimeError("stuck valve")


class HangingCleanup(Counter):
    async def cleanup(self) -> None:  # type: ignore[override]
        super().cleanup()
        await asyncio.Event().wait()


class FailingHangingCleanup(HangingCleanup):
    def step(self, action: Action) -> StepResult:
        raise ValueError("broke at one")


class NanReward(Counter):
    def step(self, action: Action) -> StepResult:
        return [user("?")], float("nan"), False


class ShapelessStep(Counter):
    def step(self, action: Action) -> StepResult:
        return "at 1"  # type: ignore[return-value]


class Truncating(Counter):
    truncated = True

    def step(self, action: Action) -> StepResult:
        return [user("out of moves")], 0.0, True


class Evaluated(Counter):
    async def get_evaluation_details(self) -> dict[str, Any]:
        return {"count": self.count, "notes": ["fine"]}


class Gated(Counter):
    """Releases ``entered`` when a step starts, then blocks until ``gate`` is released."""

    gate = threading.Semaphore(0)
    entered = threading.Semaphore(0)

    def __init__(self, **kwargs: Any) -> None:  # noqa: ANN401
        super().__init__(**kwargs)
        self._gate, self._entered = Gated.gate, Gated.entered

    @classmethod
    def reset_gate(cls) -> None:
        """Release all blocked steps, and create new semaphores."""
        cls.gate.release(1000)
        cls.gate, cls.entered = threading.Semaphore(0), threading.Semaphore(0)

    def step(self, action: Action) -> StepResult:
        self._entered.release()
        if not self._gate.acquire(timeout=30):
            raise TimeoutError("the test never opened the gate")
        return super().step(action)


class AsyncHanging(Counter):
    """Its async step never returns, as with a lost connection."""

    entered = threading.Semaphore(0)

    async def step(self, action: Action) -> StepResult:  # type: ignore[override]
        AsyncHanging.entered.release()
        await asyncio.Event().wait()
        raise AssertionError("unreachable")


class UpAgent:
    closed: ClassVar[list[str]] = []

    def __init__(self, **_: object) -> None:
        self.tracer: Any = None

    def init_after_reset(self) -> None:
        pass

    def act(self, observation: Chat, tool_schemas: list[ToolSchema]) -> tuple[list[Chat], Action]:
        return [[*observation, {"role": "assistant", "content": "up"}]], Action(text="up")

    def close(self) -> None:
        UpAgent.closed.append("UpAgent")


class AsyncUpAgent(UpAgent):
    async def act(  # type: ignore[override]
        self, observation: Chat, tool_schemas: list[ToolSchema]
    ) -> tuple[list[Chat], Action]:
        await asyncio.sleep(0)
        return super().act(observation, tool_schemas)


class BindingAsync(UpAgent):
    bound: ClassVar[list[object]] = []

    async def bind(self, environment: object, reset_kwargs: object) -> None:
        BindingAsync.bound.append(reset_kwargs)


class FixedTextAgent(UpAgent):
    def __init__(self, *, text: str) -> None:
        super().__init__()
        self._text = text

    def act(self, observation: Chat, tool_schemas: list[ToolSchema]) -> tuple[list[Chat], Action]:
        return [[*observation]], Action(text=self._text)


class MutatingAgent(UpAgent):
    """Changes the lists that it receives and returns."""

    def __init__(self, **_: object) -> None:
        super().__init__()
        self._chat: Chat = []

    def act(self, observation: Chat, tool_schemas: list[ToolSchema]) -> tuple[list[Chat], Action]:
        self._chat += observation
        observation.clear()
        tool_schemas.clear()
        return [self._chat], Action(text="up")


class FlowRaising(UpAgent):
    @property
    def last_response_flow_id(self) -> int | None:
        raise RuntimeError("no flow")


class FailingInit(UpAgent):
    async def init_after_reset(self) -> None:  # type: ignore[override]
        raise ConnectionError("no model")


class TwoChats(UpAgent):
    """Holds two chats per step and calls a tool; knows the flow of its last response."""

    last_response_flow_id = 77

    def act(self, observation: Chat, tool_schemas: list[ToolSchema]) -> tuple[list[Chat], Action]:
        call = ToolCall("c1", "up", "{}")
        return [[user("plan")], [*observation]], Action(tool_calls=[call])


class InferenceAgent(UpAgent):
    """Stores the inference manager that it receives."""

    managers: ClassVar[list[object]] = []

    def __init__(self, *, inference_mngr: object) -> None:
        super().__init__()
        InferenceAgent.managers.append(inference_mngr)
