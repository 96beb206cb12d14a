"""Ray actors as the workers of a batch; each plays one episode at a time, and one thread drives all of them.

A ``RayWorker`` is an actor as its driver sees it, from its start to its loss; a restarted actor gets another one.
"""

from __future__ import annotations

import itertools
import logging
import os
import socket
import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from runner.config import AgentSettings, RaySettings
from runner.errors import ConfigError, RunnerError, catch_foreign, log_failure
from runner.inference.api_keys import endpoint_variables
from runner.inference.profile_models import Models
from runner.pool.ray_cluster import (
    HeadWatch,
    RayConnection,
    import_ray,
    inspect_nodes,
    node_to_fill,
    on_node,
    require_equal_nodes,
    require_reachable,
    rewrite_setup,
)
from runner.pool.services import BatchServices, batch_services
from runner.pool.worker import Finishers, Job, Slot, Worker, WorkerChange, WorkerPool
from runner.store.parts import Free
from runner.types import WorkerInfo, WorkerStatus
from runner.util.clock import Clock
from runner.util.display_text import mask, one_line
from runner.util.framing import FrameBuffer
from runner.util.resources import Resource
from runner.worker.frames import (
    Command,
    Configure,
    DriverFrame,
    Hello,
    Play,
    Reply,
    Watch,
    decode_worker_frame,
    encode_frame,
)
from runner.worker.runner_setup import RunnerSetup

logger = logging.getLogger(__name__)

MAX_FAILED_STARTS = 3
"""Maximum number of actors in a row that end before they are ready."""
MAX_REASON_CHARS = 300
BUSY_WAIT_S = 0.002
"""A wait for less than this found a result that was there already."""
MANY_ACTORS = 32
"""Number of actors from which a wait takes so long that others have results after it."""


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
            data = self._ray.get(next(generator), timeout=CALL_TIMEOUT_S)
        except StopIteration:
            raise BrokenActor("it ended an episode without a last frame") from None
        try:
            frames = [decode_worker_frame(frame) for frame in FrameBuffer().feed(data)]
        except (RunnerError, ValueError, RecursionError) as exc:
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


class RayTimings(msgspec.Struct, frozen=True, kw_only=True):
    """Intervals of the thread that drives the actors, in seconds.

    Attributes:
        start_s: maximum time without any worker that is ready; a cluster may have to start machines.
        retry_s: wait before an actor that is being restarted is called again.
        busy_s: wait for the next result while an episode is about to start.
        idle_s: the same at other times.
        about_to_start_s: time after the end of an episode in which the next one is expected.
        head_check_s: interval of the checks whether the head of the cluster can be reached.
        head_s: maximum time without reaching it.
    """

    start_s: float = 300.0
    retry_s: float = 0.5
    busy_s: float = 0.004
    idle_s: float = 0.05
    about_to_start_s: float = 0.2
    head_check_s: float = 5.0
    head_s: float = 30.0


