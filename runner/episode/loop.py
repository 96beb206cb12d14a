"""The episode loop: build the environment and the agent, reset, run steps, evaluate, clean up."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Protocol

import msgspec

from runner.episode.control import EpisodeControl
from runner.episode.validation import (
    check_act_result,
    check_chat,
    check_details,
    check_flow_id,
    check_schemas,
    check_step,
    check_usage,
    note_rejection,
    resolve_action,
)
from runner.episode.world import WorldRecorder
from runner.errors import EvaluationFault, catch_foreign, log_failure
from runner.tracing import SpanHandle, Tracer, create_error_info, create_flow_id
from runner.types import (
    Action,
    Agent,
    AnswerTimes,
    AREEvaluatedTrajectory,
    Chat,
    DeltaPart,
    Environment,
    EpisodeEnded,
    EpisodeEvent,
    EpisodeHeader,
    EpisodeInfo,
    EpisodePaused,
    EpisodeResumed,
    EpisodeStarted,
    ErrorInfo,
    EvaluatedTrajectory,
    InvalidAction,
    Limits,
    Outcome,
    PackedCells,
    Phases,
    SpanLevel,
    StepResult,
    StreamDelta,
    SupportsBind,
    SupportsCleanup,
    SupportsClose,
    SupportsEpisodeInfo,
    SupportsEvaluation,
    SupportsSuccess,
    SupportsUnansweredRequest,
    TimeStep,
    TimestepPlayed,
    TokensStreamed,
    ToolSchema,
    Trajectory,
    Usage,
)
from runner.types.data import MAX_ROUNDS
from runner.types.protocols import maybe_await, optional_method
from runner.types.sequences import TokenSequence
from runner.util.clock import Clock

logger = logging.getLogger(__name__)

ARE_CLASS = "AREEnvironment"
CLEANUP_TIMEOUT_S = 5.0
"""Maximum seconds for the environment's ``cleanup`` and the agent's ``close``, if async; they run concurrently."""
EMIT_INTERVAL_S = 0.1
"""Minimum seconds between two emissions, so that a fast model does not cause one event per token."""


_NO_SPAN = SpanHandle(0)


class EpisodeTrace:
    """Records the spans of one episode under the names that its file has; a subclass may have other names.

    ``task`` and ``task_unique_id`` of the reset's arguments identify the task.
    """

    semantic: ClassVar[str] = "episode"
    """Attribute of that name of the episode's span."""
    spans: ClassVar[Mapping[str, tuple[str, Mapping[str, Any]]]] = {
        "env.reset": ("environment", {"semantic": "environment"}),
        "agent.init_after_reset": ("agent", {"semantic": "agent"}),
        "timestep": ("timestep", {"semantic": "timestep"}),
        "get_tool_schemas": ("environment", {}),
        "agent.act": ("agent", {}),
        "env.step": ("environment", {}),
        "render_cells": ("environment", {}),
        "cleanup": ("environment", {}),
    }
    """Category and attributes of each span inside that of the episode; others are not recorded."""
    step_numbers: ClassVar[Mapping[str, str]] = {"timestep": "index"}
    """The attribute with the number of the step, by the span that has it."""
    result_span: ClassVar[str] = "timestep"
    """The span of a step that has its reward and whether the episode is done."""

    def __init__(self, tracer: Tracer, header: EpisodeHeader, reset_kwargs: Mapping[str, Any]) -> None:
        self._tracer = tracer
        self._header = header
        self._reset_kwargs = reset_kwargs

    def episode(self) -> SpanHandle:
        ids = {"trace_id": self._header.episode_id, "task_id": self._task_id()}
        return self._tracer.span("episode", "episode", **ids, semantic=self.semantic)

    def span(self, name: str, step: int = 0) -> SpanHandle:
        """Return a span inside that of the episode; ``name`` is one of ``spans``."""
        if (known := self.spans.get(name)) is None:
            return _NO_SPAN
        category, attributes = known
        if (attribute := self.step_numbers.get(name)) is not None:
            attributes = {attribute: step, **attributes}
        return self._tracer.span(name, category, **attributes)

    def add_result(self, name: str, span: SpanHandle, reward: float | None, done: bool) -> None:
        if name == self.result_span:
            span.set_attribute("reward", reward)
            span.set_attribute("done", done)

    def start(self, span: SpanHandle) -> None:
        span.end_flow(create_flow_id("task", str(self._reset_kwargs.get("task_unique_id", self._task_id()))))
        span.start_flow(create_flow_id("episode_return", self._header.episode_id))

    def end(self, span: SpanHandle, trajectory: Trajectory) -> None:
        span.set_attribute("num_timesteps", len(trajectory.timesteps))
        span.set_attribute("final_reward", trajectory.reward)
        if trajectory.error_info is not None:
            span.set_attribute("error", trajectory.error_info.type)

    def _task_id(self) -> str:
        task, header = self._reset_kwargs.get("task"), self._header
        task_id = task.get("task_id") if isinstance(task, Mapping) else getattr(task, "task_id", None)
        return str(task_id) if task_id is not None else f"{header.env}:{header.task_index}"


