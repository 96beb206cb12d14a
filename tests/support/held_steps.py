"""An environment whose steps wait for the test, which sees each of them and the process that plays it."""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import threading
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from runner.types import Action, StepResult
from tests.support.fakes import Counter

VARIABLE = "STEP_GATE"
NEXT_S = 60.0


class HeldSteps(Counter):
    """Reports each step to the gate whose port the environment variable names, and executes it once it is released."""

    def step(self, action: Action) -> StepResult:
        with socket.create_connection(("127.0.0.1", int(os.environ[VARIABLE]))) as gate:
            gate.sendall(b"%d %d %d\n" % (os.getpid(), self.task_index, self.count))
            if not gate.recv(1):
                raise ConnectionError("the test has ended")
        return super().step(action)


class EndlessSteps(HeldSteps):
    """Ends only on request."""

    def __init__(self) -> None:
        super().__init__(goal=10**9)


@dataclass(frozen=True)
class HeldStep:
    pid: int
    task: int
    index: int
    connection: socket.socket

    def release(self) -> None:
        """Let the step be executed; its process may have ended."""
        with self.connection, contextlib.suppress(OSError):
            self.connection.sendall(b"\n")


class StepGate:
    """Holds the steps of all ``HeldSteps`` that know its port, until they are released or the gate is opened."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._held: queue.SimpleQueue[HeldStep] = queue.SimpleQueue()
        self._connections: list[socket.socket] = []
        self._is_open = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def environ(self) -> dict[str, str]:
        return {VARIABLE: str(self._listener.getsockname()[1])}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)  # a close alone does not end an accept
        self._listener.close()
        for connection in self._connections:
            connection.close()

    @property
    def is_empty(self) -> bool:
        """Whether no step waits that ``next`` has not returned."""
        return self._held.empty()

    def next(self, timeout_s: float = NEXT_S) -> HeldStep:
        """Wait for a step.

        Raises:
            TimeoutError: there was none within ``timeout_s`` seconds.
        """
        try:
            return self._held.get(timeout=timeout_s)
        except queue.Empty:
            raise TimeoutError(f"no step began within {timeout_s:.0f} s") from None

    def open(self) -> None:
        """Release the steps that wait, except those that ``next`` has returned, and all later ones."""
        self._is_open.set()
        while not self.is_empty:
            self._held.get().release()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # the end of the gate
            while True:
                connection, _ = self._listener.accept()
                self._connections.append(connection)
                with connection.makefile("rb") as lines:
                    line = lines.readline()
                if line.endswith(b"\n"):
                    pid, task, index = map(int, line.split())
                    self._held.put(HeldStep(pid, task, index, connection))
                    if self._is_open.is_set():
                        self.open()
