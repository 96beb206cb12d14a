"""The oracle as a model: recognize a conversation's task, replay its actions on a twin, reply with the next action.

A task is recognized by its first observation, with an index of tasks that is built on demand.
"""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache
from typing import NamedTuple, get_args

import msgspec

from runner import plugins
from runner.envs.base import EmbeddedEnvironment
from runner.errors import ConfigError, RunnerError, catch_foreign
from runner.serve.mock_llm.completion import TEST_MODEL_NAME, ChatMessage, ChatRequest
from runner.serve.mock_llm.script import ScriptedCall, ScriptedReply
from runner.types import Action, Chat, Mode, OraclePlanner, SupportsOracle, ToolCall
from runner.util.display_text import one_line

THOUGHT = "The test oracle has planned this."
ORACLE_MODEL_PREFIX = "oracle:"
"""Prefix of a model name that selects the task: ``oracle:<environment>:<task index>``."""
OMITTED_TURNS = re.compile(r"\[(\d{1,9}) earlier turns? left out]")
"""Text that the runner's agents insert for the turns that they omit because of the context window."""
MAX_SESSIONS = 256
MAX_MESSAGES_SEARCHED = 10
"""Number of messages, from the first, among which the first observation must be."""
MAX_TASKS_SEARCHED = 200
"""Maximum number of tasks of an environment in the index, counted from its first task."""
MAX_TASKS_SEARCHED_FAST = 4000
"""Maximum number of tasks in the index for an environment whose reset is fast."""
_FAST = frozenset({"TextCraft", "WebShop", "Wordle"})
_SLOW = frozenset({"BabyAI"})
"""Environments whose reset is slow; they are searched last."""
_REJECTED_ACTION = "Invalid action. Expected "
"""Beginning of the message after an action that the runner rejected without stepping the environment."""
_ACTION_MARK = re.compile(r"\bAction:", re.IGNORECASE)

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
        names = sorted(filter(_has_oracle, plugins.registered_names(plugins.ENVS)), key=lambda name: name in _SLOW)
        for mode, env in itertools.product(MODES, names):
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
            twin = _make_environment(env, mode)
            for task_index in range(min(twin.n_tasks, MAX_TASKS_SEARCHED_FAST if env in _FAST else MAX_TASKS_SEARCHED)):
                openings.setdefault(_observation_text(twin.reset(task_index=task_index)), []).append(task_index)
            self._index[env, mode] = openings
        return self._index[env, mode]


def _has_oracle(env: str) -> bool:
    with suppress(ConfigError):  # a third-party environment that cannot be imported
        kind = plugins.load(plugins.ENVS, env)
        return isinstance(kind, type) and issubclass(kind, EmbeddedEnvironment) and hasattr(kind, "oracle")
    return False


def _make_environment(env: str, mode: Mode) -> EmbeddedEnvironment:
    if not _has_oracle(env):
        raise ConfigError(f"No embedded environment named {env} has an oracle")
    environment: EmbeddedEnvironment = plugins.load(plugins.ENVS, env)(mode=mode)
    return environment


def _observation_text(chat: Chat) -> str:
    return _normalize_whitespace(" ".join(message["content"] or "" for message in chat))


def _normalize_whitespace(text: str) -> str:
    """Agents and gateways change whitespace in messages."""
    return " ".join(text.split())


class Turn(NamedTuple):
    """An action of the model, and the text of the messages until the next action, with single spaces."""

    tool_call: tuple[str, str] | None
    text: str
    observation: str = ""

    @property
    def action(self) -> Action:
        if self.tool_call is None:
            return Action(text=self.text)
        return Action(tool_calls=[ToolCall("call_0", *self.tool_call)])


