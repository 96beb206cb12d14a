"""The oracle as a model: it finds out from a conversation which task is played, and plays it."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor

from runner import plugins as registry
from runner.errors import ConfigError, RunnerError, boundary
from runner.serve.mock_llm.chat_format import ChatMessage, ChatRequest
from runner.serve.mock_llm.conversation import ASSISTANT, Turn, squeezed, turns_of
from runner.serve.mock_llm.replay import Session, replayed
from runner.serve.mock_llm.reply import NAME, Reply, ScriptedCall
from runner.serve.mock_llm.task_matcher import MODES, Opening, Seat, Tasks
from runner.types import Action
from runner.util.text import one_line

PREFIX = "oracle:"
"""Begins a model's name that says what is played: ``oracle:<environment>:<task index>``."""
LEFT_OUT = re.compile(r"\[(\d{1,9}) earlier turns? left out]")
"""What our own agents write where a conversation has lost turns, which may go on like one that has not."""
MAX_SESSIONS = 256
MAX_OPENING = 10
"""The first observation has to be within so many messages."""
THOUGHT = "The test oracle has planned this."


class OraclePlayer:
    """Replays a conversation on twins of the embedded environments and answers with their planner's next action.

    The task is the one whose first observation a message of the conversation holds; where several begin alike it is
    the first one in which the turns so far go as the conversation says. A conversation that goes on is followed, so
    it may be cut in the middle after some turns.
    """

    name = "oracle"

    def __init__(self) -> None:
        """Follow no conversation yet."""
        self._tasks = Tasks()
        self._sessions: OrderedDict[tuple[Opening, tuple[Turn, ...]], Session] = OrderedDict()
        self._worker = ThreadPoolExecutor(1, "oracle")  # one, as neither twins nor what is known of tasks is shared

    async def play(self, request: ChatRequest) -> Reply:
        """The next action, as a tool call where its tool is offered and else as text; or why there is none."""
        return await asyncio.get_running_loop().run_in_executor(self._worker, self._answer, request)

    def _answer(self, request: ChatRequest) -> Reply:
        replies: list[Reply] = []
        with boundary(lambda exc: replies.append(_sorry(f"it cannot play: {_cause(exc)}"))):
            replies.append(_reply(self._find(request), request))
        return replies[0]

    def _find(self, request: ChatRequest) -> Session | None:
        """The session after the conversation's last turn."""
        start, opening = self._opening(request.messages)
        seats = None
        if request.model.startswith(PREFIX):
            opening, seats = named(request.model)
        if opening is None:
            return None
        turns = turns_of(request.messages[start + 1 :])
        session = self._followed(opening, turns)
        if session is None:
            found = seats or list(self._tasks.seats(opening))
            lacks = LEFT_OUT.search(request.messages[start].text)
            session = self._cut(opening, turns, int(lacks[1])) if lacks else None
            session = session or replayed(found, turns, checked=seats is None) or self._cut(opening, turns)
        if session is not None:
            self._sessions[opening, session.turns] = session
            while len(self._sessions) > MAX_SESSIONS:
                self._sessions.popitem(last=False)
        return session

    def _opening(self, messages: list[ChatMessage]) -> tuple[int, Opening | None]:
        """Which message holds the first observation, and that."""
        for index, message in enumerate(itertools.islice(messages, MAX_OPENING)):
            if message.role not in (ASSISTANT, "system") and (opening := self._tasks.find(squeezed(message.text))):
                return index, opening
        return 0, None

    def _followed(self, opening: Opening, turns: tuple[Turn, ...]) -> Session | None:
        """The session that was here before, brought to the newest turn."""
        if same := self._sessions.pop((opening, turns), None):
            return same
        before = self._sessions.pop((opening, turns[:-1]), None) if turns else None
        if before is None or before.done or before.take(turns[-1]):
            return before
        return replayed(before.others, turns, checked=before.checked)

    def _cut(self, opening: Opening, turns: tuple[Turn, ...], n_lacking: int = 0) -> Session | None:
        """The session of a conversation that has lost turns: its last ones are those at the end of this one.

        The newest turn is new, or was already answered once; what of it fits the number of turns better comes first.
        """
        n_before = n_lacking + len(turns) - 1
        for (known, played), session in reversed(self._sessions.items()):
            if known != opening or not turns:
                continue
            for before in sorted((played, played[:-1]), key=lambda turns: abs(len(turns) - n_before)):
                whole = (*before, turns[-1])
                if _ends_with(whole, turns) and (again := replayed([session.seat], whole, checked=session.checked)):
                    return again
        return None


def named(model: str) -> tuple[Opening, list[Seat]]:
    """What a model's name says is played.

    Raises:
        ConfigError: when it names no environment or task.
    """
    env, _, task = model.removeprefix(PREFIX).partition(":")
    if not (task.isascii() and task.isdecimal() and len(task) < 16):
        raise ConfigError(f"{one_line(model)!r} should be {PREFIX}<environment>:<task index>")
    env = registry.canonical(registry.ENVS, env)
    return Opening(env, model), [Seat(env, mode, int(task)) for mode in MODES]


def _ends_with(played: tuple[Turn, ...], turns: tuple[Turn, ...]) -> bool:
    """Whether the last actions are these; the last observation is compared when they are played."""
    return [turn.did for turn in played[-len(turns) :]] == [turn.did for turn in turns]


def _reply(session: Session | None, request: ChatRequest) -> Reply:
    if session is None:
        return _sorry("it cannot tell which environment and task this conversation is about")
    if session.done:
        return _sorry(f"the episode of {session.seat.env} is over")
    text = session.next_action()
    parsed = session.twin.parse(text)
    if isinstance(parsed, Action) and parsed.tool_calls[0].name in request.callable_tools:
        call = parsed.tool_calls[0]
        return Reply(content=THOUGHT, tool_calls=(ScriptedCall(call.name, call.arguments),))
    if session.seat.env == "SQLGym":
        text = f"\n```sql\n{text}\n```"
    return Reply(content=f"Thought: {THOUGHT}\nAction: {text}")


def _sorry(why: str) -> Reply:
    hint = f"A model named {PREFIX}<environment>:<task index> says what is played."
    return Reply(content=f"This is {NAME}, no language model, played by an oracle: {why}. {hint}")


def _cause(exc: BaseException) -> str:
    return one_line(str(exc)) if isinstance(exc, RunnerError) else type(exc).__name__
