"""Runs over local worker processes, seen from outside: their processes, files and exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeAlias

import psutil

from tests.support.command import COMMAND, ENVIRON, environ_with_environments
from tests.support.waiting_batch import wait_until

StartMode: TypeAlias = Literal["fork", "spawn"]

ENVIRONMENTS = ("Printing", "Exiting", "ReadingInput", "HoldingLock", "Forking", "ReadingKeys")
PLUGINS = {name: f"tests.support.held_steps:{name}" for name in ("HeldSteps", "EndlessSteps")}
EXIT_S = 100.0

_SPAWNING = "import sys; from runner.pool import fork_server; fork_server.DEFAULT_MODE = 'spawn'"
"""A run that starts its workers as on a system where a process cannot be forked safely; the command has no option."""


def worker_environ(folder: Path) -> dict[str, str]:
    """Return variables of a command that finds the environments of these tests and the agent ``up``."""
    (installed := folder / "installed").mkdir()
    return environ_with_environments(
        installed, *ENVIRONMENTS, envs=PLUGINS, agents={"up": "tests.support.fakes:UpAgent"}
    )


class WorkerRun:
    """``agentgym-runner --run`` in a session of its own; it is killed with all its processes at the end of the block.

    Args:
        folder: its working directory; its state is in ``data`` there.
        env: the environment.
        options: further options; without an agent, the agent ``up``.
        workers: number of worker processes and of episodes at a time.
        environ: variables besides those of ``ENVIRON``.
        mode: how workers start; ``fork`` is the platform's default.
        command: command in place of the installed one.
        executable: program that is really started, if not the first word of ``command``.
    """

    def __init__(
        self,
        folder: Path,
        env: str,
        *options: str,
        workers: int = 1,
        environ: dict[str, str],
        mode: StartMode = "fork",
        command: list[str] | None = None,
        executable: str | None = None,
    ) -> None:
        self.folder = folder
        spawning = [sys.executable, "-c", f"{_SPAWNING}; from runner.cli import main; sys.exit(main())"]
        counts = ("--workers", str(workers), "--concurrency", str(workers))
        agent = () if "--agent" in options else ("--agent", "up")
        self._command = [*(command or (spawning if mode == "spawn" else [COMMAND])), "--run", env, *agent, *counts]
        self._command += options
        self._environ = ENVIRON | environ
        self._executable = executable
        self._seen: set[psutil.Process] = set()

    def __enter__(self) -> Self:
        with (self.folder / "output").open("ab") as output, (self.folder / "errors").open("ab") as errors:
            self.process = psutil.Popen(
                self._command,
                executable=self._executable,
                cwd=self.folder,
                env=self._environ,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                start_new_session=True,
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.is_running():
            self.descendants()
            self.process.kill()
        self.process.wait(EXIT_S)
        for process in self._seen:
            if process.is_running():
                process.kill()

    @property
    def pid(self) -> int:
        return int(self.process.pid)

    def descendants(self) -> list[psutil.Process]:
        """Return the processes that the run has started, directly or not, and that still run."""
        found: list[psutil.Process] = self.process.children(recursive=True)
        self._seen.update(found)
        return found

    def wait(self) -> int:
        """Wait for the end of the run, and return its exit code."""
        return int(self.process.wait(EXIT_S))

    @property
    def errors(self) -> str:
        return (self.folder / "errors").read_text()

    @property
    def log(self) -> str:
        path = self.folder / "data" / "logs" / "runner.log"
        return path.read_text() if path.exists() else ""

    def wait_for_log(self, text: str, count: int = 1) -> list[str]:
        """Wait until ``count`` lines of the log have a text; return the words after it in each."""
        wait_until(lambda: self._complete_log().count(text) >= count)
        return [line.partition(text)[2].strip() for line in self._complete_log().splitlines() if text in line]

    def _complete_log(self) -> str:
        return self.log.rpartition("\n")[0]

    def episodes(self) -> list[dict[str, Any]]:
        """Return the stored episodes, the oldest first."""
        return [json.loads(path.read_bytes()) for path in sorted(self.folder.glob("data/runs/*/*.json"))]

    def outcomes(self) -> list[tuple[int, str]]:
        """Return task and outcome of each stored episode, in the order of the tasks."""
        return sorted((episode["task_index"], episode["outcome"]) for episode in self.episodes())


def all_successful(n_tasks: int) -> list[tuple[int, str]]:
    return [(task, "success") for task in range(n_tasks)]


def wait_until_ended(*processes: psutil.Process) -> None:
    """Wait until none of the processes runs; one whose parent has ended may stay a zombie where nothing reaps it."""
    wait_until(lambda: not any(map(is_alive, processes)))


def is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_until_reaped(process: psutil.Process) -> None:
    """Wait until a process has ended and its parent has read its exit code."""
    wait_until(lambda: not process.is_running())


def descriptors(pid: int) -> dict[int, str]:
    """Return what each open descriptor of a process refers to."""
    targets: dict[int, str] = {}
    for link in Path(f"/proc/{pid}/fd").iterdir():
        targets[int(link.name)] = str(link.readlink())
    return targets


def own_channels(pid: int) -> set[str]:
    """Return the sockets and pipes that a process has open."""
    return {target for target in descriptors(pid).values() if target.startswith(("socket:", "pipe:"))}