def _parse_turns(messages: Sequence[ChatMessage]) -> tuple[Turn, ...]:
    """Leave out actions that the runner rejected."""
    turns: list[Turn] = []
    for message in messages:
        if message.role == "assistant":
            functions = [call.function for call in message.tool_calls or ()]
            text = "" if functions else _ACTION_MARK.split(message.text)[-1].strip()
            turns.append(Turn((functions[0].name, functions[0].arguments) if functions else None, text))
        elif turns:
            observation = f"{turns[-1].observation} {_normalize_whitespace(message.text)}".strip()
            turns[-1] = turns[-1]._replace(observation=observation)
    return tuple(turn for turn in turns if _REJECTED_ACTION not in turn.observation)


class ReplaySession(msgspec.Struct, eq=False):
    """A conversation that is replayed on a twin, i.e. a second instance of the environment with an oracle.

    Attributes:
        verify: whether the observations of the twin must match those of the conversation.
        plan: the planner's next action, if it is computed.
    """

    candidate: TaskCandidate
    twin: EmbeddedEnvironment
    planner: OraclePlanner
    verify: bool
    turns: tuple[Turn, ...] = ()
    done: bool = False
    plan: str | None = None

    def apply_turn(self, turn: Turn) -> bool:
        """Return whether the observation of the twin matches that of the turn."""
        chat, _, self.done = self.twin.step(turn.action)
        self.turns, self.plan = (*self.turns, turn), None
        return not self.verify or _observation_text(chat) in turn.observation

    def next_action(self) -> str:
        """Repeated calls return the same action until a turn is applied."""
        if self.plan is None:
            self.plan = self.planner.next_action()
        return self.plan


def _replay(candidates: Iterable[TaskCandidate], turns: tuple[Turn, ...], *, verify: bool) -> ReplaySession | None:
    """Return a session after these turns for the first candidate whose observations match; None if none matches."""
    for candidate in candidates:
        twin = _make_environment(candidate.env, candidate.mode)
        twin.reset(task_index=candidate.task_index)
        if isinstance(twin, SupportsOracle):
            session = ReplaySession(candidate, twin, twin.oracle(None), verify)
            with catch_foreign(lambda exc: None):  # such as a step after the end of the episode
                if all(session.apply_turn(turn) for turn in turns):
                    return session
    return None


