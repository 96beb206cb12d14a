"""Local processes as the workers of a batch; each has an equal share of its slots."""

from __future__ import annotations

import itertools
import logging
import select
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol, TypeAlias

import msgspec

from runner.errors import RunnerError, catch_foreign
from runner.pool.services import BatchServices
from runner.pool.worker import BrokenFrame, Finishers, Job, Slot, Worker, WorkerChange, WorkerPool
from runner.types import WorkerInfo, WorkerStatus
from runner.util.clock import Clock
from runner.util.display_text import one_line
from runner.util.framing import FrameBuffer, framed
from runner.util.resources import Resource, describe_shortage, find_shortage
from runner.worker.frames import (
    Configure,
    DriverFrame,
    Watch,
    WorkerFrame,
    decode_worker_frame,
    encode_frame,
)

logger = logging.getLogger(__name__)

MAX_REASON_CHARS = 300
END_REASON_S = 1.0
"""Seconds in which a process must have ended after it closed its connection, for its exit code to be known."""
MAX_FAILED_STARTS = 3
"""Maximum number of workers in a row that end before they have started an episode."""

_RECEIVE_BYTES = 1 << 16


class WorkerTimings(msgspec.Struct, frozen=True, kw_only=True):
    """Time limits of worker processes, in seconds.

    Attributes:
        hello_s: from the start of a process to its first frame.
        stalled_s: for which a worker may leave its commands unread.
        hung_s: for which the other episodes of a worker may go on when one of them hangs.
        retry_s: waits before a process that ended during its start is started again.
        close_s: for which ``close`` waits for the end of a process before it is killed.
        tick_s: between two checks of these limits.
    """

    hello_s: float = 30.0
    stalled_s: float = 30.0
    hung_s: float = 10.0
    retry_s: tuple[float, ...] = (0.5, 1.0, 2.0)
    close_s: float = 2.0
    tick_s: float = 0.2


class Process(Protocol):
    """A process with one end of a stream socket."""

    @property
    def sock(self) -> socket.socket: ...

    @property
    def pid(self) -> int: ...

    def kill(self) -> None:
        """Kill the process and its children; a second call does nothing."""

    def close(self) -> None:
        """Close the channel; a second call does nothing."""

    def end_reason(self, timeout_s: float) -> str:
        """Return how the process has ended, in words; wait at most ``timeout_s`` seconds for its end."""


StartProcess: TypeAlias = Callable[[], Process]


