"""One episode, from building the agent and the environment to cleaning both up: the only loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from runner.episode.control import EpisodeControl
from runner.episode.step import Rounds
from runner.episode.teardown import give_back, judge, last_flow
from runner.episode.token_stream import TokenStream
from runner.episode.validation import check_chat, settle
from runner.errors import boundary
from runner.tracing import SpanHandle, Tracer, create_error_info, create_flow_id
from runner.types import (
    Agent,
    Chat,
    Environment,
    EpisodeEnded,
    EpisodeEvent,
    EpisodeHeader,
    EpisodePaused,
    EpisodeResumed,
    EpisodeScope,
    EpisodeStarted,
    Limits,
    Outcome,
    Piece,
    Span,
    SpanLevel,
    SpansClosed,
    SupportsBind,
    SupportsScope,
    TimestepPlayed,
    TokensStreamed,
    Trajectory,
)
from runner.util.clock import Clock


def _ignore(event: EpisodeEvent) -> None:
    pass


def _ignore_reset(observation: Chat, env_episode_id: str) -> None:
    pass


@dataclass(frozen=True)
class EpisodeContext:
    """What one episode is played with besides the agent and the environment.

    ``emit`` is called on the playing thread with every event, in order, and must neither block nor raise; so is
    ``on_reset``, with what the reset gave, before the first step. ``closed_spans`` gives the spans that are over since
    it was last asked. Without a ``tracer`` of its own the episode gets one
    of the runner's level, whose spans only the agent can see.
    """

    header: EpisodeHeader
    control: EpisodeControl = field(default_factory=EpisodeControl)
    tracer: Tracer | None = None
    emit: Callable[[EpisodeEvent], None] = _ignore
    on_reset: Callable[[Chat, str], None] = _ignore_reset
    closed_spans: Callable[[], list[Span]] = list
    clock: Clock = field(default_factory=Clock)


class Builds(Protocol):
    """Where the agent and the environment of an episode come from, and how it is bounded."""

    limits: Limits
    tracing_level: SpanLevel

    def build_environment(self) -> Environment:
        """A fresh environment."""

    def build_agent(self) -> Agent:
        """A fresh agent."""


class Play:
    """The state of one episode while it is played; ``run`` may be awaited once."""

    def __init__(self, builds: Builds, reset_kwargs: dict[str, Any], context: EpisodeContext) -> None:
        """Take the settings; nothing happens before ``run``."""
        self._builds = builds
        self._limits = builds.limits
        self._reset_kwargs = reset_kwargs
        self._context = context
        self._control = context.control
        self._clock = context.clock
        self._tracer = context.tracer or Tracer(builds.tracing_level)
        self._deadline = asyncio.timeout(None)
        self._environment: Environment | None = None
        self._agent: Agent | None = None
        self._trajectory = Trajectory(episode_id=context.header.episode_id, reset_kwargs=reset_kwargs, timesteps=[])
        self._seq = 0
        self._tokens = TokenStream(self._clock.monotonic, self._tell_tokens)
        self._started = self._clock.monotonic()

    async def run(self) -> Trajectory:
        """Play the episode; see ``Runner.play_episode``."""
        header = self._context.header
        self._send(EpisodeStarted, header=header)
        attributes = {"trace_id": header.episode_id, "task_id": self._task_id(), "semantic": "episode"}
        try:
            with self._tracer.span("episode", "episode", **attributes) as span:
                span.end_flow(create_flow_id("task", str(self._reset_kwargs.get("task_unique_id", self._task_id()))))
                span.start_flow(create_flow_id("episode_return", header.episode_id))
                await self._play_and_clean(span)
        finally:
            self._trajectory.duration_s = self._clock.monotonic() - self._started
            self._trajectory.paused_s = self._control.paused_s()
            self._tell_spans()
            self._send(EpisodeEnded, trajectory=self._trajectory)
        return self._trajectory

    def _task_id(self) -> str:
        task = self._reset_kwargs.get("task")
        named = task.get("task_id") if isinstance(task, Mapping) else getattr(task, "task_id", None)
        header = self._context.header
        return str(named) if named is not None else f"{header.env}:{header.task_index}"

    async def _play_and_clean(self, span: SpanHandle) -> None:
        try:
            with boundary(self._fail):
                await self._within_time()
            if self._environment is not None and self._trajectory.error_info is None:
                self._trajectory = await judge(self._environment, self._trajectory, self._fail)
        except asyncio.CancelledError:
            self._trajectory.outcome = self._control.cancelled or Outcome.CANCELLED
            raise
        finally:
            self._control.settled = self._trajectory.outcome
            if self._agent is not None:
                self._trajectory.trace_last_response_flow_id = last_flow(self._agent)
            span.set_attribute("num_timesteps", len(self._trajectory.timesteps))
            span.set_attribute("final_reward", self._trajectory.reward)
            if self._trajectory.error_info is not None:
                span.set_attribute("error", self._trajectory.error_info.type)
            with self._tracer.span("cleanup", "environment"):
                await give_back(self._environment, self._agent)

    async def _within_time(self) -> None:
        self._deadline = asyncio.timeout(self._limits.max_duration_s)
        try:
            async with self._deadline:
                environment, agent = await self._start()
                self._trajectory.outcome = await self._loop(environment, agent)
        except TimeoutError:
            if not self._deadline.expired():
                raise
            self._trajectory.outcome = Outcome.TIMEOUT

    async def _start(self) -> tuple[Environment, Agent]:
        self._environment = environment = self._builds.build_environment()
        self._agent = agent = self._builds.build_agent()
        agent.tracer = self._tracer
        if isinstance(agent, SupportsScope):
            agent.enter(EpisodeScope(self._context.header, self._time_left_s, self._tokens.add))
        if isinstance(agent, SupportsBind):
            await settle(agent.bind(environment, self._reset_kwargs))
        with self._tracer.span("env.reset", "environment", semantic="environment"):
            observation = await settle(environment.reset(**self._reset_kwargs))
        self._trajectory.reset_observation = chat = check_chat(observation, "the observation of a reset")
        self._trajectory.env_episode_id = name = str(await settle(environment.get_episode_id()))
        self._context.on_reset(chat, name)
        with self._tracer.span("agent.init_after_reset", "agent", semantic="agent"):
            await settle(agent.init_after_reset())
        return environment, agent

    async def _loop(self, environment: Environment, agent: Agent) -> Outcome:
        """Play rounds until the environment is done or a limit or a command says stop."""
        steps = self._trajectory.timesteps
        rounds = Rounds(environment, agent, self._tracer, self._clock.monotonic, self._tokens)
        observation = reset_observation = self._trajectory.reset_observation
        while await self._control.boundary(self._pause, self._resume):
            step = await rounds.play(len(steps), observation)
            steps.append(step)
            self._send(TimestepPlayed, step=step, reset_observation=reset_observation if step.index == 0 else None)
            self._tell_spans()
            observation = step.observation
            if step.done or rounds.unparsed >= self._limits.max_unparsed:
                return Outcome.FAILURE
            if len(steps) >= self._limits.max_rounds:
                return Outcome.TRUNCATED
            if self._time_left_s() <= 0:
                return Outcome.TIMEOUT
        return self._control.cancelled or Outcome.CANCELLED

    def _pause(self) -> None:
        self._deadline.reschedule(None)
        self._send(EpisodePaused)

    def _resume(self) -> None:
        self._send(EpisodeResumed)
        self._deadline.reschedule(asyncio.get_running_loop().time() + self._time_left_s())

    def _time_left_s(self) -> float:
        played_s = self._clock.monotonic() - self._started - self._control.paused_s()
        return self._limits.max_duration_s - played_s

    def _fail(self, exc: BaseException) -> None:
        self._trajectory.error_info = create_error_info(exc)
        self._trajectory.outcome = Outcome.ERROR
        self._trajectory.success = False

    def _tell_tokens(self, step: int, piece: Piece) -> None:
        self._send(TokensStreamed, step=step, piece=piece)

    def _tell_spans(self) -> None:
        if spans := self._context.closed_spans():
            self._send(SpansClosed, spans=spans)
            self._seq += len(spans) - 1

    def _send(self, kind: type[EpisodeEvent], **fields: Any) -> None:  # noqa: ANN401 - the fields of that kind
        header = self._context.header
        self._context.emit(kind(at=self._clock.now(), episode_id=header.episode_id, seq=self._seq, **fields))
        self._seq += 1
