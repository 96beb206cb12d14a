"""The worker process, and the fork server that starts it, which ends with its driver.

The server has loaded all that workers need except third-party agents and environments. Where a process cannot be forked
safely, each worker is a new interpreter (mode ``spawn``), and the server is still the one that ends it.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import NoReturn

import msgspec

from runner.util.clock import Clock
from runner.util.fork_server import ForkServer
from runner.util.framing import FrameTooLarge, read_frame
from runner.worker.driver_link import FrameQueue, write_frames
from runner.worker.frames import Configure, DriverFrame, Hello, StartMode, StartWorker, decode_driver_frame
from runner.worker.worker_episodes import WorkerEpisodes

logger = logging.getLogger(__name__)

FINISH_S = 1.0
"""Maximum seconds that the steps of episodes may take to end, and get into the journals, after the driver has ended."""

_REQUESTS = msgspec.msgpack.Decoder(StartWorker)


def serve(control: socket.socket, mode: StartMode) -> None:
    """Start workers until the driver closes ``control`` or ends; return when all workers have ended."""
    server = ForkServer(control, partial(_become_worker, mode))
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
    yield from ("ctypes", "runner.util.http", "runner.worker.fork_server", "runner.worker.remote_gate")
    yield "runner.envs.http.environment"
    from runner.plugins import built_in_modules

    yield from built_in_modules()


def _become_worker(mode: StartMode, data: bytes, descriptors: list[int]) -> NoReturn:
    channel, log = descriptors
    request = _REQUESTS.decode(data)
    path = [os.fsdecode(entry) for entry in request.path]
    for number in (1, 2):  # standard input is that of the server: nothing
        os.dup2(log, number)
    os.close(log)
    os.chdir(request.folder)
    if mode == "spawn":
        os.set_inheritable(channel, True)
        command = [sys.executable, "-P", "-m", "runner.worker", "worker", str(channel), request.name, *path]
        os.execve(command[0], command, dict(request.environ))
    os.environb.clear()
    os.environb.update(request.environ)
    run_worker_process(channel, request.name, path)


def run_worker_process(channel: int, name: str, path: list[str]) -> NoReturn:
    """Run a worker on the descriptor ``channel``; the standard streams and the working directory are already set."""
    sys.path[:] = path
    os.set_inheritable(channel, False)
    run_worker(socket.socket(fileno=channel), name)


def run_worker(sock: socket.socket, name: str) -> NoReturn:
    """Play the episodes that the driver sends, until it closes the channel; then end the process.

    The main thread only reads frames, so the process ends soon after the channel, whatever its episodes do.
    """
    _prepare_output()
    # A process that an environment forks would keep the channel open.
    os.register_at_fork(after_in_child=sock.close)
    link = FrameQueue()
    link.send(_hello(name))
    threading.Thread(target=write_frames, args=(link, sock), name="frames", daemon=True).start()
    episodes: WorkerEpisodes | None = None
    while (frame := _read(sock)) is not None:
        if episodes is not None:
            episodes.handle(frame)
        elif isinstance(frame, Configure):
            os.environ.update(frame.secrets)  # for agents and environments that read them, and to mask them in errors
            episodes = WorkerEpisodes(link, frame, on_warm=_freeze_objects)
        else:
            logger.error("the first frame of the driver was %s instead of Configure", type(frame).__name__)
            break
    if episodes is not None:
        episodes.finish_steps(FINISH_S)
    os._exit(0)  # without finalizers, which may block


def _freeze_objects() -> None:
    """Exempt the objects of the imported modules from garbage collections, which would take a tenth of the CPU."""
    gc.collect()
    gc.freeze()


def _read(sock: socket.socket) -> DriverFrame | None:
    try:
        data = read_frame(sock)
        return None if data is None else decode_driver_frame(data)
    except (FrameTooLarge, ValueError, RecursionError) as exc:
        logger.error("the driver sent an invalid frame: %s", exc)
        return None


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
