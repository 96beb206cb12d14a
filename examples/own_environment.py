"""An environment of your own: guess a number, with "higher" and "lower" as the answers.

python own_environment.py                                                # checks it as a run would use it
agentgym-runner --run own_environment:GuessNumber --agent random         # from this folder
agentgym-runner --run own_environment:GuessNumber --endpoint URL --model NAME
"""

import re
from typing import Annotated

import msgspec

from runner.testing import check_env
from runner.types import Action, Chat, StepResult, ToolSchema

EXPECTED = "guess N, with N from 1 to 20"


class Guess(msgspec.Struct):
    """The arguments of the only tool; its schema follows from them."""

    n: Annotated[int, msgspec.Meta(ge=1, le=20)]


_, SCHEMAS = msgspec.json.schema_components([Guess])
TOOL: ToolSchema = {
    "type": "function",
    "function": {"name": "guess", "description": "Guess the number.", "parameters": SCHEMAS["Guess"]},
}


class GuessNumber:
    """Task `i` hides a number that follows from `i`; the right guess is rewarded with 1 and ends the episode."""

    n_tasks = 20

    def reset(self, *, task_index: int = 0, **others: object) -> Chat:
        self.number = 7 * task_index % 20 + 1
        return [{"role": "user", "content": f"I think of a number from 1 to 20. Write {EXPECTED}."}]

    def step(self, action: Action) -> StepResult:
        guess = self._guess(action)
        if guess is None:
            return [{"role": "user", "content": f"That is not possible; write {EXPECTED}."}], 0.0, False
        answer = "Right." if guess == self.number else "Higher." if guess < self.number else "Lower."
        return [{"role": "user", "content": answer}], float(guess == self.number), guess == self.number

    def get_tool_schemas(self) -> list[ToolSchema]:
        return [TOOL]

    def get_episode_id(self) -> str:
        return f"guess {self.number}"

    def admissible_actions(self) -> list[str]:
        """Optional: with it, the agent `random` can play."""
        return [f"guess {n}" for n in range(1, 21)]

    def _guess(self, action: Action) -> int | None:
        """Read a model's action, which may be anything: a call of any tool with any arguments, or any text."""
        match = re.fullmatch(r"guess ([0-9]{1,2})", action.text or "")
        arguments = action.tool_calls[0].arguments if action.tool_calls else f'{{"n": {match[1]}}}' if match else ""
        try:
            return msgspec.json.decode(arguments, type=Guess).n
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return None


if __name__ == "__main__":
    check_env(GuessNumber)
    print("GuessNumber keeps the contract")