class TokenStream:
    """Merges the many small deltas that a model streams during a step into a few per second; not thread-safe.

    ``emit`` is called with the index of the step and a merged delta; each part of an answer (reasoning, text, each tool
    call) has its own deltas.
    """

    def __init__(self, now: Callable[[], float], emit: Callable[[int, StreamDelta], None]) -> None:
        self._now = now
        self._emit = emit
        self._step = 0
        self._pending: dict[tuple[DeltaPart, int], list[StreamDelta]] = {}
        self._last_emit = 0.0
        self._has_emitted = False

    def start_step(self, step: int) -> None:
        """Later deltas belong to this step, and pending deltas are discarded."""
        self._step = step
        self._has_emitted = False
        self._pending.clear()

    def add(self, delta: str | StreamDelta) -> None:
        """Add a delta; an empty string discards all deltas of the current step, because the answer starts again."""
        if not isinstance(delta, StreamDelta):
            delta = StreamDelta(text=delta, n=1) if delta else StreamDelta(restart=True)
        if delta.restart:
            self._restart(delta)
        elif delta.endpoint is not None or delta.failure is not None:
            self.flush()
            self._emit(self._step, delta)
        else:
            self._pending.setdefault((delta.part, delta.call), []).append(delta)
            if self._now() - self._last_emit >= EMIT_INTERVAL_S:
                self.flush()

    def flush(self) -> None:
        for deltas in self._pending.values():
            tool = next((delta.tool for delta in deltas if delta.tool), "")
            text, n = "".join(delta.text for delta in deltas), sum(delta.n for delta in deltas)
            self._emit(self._step, msgspec.structs.replace(deltas[0], text=text, tool=tool, n=n))
            self._has_emitted = True
        self._pending.clear()
        self._last_emit = self._now()

    def close(self) -> None:
        """Discards the pending deltas, and ignores all later ones."""
        self._pending.clear()
        self._emit = _ignore

    def _restart(self, delta: StreamDelta) -> None:
        # Nothing to take back if no delta of the failed endpoint was emitted.
        self._pending.clear()
        if self._has_emitted or delta.failure is not None:
            self._emit(self._step, msgspec.structs.replace(delta, restart=self._has_emitted))
        self._has_emitted = False


def _ignore(*values: object) -> None:
    pass


def step_phases(wall_s: float, step: TimeStep, usage: Usage | None) -> Phases:
    """Without times, all of the agent's time counts as the answer if a model was used, else as our own."""
    times = None if usage is None else usage.times or AnswerTimes(total_s=step.model_s)
    if times is not None and times.total_s > step.model_s:  # of requests at the same time
        times = AnswerTimes(total_s=step.model_s)
    if times is None:
        return Phases(env=step.env_s, own=max(wall_s - step.env_s, 0.0))
    return Phases(
        queue=times.queue_s,
        prefill=times.prefill_s,
        decode=times.decode_s,
        model=times.total_s,
        env=step.env_s,
        own=max(wall_s - step.env_s - times.total_s, 0.0),
        about=times.about,
    )