class RayPool(WorkerPool):
    """The actors of one batch.

    Args:
        connection: the connection to the cluster; ``close`` ends it.
        configure: the settings of the batch, with addresses as the workers reach them.
        variables: environment variables of the workers: API keys, and addresses of models.
        runs: folder of the batches, into which this process writes the journals.
    """

    def __init__(
        self,
        connection: RayConnection,
        settings: RaySettings,
        configure: Configure,
        variables: dict[str, str],
        services: BatchServices,
        runs: Path,
        timings: RayTimings | None = None,
    ) -> None:
        self._connection = connection
        self._settings = settings
        self._configure = configure
        self._variables = variables
        self._services = services
        self._runs = runs
        self._timings = timings or RayTimings()
        self._clock = Clock()
        self._ray = import_ray()
        self._host = socket.gethostname()
        self._head = HeadWatch(self._clock, self._timings.head_check_s, self._timings.head_s)
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._finishers = Finishers()
        self._n_promised = 0
        self._workers: list[RayWorker] = []
        self._spare: list[RayWorker] = []
        self._retries: list[tuple[float, RayWorker]] = []
        self._n_failed_starts = 0
        self._changed_s = self._ready_s = self._clock.monotonic()
        self._due_s = 0.0
        self._states: dict[str, WorkerStatus] = {}
        self._nodes: dict[str, str] = {}
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="Ray workers", daemon=True)

    def open(self, on_slot: Callable[[Slot], object], on_worker: Callable[[WorkerChange], object]) -> None:
        """Start the thread; every slot is passed to ``on_slot`` when its actor has started."""
        super().open(on_slot, on_worker)
        self._thread.start()

    def start_slots(self, n_slots: int) -> tuple[list[Slot], Resource | None]:
        with self._lock:
            self._n_promised += n_slots
        self._due_s = 0.0
        return [], None

    def _send_watch(self, watch: Watch) -> None:
        for worker in list(self._workers):
            if worker.usable:
                worker.send(watch)

    def close(self) -> None:
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join()
        for worker in [*self._workers, *(worker for _, worker in self._retries)]:
            worker.episodes.lose("the batch has ended")
            worker.end()
        self._finishers.close()
        self._connection.close(is_lost=self._head.problem is not None)

    def _run(self) -> None:
        with catch_foreign(self._note_crash):
            while not self._closing.is_set():
                self._manage()
                for worker in self._wait():
                    self._advance(worker)
                for worker in self._workers:
                    worker.send_replies()

    def _manage(self) -> None:
        """Start workers and check the cluster, after a change and from time to time: each visits all actors."""
        now = self._clock.monotonic()
        if self.failure is None and now >= self._due_s:
            self._due_s = now + self._timings.idle_s
            self._start_workers()
            self._retry()
            self._check_start()
            self.failure = self.failure or self._head.check()

    def _note_crash(self, exc: BaseException) -> None:
        self.failure = one_line(mask(f"the Ray workers cannot be driven: {_reason(exc)}"), MAX_REASON_CHARS)
        log_failure(logger, "driving the Ray workers")(exc)
        for worker in self._workers:
            worker.episodes.lose(self.failure)

    def _wait(self) -> list[RayWorker]:
        """Wait for a result of an actor; return the actors that have one: all, if results arrive faster than waits."""
        pending = {worker.pending: worker for worker in self._workers if worker.pending is not None}
        timeout_s = self._wait_s()
        if not pending:
            self._closing.wait(timeout_s)
            return []
        references, began_s = list(pending), self._clock.monotonic()
        ready, _ = self._ray.wait(references, num_returns=1, timeout=timeout_s)
        is_busy = len(references) > MANY_ACTORS or self._clock.monotonic() - began_s < BUSY_WAIT_S
        if ready and is_busy:
            ready, _ = self._ray.wait(references, num_returns=len(references), timeout=0)
        return [pending[each] for each in ready]

    def _wait_s(self) -> float:
        is_recent = self._clock.monotonic() - self._changed_s < self._timings.about_to_start_s
        if is_recent and any(worker.is_ready and worker.pending is None for worker in self._workers):
            return self._timings.busy_s
        return self._timings.idle_s

    def _advance(self, worker: RayWorker) -> None:
        was_ready = worker.is_ready
        try:
            worker.advance()
        except (self._ray.exceptions.RayError, RunnerError) as exc:
            self._lose(worker, exc)
            return
        if worker.is_ready and not was_ready:
            self._welcome(worker)
        if worker.is_ready:
            self._set_state(worker, "playing" if worker.episodes.n_playing else "idle")
        if worker.pending is None:
            self._changed_s, self._due_s = self._clock.monotonic(), 0.0

    def _welcome(self, worker: RayWorker) -> None:
        """Offer a worker that has become ready; end the batch if it cannot reach the models and servers."""
        if worker.info.host != self._host:
            try:
                require_reachable(self._configure.setup, self._variables)
            except ConfigError as exc:
                self.failure = str(exc)
                return
        self._n_failed_starts = 0
        worker.send(self._watch)
        self._spare.append(worker)

    def _start_workers(self) -> None:
        """Offer the spare workers as slots, and start as many actors as slots are still missing."""
        while (slot := self._next_slot()) is not None:
            self._changed_s = self._clock.monotonic()
            self._on_slot(slot)
        n_starting = sum(not worker.is_ready for worker in self._workers) + len(self._retries)
        n_actors = len(self._workers) + len(self._retries)
        limit = self._settings.max_workers or self._n_promised + n_actors
        for _ in range(min(self._n_promised - n_starting, limit - n_actors)):
            self._add(self._new_actor())

    def _next_slot(self) -> Slot | None:
        self._spare = [worker for worker in self._spare if worker.usable]
        with self._lock:
            if not (self._n_promised and self._spare):
                return None
            self._n_promised -= 1
        worker = self._spare.pop()
        return Slot(f"slot {next(self._numbers)}", worker.info, worker)

    def _new_actor(self) -> object:
        from runner.worker.remote_runner import RemoteRunner

        settings = self._settings
        strategy: object = "SPREAD"
        node_id = None
        if settings.placement == "pack":
            workers = [*self._workers, *(worker for _, worker in self._retries)]
            node_id = node_to_fill(settings, (self._nodes.get(worker.actor_id) for worker in workers))
            strategy = "DEFAULT" if node_id is None else on_node(node_id, soft=True)
        actor = RemoteRunner.options(
            num_cpus=settings.num_cpus,
            resources=dict(settings.resources),
            max_restarts=-1,
            max_task_retries=0,
            scheduling_strategy=strategy,
        ).remote()
        if node_id is not None:
            self._nodes[actor._actor_id.hex()] = node_id
        return actor

    def _add(self, actor: object) -> None:
        worker = RayWorker(
            actor,
            self._configure,
            self._variables,
            self._services,
            self._clock,
            self._finishers.submit,
            runs=self._runs,
        )
        self._workers.append(worker)
        self._set_state(worker, "starting")

    def _lose(self, worker: RayWorker, exc: BaseException) -> None:
        """Report a lost worker; its actor is called again after a while, or replaced if Ray does not restart it."""
        exceptions = self._ray.exceptions
        reason = one_line(mask(_reason(exc)), MAX_REASON_CHARS)
        self._workers.remove(worker)
        if worker.is_ready:
            self._set_state(worker, "lost")
            logger.warning("Ray worker %s on %s was lost: %s", worker.info.id, worker.info.host, reason)
        worker.episodes.lose(reason)
        self._changed_s, self._due_s = self._clock.monotonic(), 0.0
        if isinstance(exc, exceptions.ActorDiedError):
            self._note_failed_start(worker, reason)
        elif isinstance(exc, exceptions.RayTaskError) and not worker.is_ready:
            worker.end()
            self.failure = f"a Ray worker on {worker.info.host or 'the cluster'} cannot play: {reason}"
        else:
            if not isinstance(exc, exceptions.RayActorError):
                worker.restart()
            self._retries.append((self._changed_s + self._timings.retry_s, worker))

    def _note_failed_start(self, worker: RayWorker, reason: str) -> None:
        if not worker.is_ready:
            self._n_failed_starts += 1
            if self._n_failed_starts > MAX_FAILED_STARTS:
                self.failure = f"no Ray worker starts: {reason}"

    def _retry(self) -> None:
        now = self._clock.monotonic()
        due = [worker for at, worker in self._retries if at <= now]
        self._retries = [(at, worker) for at, worker in self._retries if at > now]
        for worker in due:
            self._add(worker.actor)

    def _check_start(self) -> None:
        """Give up if there has been no ready worker for too long."""
        now = self._clock.monotonic()
        if any(worker.is_ready for worker in self._workers) or not self._n_promised:
            self._ready_s = now
        elif now - self._ready_s > self._timings.start_s:
            needs = f"{self._settings.num_cpus:g} CPUs" + "".join(
                f", {amount:g} {name}" for name, amount in self._settings.resources.items()
            )
            self.failure = (
                f"no Ray worker started within {self._timings.start_s:g} s: no node of the cluster has {needs} free"
            )

    def _set_state(self, worker: RayWorker, state: WorkerStatus) -> None:
        if self._states.get(worker.actor_id) != state:
            self._states[worker.actor_id] = state
            self._on_worker(WorkerChange(id=worker.actor_id, host=worker.info.host, state=state, pid=worker.pid))