class ProcessWorker:
    """A worker process; ``start`` returns at once, and episodes may be played at once.

    A process that ends before its first frame is started again, with everything that was sent to it.

    ``start_process`` raises ``OSError`` or ``RunnerError`` if it fails. ``on_change`` must not block, nor ``on_end``,
    which is called once, before the episodes of a lost worker are reported. ``n_slots`` is the number of episodes at a
    time that the pool has assigned to the worker.
    """

    def __init__(
        self,
        info: WorkerInfo,
        configure: Configure,
        services: BatchServices,
        start_process: StartProcess,
        on_change: Callable[[WorkerChange], object],
        on_end: Callable[[ProcessWorker, str], object],
        timings: WorkerTimings,
        clock: Clock,
        finish: Callable[[Job], object],
    ) -> None:
        self.info = info
        self.n_slots = 0
        self.episodes = Worker(info.id, self.send, services, clock, finish, frees_early=True)
        self._start_process = start_process
        self._on_change, self._on_end = on_change, on_end
        self._timings = timings
        self._now = clock.monotonic
        self._lock = threading.Lock()
        self._process: Process | None = None
        self._kept: list[bytes] = []
        self._outgoing = bytearray()
        self._stalled_at: float | None = None
        self._next_tick_s = 0.0
        self._hung_at: float | None = None
        self._closing = threading.Event()
        self._state: WorkerStatus | None = None
        self.send(configure)
        self._set_state("starting")
        self._thread = threading.Thread(target=self._run, name=info.id, daemon=True)
        self._thread.start()

    @property
    def usable(self) -> bool:
        return self.episodes.lost is None and self._hung_at is None and not self._closing.is_set()

    def send(self, frame: DriverFrame) -> None:
        """Send a frame as soon as the worker reads it; ignored after its end."""
        data = framed(encode_frame(frame))
        with self._lock:
            if self.is_ready:
                self._kept.clear()
            else:
                self._kept.append(data)
            if self._process is not None:
                self._outgoing += data
                self._flush(self._process.sock)

    @property
    def is_ready(self) -> bool:
        return self.episodes.hello is not None

    def retire(self, episode_id: str) -> None:
        """Abandon an episode that hangs: the process ends with its other episodes, or after ``hung_s``."""
        if not self.episodes.forget(episode_id):
            return
        self._hung_at = self._hung_at or self._now()
        if not self.episodes.n_playing:
            self._kill()

    def close(self) -> None:
        """End the idle process; ``join`` waits for its end."""
        self._closing.set()
        with self._lock:
            if self._process is not None:
                with suppress(OSError):  # it has ended
                    self._process.sock.shutdown(socket.SHUT_WR)

    def join(self, timeout_s: float) -> None:
        """Wait for the end of the process after ``close``, and kill it after ``timeout_s`` seconds."""
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            self._kill()
            self._thread.join(timeout_s)

    def _kill(self) -> None:
        if (process := self._process) is not None:
            process.kill()

    def _run(self) -> None:
        reason = "it was not started"
        for wait_s in (0.0, *self._timings.retry_s):
            if self._closing.wait(wait_s):
                break
            problems: list[BaseException] = []
            with catch_foreign(problems.append):
                reason = self._run_process()
            reason = "; ".join([f"{type(problem).__name__}: {problem}" for problem in problems]) or reason
            if self.is_ready or self._hung_at is not None:
                break
        if not self._closing.is_set():
            self._set_state("lost")
        reason = one_line(reason, MAX_REASON_CHARS)
        self._on_end(self, reason)
        self.episodes.lose(reason)

    def _run_process(self) -> str:
        """Return the reason of the end."""
        try:
            process = self._start_process()
        except (OSError, RuntimeError, MemoryError, RunnerError) as exc:
            shortage = find_shortage(exc)
            return f"it cannot be started: {exc if shortage is None else describe_shortage(shortage)}"
        try:
            with self._lock:
                self._process = process
                self._outgoing = bytearray(b"".join(self._kept))
                self._stalled_at = None
                self._flush(process.sock)
            if self._closing.is_set():
                return "it was closed"
            return self._read(process)
        finally:
            with self._lock:
                self._process = None
            process.kill()
            process.end_reason(END_REASON_S)  # it may write into the journals until it has ended
            process.close()

    def _read(self, process: Process) -> str:
        started_s, readable, buffer = self._now(), select.poll(), FrameBuffer()
        readable.register(process.sock, select.POLLIN)
        while True:
            is_readable = readable.poll(self._timings.tick_s * 1000)
            if (problem := self._tick(process.sock, started_s)) is not None:
                return problem
            if not is_readable:
                continue
            if not (data := _receive(process.sock)):
                if self._closing.is_set():
                    return "it was closed"
                torn = " in the middle of a frame" if buffer.n_incomplete else ""
                return f"its process (pid {process.pid}) {process.end_reason(END_REASON_S)}{torn}"
            try:
                for frame in buffer.feed(data):
                    self.episodes.receive(_decode(frame))
            except RunnerError as exc:
                return f"it sent {exc}"
            if self._state == "starting":
                self._update_state()
            if self._hung_at is not None and not self.episodes.n_playing:
                return "an episode hung in it"

    def _tick(self, sock: socket.socket, started_s: float) -> str | None:
        """Send what is left, and check the time limits, at most every ``tick_s``; return which one is exceeded."""
        now = self._now()
        if now < self._next_tick_s:
            return None
        self._next_tick_s = now + self._timings.tick_s
        with self._lock:
            self._flush(sock)
        self._update_state()
        return self._overdue(now, started_s)

    def _update_state(self) -> None:
        if self.is_ready:
            self._set_state("playing" if self.episodes.n_playing else "idle")

    def _overdue(self, now: float, started_s: float) -> str | None:
        timings = self._timings
        if self._hung_at is not None and now - self._hung_at > timings.hung_s:
            return f"an episode hung in it, and the others did not end within {timings.hung_s:g} s"
        if not self.is_ready and now - started_s > timings.hello_s:
            return f"it did not report within {timings.hello_s:g} s of its start"
        if self._stalled_at is not None and now - self._stalled_at > timings.stalled_s:
            return f"it has not read its commands for {timings.stalled_s:g} s"
        return None

    def _flush(self, sock: socket.socket) -> None:
        try:
            while self._outgoing:
                n_sent = sock.send(self._outgoing, socket.MSG_DONTWAIT)
                del self._outgoing[:n_sent]
                self._stalled_at = None
        except BlockingIOError:
            self._stalled_at = self._stalled_at or self._now()
        except OSError:
            self._outgoing.clear()  # the reading thread finds the end of the connection

    def _set_state(self, state: WorkerStatus) -> None:
        if state != self._state:
            self._state = state
            process = self._process
            pid = None if process is None else process.pid
            self._on_change(WorkerChange(id=self.info.id, host=self.info.host, state=state, pid=pid))


def _receive(sock: socket.socket) -> bytes:
    """Return what has arrived; empty at the end of the channel."""
    try:
        return sock.recv(_RECEIVE_BYTES)
    except OSError:  # it ended with unread frames
        return b""


