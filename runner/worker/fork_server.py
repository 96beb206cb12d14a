"""The fork server: starts worker processes for one driver, quickly and with shared memory, and ends with it.

It has loaded all that workers need except third-party agents and environments, and it has one thread. While it has no
workers it keeps spare processes, which become the next ones. Where a process cannot be forked safely, it starts a new
interpreter for each worker (mode ``spawn``), and is still the one that ends them.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import random
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import msgspec

from runner.errors import catch_foreign
from runner.worker.channel import FrameTooLarge, send_frame
from runner.worker.server_process import StartMode
from runner.worker.server_protocol import (
    FindExitCode,
    KillWorker,
    ServerReply,
    ServerRequest,
    StartWorker,
    receive,
    send_request,
)

if TYPE_CHECKING:
    from runner.worker.episode_thread import EpisodeThreads

GRACE_S = 3.0
"""Seconds that the workers have to end after their driver has ended; then they are killed."""
REQUIRED = ("runner.worker.process", "ctypes")
"""Modules that every worker needs; they are loaded before the first worker starts."""
N_SPARES = 2
"""Number of processes that are forked ahead; each has about 6 MB of its own."""
KEPT_EXIT_CODES = 1024
"""Number of ended workers whose exit codes are known."""

_PARENT_CHECK_MS = 1000
_PR_SET_PDEATHSIG = 1


_REQUESTS: msgspec.msgpack.Decoder[ServerRequest] = msgspec.msgpack.Decoder(ServerRequest)
_STARTS = msgspec.msgpack.Decoder(StartWorker)


def serve(control: socket.socket, mode: StartMode) -> None:
    """Start workers until the driver closes ``control`` or ends; return when all workers have ended."""
    server = ForkServer(control, mode, useful_modules() if mode == "fork" else ())
    for name in REQUIRED if mode == "fork" else ():
        importlib.import_module(name)
    server.run()


def useful_modules() -> Iterator[str]:
    """Yield the names of the modules that many workers need, to be loaded while there are no requests.

    They start no threads. Environments and agents of other packages are not among them.
    """
    yield from ("runner.worker.remote_gate", "aiohttp", "runner.envs.http.environment")
    from runner.plugins import built_in_modules

    yield from built_in_modules()


class _ForkedProcess(NamedTuple):
    """A process that becomes a worker when it gets a ``StartWorker`` over ``sock``."""

    pid: int
    sock: socket.socket


class ForkServer:
    """Starts, kills and reaps the workers of one driver.

    Args:
        control: the channel to the driver.
        mode: how workers are started.
        modules: names of the modules to load while there are no requests.
    """

    def __init__(self, control: socket.socket, mode: StartMode, modules: Iterable[str]) -> None:
        """Install the signal handlers."""
        self._modules: Iterator[str] | None = iter(modules)
        self._control = control
        self._mode = mode
        self._driver = os.getppid()
        self._workers: set[int] = set()
        self._n_spares = N_SPARES if mode == "fork" else 0
        self._spares: list[_ForkedProcess] = []
        self._spawned: dict[int, subprocess.Popen[bytes]] = {}
        self._exit_codes: dict[int, int] = {}
        self._wakeup, wakeup_write = socket.socketpair()
        self._own_sockets = (control, self._wakeup, wakeup_write)
        for sock in self._own_sockets[1:]:
            sock.setblocking(False)
        signal.set_wakeup_fd(wakeup_write.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def run(self) -> None:
        """Serve requests until the driver closes the control channel or ends; then end all workers."""
        poll = select.poll()
        for sock in (self._control, self._wakeup):
            poll.register(sock, select.POLLIN)
        serves = True
        while serves and os.getppid() == self._driver:
            # A worker that has just started needs the CPUs more than the rest of the modules and the spares do.
            prepares = not self._workers and (self._modules is not None or self._lacks_spares)
            ready = [descriptor for descriptor, _ in poll.poll(0 if prepares else _PARENT_CHECK_MS)]
            self._reap()
            if self._control.fileno() in ready:
                serves = self._handle_request()
            elif self._modules is not None:
                self._load_next(self._modules)
            elif self._lacks_spares and not self._workers:
                self._add_spare()
        self._control.close()
        for spare in self._spares:
            spare.sock.close()
        self._end_workers()

    @property
    def _lacks_spares(self) -> bool:
        return len(self._spares) < self._n_spares

    def _load_next(self, modules: Iterator[str]) -> None:
        if (name := next(modules, None)) is not None:
            with contextlib.suppress(ImportError):  # a worker that needs the module reports it
                importlib.import_module(name)
        else:
            self._modules = None
            gc.collect()

    def _handle_request(self) -> bool:
        """Handle one request; return False at the end of the control channel."""
        try:
            data, descriptors = receive(self._control)
            if data is None:
                return False
            request = _REQUESTS.decode(data)
            match request:
                case StartWorker():
                    reply = self._start(request, *descriptors)
                case KillWorker():
                    self._kill(request.pid)
                    is_known = request.pid in self._workers or request.pid in self._exit_codes
                    reply = ServerReply(request.pid if is_known else None)
                case FindExitCode():
                    reply = ServerReply(request.pid, self._exit_codes.get(request.pid))
            send_frame(self._control, msgspec.msgpack.encode(reply))
        except (OSError, msgspec.MsgspecError, FrameTooLarge):  # the driver has ended
            return False
        return True

    def _start(self, request: StartWorker, channel: int, log: int) -> ServerReply:
        try:
            start = self._fork if self._mode == "fork" else self._spawn
            pid = start(request, channel, log)
        except OSError as exc:
            return ServerReply(error_number=exc.errno or 0)
        finally:
            os.close(channel)
            os.close(log)
        self._workers.add(pid)
        return ServerReply(pid)

    def _fork(self, request: StartWorker, channel: int, log: int) -> int:
        while self._spares:
            pid, sock = self._spares.pop()
            with sock, contextlib.suppress(OSError):  # it was killed
                send_request(sock, request, channel, log)
                return pid
        pid, sock = self._fork_process(None, channel, log)
        with sock:
            send_request(sock, request, channel, log)
        return pid

    def _add_spare(self) -> None:
        from runner.worker.process import rehearse

        try:
            self._spares.append(self._fork_process(rehearse))
        except OSError:  # the machine has no processes, files or memory to spare
            self._n_spares = 0

    def _fork_process(self, prepare: Callable[[], EpisodeThreads] | None, *inherited: int) -> _ForkedProcess:
        """Fork a process that calls ``prepare``, closes the descriptors ``inherited``, and waits to become a worker."""
        server = os.getpid()
        gc.freeze()  # a collection in the worker would otherwise copy all pages that it shares with the server
        ours, theirs = socket.socketpair()
        with theirs, contextlib.ExitStack() as opened:
            opened.callback(ours.close)
            if pid := os.fork():
                with contextlib.suppress(OSError):  # the process does the same; whichever comes first
                    os.setpgid(pid, pid)
                opened.pop_all()
                return _ForkedProcess(pid, ours)
            try:
                with catch_foreign(_print_error):
                    os.setpgid(0, 0)
                    _reset_signals()
                    _die_with(server)
                    sockets = (ours, *self._own_sockets, *(spare.sock for spare in self._spares))
                    for descriptor in (*inherited, *(sock.fileno() for sock in sockets)):
                        os.close(descriptor)
                    _await_start(theirs, None if prepare is None else prepare())
            finally:
                os._exit(1)

    def _spawn(self, request: StartWorker, channel: int, log: int) -> int:
        path = [os.fsdecode(entry) for entry in request.path]
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "runner.worker", "worker", str(channel), request.name, *path],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=(channel,),
            cwd=os.fsdecode(request.folder),
            env=dict(request.environ),
            process_group=0,
        )
        self._spawned[process.pid] = process
        return process.pid

    def _reap(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._wakeup.recv(1024):
                pass
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                self._note_end(pid, os.waitstatus_to_exitcode(status))

    def _note_end(self, pid: int, exit_code: int) -> None:
        self._kill_group(pid)  # the processes that the worker has started
        self._workers.discard(pid)
        if (process := self._spawned.pop(pid, None)) is not None:
            process.returncode = exit_code
        self._exit_codes[pid] = exit_code
        if len(self._exit_codes) > KEPT_EXIT_CODES:
            del self._exit_codes[next(iter(self._exit_codes))]

    def _kill(self, pid: int) -> None:
        if pid in self._workers:  # a pid that was reaped may belong to another process
            self._kill_group(pid)
            os.kill(pid, signal.SIGKILL)

    def _kill_group(self, pid: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)

    def _end_workers(self) -> None:
        deadline = time.monotonic() + GRACE_S
        poll = select.poll()
        poll.register(self._wakeup, select.POLLIN)
        self._reap()
        while self._workers and (left_s := deadline - time.monotonic()) > 0:
            poll.poll(left_s * 1000)
            self._reap()
        for pid in list(self._workers):
            self._kill(pid)
        for pid in list(self._workers):
            os.waitpid(pid, 0)
            self._kill_group(pid)


def _print_error(exc: BaseException) -> None:
    os.write(2, f"the worker ends: {type(exc).__name__}: {exc}\n".encode(errors="replace"))


def _reset_signals() -> None:
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the driver's


def _die_with(server: int) -> None:
    """Let Linux kill this process when the server's only thread ends."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != server:  # it has ended before that took effect
            os._exit(1)


def _await_start(sock: socket.socket, threads: EpisodeThreads | None) -> None:
    """Become a worker with ``threads`` when the server sends a ``StartWorker``; return if it ends before."""
    with sock:
        data, descriptors = receive(sock)
    if data is None:
        return
    request, (channel, log) = _STARTS.decode(data), descriptors
    for number in (1, 2):  # standard input is that of the server: nothing
        os.dup2(log, number)
    os.close(log)
    os.environb.clear()
    os.environb.update(request.environ)
    os.chdir(request.folder)
    random.seed()
    run_worker_process(channel, request.name, [os.fsdecode(entry) for entry in request.path], threads)


def run_worker_process(channel: int, name: str, path: list[str], threads: EpisodeThreads | None = None) -> NoReturn:
    """Run a worker in this process, whose standard streams and working directory are already set.

    Args:
        channel: descriptor of its channel to the driver.
        name: id of the worker.
        path: the driver's ``sys.path``.
        threads: threads of this process that episodes are played on.
    """
    from runner.worker.process import run_worker

    sys.path[:] = path
    os.set_inheritable(channel, False)
    run_worker(socket.socket(fileno=channel), name, threads)
