"""The ``Runner`` for programs of one's own: one agent and one environment, built once, play episode after episode."""

from __future__ import annotations

import inspect
import logging
import math
import sys
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from runner.episode.loop import ARE_CLASS, EpisodeContext, EpisodeLoop, EpisodeTrace
from runner.errors import catch_foreign, log_failure
from runner.tracing import SpanHandle, Tracer, create_error_info, create_flow_id, get_protobuf_collector
from runner.types import (
    Agent,
    AREEvaluatedTrajectory,
    Environment,
    EpisodeHeader,
    Limits,
    SpanLevel,
    SupportsClose,
    SupportsEvaluation,
    TracingLevel,
    Trajectory,
)
from runner.types.protocols import maybe_await, optional_method

logger = logging.getLogger(__name__)

NO_LIMITS = Limits(sys.maxsize, math.inf, sys.maxsize)


class Runner:
    """Plays episodes of one agent in one environment, one at a time; ``ray.remote(Runner)`` is an actor class.

    Agent and environment are built here, once, and are the attributes ``agent`` and ``env``; ``tracer`` is shared with
    the agent. An episode has no limits unless they are given.

    Args:
        inference_mngr: source of model answers, passed to the agent under this name; None is passed only to an agent
            that has such an argument.
        tracing_level: which spans are recorded: ``off``, ``episode`` or ``full``; empty for ``full``.
        limits: maximum rounds and seconds of an episode; None: an episode ends when the environment is done.
    """

    def __init__(
        self,
        *,
        env_cfg: Mapping[str, Any],
        agent_cfg: Mapping[str, Any],
        inference_mngr: object,
        tracing_level: str = "off",
        limits: Limits | None = None,
    ) -> None:
        from hydra.utils import get_object, instantiate

        objects = {"inference_mngr": inference_mngr}
        if inference_mngr is None:
            known = inspect.signature(get_object(agent_cfg["_target_"])).parameters
            if "inference_mngr" not in known and all(each.kind is not each.VAR_KEYWORD for each in known.values()):
                objects = {}
        # Not in the config tree, which would turn a dict or dataclass into a config of its own.
        self.agent: Agent = instantiate(agent_cfg, _partial_=True)(**objects)
        self.env: Environment = instantiate(env_cfg)
        level = TracingLevel(tracing_level) if tracing_level else TracingLevel.FULL
        self.tracer = Tracer(
            worker_id=_worker_id(), worker_type="runner", level=level, collector=get_protobuf_collector()
        )
        self.agent.tracer = self.tracer
        self._limits = limits or NO_LIMITS
        self._is_playing = False

    async def play_episode(self, reset_kwargs: dict[str, Any]) -> Trajectory:
        """Play one episode and return its trajectory.

        An error in the environment or the agent ends the episode; the trajectory then has it (``error_info``) and the
        timesteps before it. The environment's ``cleanup`` is called after each episode, the agent's ``close`` is not.

        Args:
            reset_kwargs: arguments of the environment's ``reset``; ``task`` (with ``task_id``) and ``task_unique_id``
                identify the task in the trace.

        Raises:
            RuntimeError: another episode is being played.
        """
        if self._is_playing:
            raise RuntimeError("This Runner is playing an episode; await its end, or build a Runner for each")
        self._is_playing = True
        try:
            return await self._play(reset_kwargs)
        finally:
            self._is_playing = False

    async def close(self) -> None:
        """No episode can follow."""
        if (close := optional_method(self.agent, SupportsClose.close)) is not None:
            await maybe_await(close())

    def save_trace(self, path: str | Path) -> None:
        """Append the spans since the last call to a file for ui.perfetto.dev; raises ``StoreError`` if that fails."""
        get_protobuf_collector().save(Path(path))

    async def _play(self, reset_kwargs: dict[str, Any]) -> Trajectory:
        header = EpisodeHeader(
            episode_id=str(uuid.uuid4()), batch_id="", env=type(self.env).__name__, started_at=datetime.now(UTC)
        )
        trace = _Trace(self.tracer, header, reset_kwargs)
        context = EpisodeContext(
            header,
            tracer=self.tracer,
            trace=trace,
            on_reset=trace.on_reset,
            on_error=_log_error,
            cleanup_timeout_s=math.inf,
            keeps_objects=True,
        )
        parts = _Parts(self.env, self.agent, self._limits)
        trajectory = await EpisodeLoop(parts, reset_kwargs, context).run()
        trajectory.episode_id = None
        if not trace.is_reset:
            trajectory.trace_last_response_flow_id = None
            return trajectory
        with catch_foreign(partial(_add_error, trajectory)):
            trajectory.episode_id = await maybe_await(self.env.get_episode_id())
        return await self._evaluated(trajectory)

    async def _evaluated(self, trajectory: Trajectory) -> Trajectory:
        if type(self.env).__name__ != ARE_CLASS:
            return trajectory
        with catch_foreign(log_failure(logger, "get_evaluation_details")):
            get_details = optional_method(self.env, SupportsEvaluation.get_evaluation_details)
            details = None if get_details is None else await maybe_await(get_details())
            if details is not None:
                return AREEvaluatedTrajectory(**msgspec.structs.asdict(trajectory), are_evaluation=details)
        return trajectory


