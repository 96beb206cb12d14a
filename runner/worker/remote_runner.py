"""The ``Runner`` as a Ray actor; importing this module needs the extra ``ray``."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import ray

from runner.episode.runner import Runner
from runner.types import Limits, SpanLevel, Trajectory, WorkerInfo

CONTROL = "control"
"""Concurrency group of the calls that are not queued behind a running episode; it has a thread and loop of its own."""
CONTROL_CALLS = 4
"""Maximum concurrent calls in that group."""

_Method = TypeVar("_Method", bound=Callable[..., Any])


def _control(method: _Method) -> _Method:
    """Run a method of the actor in the group ``CONTROL``."""
    decorate: Callable[[_Method], _Method] = ray.method(concurrency_group=CONTROL)
    return decorate(method)


class RunnerActor:
    """Plays one episode at a time in a Ray actor, like ``Runner`` in this process; the id of the actor is its own.

    Start it with ``RemoteRunner.remote(env_cfg=…, agent_cfg=…)``. All arguments are pickled. An ``InferenceManager``
    is pickled without its API keys, which the actor reads from the environment variables of its Ray node.

    Args:
        env_cfg: Hydra config of the environment, with ``_target_`` (see ``hydra.utils.instantiate``).
        agent_cfg: Hydra config of the agent.
        inference_mngr: source of model answers, passed to the agent's constructor under this name; None: not passed.
        tracing_level: which spans are recorded: ``off``, ``episode`` or ``full``.
        limits: maximum rounds and seconds of an episode.
    """

    def __init__(
        self,
        *,
        env_cfg: Mapping[str, Any],
        agent_cfg: Mapping[str, Any],
        inference_mngr: object | None = None,
        tracing_level: SpanLevel = "full",
        limits: Limits | None = None,
    ) -> None:
        """Store the settings; each episode builds its environment and agent."""
        self._runner = Runner(
            env_cfg=env_cfg,
            agent_cfg=agent_cfg,
            inference_mngr=inference_mngr,
            tracing_level=tracing_level,
            limits=limits,
        )
        actor_id = str(ray.get_runtime_context().get_actor_id())
        self._worker = WorkerInfo(host=socket.gethostname(), id=actor_id, kind="ray")

    async def play_episode(self, reset_kwargs: Mapping[str, Any] | None = None) -> Trajectory:
        """Play one episode and return its trajectory; a call waits until the previous episode has ended.

        An error in the environment or the agent ends the episode; the trajectory then holds it (``error_info``).
        ``ray.cancel`` ends the episode at its next ``await``.

        Args:
            reset_kwargs: arguments of the environment's ``reset``, such as ``task_index`` and ``seed``.
        """
        return await self._runner.play_episode(reset_kwargs)

    @_control
    async def worker(self) -> WorkerInfo:
        """Return the host and the id of this actor, even while an episode runs."""
        return self._worker


RemoteRunner = ray.remote(num_cpus=1, max_concurrency=1, concurrency_groups={CONTROL: CONTROL_CALLS})(RunnerActor)
"""``RunnerActor`` as an actor class; ``RemoteRunner.options(…)`` changes its resources."""
