"""A Ray actor as its driver sees it, from its start to its loss; after a restart, another object stands for it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from runner.errors import RunnerError
from runner.pool.ray_cluster import import_ray
from runner.pool.services import BatchServices
from runner.pool.worker import Job, Worker
from runner.store.parts import Free
from runner.types import WorkerInfo
from runner.util.clock import Clock
from runner.worker.driver_link import unpack
from runner.worker.frames import (
    Command,
    Configure,
    DriverFrame,
    Hello,
    Play,
    Reply,
    decode_worker_frame,
    encode_frame,
)

CALL_TIMEOUT_S = 30.0
"""Maximum seconds of a short call to an actor that has started."""
N_CLOCK_SAMPLES = 3
"""Number of short calls that measure the clocks of an actor's host; the fastest one counts."""

Actor: TypeAlias = Any
"""Handle of a ``RemoteRunner``."""


class BrokenActor(RunnerError):
    pass


class ClockSample(msgspec.Struct, frozen=True, kw_only=True):
    """The clocks of a worker between two readings of the driver's, of which ``received_wall_s`` is the wall clock."""

    sent_ns: int
    received_ns: int
    received_wall_s: float
    hello: Hello


def clock_offsets(samples: Sequence[ClockSample]) -> tuple[int, float]:
    """Return what to add to a worker's monotonic clock (ns) and wall clock (s) to get the driver's.

    The reply of the fastest call is assumed to be from its middle, so the error is at most half of its duration.
    """
    best = min(samples, key=lambda sample: sample.received_ns - sample.sent_ns)
    half_ns = (best.received_ns - best.sent_ns) // 2
    monotonic_ns = best.received_ns - half_ns - best.hello.monotonic_ns
    return monotonic_ns, best.received_wall_s - half_ns / 1e9 - best.hello.wall.timestamp()


class RayWorker:
    """An actor from a start or restart on; ``advance`` is called by one thread, the other methods by any.

    Its first sign of life is requested at once, and arrives when the actor has started.

    Args:
        variables: environment variables with secrets, an argument of a call to the started actor.
        finish: see ``Worker``.
    """

    def __init__(
        self,
        actor: Actor,
        configure: Configure,
        variables: dict[str, str],
        services: BatchServices,
        clock: Clock,
        finish: Callable[[Job], object],
        *,
        runs: Path,
    ) -> None:
        self._ray = import_ray()
        self.actor = actor
        self.actor_id = str(actor._actor_id.hex())
        self.info = WorkerInfo(host="", id=self.actor_id, kind="ray")
        self.pid: int | None = None
        self.episodes = Worker(f"Ray worker {self.actor_id}", self.send, services, clock, finish, runs=runs)
        self.is_ready = False
        self.is_hung = False
        self._configure = configure
        self._variables = variables
        self._clock = clock
        self._lock = threading.Lock()
        self._held: list[DriverFrame] = []
        self._replies: deque[Reply] = deque()
        self._has_frames = False
        self._hello: Hello | None = None
        self._pending: object | None = actor.hello.remote()

    @property
    def pending(self) -> object | None:
        """The reference or generator whose next result ``advance`` takes; None if nothing is expected."""
        return self._pending

    @property
    def usable(self) -> bool:
        return self.is_ready and self.episodes.lost is None and not self.is_hung

    def send(self, frame: DriverFrame) -> None:
        """Send a frame beside the running episode.

        Commands to an episode that has not begun are held until then, and replies until the next ``send_replies``.
        """
        if self.episodes.lost is not None:
            return
        if isinstance(frame, Reply):  # perhaps inside a finalizer, where the thread may hold any lock
            self._replies.append(frame)
            return
        with self._lock:
            if isinstance(frame, Play):
                self._has_frames = False
                self._pending = self.actor.episode_frames.remote(encode_frame(frame))
            elif isinstance(frame, Command) and not self._has_frames:
                self._held.append(frame)
            else:
                self._handle(frame)

    def send_replies(self) -> None:
        """Called by one thread."""
        while self._replies:
            self._handle(self._replies.popleft())

    def retire(self, episode_id: str) -> None:
        """Abandon an episode that hangs: the actor is restarted, because nothing else ends it."""
        if self.episodes.forget(episode_id):
            self.is_hung = True
            self.restart()

    def restart(self) -> None:
        """Ray starts another process for the actor."""
        self._ray.kill(self.actor, no_restart=False)

    def end(self) -> None:
        self._ray.kill(self.actor)

    def advance(self) -> None:
        """Take the result that has arrived.

        Raises ``ray.exceptions.RayError`` if the actor, its node or a call to it failed, and ``RunnerError`` if the
        actor returned something wrong.
        """
        if self._hello is None:
            self._greet()
        elif not self.is_ready:
            self._ray.get(self._pending, timeout=CALL_TIMEOUT_S)
            self._pending = None
            self.is_ready = True
            self.episodes.receive(self._hello)
        else:
            self._receive_frames()

    def _greet(self) -> None:
        self._ray.get(self._pending, timeout=CALL_TIMEOUT_S)
        samples = [self._sample_clocks() for _ in range(N_CLOCK_SAMPLES)]
        self._hello = hello = samples[-1].hello
        self.info = WorkerInfo(host=hello.host, id=self.actor_id, kind="ray")
        self.pid = hello.pid
        self.episodes.name = f"Ray worker {self.actor_id} on {hello.host}"
        offset_ns, wall_offset_s = clock_offsets(samples)
        configure = msgspec.structs.replace(self._configure, clock_offset_ns=offset_ns, wall_offset_s=wall_offset_s)
        self._pending = self.actor.configure.remote(encode_frame(configure), self._variables)

    def _sample_clocks(self) -> ClockSample:
        sent_ns = _monotonic_ns(self._clock)
        hello = decode_worker_frame(self._ray.get(self.actor.hello.remote(), timeout=CALL_TIMEOUT_S))
        received_ns, wall_s = _monotonic_ns(self._clock), self._clock.now().timestamp()
        if not isinstance(hello, Hello):
            raise BrokenActor(f"it sent {type(hello).__name__} in place of a greeting")
        return ClockSample(sent_ns=sent_ns, received_ns=received_ns, received_wall_s=wall_s, hello=hello)

    def _receive_frames(self) -> None:
        generator: Any = self._pending
        try:
            packed = self._ray.get(next(generator), timeout=CALL_TIMEOUT_S)
        except StopIteration:
            raise BrokenActor("it ended an episode without a last frame") from None
        try:
            frames = [decode_worker_frame(data) for data in unpack(packed)]
        except (msgspec.MsgspecError, ValueError, RecursionError) as exc:
            raise BrokenActor(f"it sent an invalid frame: {exc}") from exc
        with self._lock:
            self._has_frames = True
            held, self._held = self._held, []
            for command in held:
                self._handle(command)
        for frame in frames:
            if isinstance(frame, Free) and self._pending is generator:
                self._pending = None
            self.episodes.receive(frame)

    def _handle(self, frame: DriverFrame) -> None:
        self.actor.handle.remote(encode_frame(frame))


def _monotonic_ns(clock: Clock) -> int:
    return int(clock.monotonic() * 1e9)
