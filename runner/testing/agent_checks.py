"""Checks of the agent contract, ``AgentCheck``: episodes played by the loop of a run, with a model that stands in."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import json
import logging
import sysconfig
import traceback
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias, cast

import runner
from runner import plugins
from runner.config import AgentSettings
from runner.config.profile import Capabilities
from runner.episode.loop import EpisodeContext, EpisodeLoop
from runner.errors import ConfigError, InferenceFault
from runner.testing.checks import HOSTILE_ARGUMENTS, HOSTILE_TEXTS, ContractCheck, listed_actions, parse, shorten
from runner.tracing import Tracer
from runner.types import (
    Action,
    Agent,
    Chat,
    Environment,
    EpisodeEvent,
    EpisodeHeader,
    Inference,
    Limits,
    Message,
    SpanLevel,
    StreamDelta,
    SupportsEpisodeInfo,
    SupportsOracle,
    TimeStep,
    TimestepPlayed,
    Tokens,
    ToolSchema,
    Trajectory,
    Usage,
)
from runner.types.protocols import optional_method
from runner.types.sequences import Label, TokenSequence
from runner.util.clock import Clock, new_ulid

NAME = "stand-in"
"""Name of the endpoint and of its model."""
MAX_REQUESTS = 200
"""Maximum number of requests in one step; an agent that repeats its request until the answer suits it exceeds it."""
PATIENCE_S = 30.0
"""Maximum seconds of an episode, and of its end after it was cancelled."""
_ROLES = frozenset({"system", "user", "assistant", "tool"})
_INSTALLED, _LIBRARY = str(Path(runner.__file__).parent), sysconfig.get_path("stdlib")

Answer: TypeAlias = Callable[[Chat, list[ToolSchema]], Awaitable[Message]]
"""Returns the model's answer to a chat with tools."""
Reply: TypeAlias = Callable[[Chat, str], str]
"""Returns the text of the model's answer to a chat without tools, given the text of a good action."""
Expect: TypeAlias = Callable[[bool, str], None]
"""Reports a problem, the second argument, if the first is false."""


class StandInModel:
    """The source of answers for one episode.

    ``expect`` receives what is wrong with the requests. ``requests`` has their chats as JSON; ``tokens`` and
    ``n_requests`` count since they were last set to zero.
    """

    def __init__(self, episode_id: str, answer: Answer, expect: Expect) -> None:
        self.requests: list[str] = []
        self.tokens = Tokens()
        self.n_requests = 0
        self.answer = answer
        self.expect = expect
        self._episode_id = episode_id

    def session(self, header: EpisodeHeader, model: str | None = None) -> StandInSession:
        is_own = header.episode_id == self._episode_id
        self.expect(is_own, "session should get the header of the episode that enter received")
        return StandInSession(self)

    def record(self, messages: Chat) -> None:
        """Raises ``InferenceFault`` if there were too many requests in this step."""
        self.n_requests += 1
        if self.n_requests > MAX_REQUESTS:
            self.expect(False, f"act sent more than {MAX_REQUESTS} requests; return InvalidAction for a bad answer")
            raise InferenceFault(f"more than {MAX_REQUESTS} requests in one step")
        problem = message_problem(messages) or _call_problem(messages)
        self.expect(not problem, f"the chat of a request {problem}")
        self.requests.append("" if problem else json.dumps(messages))


