"""The fork server: starts worker processes for one driver, quickly and with shared memory, and ends with it.

It has loaded all that workers need except third-party agents and environments, and it has one thread. Where a process
cannot be forked safely, it starts a new interpreter for each worker (mode ``spawn``), and is still the one that ends
them.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import NoReturn

import msgspec

from runner.errors import catch_foreign
from runner.util.clock import Clock
from runner.util.framing import FrameTooLarge, read_frame, send_frame
from runner.worker.channel import (
    ServerReply,
    SocketLink,
    StartMode,
    StartWorker,
    receive,
)
from runner.worker.frames import Configure, DriverFrame, Hello, Stop, decode_driver_frame
from runner.worker.worker_episodes import WorkerEpisodes

logger = logging.getLogger(__name__)

GRACE_S = 3.0
"""Seconds that the workers have to end after their driver has ended; then they are killed."""

_PARENT_CHECK_MS = 1000
_PR_SET_PDEATHSIG = 1
_REQUESTS = msgspec.msgpack.Decoder(StartWorker)


def serve(control: socket.socket, mode: StartMode) -> None:
    """Start workers until the driver closes ``control`` or ends; return when all workers have ended."""
    server = ForkServer(control, mode)
    for name in shared_modules() if mode == "fork" else ():
        with contextlib.suppress(ImportError):  # a worker that needs the module reports it
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # a collection in a worker would otherwise copy all pages that it shares with the server
    server.run()


def shared_modules() -> Iterator[str]:
    """Yield the names of the modules that many workers need, so that these share their memory.

    They start no threads. Environments and agents of other packages are not among them.
    """
    yield from ("ctypes", "aiohttp", "runner.worker.fork_server", "runner.worker.remote_gate")
    yield "runner.envs.http.environment"
    from runner.plugins import built_in_modules

    yield from built_in_modules()


class ForkServer:
    """Starts and reaps the workers of one driver; it installs the signal handlers of its process."""

    def __init__(self, control: socket.socket, mode: StartMode) -> None:
        self._control = control
        self._mode = mode
        self._driver = os.getppid()
        self._statuses: dict[int, int] = {}
        self._spawned: dict[int, subprocess.Popen[bytes]] = {}
        self._wakeup, wakeup_write = socket.socketpair()
        self._own_sockets = (control, self._wakeup, wakeup_write)
        for sock in self._own_sockets[1:]:
            sock.setblocking(False)
        signal.set_wakeup_fd(wakeup_write.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def run(self) -> None:
        poll = select.poll()
        for sock in (self._control, self._wakeup):
            poll.register(sock, select.POLLIN)
        while os.getppid() == self._driver:
            ready = [descriptor for descriptor, _ in poll.poll(_PARENT_CHECK_MS)]
            self._reap()
            if self._control.fileno() in ready and not self._handle_request():
                break
        self._control.close()
        self._end_workers()

    def _handle_request(self) -> bool:
        """Return False at the end of the control channel."""
        try:
            data, descriptors = receive(self._control)
            if data is None:
                return False
            reply = self._start(_REQUESTS.decode(data), *descriptors)
            send_frame(self._control, msgspec.msgpack.encode(reply))
        except (OSError, msgspec.MsgspecError, FrameTooLarge):  # the driver has ended
            return False
        return True

    def _start(self, request: StartWorker, channel: int, log: int, status: int) -> ServerReply:
        try:
            start = self._fork if self._mode == "fork" else self._spawn
            pid = start(request, channel, log, status)
        except OSError as exc:
            os.close(status)
            return ServerReply(error_number=exc.errno or 0)
        finally:
            os.close(channel)
            os.close(log)
        self._statuses[pid] = status
        return ServerReply(pid)

    def _fork(self, request: StartWorker, channel: int, log: int, status: int) -> int:
        server = os.getpid()
        if pid := os.fork():
            with contextlib.suppress(OSError):  # the worker does the same; whichever comes first
                os.setpgid(pid, pid)
            return pid
        try:
            with catch_foreign(_print_error):
                os.setpgid(0, 0)
                _reset_signals()
                _die_with(server)
                for sock in self._own_sockets:
                    sock.close()
                os.close(status)
                for descriptor in self._statuses.values():
                    os.close(descriptor)
                _become_worker(request, channel, log)
        finally:
            os._exit(1)

    def _spawn(self, request: StartWorker, channel: int, log: int, status: int) -> int:
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
        for pid in list(self._statuses):
            self._bury(pid, os.WNOHANG)

    def _bury(self, pid: int, flags: int = 0) -> None:
        """Kill what an ended worker has started, and report its exit code; without ``flags``, wait for its end."""
        if (code := _wait(pid, flags)) is None:
            return
        if (process := self._spawned.pop(pid, None)) is not None:
            process.returncode = code
        with contextlib.suppress(OSError), os.fdopen(self._statuses.pop(pid), "wb") as status:
            status.write(b"%d" % code)

    def _end_workers(self) -> None:
        deadline = time.monotonic() + GRACE_S
        poll = select.poll()
        poll.register(self._wakeup, select.POLLIN)
        self._reap()
        while self._statuses and (left_s := deadline - time.monotonic()) > 0:
            poll.poll(left_s * 1000)
            self._reap()
        for pid in list(self._statuses):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            self._bury(pid)


def _wait(pid: int, flags: int) -> int | None:
    """Wait for a child, kill its group, and return its exit code; with ``WNOHANG``, None while it runs."""
    if hasattr(os, "waitid"):  # on macOS since Python 3.13
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | flags) is None:
            return None
        _kill_group(pid)  # before the child is reaped, because its pid may then belong to another process
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    ended, status = os.waitpid(pid, flags)
    if not ended:
        return None
    _kill_group(pid)
    return os.waitstatus_to_exitcode(status)


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


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


def _become_worker(request: StartWorker, channel: int, log: int) -> NoReturn:
    for number in (1, 2):  # standard input is that of the server: nothing
        os.dup2(log, number)
    os.close(log)
    os.environb.clear()
    os.environb.update(request.environ)
    os.chdir(request.folder)
    run_worker_process(channel, request.name, [os.fsdecode(entry) for entry in request.path])


def run_worker_process(channel: int, name: str, path: list[str]) -> NoReturn:
    """Run a worker on the descriptor ``channel``; the standard streams and the working directory are already set."""
    sys.path[:] = path
    os.set_inheritable(channel, False)
    run_worker(socket.socket(fileno=channel), name)


def run_worker(sock: socket.socket, name: str) -> NoReturn:
    """Play the episodes that the driver sends, until it closes the channel; then end the process.

    The main thread only reads frames, so the process ends at the end of the channel, whatever its episodes do.
    """
    _prepare_output()
    # A process that an environment forks would send frames of its own, and would keep the channel open.
    os.register_at_fork(after_in_child=sock.close)
    link = SocketLink(sock, end_process)
    link.greet(_hello(name))
    episodes: WorkerEpisodes | None = None
    while (frame := _read(sock)) is not None:
        if isinstance(frame, Stop):
            threading.Thread(target=_close, args=(episodes,), name="stop", daemon=True).start()
        elif episodes is not None:
            episodes.handle(frame)
        elif isinstance(frame, Configure):
            os.environ.update(frame.secrets)  # for agents and environments that read them, and to mask them in errors
            episodes = WorkerEpisodes(link, frame, on_warm=_freeze_objects)
        else:
            logger.error("the first frame of the driver was %s instead of Configure", type(frame).__name__)
            break
    end_process()


def _freeze_objects() -> None:
    """Exempt the objects of the imported modules from garbage collections, which would take a tenth of the CPU."""
    gc.collect()
    gc.freeze()


def end_process() -> NoReturn:
    """End the process at once: without finalizers, which may block, and without the cleanup of its episodes."""
    os._exit(0)


def _read(sock: socket.socket) -> DriverFrame | None:
    try:
        data = read_frame(sock)
        return None if data is None else decode_driver_frame(data)
    except (FrameTooLarge, ValueError, RecursionError) as exc:
        logger.error("the driver sent an invalid frame: %s", exc)
        return None


def _close(episodes: WorkerEpisodes | None) -> None:
    if episodes is not None:
        episodes.close()
    end_process()


def _hello(name: str) -> Hello:
    return Hello(
        worker_id=name,
        host=socket.gethostname(),
        pid=os.getpid(),
        monotonic_ns=time.monotonic_ns(),
        wall=Clock().now(),
    )


def _prepare_output() -> None:
    """Write every line at once, and the runner's warnings to standard error; both are the worker's log."""
    sys.stdout, sys.stderr = (
        os.fdopen(number, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)
        for number in (1, 2)
    )
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
    logging.getLogger("runner").handlers = [handler]
