"""Environments that misbehave towards their process."""

from __future__ import annotations

import asyncio
import ctypes
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, ClassVar

from runner.types import Action, Chat, StepResult
from tests.support.fakes import Counter

print("printed by an import")  # noqa: T201 - the purpose of this environment


class Printing(Counter):
    """Writes to standard output in every possible way."""

    def step(self, action: Action) -> StepResult:
        print("printed by a step")  # noqa: T201 - the purpose of this environment
        os.write(1, b"written by a step\n")
        subprocess.run(["echo", "echoed by a child"], check=True)
        return super().step(action)


class Lingering(Counter):
    """Leaves an executor thread busy."""

    async def step(self, action: Action) -> StepResult:  # type: ignore[override]
        await asyncio.to_thread(time.sleep, 60)
        return super().step(action)


class Blocking(Counter):
    def step(self, action: Action) -> StepResult:
        time.sleep(60)
        return super().step(action)


class Gated(Counter):
    """Waits in every step until the file ``GATE`` exists."""

    def step(self, action: Action) -> StepResult:
        while not Path(os.environ["GATE"]).exists():
            time.sleep(0.01)
        return super().step(action)


class Hostile(Counter):
    def reset(self, **kwargs: Any) -> Chat:  # noqa: ANN401
        raise RuntimeError("\x9b2J \x7f \u202e \ud800 \u00b7")


class FullDisk(Counter):
    """Prevents all file writes of the process from its first step on."""

    def step(self, action: Action) -> StepResult:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
        return super().step(action)


class Hoarding(Counter):
    """Opens files until none is left, at the first task with an index from 4 on, while the file ``HOARD`` exists.

    It does so once: if it took every descriptor again as soon as one is free, none would be left for storing.
    """

    files: ClassVar[list[int]] = []
    lock: ClassVar[threading.Lock] = threading.Lock()

    def step(self, action: Action) -> StepResult:
        with self.lock:
            if not Path(os.environ["HOARD"]).exists():
                self._close_all()
            elif self.task_index >= 4 and not self.files:
                while True:
                    self.files.append(os.open(os.devnull, os.O_RDONLY))
        return super().step(action)

    def _close_all(self) -> None:
        while self.files:
            os.close(self.files.pop())


class Exiting(Counter):
    """Ends the program in its first step: with an exception at even tasks, without one at odd tasks."""

    def step(self, action: Action) -> StepResult:
        if self.task_index % 2:
            os._exit(3)
        sys.exit(4)


class ReadingInput(Counter):
    """Waits for a line from the terminal."""

    def step(self, action: Action) -> StepResult:
        input("? ")
        return super().step(action)


class HoldingLock(Counter):
    """Starts a process that may inherit descriptors, then keeps the interpreter lock for longer than any test runs."""

    def step(self, action: Action) -> StepResult:
        child = subprocess.Popen(["sleep", "1000"], close_fds=False)
        print(f"child {child.pid}")  # noqa: T201 - read by the test
        ctypes.PyDLL(None).sleep(1000)
        return super().step(action)


class Killing(Counter):
    """Kills its process in the first step of task 1; the steps of other tasks take a while."""

    def step(self, action: Action) -> StepResult:
        if self.task_index == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.1)
        return super().step(action)


class ReadingKeys(Counter):
    """Shows the agent the variable ``LAB_ACCESS``, and quotes it in the error of its second step."""

    def reset(self, **kwargs: Any) -> Chat:  # noqa: ANN401
        super().reset(**kwargs)
        return [{"role": "user", "content": f"{len(os.environ['LAB_ACCESS'])} characters"}]

    def step(self, action: Action) -> StepResult:
        if self.count:
            raise RuntimeError(f"the key {os.environ['LAB_TOKEN']} is refused")
        return super().step(action)


class Forking(Counter):
    """Forks a process in every step; the child leaves the step with an exception."""

    def step(self, action: Action) -> StepResult:
        if (child := os.fork()) == 0:
            sys.exit("the child of a step")
        os.waitpid(child, 0)
        return super().step(action)
