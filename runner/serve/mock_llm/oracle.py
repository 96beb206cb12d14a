"""The oracle as a model: recognize the task of a conversation and reply with the oracle's next action."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor

from runner import plugins
from runner.errors import ConfigError, RunnerError, catch_foreign
from runner.serve.mock_llm.chat_format import ChatMessage, ChatRequest
from runner.serve.mock_llm.conversation_replay import (
    ASSISTANT,
    MODES,
    Opening,
    ReplaySession,
    TaskCandidate,
    TaskMatcher,
    Turn,
    normalize_whitespace,
    parse_turns,
    replay_turns,
)
from runner.serve.mock_llm.scripted_reply import TEST_MODEL_NAME, ScriptedCall, ScriptedReply
from runner.types import Action
from runner.util.display_text import one_line

ORACLE_MODEL_PREFIX = "oracle:"
"""Prefix of a model name that selects the task: ``oracle:<environment>:<task index>``."""
OMITTED_TURNS = re.compile(r"\[(\d{1,9}) earlier turns? left out]")
"""Text that the runner's agents insert for the turns that they omit because of the context window."""
MAX_SESSIONS = 256
MAX_MESSAGES_SEARCHED = 10
"""Number of messages, from the first, among which the first observation must be."""
THOUGHT = "The test oracle has planned this."


class OracleResponder:
    """Replays conversations on twins (second instances) of the embedded environments; their oracles plan the replies.

    A task is recognized by its first observation. If several tasks have the same first observation, the first task
    whose replay matches the conversation is used. Sessions are kept between requests, so that later requests of a
    conversation may omit turns.
    """

    name = "oracle"

    def __init__(self) -> None:
        self._task_matcher = TaskMatcher()
        self._sessions: OrderedDict[tuple[Opening, tuple[Turn, ...]], ReplaySession] = OrderedDict()
        self._executor = ThreadPoolExecutor(1, "oracle")  # a single thread: twins and matcher are not thread-safe

    async def respond(self, request: ChatRequest) -> ScriptedReply:
        """Return a reply with the oracle's next action, or with the reason why there is none.

        The action is a tool call if the request offers the tool, else a text.
        """
        return await asyncio.get_running_loop().run_in_executor(self._executor, self._respond, request)

    def _respond(self, request: ChatRequest) -> ScriptedReply:
        replies: list[ScriptedReply] = []
        with catch_foreign(lambda exc: replies.append(_cannot_answer(f"the replay failed: {_describe_error(exc)}"))):
            replies.append(_next_reply(self._find(request), request))
        return replies[0]

    def _find(self, request: ChatRequest) -> ReplaySession | None:
        """All turns of the conversation are applied; None if the task is not recognized."""
        start, opening = self._find_opening(request.messages)
        candidates = None
        if request.model.startswith(ORACLE_MODEL_PREFIX):
            opening, candidates = task_from_model_name(request.model)
        if opening is None:
            return None
        turns = parse_turns(request.messages[start + 1 :])
        session = self._resume_session(opening, turns)
        if session is None:
            tasks = candidates or list(self._task_matcher.candidates(opening))
            omitted = OMITTED_TURNS.search(request.messages[start].text)
            session = self._match_shortened(opening, turns, int(omitted[1])) if omitted else None
            session = (
                session
                or replay_turns(tasks, turns, verify=candidates is None)
                or self._match_shortened(opening, turns)
            )
        if session is not None:
            self._sessions[opening, session.turns] = session
            while len(self._sessions) > MAX_SESSIONS:
                self._sessions.popitem(last=False)
        return session

    def _find_opening(self, messages: list[ChatMessage]) -> tuple[int, Opening | None]:
        for index, message in enumerate(itertools.islice(messages, MAX_MESSAGES_SEARCHED)):
            if message.role not in (ASSISTANT, "system") and (
                opening := self._task_matcher.find(normalize_whitespace(message.text))
            ):
                return index, opening
        return 0, None

    def _resume_session(self, opening: Opening, turns: tuple[Turn, ...]) -> ReplaySession | None:
        """All turns are applied to the kept session; None if no session is kept."""
        if current := self._sessions.pop((opening, turns), None):
            return current
        previous = self._sessions.pop((opening, turns[:-1]), None) if turns else None
        if previous is None or previous.done or previous.apply_turn(turns[-1]):
            return previous
        return replay_turns(previous.remaining, turns, verify=previous.verify)

    def _match_shortened(self, opening: Opening, turns: tuple[Turn, ...], n_omitted: int = 0) -> ReplaySession | None:
        """Find the kept session of a conversation whose request omits its earlier turns; None if no session matches.

        The latest of ``turns`` is either new or was already in the previous request. The number of turns decides which
        of the two cases is tried first.
        """
        n_before = n_omitted + len(turns) - 1
        for (known_opening, known_turns), session in reversed(self._sessions.items()):
            if known_opening != opening or not turns:
                continue
            for before in sorted((known_turns, known_turns[:-1]), key=lambda turns: abs(len(turns) - n_before)):
                all_turns = (*before, turns[-1])
                if _ends_with(all_turns, turns) and (
                    replayed := replay_turns([session.candidate], all_turns, verify=session.verify)
                ):
                    return replayed
        return None


def task_from_model_name(model: str) -> tuple[Opening, list[TaskCandidate]]:
    """Return the opening and the tasks for a model name that selects a task, such as ``oracle:Maze:3``.

    Raises:
        ConfigError: the name has another form, or the environment is unknown.
    """
    env, _, task = model.removeprefix(ORACLE_MODEL_PREFIX).partition(":")
    if not (task.isascii() and task.isdecimal() and len(task) < 16):
        raise ConfigError(f"{one_line(model)!r} must be {ORACLE_MODEL_PREFIX}<environment>:<task index>")
    env = plugins.canonical_name(plugins.ENVS, env)
    return Opening(env, model), [TaskCandidate(env, mode, int(task)) for mode in MODES]


def _ends_with(all_turns: tuple[Turn, ...], turns: tuple[Turn, ...]) -> bool:
    # Compares actions only; the replay verifies the observations.
    return [turn.action_key for turn in all_turns[-len(turns) :]] == [turn.action_key for turn in turns]


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


def _describe_error(exc: BaseException) -> str:
    return one_line(str(exc)) if isinstance(exc, RunnerError) else type(exc).__name__