class _Parts(msgspec.Struct):
    env: Environment
    agent: Agent
    limits: Limits
    tracing_level: SpanLevel = "off"
    records_world: bool = False

    def build_environment(self) -> Environment:
        return self.env

    def build_agent(self) -> Agent:
        return self.agent


class _Trace(EpisodeTrace):
    """The record of an episode for the programs around a ``Runner``, which end and start flows of the same task."""

    semantic = "play_single_episode_with_environment"
    spans = dict.fromkeys(
        ("env.reset", "agent.init_after_reset", "timestep", "get_tool_schemas", "env.step"), ("inference", {})
    )
    step_numbers = dict.fromkeys(("timestep", "env.step"), "timestep_idx")
    result_span = "env.step"

    def __init__(self, tracer: Tracer, header: EpisodeHeader, reset_kwargs: Mapping[str, Any]) -> None:
        super().__init__(tracer, header, reset_kwargs)
        self._task = reset_kwargs.get("task")
        self._key = str(reset_kwargs.get("task_unique_id", id(self._task) if self._task else 0))
        self.is_reset = False

    def on_reset(self, *reset: object) -> None:
        self.is_reset = True

    def start(self, span: SpanHandle) -> None:
        span.end_flow(create_flow_id("task", self._key))

    def end(self, span: SpanHandle, trajectory: Trajectory) -> None:
        span.set_attribute("num_timesteps", len(trajectory.timesteps))
        span.set_attribute("error", trajectory.error_info is not None)
        if not self.is_reset:
            return
        if trajectory.timesteps and trajectory.timesteps[-1].reward is not None:
            span.set_attribute("final_reward", trajectory.timesteps[-1].reward)
        span.start_flow(create_flow_id("episode_return", self._key))

    def _task_id(self) -> str:
        return getattr(self._task, "task_id", "unknown") if self._task else "unknown"


def _worker_id() -> str:
    """Return the id of the Ray actor that this is in, or a new one outside of Ray."""
    with catch_foreign(lambda _: None):
        if (ray := sys.modules.get("ray")) is not None:
            return str(ray.get_runtime_context().get_actor_id() or "runner_unknown")
    return f"runner_{uuid.uuid4().hex[:8]}"


def _add_error(trajectory: Trajectory, exc: BaseException) -> None:
    _log_error(exc)
    trajectory.error_info = trajectory.error_info or create_error_info(exc)


def _log_error(exc: BaseException) -> None:
    logger.error("The episode ended with an error", exc_info=exc)
