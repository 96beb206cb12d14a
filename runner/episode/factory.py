"""The factory of a batch's episodes: builds an agent and an environment for each and plays it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runner.episode.loop import EpisodeContext, EpisodeLoop
from runner.episode.prepared_config import PreparedConfig
from runner.types import Agent, Environment, EpisodeHeader, Limits, SpanLevel, Trajectory
from runner.util.clock import Clock, new_ulid

__all__ = ["EpisodeContext", "EpisodeFactory"]


class EpisodeFactory:
    """Plays episodes of one agent in one environment; picklable, so it can be sent to another process.

    Args:
        inference_mngr: source of model answers, passed to the agent's constructor under this name; None: not passed.
        judge_mngr: source of model answers for the environment's judge, passed to the environment's constructor as
            ``inference_mngr``; None: not passed.
        records_world: whether timesteps have pictures of an environment that can draw its state.
    """

    def __init__(
        self,
        *,
        env_cfg: Mapping[str, Any],
        agent_cfg: Mapping[str, Any],
        inference_mngr: object | None = None,
        judge_mngr: object | None = None,
        tracing_level: SpanLevel = "full",
        limits: Limits | None = None,
        records_world: bool = False,
    ) -> None:
        self.env_cfg = env_cfg
        self.agent_cfg = agent_cfg
        self.inference_mngr = inference_mngr
        self.judge_mngr = judge_mngr
        self.tracing_level: SpanLevel = tracing_level
        self.limits = limits or Limits()
        self.records_world = records_world
        self._environments, self._agents = PreparedConfig(env_cfg), PreparedConfig(agent_cfg)

    async def play_episode(
        self, reset_kwargs: Mapping[str, Any] | None = None, *, context: EpisodeContext | None = None
    ) -> Trajectory:
        """Play one episode and return its trajectory.

        An error in the environment or the agent ends the episode; the trajectory then holds the error (``error_info``)
        and the timesteps before it. The only exception that this method raises is ``asyncio.CancelledError``. The
        environment's ``cleanup`` and the agent's ``close`` are called exactly once.

        Args:
            reset_kwargs: arguments of the environment's ``reset``; ``task`` (with ``task_id``) and ``task_unique_id``
                identify the task in traces.
            context: ids, control, tracer and event callbacks; None: new ids and no callbacks.
        """
        context = context or EpisodeContext(self._anonymous_header(reset_kwargs or {}))
        return await EpisodeLoop(self, dict(reset_kwargs or {}), context).run()

    def build_environment(self) -> Environment:
        extra = {} if self.judge_mngr is None else {"inference_mngr": self.judge_mngr}
        environment: Environment = self._environments.build(**extra)
        return environment

    def build_agent(self) -> Agent:
        extra = {} if self.inference_mngr is None else {"inference_mngr": self.inference_mngr}
        agent: Agent = self._agents.build(**extra)
        return agent

    def _anonymous_header(self, reset_kwargs: Mapping[str, Any]) -> EpisodeHeader:
        return EpisodeHeader(
            episode_id=new_ulid(),
            batch_id=new_ulid(),
            env=str(self.env_cfg.get("_target_", "")).rpartition(".")[2],
            task_index=int(reset_kwargs.get("task_index", 0)),
            started_at=Clock().now(),
        )
