"""One step of an episode: let the agent act, check and execute its action, and check the observation.

``TokenStream`` merges the many small deltas that a model streams during a step into a few per second.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from runner.episode.trace import EpisodeTrace
from runner.episode.validation import (
    check_act_result,
    check_schemas,
    check_step,
    check_usage,
    note_rejection,
    resolve_action,
)
from runner.types import (
    Action,
    Agent,
    AnswerTimes,
    Chat,
    DeltaPart,
    Environment,
    InvalidAction,
    Phases,
    StepResult,
    StreamDelta,
    TimeStep,
    ToolSchema,
    Usage,
)
from runner.types.maybe_async import CallMethod, call_here, maybe_await

EMIT_INTERVAL_S = 0.1
"""Minimum seconds between two emissions, so that a fast model does not cause one event per token."""


class TokenStream:
    """Merges the stream deltas of each step; not thread-safe.

    Args:
        now: a monotonic clock in seconds.
        emit: called with the index of the step and a merged delta; each part of an answer (reasoning, text, each tool
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
            self._emit(self._step, _merge(deltas))
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


def step_phases(wall_s: float, step: TimeStep, usage: Usage | None) -> Phases:
    """Return how the wall time of a step is split; the agent's time beside the model's answer is our own.

    Without the times of an answer, all of the agent's time counts as the answer if a model was used, else as our own.
    """
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


def _ignore(step: int, delta: StreamDelta) -> None:
    pass


def _merge(deltas: list[StreamDelta]) -> StreamDelta:
    tool = next((delta.tool for delta in deltas if delta.tool), "")
    text, n = "".join(delta.text for delta in deltas), sum(delta.n for delta in deltas)
    return msgspec.structs.replace(deltas[0], text=text, tool=tool, n=n)


class StepRunner(msgspec.Struct):
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
    call: CallMethod = call_here
    unparsed: int = 0
    may_lack_reward: bool = False
    _schemas: list[ToolSchema] = msgspec.field(default_factory=list)

    async def run_step(self, index: int, observation: Chat) -> TimeStep:
        begun = self.now()
        with self.trace.span("timestep", index) as span:
            with self.trace.span("get_tool_schemas"):
                schemas = self._check_schemas(await self.call(self.environment.get_tool_schemas))
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
        action = await resolve_action(self.environment, answer, schemas, self.call)
        resolved_at = self.now()
        with self.trace.span("env.step", index) as span:
            result = check_step(await self.call(self.environment.step, answer), may_lack_reward=self.may_lack_reward)
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

    def _check_schemas(self, schemas: list[ToolSchema]) -> list[ToolSchema]:
        # Checks only schemas that differ from those of the previous step.
        if schemas != self._schemas:
            self._schemas = check_schemas(schemas)
        return self._schemas
