"""An episode that the oracle follows on a twin of its own."""

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


_NOT_TAKEN = "Invalid action. Expected "
"""Said when the environment never saw the action."""


_MARK = re.compile(r"\bAction:", re.IGNORECASE)


class Turn(NamedTuple):
    """An action of the model and all that was said after it; a call as its tool and arguments, else a text."""

    tool_call: tuple[str, str] | None
    text: str
    observation: str

    @property
    def action(self) -> Action:
        """The action as an environment takes it."""
        if self.tool_call is None:
            return Action(text=self.text)
        return Action(tool_calls=[ToolCall("call_0", *self.tool_call)])

    @property
    def action_key(self) -> tuple[tuple[str, str] | None, str]:
        """The action alone, to be compared."""
        return self.tool_call, self.text if self.tool_call is None else ""


def parse_turns(messages: Sequence[ChatMessage]) -> tuple[Turn, ...]:
    """The turns of the messages that follow an opening, without those that the environment never saw."""
    turns: list[Turn] = []
    for message in messages:
        if message.role == ASSISTANT:
            turns.append(_turn(message))
        elif turns:
            turns[-1] = turns[-1]._replace(
                observation=f"{turns[-1].observation} {normalize_whitespace(message.text)}".strip()
            )
    return tuple(turn for turn in turns if _NOT_TAKEN not in turn.observation)


def _turn(message: ChatMessage) -> Turn:
    for call in message.tool_calls or ():
        return Turn((call.function.name, call.function.arguments), "", "")
    return Turn(None, _MARK.split(message.text)[-1].strip(), "")


@dataclass
class ReplaySession:
    """A twin after some turns, its planner, and the plan for the next turn once one was asked for.

    Attributes:
        others: further tasks that the conversation may be about, should it turn out not to be this one.
        checked: whether what the twin shows has to be what the conversation says.
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
        """Play a turn on the twin; whether it went as the conversation says."""
        chat, _, self.done = self.twin.step(turn.action)
        self.turns, self.plan = (*self.turns, turn), None
        return not self.verify or observation_text(chat) in turn.observation

    def next_action(self) -> str:
        """The planner's next action; the same until a turn is taken."""
        if self.plan is None:
            self.plan = self.planner.next_action()
        return self.plan


def replay_turns(candidates: Iterable[TaskCandidate], turns: tuple[Turn, ...], *, verify: bool) -> ReplaySession | None:
    """A session of the first of the tasks in which these turns go as the conversation says."""
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
    went: list[bool] = []
    with catch_foreign(lambda exc: went.append(False)):  # a step after the end, for one
        went.append(all(session.apply_turn(turn) for turn in turns))
    return went[0]
