"""Start of local worker processes through a fork server, which this process starts on first use."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from runner.errors import RunnerError, catch_foreign, log_failure
from runner.util.child_process import ChildProcess
from runner.util.display_text import mask, masker, one_line, public_variables
from runner.util.fork_server import ForkedProcess, fork
from runner.worker.channel import StartMode, StartWorker

logger = logging.getLogger(__name__)

DEFAULT_MODE: Final[StartMode] = "fork" if sys.platform == "linux" else "spawn"
"""``spawn`` where a process cannot be forked safely."""
LOAD_TIMEOUT_S = 60.0
"""Maximum seconds until the first reply of a server, which first loads its modules."""
REPLY_TIMEOUT_S = 10.0
"""Maximum seconds until another reply; a server that is late is replaced."""
END_TIMEOUT_S = 4.0
"""Maximum seconds until a server that has closed its channel has ended, with its workers; then it is killed."""
MAX_LINE_CHARS = 4096

_MAX_LINE_BYTES = 4 * MAX_LINE_CHARS


class WorkerStartError(RunnerError):
    pass


class WorkerProcess(ForkedProcess):
    """A local worker process; closing ``sock`` ends it."""

    def __init__(self, sock: socket.socket, pid: int, status: int) -> None:
        super().__init__(pid, status)
        self.sock = sock

    def close(self) -> None:
        self.sock.close()
        super().close()


class _Server:
    """A fork server, and the channel to it; raises ``OSError`` if it cannot be started."""

    def __init__(self, mode: StartMode, environ: Mapping[str, str]) -> None:
        with contextlib.ExitStack() as opened:
            self._errors = opened.enter_context(tempfile.TemporaryFile())
            self.control, theirs = socket.socketpair()
            opened.enter_context(self.control)
            with theirs:
                command = [sys.executable, "-P", "-m", "runner.worker", "server", str(theirs.fileno()), mode]
                errors, pass_fds = self._errors, (theirs.fileno(),)
                self.process = ChildProcess(command, environ, stdout=errors, stderr=errors, pass_fds=pass_fds)
            opened.pop_all()
        self.control.settimeout(LOAD_TIMEOUT_S)

    def last_words(self) -> str:
        size = self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(size - MAX_LINE_CHARS, 0))
        text = self._errors.read().decode(errors="replace").strip()
        return one_line(mask(text.rpartition("\n")[2])) or "it wrote no error"

    def close(self) -> None:
        """Let it end its workers and itself."""
        self.control.close()
        self._errors.close()
        self.process.send_signal(signal.SIGCONT)  # a stopped server would not see that its channel is closed


class ForkServerClient:
    """Starts workers through a fork server of its own; thread-safe.

    A server that has ended is started again. One that is late is replaced, and kept until the end with its workers. All
    inherit the environment variables of this process without secrets (``public_variables``), since other programs of
    the user can read those of a process.

    Args:
        mode: ``fork``, or ``spawn`` where a process cannot be forked safely; None: by the platform.
        key_names: names of further variables with secrets.
    """

    def __init__(self, mode: StartMode | None = None, key_names: Iterable[str] = ()) -> None:
        self._mode: StartMode = mode or DEFAULT_MODE
        self._key_names = frozenset(key_names)
        self._lock = threading.Lock()
        self._server: _Server | None = None
        self._late: list[_Server] = []

    def start_worker(self, name: str, log: Callable[[str], None]) -> WorkerProcess:
        """Start a worker; each line that it writes goes to ``log``, after its ``name``, on a thread of the worker.

        Raises:
            WorkerStartError: the worker could not be started.
            OSError: files or processes ran out.
        """
        environ = [(os.fsencode(key), os.fsencode(value)) for key, value in self._environ().items()]
        start = StartWorker(name, environ, bytes(Path.cwd()), [os.fsencode(entry or ".") for entry in sys.path])
        with contextlib.ExitStack() as opened:  # closed if the start fails
            ours, theirs = socket.socketpair()
            opened.enter_context(ours)
            with theirs, contextlib.ExitStack() as given:  # the server has its own copies of these
                read_log, write_log = os.pipe()
                opened.callback(os.close, read_log)
                given.callback(os.close, write_log)
                worker = self._fork(msgspec.msgpack.encode(start), theirs.fileno(), write_log)
            threading.Thread(target=_read_log, args=(read_log, name, log), name=f"log of {name}", daemon=True).start()
            opened.pop_all()
        return WorkerProcess(ours, *worker)

    def leave(self) -> None:
        """Let the servers end their workers and themselves without waiting; this process is about to end, too."""
        with self._lock:
            for server in filter(None, (self._server, *self._late)):
                server.close()
                if server.process.poll() is None:
                    server.process.returncode = 0  # it may outlive this process, of which its finalizer would warn
            self._server, self._late = None, []

    def _environ(self) -> dict[str, str]:
        return public_variables(os.environ, self._key_names)

    def _fork(self, request: bytes, *descriptors: int) -> tuple[int, int]:
        problem = ""
        with self._lock:
            for _ in range(2):
                self._server = server = self._server or _Server(self._mode, self._environ())
                try:
                    forked = fork(server.control, request, *descriptors)
                except TimeoutError:
                    problem = "did not reply in time"
                    self._late.append(server)
                except ConnectionError:
                    problem = f"ended: {server.last_words()}"
                    server.close()
                    server.process.end(END_TIMEOUT_S)
                else:
                    server.control.settimeout(REPLY_TIMEOUT_S)
                    return forked
                self._server = None
                logger.warning("the process that starts workers %s", problem)
        raise WorkerStartError(f"the process that starts workers {problem}; see the log, or set workers to 0")


def _read_log(descriptor: int, name: str, log: Callable[[str], None]) -> None:
    """Pass the lines of a worker to ``log`` until the worker, and all processes that it has started, have ended."""
    with catch_foreign(log_failure(logger, f"the log of {name}")), os.fdopen(descriptor, "rb") as lines:
        is_rest, mask_text = False, masker()
        while line := lines.readline(_MAX_LINE_BYTES):
            if not is_rest:
                log(f"{name}: {one_line(mask_text(line.decode(errors='replace').rstrip()), MAX_LINE_CHARS)}")
            is_rest = not line.endswith(b"\n")


_clients: dict[frozenset[str], ForkServerClient] = {}


def open_client(key_names: Iterable[str] = ()) -> ForkServerClient:
    """Return the client of this process whose fork server and workers lack these variables; see ``ForkServerClient``.

    Names that ``public_variables`` recognizes need no fork server of their own.
    """
    unusual = public_variables(os.environ).keys() & set(key_names)
    return _clients.setdefault(frozenset(unusual), ForkServerClient(key_names=unusual))


@atexit.register
def _leave_servers() -> None:
    for client in _clients.values():
        client.leave()