class StandInSession:
    def __init__(self, model: StandInModel) -> None:
        self._model = model
        self._is_busy = False

    def capabilities(self, *, with_tools: bool) -> Capabilities:
        return Capabilities()

    async def infer(
        self,
        messages: Chat,
        *,
        tools: list[ToolSchema],
        time_left_s: float,
        on_delta: Callable[[StreamDelta], None] | None = None,
        tracer: Tracer | None = None,
        on_tokens: Callable[[TokenSequence], None] | None = None,
        label: Label = "agent",
        can_shorten: bool = False,
        tools_as_text: bool = False,
    ) -> Inference:
        model = self._model
        is_number = isinstance(cast(object, time_left_s), float | int)
        model.expect(is_number, f"time_left_s should be a number, episode.time_left_s(); got {time_left_s!r}")
        model.expect(not self._is_busy, "a session takes one request at a time; open one session for each of several")
        model.record(messages)
        self._is_busy = True
        try:
            with (tracer or Tracer("off")).span("inference", "agent", endpoint=NAME):
                message = await model.answer(messages, tools)
        finally:
            self._is_busy = False
        tokens = Tokens(prompt=100, completion=10)
        model.tokens += tokens
        if on_delta is not None:
            on_delta(StreamDelta(text=message["content"] or "", n=1))
        if on_tokens is not None:
            on_tokens(TokenSequence(label=label, endpoint=NAME, model=NAME))
        return Inference(
            message=message,
            noted=message,
            sent=messages.copy(),
            cause_of_silence="",
            usage=Usage(endpoint=NAME, model=NAME, tokens=tokens),
            finish_reason="tool_calls" if message.get("tool_calls") else "stop",
            used_tools=bool(tools),
            flow_id=len(model.requests),
        )


def message_problem(messages: object) -> str:
    """Return what is wrong with a list of messages, as the end of a sentence; "" if nothing is."""
    if not isinstance(messages, list) or not messages:
        return f"should be a list of messages; got {messages!r:.80}"
    for message in messages:
        if not (isinstance(message, dict) and message.get("role") in _ROLES and "content" in message):
            return f"should have messages with content and the role {', '.join(sorted(_ROLES))}; got {message!r:.80}"
    try:
        json.dumps(messages)
    except (TypeError, ValueError) as exc:
        return f"should be JSON: {exc}"
    return ""


def _call_problem(messages: list[Any]) -> str:
    """Return which tool call has no answer or which answer no call, which servers refuse; "" if all fit."""
    unanswered: list[str] = []
    for message in [*messages, {"role": "end"}]:
        if message["role"] == "tool":
            if message.get("tool_call_id") not in unanswered:
                return (
                    "has a tool message that answers no call of the assistant message before it; send its text as user"
                )
            unanswered.remove(message["tool_call_id"])
        elif unanswered:
            return "has an assistant message with a tool call that no tool message answers; send such turns as text"
        unanswered += [call["id"] for call in message.get("tool_calls") or ()]
    return ""


def _is_ours(path: str) -> bool:
    """Return whether a file is this package's or Python's, so that its line does not show where the agent failed."""
    return path.startswith(_INSTALLED) or (path.startswith(_LIBRARY) and "site-packages" not in path)


def thought_and_action(chat: Chat, action: str) -> str:
    return f"Thought: This brings me closer.\nAction: {action}"