def open_ray_pool(
    settings: RaySettings,
    setup: RunnerSetup,
    models: Models | None,
    runs: Path,
    agent: AgentSettings | None = None,
    timings: RayTimings | None = None,
) -> RayPool:
    """Connect to a cluster, or start one, and return a pool of its actors for a batch.

    Raises ``ConfigError`` if Ray is not installed, there is no connection, a node is not installed like this machine,
    or workers elsewhere could not reach a model or server.
    """
    secrets = {} if setup.models is None else endpoint_variables(setup.models, os.environ)
    remote_setup, variables = rewrite_setup(setup, settings.addresses, os.environ)
    # The cluster may serve later batches, whose agents use models.
    keys = secrets if agent is None else endpoint_variables(agent, os.environ)
    connection = RayConnection(settings, keys)
    try:
        nodes = inspect_nodes()
        require_equal_nodes(nodes)
        if not all(node.is_local for node in nodes):
            require_reachable(remote_setup, variables)
    except ConfigError:
        connection.close()
        raise
    services = batch_services(remote_setup, models)
    return RayPool(
        connection, settings, Configure(setup=remote_setup), {**secrets, **variables}, services, runs, timings
    )


def _reason(exc: BaseException) -> str:
    lines = str(exc).strip().splitlines() or [""]
    # An error of a task has the remote traceback, with the message in its last line.
    text = lines[-1] if type(exc).__name__.startswith("RayTaskError") else " ".join(map(str.strip, lines))
    return f"{type(exc).__name__}: {text}"
