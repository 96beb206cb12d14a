"""A sample third-party environment: it implements the runner's protocol without any of its base classes."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

from runner.types import Action, Chat, InvalidAction, Mode, StepResult, ToolCall, ToolSchema, Trajectory

_TEXT = re.compile(r"subtract ([123])", re.ASCII)
_EXPECTED = "subtract 1, subtract 2 or subtract 3"
_TOOL: ToolSchema = {
    "type": "function",
    "function": {
        "name": "subtract",
        "description": "Subtract a number from the counter.",
        "parameters": {
            "type": "object",
            "properties": {"n": {"type": "integer", "minimum": 1, "maximum": 3}},
            "required": ["n"],
            "additionalProperties": False,
        },
    },
}


class Countdown:
    """Count down from ``5 + i`` in task ``i``: exactly zero is rewarded with 1, a negative count with 0."""

    n_tasks = 20

    def __init__(self, *, mode: Mode = "strict") -> None:
        """Create the environment; both modes have the same rules."""
        self.mode = mode
        self.count = 0
        self._start = 0

    async def reset(self, *, task_index: int = 0, **extra: Any) -> Chat:  # noqa: ANN401 - additional arguments of the caller
        """Set the counter to the start of the task."""
        self.count = self._start = 5 + task_index % self.n_tasks
        return _chat(f"Bring the counter to exactly 0. It is at {self.count}. You can {_EXPECTED}.")

    async def step(self, action: Action) -> StepResult:
        """Subtract the number of the action, if it is valid."""
        await asyncio.sleep(0)  # a real environment would await a request here
        amount = _amount_of_call(action.tool_calls[0]) if action.tool_calls else _amount_of_text(action.text or "")
        if amount is None:
            return _chat(f"That is not possible; {_EXPECTED}."), 0.0, False
        self.count -= amount
        return _chat(f"The counter is at {self.count}."), float(self.count == 0), self.count <= 0

    def get_tool_schemas(self) -> list[ToolSchema]:
        """Return the schema of the only tool."""
        return [_TOOL]

    def get_episode_id(self) -> str:
        """Return an id with the start value."""
        return f"countdown from {self._start}"

    def admissible_actions(self) -> list[str]:
        """Return the three possible actions."""
        return [f"subtract {n}" for n in (1, 2, 3)]

    def parse(self, text: str) -> Action | InvalidAction:
        """Convert ``text`` to a tool call."""
        amount = _amount_of_text(text)
        if amount is None:
            return InvalidAction(text, _EXPECTED)
        return Action(text=text, tool_calls=[ToolCall(id="call_0", name="subtract", arguments=f'{{"n": {amount}}}')])

    def success(self, trajectory: Trajectory) -> bool:
        """Return whether the counter reached zero."""
        return any(step.reward == 1.0 for step in trajectory.timesteps)

    async def cleanup(self) -> None:
        """Release nothing: there are no resources."""

    def oracle(self, seed: int | None) -> CountdownOracle:
        """Return a planner for this instance."""
        return CountdownOracle(self)


class CountdownOracle:
    """Plans the largest possible subtraction."""

    def __init__(self, environment: Countdown) -> None:
        """Plan for ``environment``, which the caller steps."""
        self._environment = environment

    def next_action(self) -> str:
        """Return the largest subtraction that does not go below zero."""
        return f"subtract {min(3, self._environment.count)}"


def _amount_of_text(text: str) -> int | None:
    match = _TEXT.fullmatch(text)
    return int(match[1]) if match else None


def _amount_of_call(call: ToolCall) -> int | None:
    try:
        arguments = json.loads(call.arguments)
    except (ValueError, RecursionError):
        return None
    amount = arguments.get("n") if isinstance(arguments, dict) else None
    return amount if call.name == "subtract" and type(amount) is int and 1 <= amount <= 3 else None


def _chat(text: str) -> Chat:
    return [{"role": "user", "content": text}]