class StepPlayer(msgspec.Struct):
    """Runs the steps of one episode.

    If the agent returns an ``InvalidAction``, the environment is not stepped; the observation is then an error message.

    Attributes:
        unparsed: number of consecutive answers up to the latest step that are an ``InvalidAction``, or a tool call that
            is not valid.
    """

    environment: Environment
    agent: Agent
    trace: EpisodeTrace
    now: Callable[[], float]
    tokens: TokenStream
    unparsed: int = 0
    may_lack_reward: bool = False
    _schemas: list[ToolSchema] = msgspec.field(default_factory=list)

    async def run_step(self, index: int, observation: Chat) -> TimeStep:
        begun = self.now()
        with self.trace.span("timestep", index) as span:
            with self.trace.span("get_tool_schemas"):
                schemas = await maybe_await(self.environment.get_tool_schemas())
                if schemas != self._schemas:  # those of the previous step have been checked
                    self._schemas = check_schemas(schemas)
                schemas = self._schemas
            started = self.now()
            self.tokens.start_step(index)
            with self.trace.span("agent.act"):  # pass copies, because the agent may change its lists
                chats, answer = check_act_result(await maybe_await(self.agent.act(observation.copy(), schemas.copy())))
            self.tokens.flush()
            model_s = self.now() - started
            action, (new_observation, reward, done), env_s = await self._execute(index, answer, schemas)
            self.trace.add_result("timestep", span, reward, done)
        step = TimeStep(
            index=index,
            chats=chats,
            action=action,
            observation=new_observation,
            reward=reward,
            done=done,
            available_tool_schemas=schemas,
            model_s=model_s,
            env_s=env_s,
        )
        return self._add_usage(step, self.now() - begun)

    async def _execute(
        self, index: int, answer: Action | InvalidAction, schemas: list[ToolSchema]
    ) -> tuple[Action, StepResult, float]:
        """Return the action to store, the step's result and its seconds."""
        if isinstance(answer, InvalidAction):
            self.unparsed = self.unparsed + 1 if answer.reply is None else 0
            reply = f"Invalid action. Expected {answer.expected}." if answer.reply is None else answer.reply
            new_observation: Chat = [{"role": "user", "content": reply}]
            return Action(text=answer.text, valid=False), (new_observation, 0.0, False), 0.0
        action = await resolve_action(self.environment, answer, schemas)
        resolved_at = self.now()
        with self.trace.span("env.step", index) as span:
            returned = await maybe_await(self.environment.step(answer))
            result = check_step(returned, may_lack_reward=self.may_lack_reward)
            self.trace.add_result("env.step", span, *result[1:])
        action = note_rejection(action, getattr(self.environment, "rejection", None))
        self.unparsed = 0 if action.valid or not answer.tool_calls else self.unparsed + 1
        return action, result, self.now() - resolved_at

    def _add_usage(self, step: TimeStep, wall_s: float) -> TimeStep:
        usage = check_usage(getattr(self.agent, "last_usage", None))
        phases = step_phases(wall_s, step, usage)
        if usage is None:
            return msgspec.structs.replace(step, phases=phases)
        values = msgspec.structs.asdict(usage)
        del values["times"]
        values["shape"] = usage.shape or msgspec.UNSET
        return msgspec.structs.replace(step, phases=phases, **values)


