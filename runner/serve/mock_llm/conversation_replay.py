"""Replay of a conversation: its turns, and a session that applies them to a second instance of the environment."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from runner.envs.base import EmbeddedEnvironment
from runner.errors import catch_foreign
from runner.serve.mock_llm.chat_format import ChatMessage
from runner.serve.mock_llm.task_matcher import TaskCandidate, make_environment, normalize_whitespace, observation_text
from runner.types import Action, OraclePlanner, SupportsOracle, ToolCall

ASSISTANT = "assistant"

_REJECTED_ACTION = "Invalid action. Expected "
"""Start of the message for an action that the runner rejects before the environment receives it."""
_ACTION_MARK = re.compile(r"\bAction:", re.IGNORECASE)


class Turn(NamedTuple):
    """An action of the model and the messages after it.

    Attributes:
        tool_call: name and arguments of the tool, if the action is a tool call.
        text: the action, if it is a text.
        observation: the messages until the next action, with single spaces.
    """

    tool_call: tuple[str, str] | None
    text: str
    observation: str

    @property
    def action(self) -> Action:
        """The action in the form that environments accept."""
        if self.tool_call is None:
            return Action(text=self.text)
        return Action(tool_calls=[ToolCall("call_0", *self.tool_call)])

    @property
    def action_key(self) -> tuple[tuple[str, str] | None, str]:
        """The action without its observation, for comparison."""
        return self.tool_call, self.text if self.tool_call is None else ""


def parse_turns(messages: Sequence[ChatMessage]) -> tuple[Turn, ...]:
    """Return the turns after the first observation, without actions that never reached the environment."""
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


@dataclass
class ReplaySession:
    """A conversation replayed on a twin: a second instance of the environment, which the oracle plans on.

    Attributes:
        candidate: the task.
        twin: the instance, after ``turns``.
        planner: the oracle's planner over the twin.
        remaining: other tasks with the same first observation, tried if this one diverges.
        verify: whether the twin's observations must match the conversation's.
        turns: the turns applied so far.
        done: whether the episode has ended.
        plan: the next action, once computed.
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
        """Step the twin; return whether its observation matches the conversation."""
        chat, _, self.done = self.twin.step(turn.action)
        self.turns, self.plan = (*self.turns, turn), None
        return not self.verify or observation_text(chat) in turn.observation

    def next_action(self) -> str:
        """Return the planner's next action; it stays the same until a turn is applied."""
        if self.plan is None:
            self.plan = self.planner.next_action()
        return self.plan


def replay_turns(candidates: Iterable[TaskCandidate], turns: tuple[Turn, ...], *, verify: bool) -> ReplaySession | None:
    """Return a session of the first candidate whose observations match these turns; None if there is none."""
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
