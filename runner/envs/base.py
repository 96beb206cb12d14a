"""What the embedded text environments have in common: tasks by index, one command a step, tool or text alike."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from runner.envs.grammar import Grammar
from runner.errors import EnvironmentFault
from runner.types import Action, Chat, InvalidAction, Message, Mode, StepResult, ToolSchema, Trajectory


class EmbeddedEnvironment(ABC):
    """A text environment in this process.

    ``mode`` is ``strict`` (the rules as published) or ``compat`` (AgentGym's servers with their quirks). A subclass
    gives ``name``, ``n_tasks``, a grammar and the two hooks ``_reset`` and ``_step``; both deal in plain texts.
    """

    name: ClassVar[str]
    n_tasks: int
    data_label: ClassVar[str] = ""
    packages: ClassVar[tuple[str, ...]] = ()
    """Distributions it needs beyond the runner's own; their versions are kept with each episode."""

    def __init__(self, *, mode: Mode = "strict") -> None:
        """Prepare an instance; nothing is drawn or loaded for a task before ``reset``."""
        self.mode = mode
        self.task_index = 0
        self._running = False
        self._truncated = False

    @property
    @abstractmethod
    def grammar(self) -> Grammar:
        """The commands of this environment."""

    @abstractmethod
    def _reset(self, task_index: int) -> str:
        """Start task ``task_index`` (0 <= index < n_tasks) and return the first observation."""

    @abstractmethod
    def _step(self, text: str) -> StepText:
        """Take a command text, however malformed, and return ``(observation, reward, done)``."""

    def reset(self, *, task_index: int = 0, seed: int | None = None, **extra: Any) -> Chat:  # noqa: ANN401
        """Start a task; ``seed`` and the task description in ``extra`` change nothing here."""
        self.task_index = task_index % self.n_tasks
        self._truncated = False
        observation = self._reset(self.task_index)
        self._running = True
        return [{"role": "user", "content": observation}]

    def step(self, action: Action) -> StepResult:
        """Take one action.

        A tool call that does not fit its schema is answered with what was expected and leaves the task as it was; a
        text goes to the environment as it is, which has its own answer to nonsense.

        Raises:
            EnvironmentFault: before ``reset`` or after the episode is done.
        """
        if not self._running:
            raise EnvironmentFault(f"{self.name} was asked to step outside an episode; call reset first")
        command = self.grammar.render(action.tool_calls[0]) if action.tool_calls else action.text or ""
        if isinstance(command, InvalidAction):
            observation, reward, done = f"Invalid action. Expected {command.expected}.", 0.0, False
        else:
            observation, reward, done = self._step(command)
        self._running = not done
        return as_reply_messages(action, observation), reward, done

    def get_tool_schemas(self) -> list[ToolSchema]:
        """The environment's commands as tools; the same at every step."""
        return self.grammar.schemas

    def get_episode_id(self) -> str:
        """The environment and the task index, e.g. ``Maze-3``."""
        return f"{self.name}-{self.task_index}"

    def admissible_actions(self) -> list[str] | None:
        """Valid action texts, or None where they cannot be listed."""
        return None

    def parse(self, text: str) -> Action | InvalidAction:
        """The tool call that an action text means."""
        return self.grammar.parse(text)

    def success(self, trajectory: Trajectory) -> bool:
        """Whether any step was rewarded."""
        return any(step.reward > 0 for step in trajectory.timesteps)

    @property
    def truncated(self) -> bool:
        """Whether the episode ended by the environment's own step limit."""
        return self._truncated

    def cleanup(self) -> None:
        """End the episode; the instance can be reset again."""
        self._running = False


StepText = tuple[str, float, bool]


def as_reply_messages(action: Action, observation: str) -> Chat:
    """An observation as the chat messages that answer ``action``: one per tool call, else one user message."""
    if not action.tool_calls:
        return [{"role": "user", "content": observation}]
    unplayed = "Not executed: one action per step."
    texts = [observation] + [unplayed] * (len(action.tool_calls) - 1)
    return [_tool_message(call.id, text) for call, text in zip(action.tool_calls, texts, strict=True)]


def _tool_message(call_id: str, text: str) -> Message:
    return {"role": "tool", "content": text, "tool_call_id": call_id}
