"""A process that forks others for its parent, quickly and with shared memory, and ends with it; both sides of it.

A request is a byte that carries descriptors, and a frame; the reply is a frame with the decimal digits of the new pid,
or of a negative number of an error. Standard library only, because ARE's interpreter runs it, too.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable
from typing import NoReturn

from runner.errors import catch_foreign
from runner.util.child_process import describe_end, die_with, kill_group, reap
from runner.util.framing import read_frame, send_frame

GRACE_S = 3.0
"""Seconds that the processes have to end after their parent's parent has ended; then they are killed."""

_MAX_DESCRIPTORS = 8
_PARENT_CHECK_MS = 1000
_CLOSE_ON_EXEC = getattr(socket, "MSG_CMSG_CLOEXEC", 0)


class ForkedProcess:
    """A process that a fork server has forked; ``pid`` is also the id of its group.

    Its server reports its end. To be killed it needs no server, which may be stopped.
    """

    def __init__(self, pid: int, status: int) -> None:
        self.pid = pid
        self._status = os.fdopen(status, "rb", buffering=0)
        self._lock = threading.Lock()
        self._exit_code: int | None = None

    def kill(self) -> None:
        """Also kills the processes that it has started; does nothing after its end."""
        if self._read_exit_code(0.0) is None and not self._status.closed:  # else its pid may belong to another process
            kill_group(self.pid)

    def close(self) -> None:
        """Forget the process; a second call does nothing."""
        with self._lock:
            self._status.close()

    def end_reason(self, timeout_s: float = 1.0) -> str:
        """Return how the process has ended, in words; wait at most ``timeout_s`` seconds for its end."""
        code = self._read_exit_code(timeout_s)
        return "closed its connection" if code is None else describe_end(code)

    def _read_exit_code(self, timeout_s: float) -> int | None:
        """Return None while the process runs, and if its server has ended before it."""
        poll = select.poll()
        with self._lock:
            if self._exit_code is None and not self._status.closed:
                poll.register(self._status, select.POLLIN)
                digits = self._status.read(16) if poll.poll(timeout_s * 1000) else b""
                self._exit_code = int(digits) if digits else None
            return self._exit_code


def fork(control: socket.socket, request: bytes, *descriptors: int) -> tuple[int, int]:
    """Let the server at the other end of ``control`` fork a process, which gets copies of the descriptors.

    Return the arguments of its ``ForkedProcess``. Raises ``ConnectionError`` if the server has ended, ``TimeoutError``
    if it has not replied within the time limit of ``control``, and ``OSError`` if files or processes ran out.
    """
    with contextlib.ExitStack() as opened:
        status, theirs = os.pipe()
        opened.callback(os.close, status)
        try:
            socket.send_fds(control, [b"\0"], [*descriptors, theirs])
            send_frame(control, request)
            reply = read_frame(control)
        finally:
            os.close(theirs)
        if reply is None:
            raise ConnectionError("the fork server has ended")
        if (pid := int(reply)) <= 0:
            raise OSError(-pid, os.strerror(-pid))
        opened.pop_all()
    return pid, status


class ForkServer:
    """Forks and reaps processes; its process has no other thread, and gets its signal handlers.

    Args:
        control: its end of the channel to its parent.
        become: called in each new process with the request and its descriptors; must not return.
        on_end: called with the pid of each process that has ended.
    """

    def __init__(
        self,
        control: socket.socket,
        become: Callable[[bytes, list[int]], NoReturn],
        on_end: Callable[[int], object] = lambda pid: None,
    ) -> None:
        self._control = control
        self._become = become
        self._on_end = on_end
        self._parent = os.getppid()
        self._statuses: dict[int, int] = {}
        self._wakeup, wakeup_write = socket.socketpair()
        self._own_sockets = (control, self._wakeup, wakeup_write)
        for sock in self._own_sockets[1:]:
            sock.setblocking(False)
        signal.set_wakeup_fd(wakeup_write.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def run(self) -> None:
        """Return when the parent has closed the channel or ended, and all processes have ended."""
        poll = select.poll()
        for sock in (self._control, self._wakeup):
            poll.register(sock, select.POLLIN)
        while os.getppid() == self._parent:
            ready = [descriptor for descriptor, _ in poll.poll(_PARENT_CHECK_MS)]
            self._reap()
            if self._control.fileno() in ready and not self._handle_request():
                break
        self._control.close()
        self._end_processes()

    def _handle_request(self) -> bool:
        """Return False at the end of the channel."""
        try:
            _, descriptors, _, _ = socket.recv_fds(self._control, 1, _MAX_DESCRIPTORS, _CLOSE_ON_EXEC)
            for descriptor in descriptors:
                os.set_inheritable(descriptor, False)
            if (request := read_frame(self._control)) is None:
                return False
            send_frame(self._control, b"%d" % self._fork(request, descriptors))
        except OSError:  # the parent has ended
            return False
        return True

    def _fork(self, request: bytes, descriptors: list[int]) -> int:
        """Return the pid, or the negative number of an error."""
        server, (*given, status) = os.getpid(), descriptors
        try:
            if not (pid := os.fork()):
                os.close(status)
                self._run_child(server, request, given)
        except OSError as exc:
            os.close(status)
            return -(exc.errno or 0)
        finally:
            for descriptor in given:
                os.close(descriptor)
        with contextlib.suppress(OSError):  # the child does the same; whichever comes first
            os.setpgid(pid, pid)
        self._statuses[pid] = status
        return pid

    def _run_child(self, server: int, request: bytes, descriptors: list[int]) -> NoReturn:
        try:
            with catch_foreign(_print_error):
                os.setpgid(0, 0)
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # SIGINT stays ignored: Ctrl-C is the parent's
                die_with(server)
                for sock in self._own_sockets:
                    sock.close()
                for descriptor in self._statuses.values():
                    os.close(descriptor)
                self._become(request, descriptors)
        finally:
            os._exit(1)

    def _reap(self) -> None:
        """Report the exit codes of the processes that have ended."""
        with contextlib.suppress(BlockingIOError):
            while self._wakeup.recv(1024):
                pass
        for pid in list(self._statuses):
            if (code := reap(pid)) is not None:
                with contextlib.suppress(OSError), os.fdopen(self._statuses.pop(pid), "wb") as status:
                    status.write(b"%d" % code)
                self._on_end(pid)

    def _end_processes(self) -> None:
        deadline, poll = time.monotonic() + GRACE_S, select.poll()
        poll.register(self._wakeup, select.POLLIN)
        self._reap()
        while self._statuses:
            if (left_s := deadline - time.monotonic()) <= 0:
                for pid in self._statuses:
                    kill_group(pid)
            poll.poll(max(left_s, 0.1) * 1000)
            self._reap()


def _print_error(exc: BaseException) -> None:
    os.write(2, f"the process ends: {type(exc).__name__}: {exc}\n".encode(errors="replace"))
