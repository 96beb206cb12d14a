"""The episode loop: build the environment and the agent, reset, run steps, evaluate, clean up."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from runner.episode.control import EpisodeControl
from runner.episode.step import StepRunner, TokenStream
from runner.episode.teardown import CLEANUP_TIMEOUT_S, evaluate, last_response_flow, rate, release
from runner.episode.trace import EpisodeTrace
from runner.episode.validation import check_chat
from runner.episode.world import WorldRecorder
from runner.errors import catch_foreign
from runner.tracing import SpanHandle, Tracer, create_error_info
from runner.types import (
    Agent,
    Chat,
    Environment,
    EpisodeEnded,
    EpisodeEvent,
    EpisodeHeader,
    EpisodeInfo,
    EpisodePaused,
    EpisodeResumed,
    EpisodeStarted,
    Limits,
    Outcome,
    PackedCells,
    SpanLevel,
    StreamDelta,
    SupportsBind,
    SupportsEpisodeInfo,
    SupportsUnansweredRequest,
    TimeStep,
    TimestepPlayed,
    TokensStreamed,
    Trajectory,
)
from runner.types.data import MAX_ROUNDS
from runner.types.maybe_async import CallMethod, call_here, maybe_await, optional_method
from runner.types.sequences import TokenSequence
from runner.util.clock import Clock


def _ignore(*values: object) -> None:
    pass


def _always() -> bool:
    return True


class EpisodeContext(msgspec.Struct, frozen=True):
    """Everything an episode needs besides its agent and environment.

    Attributes:
        tracer: records the spans, which no event contains. By default, a new tracer with the level of the parts.
        emit: called with every event, in order, on the episode's thread; must neither block nor raise.
        on_reset: called before the first step with the reset observation, the environment's id of the episode and the
            picture of the environment; must neither block nor raise.
        on_error: called with the error that ends the episode, before the events of its end; must neither block nor
            raise.
        on_sequence: called with the token ids of each model call of the agent, before the event of its step; must
            neither block nor raise.
        wants_tokens: returns whether streamed tokens are of interest now; otherwise there are no events of them.
        call_environment: calls the methods of the environment, possibly on another thread.
        cleanup_timeout_s: maximum seconds for the environment's ``cleanup`` and the agent's ``close``, if async.
        trace: records the spans and flows; None: an ``EpisodeTrace`` of the tracer.
        keeps_objects: whether the agent and the environment play further episodes. Then the agent is not closed, and
            the caller reads the environment's id and evaluation of the episode after the cleanup; a reward may be None.
    """

    header: EpisodeHeader
    control: EpisodeControl = msgspec.field(default_factory=EpisodeControl)
    tracer: Tracer | None = None
    emit: Callable[[EpisodeEvent], None] = _ignore
    on_reset: Callable[[Chat, str, PackedCells | None], None] = _ignore
    on_error: Callable[[BaseException], None] = _ignore
    on_sequence: Callable[[TokenSequence], None] = _ignore
    wants_tokens: Callable[[], bool] = _always
    clock: Clock = msgspec.field(default_factory=Clock)
    call_environment: CallMethod = call_here
    cleanup_timeout_s: float = CLEANUP_TIMEOUT_S
    trace: EpisodeTrace | None = None
    keeps_objects: bool = False


class EpisodeParts(Protocol):
    limits: Limits
    tracing_level: SpanLevel
    records_world: bool
    """Whether the timesteps have pictures of the environment."""

    def build_environment(self) -> Environment: ...

    def build_agent(self) -> Agent: ...


class EpisodeLoop:
    """The run of one episode; ``run`` may be awaited only once."""

    def __init__(self, parts: EpisodeParts, reset_kwargs: dict[str, Any], context: EpisodeContext) -> None:
        self._parts = parts
        self._limits = parts.limits
        self._reset_kwargs = reset_kwargs
        self._context = context
        self._control = context.control
        self._clock = context.clock
        self._call = context.call_environment
        self._tracer = context.tracer or Tracer(parts.tracing_level)
        self._trace = context.trace or EpisodeTrace(self._tracer, context.header, reset_kwargs)
        self._deadline = asyncio.timeout(None)
        self._environment: Environment | None = None
        self._agent: Agent | None = None
        self._world: WorldRecorder | None = None
        self._trajectory = Trajectory(episode_id=context.header.episode_id, reset_kwargs=reset_kwargs, timesteps=[])
        self._seq = 0
        self._tokens = TokenStream(self._clock.monotonic, self._emit_tokens)
        self._started = self._clock.monotonic()

    async def run(self) -> Trajectory:
        self._emit(EpisodeStarted, header=self._context.header)
        try:
            with self._trace.episode() as span:
                self._trace.start(span)
                await self._run_and_clean_up(span)
        finally:
            self._trajectory.duration_s = self._clock.monotonic() - self._started
            self._trajectory.paused_s = self._control.paused_s()
            self._emit(EpisodeEnded, trajectory=self._trajectory)
            # Without these references to itself, the episode is freed at once instead of by a garbage collection.
            self._tokens.close()
            self._environment = self._agent = self._world = None
        return self._trajectory

    async def _run_and_clean_up(self, span: SpanHandle) -> None:
        try:
            with catch_foreign(self._record_error):
                await self._run_within_time_limit()
            if self._environment is not None and self._trajectory.error_info is None:
                await self._rate(self._environment)
        except asyncio.CancelledError:
            self._trajectory.outcome = self._control.cancel_outcome or Outcome.CANCELLED
            raise
        finally:
            self._control.final_error = self._trajectory.error_info
            self._control.final_outcome = self._trajectory.outcome
            if self._agent is not None:
                self._trajectory.trace_last_response_flow_id = last_response_flow(self._agent)
            self._trace.end(span, self._trajectory)
            agent = None if self._context.keeps_objects else self._agent
            with self._trace.span("cleanup"):
                timeout_s = self._context.cleanup_timeout_s
                await release(self._environment, agent, timeout_s=timeout_s, call=self._call)

    async def _rate(self, environment: Environment) -> None:
        if self._context.keeps_objects:
            return await rate(environment, self._trajectory, None, self._call)
        await rate(environment, self._trajectory, self._record_error, self._call)
        self._trajectory = await evaluate(environment, self._trajectory, self._record_error, self._call)

    async def _run_within_time_limit(self) -> None:
        limit_s = self._limits.max_duration_s
        self._deadline = asyncio.timeout(None if math.isinf(limit_s) else limit_s)
        try:
            async with self._deadline:
                environment, agent = await self._reset()
                self._trajectory.outcome = await self._run_steps(environment, agent)
        except TimeoutError:
            if not self._deadline.expired():
                raise
            self._trajectory.outcome = Outcome.TIMEOUT
            remote: object = self._environment
            if isinstance(remote, SupportsUnansweredRequest) and remote.unanswered_request is not None:
                raise remote.unanswered_request from None

    async def _reset(self) -> tuple[Environment, Agent]:
        self._environment = environment = await self._call(self._parts.build_environment)
        self._agent = agent = self._parts.build_agent()
        agent.tracer = self._tracer
        if (enter := optional_method(agent, SupportsEpisodeInfo.enter)) is not None:
            rounds = self._limits.max_rounds if self._limits.max_rounds <= MAX_ROUNDS else None
            record = self._context.on_sequence
            enter(EpisodeInfo(self._context.header, self._time_left_s, self._tokens.add, rounds, record))
        if (bind := optional_method(agent, SupportsBind.bind)) is not None:
            await maybe_await(bind(environment, self._reset_kwargs))
        with self._trace.span("env.reset"):
            observation = await self._call(environment.reset, **self._reset_kwargs)
        self._trajectory.reset_observation = chat = check_chat(observation, "the observation of a reset")
        name = ""
        if not self._context.keeps_objects:
            self._trajectory.env_episode_id = name = str(await self._call(environment.get_episode_id))
        if self._parts.records_world:
            self._world = WorldRecorder(environment, agent, self._call)
            self._trajectory.reset_world = await self._world.take()
        self._context.on_reset(chat, name, self._trajectory.reset_world)
        with self._trace.span("agent.init_after_reset"):
            await maybe_await(agent.init_after_reset())
        return environment, agent

    async def _run_steps(self, environment: Environment, agent: Agent) -> Outcome:
        steps = self._trajectory.timesteps
        step_runner = StepRunner(
            environment,
            agent,
            self._trace,
            self._clock.monotonic,
            self._tokens,
            call=self._call,
            may_lack_reward=self._context.keeps_objects,
        )
        observation = self._trajectory.reset_observation
        while await self._control.wait_at_step(self._on_pause, self._on_resume):
            step = await step_runner.run_step(len(steps), observation)
            steps.append(step)
            try:
                if self._world is not None:
                    await self._draw(step, self._world)
            finally:  # also if the episode is cancelled or out of time meanwhile
                self._emit_step(step)
            observation = step.observation
            if step.done or step_runner.unparsed >= self._limits.max_unparsed:
                return Outcome.FAILURE
            if len(steps) >= self._limits.max_rounds:
                return Outcome.TRUNCATED
            if self._time_left_s() <= 0:
                return Outcome.TIMEOUT
        return self._control.cancel_outcome or Outcome.CANCELLED

    async def _draw(self, step: TimeStep, world: WorldRecorder) -> None:
        """Take the picture after a step; a server that draws it slowly counts as a slow environment."""
        begun = self._clock.monotonic()
        with self._trace.span("render_cells"):
            step.world = await world.take()
        if step.phases is not None:
            drawn_s = self._clock.monotonic() - begun
            step.phases = msgspec.structs.replace(step.phases, env=step.phases.env + drawn_s)

    def _on_pause(self) -> None:
        self._deadline.reschedule(None)
        self._emit(EpisodePaused)

    def _on_resume(self) -> None:
        self._emit(EpisodeResumed)
        self._deadline.reschedule(asyncio.get_running_loop().time() + self._time_left_s())

    def _time_left_s(self) -> float:
        elapsed_s = self._clock.monotonic() - self._started - self._control.paused_s()
        return self._limits.max_duration_s - elapsed_s

    def _record_error(self, exc: BaseException) -> None:
        self._trajectory.error_info = create_error_info(exc)
        self._trajectory.outcome = Outcome.ERROR
        self._trajectory.success = False
        self._context.on_error(exc)

    def _emit_step(self, step: TimeStep) -> None:
        played, is_first = self._trajectory, step.index == 0
        self._emit(
            TimestepPlayed,
            step=step,
            reset_observation=played.reset_observation if is_first else None,
            reset_world=played.reset_world if is_first else None,
        )

    def _emit_tokens(self, step: int, delta: StreamDelta) -> None:
        if self._context.wants_tokens():
            self._emit(TokensStreamed, step=step, delta=delta)

    def _emit(self, kind: type[EpisodeEvent], **fields: Any) -> None:  # noqa: ANN401 - fields of the event type
        header = self._context.header
        self._context.emit(kind(at=self._clock.now(), episode_id=header.episode_id, seq=self._seq, **fields))
        self._seq += 1
