"""Recognition of the task of a conversation, and replay of its actions on a second instance, the twin.

A task is recognized by its first observation, with an index of tasks that is built on demand.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import NamedTuple, get_args

import msgspec

from runner import plugins
from runner.envs.base import EmbeddedEnvironment
from runner.errors import ConfigError, catch_foreign
from runner.serve.mock_llm.chat_format import ChatMessage
from runner.types import Action, Chat, Mode, OraclePlanner, SupportsOracle, ToolCall

ASSISTANT = "assistant"

_REJECTED_ACTION = "Invalid action. Expected "
"""Beginning of the message after an action that the runner rejected without stepping the environment."""
_ACTION_MARK = re.compile(r"\bAction:", re.IGNORECASE)

MAX_TASKS_SEARCHED = 200
"""Maximum number of tasks of an environment in the index, counted from its first task."""
MAX_TASKS_SEARCHED_FAST = 4000
"""Maximum number of tasks in the index for an environment whose reset is fast."""
_FAST = frozenset({"TextCraft", "WebShop", "Wordle"})
_SLOW = frozenset({"BabyAI"})
"""Environments whose reset is slow; they are searched last."""

MODES: tuple[Mode, ...] = get_args(Mode)


class TaskCandidate(NamedTuple):
    env: str
    mode: Mode
    task_index: int


class Opening(NamedTuple):
    """The first observation of a task (``text``) and the environment it belongs to."""

    env: str
    text: str


class TaskMatcher:
    """Index of the first observations of all environments with an oracle; not thread-safe."""

    def __init__(self) -> None:
        self._index: dict[tuple[str, Mode], dict[str, list[int]]] = {}
        self.find = lru_cache(maxsize=256)(self._find)

    def _find(self, text: str) -> Opening | None:
        for mode in MODES:
            for env in environments():
                if matches := [opening for opening in self._openings(env, mode) if opening in text]:
                    return Opening(env, max(matches, key=len))
        return None

    def candidates(self, opening: Opening) -> Iterator[TaskCandidate]:
        for mode in MODES:
            for task_index in self._openings(opening.env, mode).get(opening.text, ()):
                yield TaskCandidate(opening.env, mode, task_index)

    def _openings(self, env: str, mode: Mode) -> dict[str, list[int]]:
        if (env, mode) not in self._index:
            openings: dict[str, list[int]] = {}
            twin = make_environment(env, mode)
            for task_index in range(min(twin.n_tasks, MAX_TASKS_SEARCHED_FAST if env in _FAST else MAX_TASKS_SEARCHED)):
                openings.setdefault(observation_text(twin.reset(task_index=task_index)), []).append(task_index)
            self._index[env, mode] = openings
        return self._index[env, mode]


def environments() -> list[str]:
    """Slow environments come last."""
    return sorted(filter(_has_oracle, plugins.registered_names(plugins.ENVS)), key=lambda name: name in _SLOW)


def make_environment(env: str, mode: Mode) -> EmbeddedEnvironment:
    if not _has_oracle(env):
        raise ConfigError(f"No embedded environment named {env} has an oracle")
    environment: EmbeddedEnvironment = plugins.load(plugins.ENVS, env)(mode=mode)
    return environment


def observation_text(chat: Chat) -> str:
    return normalize_whitespace(" ".join(message["content"] or "" for message in chat))


def _has_oracle(env: str) -> bool:
    with suppress(ConfigError):  # a third-party environment that cannot be imported
        kind = plugins.load(plugins.ENVS, env)
        return isinstance(kind, type) and issubclass(kind, EmbeddedEnvironment) and hasattr(kind, "oracle")
    return False


def normalize_whitespace(text: str) -> str:
    """Agents and gateways change whitespace in messages."""
    return " ".join(text.split())


class Turn(NamedTuple):
    """An action of the model and the observation that follows it in a conversation.

    Attributes:
        observation: text of the messages until the next action, with single spaces.
    """

    tool_call: tuple[str, str] | None
    text: str
    observation: str

    @property
    def action(self) -> Action:
        if self.tool_call is None:
            return Action(text=self.text)
        return Action(tool_calls=[ToolCall("call_0", *self.tool_call)])

    @property
    def action_key(self) -> tuple[tuple[str, str] | None, str]:
        """Equal for turns with the same action, whatever their observations."""
        return self.tool_call, self.text if self.tool_call is None else ""


def parse_turns(messages: Sequence[ChatMessage]) -> tuple[Turn, ...]:
    """Leave out actions that the runner rejected."""
    turns: list[Turn] = []
    for message in messages:
        if message.role == ASSISTANT:
            turns.append(_turn(message))
        elif turns:
            turns[-1] = turns[-1]._replace(
                observation=f"{turns[-1].observation} {normalize_whitespace(message.text)}".strip()
            )
    return tuple(turn for turn in turns if _REJECTED_ACTION not in turn.observation)


def _turn(message: ChatMessage) -> Turn:
    for call in message.tool_calls or ():
        return Turn((call.function.name, call.function.arguments), "", "")
    return Turn(None, _ACTION_MARK.split(message.text)[-1].strip(), "")


class ReplaySession(msgspec.Struct):
    """A conversation that is replayed on a twin, i.e. a second instance of the environment with an oracle.

    Attributes:
        remaining: other tasks with the same first observation, for the case that ``candidate`` is wrong.
        verify: whether the observations of the twin must match those of the conversation.
        plan: the next action of the planner; None if it is not computed yet.
    """

    candidate: TaskCandidate
    twin: EmbeddedEnvironment
    planner: OraclePlanner
    remaining: Iterator[TaskCandidate]
    verify: bool
    turns: tuple[Turn, ...] = ()
    done: bool = False
    plan: str | None = None

    def apply_turn(self, turn: Turn) -> bool:
        """Return whether the observation of the twin matches that of the turn."""
        chat, _, self.done = self.twin.step(turn.action)
        self.turns, self.plan = (*self.turns, turn), None
        return not self.verify or observation_text(chat) in turn.observation

    def next_action(self) -> str:
        """Repeated calls return the same action until a turn is applied."""
        if self.plan is None:
            self.plan = self.planner.next_action()
        return self.plan


def replay_turns(candidates: Iterable[TaskCandidate], turns: tuple[Turn, ...], *, verify: bool) -> ReplaySession | None:
    """Return a session after these turns for the first candidate whose observations match; None if none matches."""
    remaining = iter(candidates)
    for candidate in remaining:
        session = _start_session(candidate, remaining, verify=verify)
        if session is not None and _replay_all(session, turns):
            return session
    return None


def _start_session(
    candidate: TaskCandidate, remaining: Iterator[TaskCandidate], *, verify: bool
) -> ReplaySession | None:
    twin = make_environment(candidate.env, candidate.mode)
    twin.reset(task_index=candidate.task_index)
    if not isinstance(twin, SupportsOracle):
        return None
    return ReplaySession(candidate, twin, twin.oracle(None), remaining, verify)


def _replay_all(session: ReplaySession, turns: tuple[Turn, ...]) -> bool:
    results: list[bool] = []
    with catch_foreign(lambda exc: results.append(False)):  # such as a step after the end of the episode
        results.append(all(session.apply_turn(turn) for turn in turns))
    return results[0]
