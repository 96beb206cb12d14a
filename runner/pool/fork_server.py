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
import weakref
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import IO, Final

import msgspec

from runner.errors import RunnerError, catch_foreign, log_failure
from runner.util.child_process import ChildProcess
from runner.util.display_text import mask, masker, one_line, public_variables
from runner.util.fork_server import ForkedProcess, fork
from runner.worker.frames import StartMode, StartWorker

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
    """A local worker process; closing ``sock`` ends it. As long as it is referred to, its server runs."""

    def __init__(self, sock: socket.socket, server: _Server, pid: int, status: int) -> None:
        super().__init__(pid, status)
        self.sock = sock
        self._server = server

    def close(self) -> None:
        self.sock.close()
        super().close()


class _Server:
    """A fork server, which ends when neither the client nor a worker refers to it; used by one thread at a time."""

    def __init__(self, mode: StartMode, environ: Mapping[str, str]) -> None:
        with contextlib.ExitStack() as opened:
            self._errors = opened.enter_context(tempfile.TemporaryFile())
            self._control, theirs = socket.socketpair()
            opened.enter_context(self._control)
            with theirs:
                command = [sys.executable, "-P", "-m", "runner.worker", "server", str(theirs.fileno()), mode]
                errors, pass_fds = self._errors, (theirs.fileno(),)
                self.process = ChildProcess(command, environ, stdout=errors, stderr=errors, pass_fds=pass_fds)
            opened.pop_all()
        self._control.settimeout(LOAD_TIMEOUT_S)
        weakref.finalize(self, _end, self.process, self._control, self._errors, END_TIMEOUT_S).atexit = False

    def start_worker(self, request: bytes) -> tuple[WorkerProcess, int]:
        """Return a worker and the descriptor of its log; raises what ``fork`` does."""
        with contextlib.ExitStack() as opened:  # closed if the start fails
            ours, theirs = socket.socketpair()
            opened.enter_context(ours)
            with theirs, contextlib.ExitStack() as given:  # the server has its own copies of these
                read_log, write_log = os.pipe()
                opened.callback(os.close, read_log)
                given.callback(os.close, write_log)
                forked = fork(self._control, request, theirs.fileno(), write_log)
            opened.pop_all()
        self._control.settimeout(REPLY_TIMEOUT_S)
        return WorkerProcess(ours, self, *forked), read_log

    def last_words(self) -> str:
        size = self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(size - MAX_LINE_CHARS, 0))
        text = self._errors.read().decode(errors="replace").strip()
        return one_line(mask(text.rpartition("\n")[2])) or "it wrote no error"

    def leave(self) -> None:
        _end(self.process, self._control, self._errors, 0.0)


def _end(process: ChildProcess, control: socket.socket, errors: IO[bytes], timeout_s: float) -> None:
    """Let a server end its workers and itself, and kill it after ``timeout_s``, or let it outlive this process."""
    control.close()
    errors.close()
    process.send_signal(signal.SIGCONT)  # a stopped server would not see that its channel is closed
    if timeout_s:
        process.end(timeout_s)
    elif process.poll() is None:
        process.returncode = 0  # else its finalizer would warn


class ForkServerClient:
    """Starts workers through a fork server of its own; thread-safe.

    A server that has ended is started again. One that is late is replaced, and goes on until its workers have ended.
    All inherit the environment variables of this process without secrets (``public_variables``), since other programs
    of the user can read those of a process.

    Args:
        mode: ``fork``, or ``spawn`` where a process cannot be forked safely; None: by the platform.
        key_names: names of further variables with secrets.
    """

    def __init__(self, mode: StartMode | None = None, key_names: Iterable[str] = ()) -> None:
        self._mode: StartMode = mode or DEFAULT_MODE
        self._key_names = frozenset(key_names)
        self._lock = threading.Lock()
        self._server: _Server | None = None
        self._servers: weakref.WeakSet[_Server] = weakref.WeakSet()

    def start_worker(self, name: str, log: Callable[[str], None]) -> WorkerProcess:
        """Start a worker; each line that it writes goes to ``log``, after its ``name``, on a thread of the worker.

        Raises ``WorkerStartError``, or ``OSError`` if files or processes ran out.
        """
        variables = public_variables(os.environ, self._key_names)
        environ = [(os.fsencode(key), os.fsencode(value)) for key, value in variables.items()]
        start = StartWorker(name, environ, bytes(Path.cwd()), [os.fsencode(entry or ".") for entry in sys.path])
        with self._lock:
            worker, output = self._start_worker(msgspec.msgpack.encode(start), variables)
        threading.Thread(target=_read_log, args=(output, name, log), name=f"log of {name}", daemon=True).start()
        return worker

    def _start_worker(self, request: bytes, variables: Mapping[str, str]) -> tuple[WorkerProcess, int]:
        problem = ""
        for _ in range(2):
            self._server = server = self._server or _Server(self._mode, variables)
            self._servers.add(server)
            try:
                return server.start_worker(request)
            except TimeoutError:
                problem = "did not reply in time"
            except ConnectionError:
                problem = f"ended: {server.last_words()}"
            self._server = None
            logger.warning("the process that starts workers %s", problem)
        raise WorkerStartError(f"the process that starts workers {problem}; see the log, or set workers to 0")

    def leave(self) -> None:
        """Let the servers end their workers and themselves without waiting; this process is about to end, too."""
        with self._lock:
            for server in self._servers:
                server.leave()
            self._server = None


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
