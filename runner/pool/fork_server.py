"""Start of local worker processes through a fork server, which this process starts on first use."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, Final

import msgspec

from runner.errors import RunnerError, catch_foreign, log_failure
from runner.util.display_text import mask, masker, one_line, public_variables
from runner.util.framing import read_frame
from runner.worker.channel import (
    ServerReply,
    StartMode,
    StartWorker,
    send_request,
)

logger = logging.getLogger(__name__)

DEFAULT_MODE: Final[StartMode] = "fork" if sys.platform == "linux" else "spawn"
"""``spawn`` where a process cannot be forked safely."""
LOAD_TIMEOUT_S = 60.0
"""Maximum seconds until the first reply of a server, which first loads its modules."""
REPLY_TIMEOUT_S = 10.0
"""Maximum seconds until another reply; a server that is late is replaced."""
CLOSE_TIMEOUT_S = 10.0
END_TIMEOUT_S = 4.0
"""Maximum seconds until a server that does not reply has ended, with its workers; then it is killed."""
MAX_LINE_CHARS = 4096

_MAX_LINE_BYTES = 4 * MAX_LINE_CHARS
_REPLIES = msgspec.msgpack.Decoder(ServerReply)


class WorkerStartError(RunnerError):
    pass


class WorkerProcess:
    """A local worker process; ``pid`` is also the id of its process group, and closing ``sock`` ends it.

    The fork server reports its end on ``status``. Its other methods need no server, which may be stopped.
    """

    def __init__(self, name: str, sock: socket.socket, pid: int, status: int) -> None:
        self.name = name
        self.sock = sock
        self.pid = pid
        self._status = status
        self._lock = threading.Lock()
        self._is_closed = False
        self._exit_code: int | None = None

    def kill(self) -> None:
        """Also kills the processes that it has started; the channel stays open until it is closed."""
        if self._read_exit_code(0.0) is None:  # else its pid may belong to another process
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """Close the channel; a second call does nothing."""
        self.sock.close()
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                os.close(self._status)

    def end_reason(self, timeout_s: float = 1.0) -> str:
        """Return how the process has ended, as words; wait at most ``timeout_s`` seconds for its end."""
        if (code := self._read_exit_code(timeout_s)) is None:
            return "closed its connection"
        if code >= 0:
            return f"ended with exit code {code}"
        with contextlib.suppress(ValueError):
            return f"was ended by {signal.Signals(-code).name}"
        return f"was ended by signal {-code}"

    def _read_exit_code(self, timeout_s: float) -> int | None:
        """Return None while the process runs, and if its server has ended before it."""
        with self._lock:
            if self._exit_code is None and not self._is_closed and _is_readable(self._status, timeout_s):
                digits = os.read(self._status, 16)
                self._exit_code = int(digits) if digits else None
            return self._exit_code


class ForkServerClient:
    """Starts workers through a fork server of its own; thread-safe. A server that has ended is started again.

    Server and workers inherit the environment variables of this process without secrets (``public_variables``), since
    other programs of the user can read those of a process.

    Args:
        mode: ``fork``, or ``spawn`` where a process cannot be forked safely; None: by the platform.
        key_names: names of further variables with secrets.
    """

    def __init__(self, mode: StartMode | None = None, key_names: Iterable[str] = ()) -> None:
        self._mode: StartMode = mode or DEFAULT_MODE
        self._key_names = frozenset(key_names)
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._errors: IO[bytes] | None = None

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

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
            opened.callback(ours.close)
            with theirs, contextlib.ExitStack() as given:  # the server has its own copies of these
                read_log, write_log = os.pipe()
                opened.callback(os.close, read_log)
                given.callback(os.close, write_log)
                read_status, write_status = os.pipe()
                opened.callback(os.close, read_status)
                given.callback(os.close, write_status)
                reply = self._request(start, theirs.fileno(), write_log, write_status)
            if reply.pid is None:
                raise OSError(reply.error_number, f"{name} cannot be started: {os.strerror(reply.error_number)}")
            threading.Thread(target=_read_log, args=(read_log, name, log), name=f"log of {name}", daemon=True).start()
            opened.pop_all()
        return WorkerProcess(name, ours, reply.pid, read_status)

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Let the server end, and wait at most ``timeout_s`` seconds; it kills workers that do not end themselves."""
        with self._lock:
            self._close_server(timeout_s)

    def leave(self) -> None:
        """Let the server end its workers and itself without waiting for it; this process is about to end, too."""
        with self._lock:
            self._close_server(0.0)
            if self._process is not None and self._process.returncode is None:
                self._process.returncode = 0  # it may outlive this process; without one, its finalizer warns of that

    def _environ(self) -> dict[str, str]:
        return public_variables(os.environ, self._key_names)

    def _request(self, request: StartWorker, *descriptors: int) -> ServerReply:
        """If the server has ended, it is started again."""
        with self._lock:
            for _ in range(2):
                control = self._ensure_server()
                if (reply := self._exchange(control, request, descriptors)) is not None:
                    return reply
                reason = self._discard_server()
        raise WorkerStartError(f"the process that starts workers ended: {reason}; see the log, or set workers to 0")

    def _exchange(
        self, control: socket.socket, request: StartWorker, descriptors: tuple[int, ...]
    ) -> ServerReply | None:
        try:
            send_request(control, request, *descriptors)
            data = read_frame(control)
        except OSError:
            return None
        control.settimeout(REPLY_TIMEOUT_S)
        return None if data is None else _REPLIES.decode(data)

    def _ensure_server(self) -> socket.socket:
        if self._control is not None:
            return self._control
        ours, theirs = socket.socketpair()
        with contextlib.ExitStack() as opened, theirs:
            opened.callback(ours.close)
            errors = opened.enter_context(tempfile.TemporaryFile())
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "runner.worker", "server", str(theirs.fileno()), self._mode],
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                pass_fds=(theirs.fileno(),),
                env=self._environ(),
                start_new_session=True,  # Ctrl-C reaches only the driver
            )
            opened.pop_all()
        ours.settimeout(LOAD_TIMEOUT_S)
        self._control, self._errors = ours, errors
        return ours

    def _discard_server(self) -> str:
        """Close the channel to a server that has ended, or kill one that hangs, and return its last words."""
        text = ""
        if self._errors is not None:
            size = self._errors.seek(0, os.SEEK_END)
            self._errors.seek(max(size - MAX_LINE_CHARS, 0))
            text = self._errors.read().decode(errors="replace").strip()
        self._close_server(END_TIMEOUT_S)
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            self._process.wait()
        reason = one_line(mask(text.rpartition("\n")[2])) or "it wrote no error"
        logger.warning("the process that starts workers ended: %s", reason)
        return reason

    def _close_server(self, timeout_s: float) -> None:
        for file in (self._control, self._errors):
            if file is not None:
                file.close()
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)  # a stopped server would not see that its channel is closed
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout_s)
        self._control = self._errors = None


def _is_readable(descriptor: int, timeout_s: float) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(timeout_s * 1000))


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
