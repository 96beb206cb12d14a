"""Episodes in a Ray actor; importing this module needs the extra ``ray``."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec
import ray

from runner.episode.factory import EpisodeFactory
from runner.errors import ConfigError
from runner.types import Limits, SpanLevel, Trajectory, WorkerInfo
from runner.worker.driver_link import FrameQueue
from runner.worker.frames import Command, Configure, Hello, Play, decode_driver_frame, encode_frame
from runner.worker.worker_episodes import WorkerEpisodes

CONTROL = "control"
"""Concurrency group of the calls that are not queued behind a running episode; it has a thread and loop of its own."""
CONTROL_CALLS = 4
"""Maximum concurrent calls in that group."""
LINGER_S = 0.005
"""Seconds from the first frame of an item of ``episode_frames`` until it is sent; each item costs the driver 1 ms."""
MAX_UNREAD = 4
"""Maximum number of items of ``episode_frames`` that the caller has not fetched; then the generator waits."""

_Method = TypeVar("_Method", bound=Callable[..., Any])


def _method(**options: object) -> Callable[[_Method], _Method]:
    decorator: Callable[[_Method], _Method] = ray.method(**options)
    return decorator


class RunnerActor:
    """Plays one episode at a time in a Ray actor, as ``EpisodeFactory`` does in this process; its id is the actor's.

    Start it with ``RemoteRunner.remote(env_cfg=…, agent_cfg=…)``. All arguments are pickled. An ``InferenceManager``
    is pickled without its API keys, which the actor reads from the environment variables of its Ray node. An actor
    without arguments is a worker of a batch: ``configure`` follows, then ``episode_frames`` for each episode.

    Args:
        env_cfg: Hydra config of the environment, with ``_target_`` (see ``hydra.utils.instantiate``).
        inference_mngr: source of model answers, passed to the agent's constructor under this name; None: not passed.
        tracing_level: which spans are recorded: ``off``, ``episode`` or ``full``.
        limits: maximum rounds and seconds of an episode.
        records_world: whether timesteps have pictures of an environment that can draw its state.
    """

    def __init__(
        self,
        *,
        env_cfg: Mapping[str, Any] | None = None,
        agent_cfg: Mapping[str, Any] | None = None,
        inference_mngr: object | None = None,
        tracing_level: SpanLevel = "full",
        limits: Limits | None = None,
        records_world: bool = True,
    ) -> None:
        self._factory: EpisodeFactory | None = None
        if env_cfg is not None and agent_cfg is not None:
            self._factory = EpisodeFactory(
                env_cfg=env_cfg,
                agent_cfg=agent_cfg,
                inference_mngr=inference_mngr,
                tracing_level=tracing_level,
                limits=limits,
                records_world=records_world,
            )
        self._worker = WorkerInfo(
            host=socket.gethostname(), id=str(ray.get_runtime_context().get_actor_id()), kind="ray"
        )
        self._queue = FrameQueue()
        self._episodes: WorkerEpisodes | None = None

    async def play_episode(self, reset_kwargs: Mapping[str, Any] | None = None) -> Trajectory:
        """Play one episode and return its trajectory; a call waits until the previous episode has ended.

        An error in the environment or the agent ends the episode; the trajectory then holds it (``error_info``).
        ``ray.cancel`` ends the episode at its next ``await``.

        ``reset_kwargs`` are arguments of the environment's ``reset``, such as ``task_index`` and ``seed``. Raises
        ``ConfigError`` if the actor was created without ``env_cfg`` or ``agent_cfg``.
        """
        if self._factory is None:
            raise ConfigError("create the RemoteRunner with env_cfg and agent_cfg to play an episode")
        return await self._factory.play_episode(reset_kwargs)

    @_method(_generator_backpressure_num_objects=MAX_UNREAD)
    async def episode_frames(self, play: bytes) -> AsyncIterator[bytes]:
        """Play one episode of a batch; yield the frames of the worker up to the episode's ``Free``.

        Episodes are played on other threads. If the call is cancelled, the episode is cancelled at its next
        ``await``; its further frames precede those of the next episode.

        ``play`` is an encoded ``Play`` frame. Raises ``ConfigError`` if ``configure`` was not called.
        """
        episodes, frame = self._configured(), decode_driver_frame(play)
        if not isinstance(frame, Play):
            raise ConfigError(f"episode_frames needs a Play frame; got {type(frame).__name__}")
        episodes.handle(frame)
        is_last = False
        try:
            while not is_last:
                frames, is_last = await self._queue.take(LINGER_S)
                yield frames
        finally:
            if not is_last:
                episodes.handle(Command(episode_id=frame.header.episode_id, name="stop"))

    @_method(concurrency_group=CONTROL)
    async def worker(self) -> WorkerInfo:
        """Return the host and the id of this actor, even while an episode runs."""
        return self._worker

    @_method(concurrency_group=CONTROL)
    async def hello(self) -> bytes:
        """Return an encoded ``Hello`` frame with the present time of this host's clocks."""
        worker = self._worker
        frame = Hello(
            worker_id=worker.id,
            host=worker.host,
            pid=os.getpid(),
            monotonic_ns=time.monotonic_ns(),
            wall=datetime.now(UTC),
        )
        return encode_frame(frame)

    @_method(concurrency_group=CONTROL)
    async def configure(self, configure: bytes, variables: dict[str, str]) -> None:
        """Prepare for the episodes of a batch with an encoded ``Configure`` frame.

        ``variables`` are its ``secrets``. They are an argument of their own, because Ray keeps large arguments in files
        and small ones in the memory of the two processes. Raises ``ConfigError`` if the agent or the environment cannot
        be loaded on this host.
        """
        frame = decode_driver_frame(configure)
        if not isinstance(frame, Configure):
            raise ConfigError(f"configure needs a Configure frame; got {type(frame).__name__}")
        episodes = WorkerEpisodes(self._queue, msgspec.structs.replace(frame, secrets=variables))
        episodes.prepare()
        self._episodes = episodes

    @_method(concurrency_group=CONTROL)
    async def handle(self, frame: bytes) -> None:
        """Handle an encoded frame of the driver, even while an episode runs."""
        self._configured().handle(decode_driver_frame(frame))

    def _configured(self) -> WorkerEpisodes:
        if self._episodes is None:
            raise ConfigError("The worker has no batch yet; call configure first")
        return self._episodes


RemoteRunner = ray.remote(num_cpus=1, max_concurrency=1, concurrency_groups={CONTROL: CONTROL_CALLS})(RunnerActor)
"""``RunnerActor`` as an actor class; ``RemoteRunner.options(…)`` changes its resources."""