class EpisodeContext(msgspec.Struct, frozen=True):
    """Everything an episode needs besides its agent and environment; its callbacks must neither block nor raise.

    Attributes:
        tracer: records the spans, which no event contains. By default, a new tracer with the level of the parts.
        emit: called with every event, in order, on the episode's thread.
        on_reset: called before the first step with the reset observation, the environment's id of the episode and the
            picture of the environment.
        on_error: called with the error that ends the episode, before the events of its end.
        on_decided: called with the final outcome and error, before the cleanup.
        on_sequence: called with the token ids of each model call of the agent, before the event of its step.
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
    on_decided: Callable[[Outcome, ErrorInfo | None], None] = _ignore
    on_sequence: Callable[[TokenSequence], None] = _ignore
    clock: Clock = msgspec.field(default_factory=Clock)
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
            self._context.on_decided(self._trajectory.outcome, self._trajectory.error_info)
            if self._agent is not None:
                self._trajectory.trace_last_response_flow_id = last_response_flow(self._agent)
            self._trace.end(span, self._trajectory)
            agent = None if self._context.keeps_objects else self._agent
            with self._trace.span("cleanup"):
                await release(self._environment, agent, timeout_s=self._context.cleanup_timeout_s)

    async def _rate(self, environment: Environment) -> None:
        if self._context.keeps_objects:
            return await rate(environment, self._trajectory, None)
        await rate(environment, self._trajectory, self._record_error)
        self._trajectory = await evaluate(environment, self._trajectory, self._record_error)

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
        self._environment = environment = self._parts.build_environment()
        self._agent = agent = self._parts.build_agent()
        agent.tracer = self._tracer
        if (enter := optional_method(agent, SupportsEpisodeInfo.enter)) is not None:
            rounds = self._limits.max_rounds if self._limits.max_rounds <= MAX_ROUNDS else None
            record = self._context.on_sequence
            enter(EpisodeInfo(self._context.header, self._time_left_s, self._tokens.add, rounds, record))
        if (bind := optional_method(agent, SupportsBind.bind)) is not None:
            await maybe_await(bind(environment, self._reset_kwargs))
        with self._trace.span("env.reset"):
            observation = await maybe_await(environment.reset(**self._reset_kwargs))
        self._trajectory.reset_observation = chat = check_chat(observation, "the observation of a reset")
        name = ""
        if not self._context.keeps_objects:
            self._trajectory.env_episode_id = name = str(await maybe_await(environment.get_episode_id()))
        if self._parts.records_world:
            self._world = WorldRecorder(environment, agent)
            self._trajectory.reset_world = await self._world.take()
        self._context.on_reset(chat, name, self._trajectory.reset_world)
        with self._trace.span("agent.init_after_reset"):
            await maybe_await(agent.init_after_reset())
        return environment, agent

    async def _run_steps(self, environment: Environment, agent: Agent) -> Outcome:
        steps = self._trajectory.timesteps
        step_player = StepPlayer(
            environment,
            agent,
            self._trace,
            self._clock.monotonic,
            self._tokens,
            may_lack_reward=self._context.keeps_objects,
        )
        observation = self._trajectory.reset_observation
        while await self._control.wait_at_step(self._on_pause, self._on_resume):
            step = await step_player.run_step(len(steps), observation)
            steps.append(step)
            try:
                if self._world is not None:
                    await self._draw(step, self._world)
            finally:  # also if the episode is cancelled or out of time meanwhile
                self._emit_step(step)
            observation = step.observation
            if step.done or step_player.unparsed >= self._limits.max_unparsed:
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
        self._emit(TokensStreamed, step=step, delta=delta)

    def _emit(self, kind: type[EpisodeEvent], **fields: Any) -> None:  # noqa: ANN401 - fields of the event type
        header = self._context.header
        self._context.emit(kind(at=self._clock.now(), episode_id=header.episode_id, seq=self._seq, **fields))
        self._seq += 1


async def rate(
    environment: Environment,
    trajectory: Trajectory,
    on_error: Callable[[BaseException], None] | None,
) -> None:
    """By the environment's rule, else by rewards; ``on_error`` gets an error of ``success``, or it is only logged."""
    with catch_foreign(on_error or log_failure(logger, "success")):
        success = optional_method(environment, SupportsSuccess.success)
        by_rewards = any((step.reward or 0.0) > 0 for step in trajectory.timesteps)
        trajectory.success = by_rewards if success is None else bool(await maybe_await(success(trajectory)))
        trajectory.outcome = _outcome(environment, trajectory)