class OracleResponder:
    """Replays conversations on twins (second instances) of the embedded environments; their oracles plan the replies.

    A task is recognized by its first observation. If several tasks have the same first observation, the first task
    whose replay matches the conversation is used. Sessions are kept between requests, so that later requests of a
    conversation may omit turns.
    """

    name = "oracle"

    def __init__(self) -> None:
        self._task_matcher = TaskMatcher()
        self._sessions: dict[tuple[Opening, tuple[Turn, ...]], ReplaySession] = {}
        """The sessions by opening and turns so far, least recently used first."""
        self._executor = ThreadPoolExecutor(1, "oracle")  # a single thread: twins and matcher are not thread-safe

    async def respond(self, request: ChatRequest) -> ScriptedReply:
        """The reply has the oracle's next action, as a tool call if the request offers its tool, or why it has none."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, self._respond, request)

    def _respond(self, request: ChatRequest) -> ScriptedReply:
        errors: list[BaseException] = []
        with catch_foreign(errors.append):
            return _next_reply(self._find(request), request)
        problem = one_line(str(errors[0])) if isinstance(errors[0], RunnerError) else type(errors[0]).__name__
        return _cannot_answer(f"the replay failed: {problem}")

    def _find(self, request: ChatRequest) -> ReplaySession | None:
        """All turns of the conversation are applied; None if the task is not recognized."""
        start, opening = self._find_opening(request.messages)
        named = None
        if request.model.startswith(ORACLE_MODEL_PREFIX):
            opening, named = task_from_model_name(request.model)
        if opening is None:
            return None
        turns = _parse_turns(request.messages[start + 1 :])
        omitted = OMITTED_TURNS.search(request.messages[start].text)
        session = (
            self._resume(opening, turns)
            or (self._resume_shortened(opening, turns, int(omitted[1])) if omitted else None)
            or _replay(named or list(self._task_matcher.candidates(opening)), turns, verify=named is None)
            or self._resume_shortened(opening, turns, 0)
        )
        if session is not None:
            self._sessions[opening, session.turns] = session
            if len(self._sessions) > MAX_SESSIONS:
                del self._sessions[next(iter(self._sessions))]
        return session

    def _find_opening(self, messages: list[ChatMessage]) -> tuple[int, Opening | None]:
        for index, message in enumerate(messages[:MAX_MESSAGES_SEARCHED]):
            if message.role not in ("assistant", "system") and (
                opening := self._task_matcher.find(_normalize_whitespace(message.text))
            ):
                return index, opening
        return 0, None

    def _resume(self, opening: Opening, turns: tuple[Turn, ...]) -> ReplaySession | None:
        """Repeat the latest reply of this conversation, or continue it by its latest turn."""
        if current := self._sessions.pop((opening, turns), None):
            return current
        previous = self._sessions.pop((opening, turns[:-1]), None) if turns else None
        if previous is None or previous.done or previous.apply_turn(turns[-1]):
            return previous
        return None  # another task with the same first observation

    def _resume_shortened(self, opening: Opening, turns: tuple[Turn, ...], n_omitted: int) -> ReplaySession | None:
        """Replay a known conversation and the latest turn; its earlier turns end with the others of the request.

        The latest of ``turns`` is either new or was already in the previous request. The number of turns decides which
        of the two cases is tried first.
        """
        n_before = n_omitted + len(turns) - 1
        for (known_opening, known_turns), session in reversed(self._sessions.items()):
            if known_opening != opening or not turns:
                continue
            for before in sorted((known_turns, known_turns[:-1]), key=lambda turns: abs(len(turns) - n_before)):
                all_turns = (*before, turns[-1])
                if _actions(all_turns[-len(turns) :]) == _actions(turns) and (
                    replayed := _replay([session.candidate], all_turns, verify=session.verify)
                ):
                    return replayed
        return None


def _actions(turns: Sequence[Turn]) -> list[tuple[tuple[str, str] | None, str]]:
    """The replay verifies the observations, of which the first may be missing."""
    return [(turn.tool_call, turn.text) for turn in turns]


def task_from_model_name(model: str) -> tuple[Opening, list[TaskCandidate]]:
    """Return opening and tasks of a name such as ``oracle:Maze:3``; raises ``ConfigError`` for an invalid name."""
    env, _, task = model.removeprefix(ORACLE_MODEL_PREFIX).partition(":")
    if not (task.isascii() and task.isdecimal() and len(task) < 16):
        raise ConfigError(f"{one_line(model)!r} must be {ORACLE_MODEL_PREFIX}<environment>:<task index>")
    env = plugins.find(plugins.ENVS, env).name
    return Opening(env, model), [TaskCandidate(env, mode, int(task)) for mode in MODES]


def _next_reply(session: ReplaySession | None, request: ChatRequest) -> ScriptedReply:
    if session is None:
        return _cannot_answer("it does not recognize the environment and task of this conversation")
    if session.done:
        return _cannot_answer(f"the episode of {session.candidate.env} is over")
    text = session.next_action()
    parsed = session.twin.parse(text)
    if isinstance(parsed, Action) and parsed.tool_calls[0].name in request.callable_tools:
        call = parsed.tool_calls[0]
        return ScriptedReply(content=THOUGHT, tool_calls=(ScriptedCall(call.name, call.arguments),))
    if session.candidate.env == "SQLGym":
        text = f"\n```sql\n{text}\n```"
    return ScriptedReply(content=f"Thought: {THOUGHT}\nAction: {text}")


def _cannot_answer(reason: str) -> ScriptedReply:
    hint = f"The model name {ORACLE_MODEL_PREFIX}<environment>:<task index> selects a task."
    text = f"This is {TEST_MODEL_NAME}, not a language model; its oracle cannot answer: {reason}. {hint}"
    return ScriptedReply(content=text)
