"""Base class of the environments played in this process; each step is one command, given as a tool call or as text."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Final

from runner.envs.command_grammar import Grammar
from runner.errors import EnvironmentFault
from runner.types import Action, Chat, InvalidAction, Mode, Rejection, StepResult, ToolSchema, Trajectory

_REFUSALS: Final[Mapping[str, re.Pattern[str]]] = {
    "BabyAI": re.compile(
        r"The action is not recognized\. |You cannot |There is a barrier in front of you, you can't move forward\."
    ),
    "TextCraft": re.compile("Could not |Wrong item format: "),
    "Wordle": re.compile("invalid word"),
    "ALFWorld": re.compile(r"Nothing happens\."),
    "SQLGym": re.compile(r"(?!\[)"),  # rows are shown as a list in Python; anything else is the error of the query
    "SciWorld": re.compile(r"No known action matches that input\."),
}
"""Environment -> beginning of the observations that refuse an action. A maze refuses no move."""

StepText = tuple[str, float, bool]
"""``(observation, reward, done)`` of one step."""

_SEPARATOR: Final = " [SEP] "
_CLICK: Final = "click["


def is_refusal(env: str, observation: str) -> bool:
    """Return whether an observation refuses the action before it, in an environment whose texts show that."""
    pattern = _REFUSALS.get(env)
    return pattern is not None and pattern.match(observation) is not None


def is_lost_click(command: str, page: str, next_page: str) -> bool:
    """Return whether a click in WebShop hit nothing, by the texts of the page that was clicked and of the next one.

    Of other clicks, only one on a value of an option shows the same page again. Values and names of options look alike
    in the text, so a click on a name counts as one on a value, except on the first name and those in the instruction.
    """
    start = command.find(_CLICK)
    if start < 0 or page != next_page:
        return False
    label = command[start + len(_CLICK) :].rpartition("]")[0].lower()
    pieces = page.lower().split(_SEPARATOR.lower())
    if "< prev" not in pieces:
        return True
    shown = pieces[pieces.index("< prev") + 2 :]
    prices = [index for index, piece in enumerate(shown) if piece.startswith("price: ")]
    instruction = pieces[1] if len(pieces) > 1 else ""
    return not prices or label not in shown[: max(prices[0] - 1, 0)] or f" {label}: " in instruction


class EmbeddedEnvironment(ABC):
    """A text environment that runs in this process.

    ``mode`` is ``strict`` (the published rules) or ``compat`` (the rules of AgentGym's servers, quirks included). A
    subclass defines ``name``, ``n_tasks``, ``grammar`` and the hooks ``_reset`` and ``_step``, which return plain text.
    """

    name: ClassVar[str]
    n_tasks: int
    grammar: Grammar
    data_label: ClassVar[str] = ""
    packages: ClassVar[tuple[str, ...]] = ()
    """Distributions that the environment needs in addition to the runner's own; each episode records their versions."""
    blocks_briefly: ClassVar[bool] = False
    """Whether every method returns within about a millisecond: a worker then runs it on the event loop of its episodes.

    Subclasses do not inherit the value, because their methods may take longer.
    """
    rejection: Rejection | None = None
    """How the latest step rejected its action; None if it executed the action."""
    steps_after_end: ClassVar[bool] = False
    """Whether steps after the end of an episode are executed in compat mode, as on some of AgentGym's servers."""

    def __init__(self, *, mode: Mode = "strict") -> None:
        self.mode = mode
        self.task_index = 0
        self._running = False
        self.truncated = False
        """Whether the episode ended at the environment's own step limit."""

    @abstractmethod
    def _reset(self, task_index: int) -> str:
        """Start task ``task_index`` (0 <= index < n_tasks) and return the first observation."""

    @abstractmethod
    def _step(self, text: str) -> StepText:
        """Execute a command text, which may be malformed."""

    def _has_refused(self, observation: str) -> bool:
        return is_refusal(self.name, observation)

    def reset(self, *, task_index: int = 0, seed: int | None = None, **extra: Any) -> Chat:  # noqa: ANN401
        """Start task ``task_index`` modulo ``n_tasks``; ``seed`` and ``extra`` are ignored."""
        self.task_index = task_index % self.n_tasks
        self.truncated = False
        observation = self._reset(self.task_index)
        self._running = True
        return [{"role": "user", "content": observation}]

    def step(self, action: Action) -> StepResult:
        """Take one action; a text is passed to ``_step`` unchanged, even if it is invalid.

        A tool call that does not match the tool's schema leaves the task unchanged, and the observation describes a
        valid action.
        """
        if not self._running:
            raise EnvironmentFault(f"{self.name}: step called outside an episode; call reset first")
        command = self.grammar.render(action.tool_calls[0]) if action.tool_calls else action.text or ""
        if isinstance(command, InvalidAction):
            observation, reward, done = f"Invalid action. Expected {command.expected}.", 0.0, False
            self.rejection = "invalid"
        else:
            observation, reward, done = self._step(command)
            self.rejection = "refused" if self._has_refused(observation) else None
        self._running = not done or (self.steps_after_end and self.mode == "compat")
        return as_reply_messages(action, observation), reward, done

    def get_tool_schemas(self) -> list[ToolSchema]:
        return self.grammar.schemas

    def get_episode_id(self) -> str:
        return f"{self.name}-{self.task_index}"

    def admissible_actions(self) -> list[str] | None:
        return None

    def parse(self, text: str) -> Action | InvalidAction:
        return self.grammar.parse(text)

    def success(self, trajectory: Trajectory) -> bool:
        return any(step.reward > 0 for step in trajectory.timesteps)

    def cleanup(self) -> None:
        """A later ``reset`` starts a new episode."""
        self._running = False


def as_reply_messages(action: Action, observation: str) -> Chat:
    """Return an observation as the messages that answer ``action``: one per tool call, or a user message for a text."""
    if not action.tool_calls:
        return [{"role": "user", "content": observation}]
    not_executed = "Not executed: one action per step."
    texts = [observation] + [not_executed] * (len(action.tool_calls) - 1)
    answers = zip(action.tool_calls, texts, strict=True)
    return [{"role": "tool", "content": text, "tool_call_id": call.id} for call, text in answers]
