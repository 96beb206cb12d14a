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
MAX_CONVERSATIONS = 256
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


class Task(NamedTuple):
    env: str
    mode: Mode
    task_index: int


class Opening(NamedTuple):
    """The first observation of a task (``text``) and the environment it belongs to."""

    env: str
    text: str


class TaskIndex:
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

    def tasks(self, opening: Opening) -> Iterator[Task]:
        for mode in MODES:
            for task_index in self._openings(opening.env, mode).get(opening.text, ()):
                yield Task(opening.env, mode, task_index)

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


class Replay(NamedTuple):
    """A conversation that was repeated on a twin, i.e. a second instance of the environment with an oracle."""

    task: Task
    turns: tuple[Turn, ...]
    twin: EmbeddedEnvironment
    planner: OraclePlanner
    done: bool


def _replay(tasks: Iterable[Task], turns: tuple[Turn, ...], *, verify: bool) -> Replay | None:
    """Replay the first task whose observations match those of the turns, or, without ``verify``, the first of all."""
    for task in tasks:
        twin, done = _make_environment(task.env, task.mode), False
        twin.reset(task_index=task.task_index)
        if not isinstance(twin, SupportsOracle):
            continue
        planner = twin.oracle(None)
        with catch_foreign(lambda exc: None):  # such as a step after the end of the episode
            for turn in turns:
                chat, _, done = twin.step(turn.action)
                if verify and _observation_text(chat) not in turn.observation:
                    break
            else:
                return Replay(task, turns, twin, planner, done)
    return None


class OracleResponder:
    """Replays each conversation on a twin, whose oracle plans the reply.

    A task is recognized by its first observation. If several tasks have the same first observation, the first task
    whose replay matches the conversation is used. Conversations are remembered, so that later requests may omit turns.
    """

    name = "oracle"

    def __init__(self) -> None:
        self._task_index = TaskIndex()
        self._known: dict[tuple[Opening, tuple[Turn, ...]], Task] = {}
        """The tasks of conversations by opening and turns so far, least recently used first."""
        self._executor = ThreadPoolExecutor(1, "oracle")  # a single thread: the index is not thread-safe

    async def respond(self, request: ChatRequest) -> ScriptedReply:
        """The reply has the oracle's next action, as a tool call if the request offers its tool, or why it has none."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, self._respond, request)

    def _respond(self, request: ChatRequest) -> ScriptedReply:
        errors: list[BaseException] = []
        with catch_foreign(errors.append):
            return _next_reply(self._find(request), request)
        problem = one_line(str(errors[0])) if isinstance(errors[0], RunnerError) else type(errors[0]).__name__
        return _cannot_answer(f"the replay failed: {problem}")

    def _find(self, request: ChatRequest) -> Replay | None:
        """All turns of the conversation are replayed; None if the task is not recognized."""
        start, opening = self._find_opening(request.messages)
        named = None
        if request.model.startswith(ORACLE_MODEL_PREFIX):
            opening, named = task_from_model_name(request.model)
        if opening is None:
            return None
        turns, verify = _parse_turns(request.messages[start + 1 :]), named is None
        known = filter(None, (self._known.get((opening, so_far)) for so_far in (turns, turns[:-1])))
        tasks = [*known, *(named or self._task_index.tasks(opening))]
        omitted = OMITTED_TURNS.search(request.messages[start].text)
        replay = self._replay_shortened(opening, turns, int(omitted[1]), verify=verify) if omitted else None
        replay = replay or _replay(tasks, turns, verify=verify) or self._replay_shortened(opening, turns, verify=verify)
        if replay is not None:
            self._known.pop((opening, replay.turns[:-1]), None)
            self._known.pop((opening, replay.turns), None)
            self._known[opening, replay.turns] = replay.task
            if len(self._known) > MAX_CONVERSATIONS:
                del self._known[next(iter(self._known))]
        return replay

    def _find_opening(self, messages: list[ChatMessage]) -> tuple[int, Opening | None]:
        for index, message in enumerate(messages[:MAX_MESSAGES_SEARCHED]):
            if message.role not in ("assistant", "system") and (
                opening := self._task_index.find(_normalize_whitespace(message.text))
            ):
                return index, opening
        return 0, None

    def _replay_shortened(
        self, opening: Opening, turns: tuple[Turn, ...], n_omitted: int = 0, *, verify: bool
    ) -> Replay | None:
        """Replay a known conversation and the latest turn; its earlier turns end with the others of the request.

        The latest of ``turns`` is either new or was already in the previous request. The number of turns decides which
        of the two cases is tried first.
        """
        n_before = n_omitted + len(turns) - 1
        for (known_opening, known_turns), task in reversed(self._known.items()):
            if known_opening != opening or not turns:
                continue
            for before in sorted((known_turns, known_turns[:-1]), key=lambda turns: abs(len(turns) - n_before)):
                all_turns = (*before, turns[-1])
                if _actions(all_turns[-len(turns) :]) == _actions(turns) and (
                    replay := _replay([task], all_turns, verify=verify)
                ):
                    return replay
        return None


def _actions(turns: Sequence[Turn]) -> list[tuple[tuple[str, str] | None, str]]:
    """The replay verifies the observations, of which the first may be missing."""
    return [(turn.tool_call, turn.text) for turn in turns]


def task_from_model_name(model: str) -> tuple[Opening, list[Task]]:
    """Return opening and tasks of a name such as ``oracle:Maze:3``; raises ``ConfigError`` for an invalid name."""
    env, _, task = model.removeprefix(ORACLE_MODEL_PREFIX).partition(":")
    if not (task.isascii() and task.isdecimal() and len(task) < 16):
        raise ConfigError(f"{one_line(model)!r} must be {ORACLE_MODEL_PREFIX}<environment>:<task index>")
    env = plugins.find(plugins.ENVS, env).name
    return Opening(env, model), [Task(env, mode, int(task)) for mode in MODES]


def _next_reply(replay: Replay | None, request: ChatRequest) -> ScriptedReply:
    if replay is None:
        return _cannot_answer("it does not recognize the environment and task of this conversation")
    if replay.done:
        return _cannot_answer(f"the episode of {replay.task.env} is over")
    text = replay.planner.next_action()
    parsed = replay.twin.parse(text)
    if isinstance(parsed, Action) and parsed.tool_calls[0].name in request.callable_tools:
        call = parsed.tool_calls[0]
        return ScriptedReply(content=THOUGHT, tool_calls=(ScriptedCall(call.name, call.arguments),))
    if replay.task.env == "SQLGym":
        text = f"\n```sql\n{text}\n```"
    return ScriptedReply(content=f"Thought: {THOUGHT}\nAction: {text}")


def _cannot_answer(reason: str) -> ScriptedReply:
    hint = f"The model name {ORACLE_MODEL_PREFIX}<environment>:<task index> selects a task."
    text = f"This is {TEST_MODEL_NAME}, not a language model; its oracle cannot answer: {reason}. {hint}"
    return ScriptedReply(content=text)