def _decode(data: bytes) -> WorkerFrame:
    try:
        return decode_worker_frame(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as exc:
        raise BrokenFrame(f"an invalid frame of {len(data):,} bytes: {exc}") from exc


class ProcessPool(WorkerPool):
    """Worker processes of one batch; ``start_process`` starts one with the name of its worker, on several threads."""

    def __init__(
        self,
        n_workers: int,
        configure: Configure,
        services: BatchServices,
        start_process: Callable[[str], Process],
        timings: WorkerTimings | None = None,
    ) -> None:
        self._n_workers = n_workers
        self._configure = configure
        self._services = services
        self._start_process = start_process
        self._timings = timings or WorkerTimings()
        self._clock = Clock()
        self._host = socket.gethostname()
        self._slot_numbers, self._worker_numbers = itertools.count(), itertools.count()
        self._workers: list[ProcessWorker] = []
        self._lone_workers: list[ProcessWorker] = []
        self._ended: set[ProcessWorker] = set()
        self._free: list[Slot] = []
        self._slots_per_worker = 0
        self._finishers = Finishers()
        self._lock = threading.Lock()
        self._n_failed_starts = self._n_given_up = 0

    def start_slots(self, n_slots: int) -> tuple[list[Slot], Resource | None]:
        """All slots are usable at once, because a process that starts gets its episodes then."""
        if not self._slots_per_worker:
            self._slots_per_worker = -(-n_slots // self._n_workers)
        self._free = [slot for slot in self._free if slot.usable]
        self._workers = [worker for worker in self._workers if worker.episodes.lost is None]
        while len(self._free) < n_slots and self.failure is None:
            living = self._living()
            if living and self._n_given_up and len(living) + self._n_given_up >= self._n_workers:
                self._free.append(self._new_slot(min(living, key=lambda worker: worker.n_slots)))
            elif (worker := self._start_worker()) is not None:
                self._workers.append(worker)
                fresh = [self._new_slot(worker) for _ in range(self._slots_per_worker)]
                pairs = itertools.zip_longest(self._free, fresh)  # in this order, episodes spread evenly over workers
                self._free = [slot for pair in pairs for slot in pair if slot is not None]
        slots, self._free = self._free[:n_slots], self._free[n_slots:]
        return list(slots), None

    def start_alone(self) -> Slot | None:
        """Start a worker for one episode at a time, at most as many as there are others; see ``WorkerPool``."""
        self._lone_workers = [worker for worker in self._lone_workers if worker.episodes.lost is None]
        if len(self._lone_workers) + self._n_given_up >= self._n_workers or self.failure is not None:
            return None
        if (worker := self._start_worker()) is None:
            return None
        self._lone_workers.append(worker)
        return self._new_slot(worker)

    def _send_watch(self, watch: Watch) -> None:
        for worker in (*self._workers, *self._lone_workers):
            worker.send(watch)

    def close(self) -> None:
        workers = *self._workers, *self._lone_workers
        for worker in workers:
            worker.close()
        for worker in workers:
            worker.join(self._timings.close_s)
        self._finishers.close()

    def _start_worker(self) -> ProcessWorker | None:
        name = f"worker {next(self._worker_numbers)}"
        try:
            worker = ProcessWorker(
                WorkerInfo(host=self._host, id=name, kind="process"),
                self._configure,
                self._services,
                lambda: self._start_process(name),
                self._on_worker,
                self._note_end,
                self._timings,
                self._clock,
                self._finishers.submit,
            )
        except (RuntimeError, MemoryError) as exc:  # no thread for it
            if (shortage := find_shortage(exc)) is None:
                raise
            self.failure = f"{name} cannot be started: {describe_shortage(shortage)}"
            return None
        worker.send(self._watch)
        return worker

    def _new_slot(self, worker: ProcessWorker) -> Slot:
        worker.n_slots += 1
        return Slot(f"slot {next(self._slot_numbers)}", worker.info, worker)

    def _note_end(self, worker: ProcessWorker, reason: str) -> None:
        with self._lock:
            self._ended.add(worker)
            if worker.episodes.has_started_episode or not worker.usable:
                self._n_failed_starts = 0
                return
            self._n_failed_starts += 1
            if not worker.is_ready or self._n_failed_starts > MAX_FAILED_STARTS:
                self._give_up(worker, reason)

    def _give_up(self, worker: ProcessWorker, reason: str) -> None:
        """Go on without a worker and its replacement if others live, which get its slots."""
        problem = f"{worker.info.id} does not start: {reason}"
        if not (living := self._living()):
            self.failure = problem
            return
        self._n_given_up += 1
        logger.warning("%s; the batch continues with %d of %d workers", problem, len(living), self._n_workers)

    def _living(self) -> list[ProcessWorker]:
        return [worker for worker in self._workers if worker.usable and worker not in self._ended]
