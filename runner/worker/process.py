"""A worker process after its start: it reads the driver's frames, and ends at once when the driver is gone."""

from __future__ import annotations

import gc
import logging
import os
import socket
import sys
import threading
import time
from typing import NoReturn

from runner.util.clock import Clock
from runner.worker.channel import FrameTooLarge, SocketLink, read_frame
from runner.worker.engine import Engine
from runner.worker.frames import Configure, DriverFrame, Hello, Stop, decode_driver_frame

logger = logging.getLogger(__name__)


def run_worker(sock: socket.socket, name: str) -> NoReturn:
    """Play the episodes that the driver sends, until it closes the channel; then end the process.

    The main thread only reads frames, so the process ends at the end of the channel, whatever its episodes do.
    """
    _prepare_output()
    # A process that an environment forks would send frames of its own, and would keep the channel open.
    os.register_at_fork(after_in_child=sock.close)
    link = SocketLink(sock, end_process)
    link.greet(_hello(name))
    engine: Engine | None = None
    while (frame := _read(sock)) is not None:
        if isinstance(frame, Stop):
            threading.Thread(target=_close, args=(engine,), name="stop", daemon=True).start()
        elif engine is not None:
            engine.handle(frame)
        elif isinstance(frame, Configure):
            os.environ.update(frame.secrets)  # for agents and environments that read them, and to mask them in errors
            engine = Engine(link, frame, on_warm=_freeze_objects)
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


def _close(engine: Engine | None) -> None:
    if engine is not None:
        engine.close()
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
