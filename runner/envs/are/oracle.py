"""The oracle of ARE's scenarios: ``AREOracle``."""

from __future__ import annotations

import json
from collections.abc import Callable

from runner.envs.are.protocol import ToolRequest
from runner.errors import AgentFault


class AREOracle:
    """Oracle that returns the actions of the scenario's own oracle events, and waits until each is due.

    The worker computes the next action after each step, because ids such as that of a task are drawn when the scenario
    is initialized.

    Args:
        next_request: returns the next action; None if the scenario has ended or an oracle event calls no tool.
    """

    def __init__(self, next_request: Callable[[], ToolRequest | None]) -> None:
        self._next_request = next_request

    def next_action(self) -> str:
        """Return the text of the next action.

        Raises:
            AgentFault: if there is none.
        """
        request = self._next_request()
        if request is None:
            raise AgentFault("The scenario's next oracle event calls a function that is no tool of its agent")
        return action_text(request.name, request.arguments)


def action_text(name: str, arguments: object) -> str:
    """Return a tool call as the text of an action: a JSON object with the name and the arguments."""
    return json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