class CheckedEpisode:
    """One episode of an agent, and what its model and the loop saw of it; builds both sides as a run does."""

    tracing_level: SpanLevel = "full"
    records_world = False

    def __init__(self, check: AgentCheck, task: int, answer: Answer | None = None, max_unparsed: int = 3) -> None:
        self.limits = Limits(check.max_steps, PATIENCE_S, max_unparsed)
        self.problem = ""
        self._check = check
        self._environment: Environment | None = None
        header = EpisodeHeader(
            episode_id=new_ulid(),
            batch_id=new_ulid(),
            env=getattr(check.environment, "__name__", "environment"),
            task_index=task,
            seed=0,
            model=NAME if check.uses_model else None,
            started_at=Clock().now(),
        )
        self.model = StandInModel(header.episode_id, answer or self._answer, check.expect)
        context = EpisodeContext(header, emit=self._on_event, on_error=self._on_error)
        self._loop = EpisodeLoop(self, {"task_index": task, "seed": 0}, context)

    async def play(self) -> Trajectory:
        """Afterwards ``problem`` describes the error that ended the episode, if any."""
        return await self._loop.run()

    def build_environment(self) -> Environment:
        self._environment = self._check.environment()
        return self._environment

    def build_agent(self) -> Agent:
        arguments = dict(zip(plugins.MODEL_ARGUMENTS, (self.model, AgentSettings(model=NAME)), strict=True))
        agent = self._check.factory(**(arguments if self._check.uses_model else {}))
        enter = optional_method(agent, SupportsEpisodeInfo.enter)
        self._check.expect(not inspect.iscoroutinefunction(enter), "enter should be a plain method; it is not awaited")
        return agent

    async def _answer(self, chat: Chat, tools: list[ToolSchema]) -> Message:
        await asyncio.sleep(0)
        environment = self._environment
        assert environment is not None
        listed = await listed_actions(environment)
        actions = listed if isinstance(listed, list) and listed else [""]
        text = environment.oracle(0).next_action() if isinstance(environment, SupportsOracle) else actions[0]
        parsed = await parse(environment, text)
        if not (tools and isinstance(parsed, Action) and parsed.tool_calls):
            return {"role": "assistant", "content": self._check.reply(chat, text)}
        return _calling(parsed.tool_calls[0].name, parsed.tool_calls[0].arguments)

    def _on_event(self, event: EpisodeEvent) -> None:
        if isinstance(event, TimestepPlayed):
            self._check.check_step(event.step, self.model)
            self.model.tokens, self.model.n_requests = Tokens(), 0

    def _on_error(self, exc: BaseException) -> None:
        frames = [each for each in traceback.extract_tb(exc.__traceback__) if not _is_ours(each.filename)]
        place = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
        self.problem = f"{type(exc).__name__}: {shorten(str(exc))}{place}"