async def evaluate(
    environment: Environment,
    trajectory: Trajectory,
    on_error: Callable[[BaseException], None],
) -> Trajectory:
    """Return a trajectory with the environment's evaluation details, if any.

    The result is an ``AREEvaluatedTrajectory`` if the environment's class is named ``AREEnvironment``, whichever
    package it is from. Such an environment may return None, and the trajectory is then returned as it is; ``success``
    None in its details is an error of the evaluation, and no failure of the agent.

    ``on_error`` receives a missing verdict; an error of ``get_evaluation_details`` is only logged.
    """
    with catch_foreign(log_failure(logger, "get_evaluation_details")):
        if (get_details := optional_method(environment, SupportsEvaluation.get_evaluation_details)) is not None:
            details = await maybe_await(get_details())
            return _evaluated(environment, trajectory, details, on_error)
    return trajectory


def _evaluated(
    environment: Environment,
    trajectory: Trajectory,
    found: dict[str, Any] | None,
    on_error: Callable[[BaseException], None],
) -> Trajectory:
    if type(environment).__name__ != ARE_CLASS:
        return EvaluatedTrajectory(**msgspec.structs.asdict(trajectory), evaluation=check_details(found))
    if found is None:
        return trajectory
    details = check_details(found)
    if details.get("success", False) is None:
        reason = details.get("exception") or details.get("rationale") or "no reason given"
        on_error(EvaluationFault(f"The validation of the episode has no verdict: {reason}"))
    return AREEvaluatedTrajectory(**msgspec.structs.asdict(trajectory), evaluation=details)


def last_response_flow(agent: Agent) -> int | None:
    with catch_foreign(log_failure(logger, "last_response_flow_id")):
        flow_id = getattr(agent, "_trace_last_response_flow_id", None)
        return check_flow_id(getattr(agent, "last_response_flow_id", None) if flow_id is None else flow_id)
    return None


async def release(
    environment: Environment | None,
    agent: Agent | None,
    *,
    timeout_s: float = CLEANUP_TIMEOUT_S,
) -> None:
    """Call the environment's ``cleanup`` and the agent's ``close`` concurrently, for at most ``timeout_s`` seconds.

    Their errors are logged. A cancellation in the meantime is raised when both have ended or the time is over.
    """
    clock = asyncio.get_running_loop().time
    ends_at = clock() + timeout_s
    unfinished = {
        asyncio.create_task(_cleanup(environment), name="cleanup"),
        asyncio.create_task(_close(agent), name="close"),
    }
    cancelled: asyncio.CancelledError | None = None
    while unfinished and (remaining_s := ends_at - clock()) > 0:
        try:
            _, unfinished = await asyncio.wait(unfinished, timeout=remaining_s)
        except asyncio.CancelledError as exc:
            cancelled = exc
    for task in unfinished:
        if task.cancel():
            logger.warning("%s did not end within %g s", task.get_name(), timeout_s)
    if cancelled is not None:
        raise cancelled


async def _cleanup(environment: Environment | None) -> None:
    with catch_foreign(log_failure(logger, "cleanup")):
        if (cleanup := optional_method(environment, SupportsCleanup.cleanup)) is not None:
            await maybe_await(cleanup())


async def _close(agent: Agent | None) -> None:
    with catch_foreign(log_failure(logger, "close")):
        if (close := optional_method(agent, SupportsClose.close)) is not None:
            await maybe_await(close())


def _outcome(environment: Environment, trajectory: Trajectory) -> Outcome:
    if trajectory.outcome in (Outcome.TIMEOUT, Outcome.CANCELLED, Outcome.INTERRUPTED):
        return trajectory.outcome
    if trajectory.success:
        return Outcome.SUCCESS
    return Outcome.TRUNCATED if getattr(environment, "truncated", False) else trajectory.outcome
