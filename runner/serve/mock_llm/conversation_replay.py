"""Replay of a conversation: its actions are applied to a second instance of the environment, the twin."""

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
"""Beginning of the message after an action that the runner rejected without stepping the environment."""
_ACTION_MARK = re.compile(r"\bAction:", re.IGNORECASE)


class Turn(NamedTuple):
    """An action of the model and the observation that follows it in a conversation.

    Attributes:
        tool_call: name and arguments of the called tool; None if the action is a text.
        text: the action as text; empty if the action is a tool call.
        observation: text of the messages until the next action, with single spaces.
    """

    tool_call: tuple[str, str] | None
    text: str
    observation: str

    @property
    def action(self) -> Action:
        """The action as an object for ``step`` of an environment."""
        if self.tool_call is None:
            return Action(text=self.text)
        return Action(tool_calls=[ToolCall("call_0", *self.tool_call)])

    @property
    def action_key(self) -> tuple[tuple[str, str] | None, str]:
        """A value that is equal for turns with the same action, whatever their observations."""
        return self.tool_call, self.text if self.tool_call is None else ""


def parse_turns(messages: Sequence[ChatMessage]) -> tuple[Turn, ...]:
    """Return the turns in messages after the first observation, without actions that the runner rejected."""
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
    """A conversation that is replayed on a twin, i.e. a second instance of the environment with an oracle.

    Attributes:
        candidate: the task that the conversation is assumed to have.
        twin: the second instance, to which ``turns`` have been applied.
        planner: the oracle's planner, which reads the state of the twin.
        remaining: other tasks with the same first observation, for the case that ``candidate`` is wrong.
        verify: whether the observations of the twin must match those of the conversation.
        turns: the turns that were applied to the twin.
        done: whether the episode has ended.
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
        """Apply a turn to the twin; return whether the observation of the twin matches that of the turn."""
        chat, _, self.done = self.twin.step(turn.action)
        self.turns, self.plan = (*self.turns, turn), None
        return not self.verify or observation_text(chat) in turn.observation

    def next_action(self) -> str:
        """Return the next action of the planner; repeated calls return the same action until a turn is applied."""
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