class AgentCheck(ContractCheck):
    """Runs all checks, each in episodes of their own; see ``runner.testing.check_agent`` for the arguments."""

    def __init__(
        self, factory: Callable[..., Agent], environment: Callable[[], Environment], reply: Reply, max_steps: int
    ) -> None:
        super().__init__()
        self.factory = factory
        self.environment = environment
        self.reply = reply
        self.max_steps = max_steps
        self.uses_model = bool(getattr(factory, "uses_model", False))
        self.expect: Expect = self._expect
        self._n_requests = 0
        self._has_valid_action = False
        self._last_action = Action()

    async def run(self, tasks: Sequence[int]) -> list[str]:
        name = getattr(self.factory, "__name__", "agent")
        try:
            arguments = plugins.MODEL_ARGUMENTS if self.uses_model else ()
            plugins.check_constructor(plugins.AGENTS, name, self.factory, arguments)
        except ConfigError as exc:
            return [str(exc)]
        with self._reported_teardown():
            await self._run("the episodes", self._episodes(tasks))
            if self.uses_model and not self._problems:
                for check in (self._bad_answers, self._failing_model, self._cancellation):
                    await self._run(check.__name__.strip("_").replace("_", " "), check(tasks[0]))
        return list(self._problems)

    @contextmanager
    def _reported_teardown(self) -> Iterator[None]:
        """Report what a run would only log: errors of ``close`` and of ``last_response_flow_id``."""
        handler = logging.Handler(logging.WARNING)
        handler.emit = lambda record: self._expect(False, record.getMessage())  # type: ignore[method-assign]
        logger = logging.getLogger("runner.episode.loop")
        logger.addHandler(handler)
        try:
            yield
        finally:
            logger.removeHandler(handler)

    def check_step(self, step: TimeStep, model: StandInModel) -> None:
        for chat in step.chats:
            problem = message_problem(chat)
            self._expect(not problem, f"a chat that act returns {problem}")
        self._has_valid_action |= step.valid
        self._last_action = step.action
        if model.n_requests:
            stored, asked = (step.tokens or Tokens()).total, model.tokens.total
            hint = "set last_usage to the sum of the usages of the step's answers, such as first.usage + second.usage"
            self._expect(stored == asked, f"a step has {stored} of the {asked} tokens of its answers; {hint}")
        else:
            self._expect(step.tokens is None, "a step without a request has a usage; set last_usage to None in act")

    async def _episodes(self, tasks: Sequence[int]) -> None:
        """Play each task alone, then all at the same time; both have to send the same requests and actions."""
        alone = [await self._play(task) for task in tasks]
        together = await asyncio.gather(*map(self._play, tasks))
        for task, before, after in zip(tasks, alone, together, strict=True):
            self._expect(
                before == after,
                f"task {task}: a second episode differs from the first; keep no state outside the agent's instance, "
                "and seed random choices with episode.header.seed",
            )
        if self.uses_model:
            self._expect(self._n_requests > 0, "the agent has uses_model = True but sent no request")
        self._expect(
            self._has_valid_action or bool(self._problems),
            f"no action was valid, such as {shorten(repr(self._last_action))}; return the environment's texts or tool "
            "calls, and pass reply if the agent expects its answers in another form than Thought and Action",
        )
        others = asyncio.all_tasks() - {asyncio.current_task()}
        self._expect(not others, f"tasks still run after close: {shorten(str([each.get_name() for each in others]))}")

    async def _play(self, task: int) -> tuple[list[str], list[Action]]:
        episode = CheckedEpisode(self, task)
        trajectory = await episode.play()
        self._expect(not episode.problem, f"task {task}: an error ended the episode: {episode.problem}")
        self._n_requests += len(episode.model.requests)
        return episode.model.requests, [step.action for step in trajectory.timesteps]

    async def _bad_answers(self, task: int) -> None:
        latest: Message = {"role": "assistant", "content": None}
        texts = itertools.cycle(HOSTILE_TEXTS)
        calls = itertools.cycle(itertools.product((False, True), HOSTILE_ARGUMENTS))

        async def talk(chat: Chat, tools: list[ToolSchema]) -> Message:
            nonlocal latest
            latest = {"role": "assistant", "content": next(texts) or None}
            return latest

        async def call(chat: Chat, tools: list[ToolSchema]) -> Message:
            nonlocal latest
            is_known, arguments = next(calls)
            latest = _calling(tools[0]["function"]["name"] if tools and is_known else "no such tool", arguments)
            return latest

        for answer in (talk, call):
            episode = CheckedEpisode(self, task, answer, max_unparsed=self.max_steps)
            await episode.play()
            content = shorten(json.dumps(latest.get("tool_calls") or latest["content"]))
            self._expect(not episode.problem, f"the answer {content} ended an episode: {episode.problem}")

    async def _failing_model(self, task: int) -> None:
        async def answer(chat: Chat, tools: list[ToolSchema]) -> Message:
            raise InferenceFault("the stand-in does not answer")

        error = (await CheckedEpisode(self, task, answer).play()).error_info
        self._expect(
            error is not None and error.type == "inference_fault",
            f"without an answer the episode should end with the InferenceFault of infer; got {error and error.type}; "
            "let it pass, so that the episode counts as an error of the endpoint and not as a failure of the agent",
        )

    async def _cancellation(self, task: int) -> None:
        asked = asyncio.Event()

        async def answer(chat: Chat, tools: list[ToolSchema]) -> Message:
            if playing.cancelling():
                raise InferenceFault("the episode was cancelled")
            asked.set()
            return await asyncio.Future[Message]()

        playing = asyncio.create_task(CheckedEpisode(self, task, answer).play())
        async with asyncio.timeout(PATIENCE_S):
            await asked.wait()
        playing.cancel()
        await asyncio.wait({playing}, timeout=PATIENCE_S)
        hint = "let asyncio.CancelledError pass"
        self._expect(playing.cancelled(), f"an episode that is cancelled during a request goes on; {hint}")


def _calling(name: str, arguments: str) -> Message:
    call = {"id": "call_0", "type": "function", "function": {"name": name, "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}
