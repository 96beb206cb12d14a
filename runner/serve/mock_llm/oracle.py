"""The oracle as a model: it finds out from a conversation which task is played, and plays it."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor

from runner import plugins
from runner.errors import ConfigError, RunnerError, catch_foreign
from runner.serve.mock_llm.chat_format import ChatMessage, ChatRequest
from runner.serve.mock_llm.replay import ASSISTANT, ReplaySession, Turn, parse_turns, replay_turns
from runner.serve.mock_llm.reply import TEST_MODEL_NAME, ScriptedCall, ScriptedReply
from runner.serve.mock_llm.task_matcher import MODES, Opening, TaskCandidate, TaskMatcher, normalize_whitespace
from runner.types import Action
from runner.util.text import one_line

ORACLE_MODEL_PREFIX = "oracle:"
"""Begins a model's name that says what is played: ``oracle:<environment>:<task index>``."""
OMITTED_TURNS = re.compile(r"\[(\d{1,9}) earlier turns? left out]")
"""What our own agents write where a conversation has lost turns, which may go on like one that has not."""
MAX_SESSIONS = 256
MAX_MESSAGES_SEARCHED = 10
"""The first observation has to be within so many messages."""
THOUGHT = "The test oracle has planned this."


class OracleResponder:
    """Replays a conversation on twins of the embedded environments and answers with their planner's next action.

    The task is the one whose first observation a message of the conversation holds; where several begin alike it is
    the first one in which the turns so far go as the conversation says. A conversation that goes on is followed, so
    it may be cut in the middle after some turns.
    """

    name = "oracle"

    def __init__(self) -> None:
        """Follow no conversation yet."""
        self._task_matcher = TaskMatcher()
        self._sessions: OrderedDict[tuple[Opening, tuple[Turn, ...]], ReplaySession] = OrderedDict()
        self._worker = ThreadPoolExecutor(1, "oracle")  # one, as neither twins nor what is known of tasks is shared

    async def respond(self, request: ChatRequest) -> ScriptedReply:
        """The next action, as a tool call where its tool is offered and else as text; or why there is none."""
        return await asyncio.get_running_loop().run_in_executor(self._worker, self._respond, request)

    def _respond(self, request: ChatRequest) -> ScriptedReply:
        replies: list[ScriptedReply] = []
        with catch_foreign(lambda exc: replies.append(_cannot_answer(f"it cannot play: {_describe_error(exc)}"))):
            replies.append(_next_reply(self._find(request), request))
        return replies[0]

    def _find(self, request: ChatRequest) -> ReplaySession | None:
        """The session after the conversation's last turn."""
        start, opening = self._find_opening(request.messages)
        candidates = None
        if request.model.startswith(ORACLE_MODEL_PREFIX):
            opening, candidates = task_from_model_name(request.model)
        if opening is None:
            return None
        turns = parse_turns(request.messages[start + 1 :])
        session = self._resume_session(opening, turns)
        if session is None:
            found = candidates or list(self._task_matcher.candidates(opening))
            lacks = OMITTED_TURNS.search(request.messages[start].text)
            session = self._match_shortened(opening, turns, int(lacks[1])) if lacks else None
            session = (
                session
                or replay_turns(found, turns, verify=candidates is None)
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
        """The session that was here before, brought to the newest turn."""
        if same := self._sessions.pop((opening, turns), None):
            return same
        before = self._sessions.pop((opening, turns[:-1]), None) if turns else None
        if before is None or before.done or before.apply_turn(turns[-1]):
            return before
        return replay_turns(before.remaining, turns, verify=before.verify)

    def _match_shortened(self, opening: Opening, turns: tuple[Turn, ...], n_lacking: int = 0) -> ReplaySession | None:
        """The session of a conversation that has lost turns: its last ones are those at the end of this one.

        The newest turn is new, or was already answered once; what of it fits the number of turns better comes first.
        """
        n_before = n_lacking + len(turns) - 1
        for (known, played), session in reversed(self._sessions.items()):
            if known != opening or not turns:
                continue
            for before in sorted((played, played[:-1]), key=lambda turns: abs(len(turns) - n_before)):
                whole = (*before, turns[-1])
                if _ends_with(whole, turns) and (
                    again := replay_turns([session.candidate], whole, verify=session.verify)
                ):
                    return again
        return None


def task_from_model_name(model: str) -> tuple[Opening, list[TaskCandidate]]:
    """What a model's name says is played.

    Raises:
        ConfigError: when it names no environment or task.
    """
    env, _, task = model.removeprefix(ORACLE_MODEL_PREFIX).partition(":")
    if not (task.isascii() and task.isdecimal() and len(task) < 16):
        raise ConfigError(f"{one_line(model)!r} should be {ORACLE_MODEL_PREFIX}<environment>:<task index>")
    env = plugins.canonical_name(plugins.ENVS, env)
    return Opening(env, model), [TaskCandidate(env, mode, int(task)) for mode in MODES]


def _ends_with(played: tuple[Turn, ...], turns: tuple[Turn, ...]) -> bool:
    return [turn.action_key for turn in played[-len(turns) :]] == [turn.action_key for turn in turns]


def _next_reply(session: ReplaySession | None, request: ChatRequest) -> ScriptedReply:
    if session is None:
        return _cannot_answer("it cannot tell which environment and task this conversation is about")
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


def _cannot_answer(why: str) -> ScriptedReply:
    hint = f"A model named {ORACLE_MODEL_PREFIX}<environment>:<task index> says what is played."
    return ScriptedReply(content=f"This is {TEST_MODEL_NAME}, no language model, played by an oracle: {why}. {hint}")


def _describe_error(exc: BaseException) -> str:
    return one_line(str(exc)) if isinstance(exc, RunnerError) else type(exc).__name__
