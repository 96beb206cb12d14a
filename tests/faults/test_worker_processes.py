"""Local worker processes: their start, their isolation from the driver, and their end."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import psutil
import pytest

from runner.plugins import Plugin
from runner.pool.fork_server import ForkServerClient, WorkerProcess, WorkerStartError
from runner.types import Outcome
from runner.worker.channel import StartMode
from runner.worker.frames import Command, Configure, Ended, Free, Paused, Reset, Stepped, Stop
from runner.worker.runner_setup import RunnerSetup
from tests.conftest import Install
from tests.support.command import REPOSITORY, environ_with_environments, limited_command
from tests.support.worker_frames import TIMEOUT_S, ChannelDriver

pytestmark = pytest.mark.long

RUDE = ("Printing", "Blocking", "Exiting", "ReadingInput", "HoldingLock", "Forking", "Reporting")

DRIVER = """
import signal, sys
from runner.pool.fork_server import ForkServerClient
from tests.support.worker_frames import ChannelDriver

env, agent, n_workers = sys.argv[1], sys.argv[2], int(sys.argv[3])
signal.signal(signal.SIGINT, lambda *_: print("interrupted", flush=True))
client = ForkServerClient()
workers = [client.start_worker(f"w{n}", lambda line: print(line, flush=True)) for n in range(n_workers)]
drivers = [ChannelDriver(worker.sock) for worker in workers]
print(client.pid, *(worker.pid for worker in workers), flush=True)
for driver in drivers:
    driver.configure(env, agent)
for line in sys.stdin:
    for driver in drivers:
        print(driver.play().problem, flush=True)
"""


LEAVING_DRIVER = """
from runner.pool import fork_server

client = fork_server.open_client()
worker = client.start_worker("w", print)
print(client.pid, worker.pid)
worker.sock.close()
fork_server._leave_servers()
fork_server._clients.clear()
del client, worker
"""


BOTH_MODES = pytest.mark.parametrize("client", ["fork", "spawn"], indirect=True)


@pytest.fixture
def client(request: pytest.FixtureRequest, install: Install) -> Iterator[ForkServerClient]:
    install(
        {name: f"tests.support.rude_environments:{name}" for name in RUDE}, {"UpAgent": "tests.support.fakes:UpAgent"}
    )
    mode: StartMode = getattr(request, "param", "fork")
    client = ForkServerClient(mode)
    yield client
    client.close()


class Lines:
    """Receives the log of a worker."""

    def __init__(self) -> None:
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.add = self._lines.put

    def wait_for(self, text: str) -> str:
        while text not in (line := self._lines.get(timeout=TIMEOUT_S)):
            pass
        return line


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """Variables of a driver process whose workers find the rude environments."""
    return environ_with_environments(tmp_path, *RUDE, agents={"UpAgent": "tests.support.fakes:UpAgent"})


@pytest.fixture
def lines() -> Lines:
    return Lines()


Start: TypeAlias = Callable[..., tuple[WorkerProcess, ChannelDriver]]


@pytest.fixture
def start(client: ForkServerClient, lines: Lines) -> Iterator[Start]:
    """Starts workers; closes their channels at the end of the test."""
    workers: list[WorkerProcess] = []

    def start_worker(env: str, agent: str = "UpAgent", name: str = "worker 1") -> tuple[WorkerProcess, ChannelDriver]:
        worker = client.start_worker(name, lines.add)
        workers.append(worker)
        driver = ChannelDriver(worker.sock)
        driver.configure(env, agent)
        return worker, driver

    yield start_worker
    for worker in workers:
        worker.sock.close()


def wait_until_gone(pids: list[int], limit_s: float) -> None:
    """Wait until none of the processes runs; processes that nothing reaps count as ended."""
    deadline = time.monotonic() + limit_s
    while left := [pid for pid in pids if is_running(pid)]:
        assert time.monotonic() < deadline, f"still running: {left}"
        time.sleep(0.05)


def is_running(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


@contextlib.contextmanager
def run_driver(
    env: str, agent: str, n_workers: int, environ: dict[str, str] | None = None, n_files: int = 1000
) -> Iterator[subprocess.Popen[str]]:
    """Run a driver in a session of its own; it plays an episode on each worker for each line of its input."""
    with subprocess.Popen(
        limited_command(n_files, sys.executable, "-c", DRIVER, env, agent, str(n_workers)),
        cwd=REPOSITORY,
        env=os.environ | (environ or {}),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as driver:
        try:
            yield driver
        finally:
            driver.kill()


def read_line(driver: subprocess.Popen[str], text: str = "") -> str:
    assert driver.stdout is not None
    while line := driver.stdout.readline():
        if text in line:
            return line
    raise AssertionError(f"the driver ended before {text!r}")


def ask_for_episode(driver: subprocess.Popen[str]) -> None:
    assert driver.stdin is not None
    driver.stdin.write("\n")
    driver.stdin.flush()


@pytest.mark.parametrize(("client", "env"), [("fork", "BabyAI"), ("spawn", "Maze")], indirect=["client"])
def test_a_worker_plays_episodes_and_ends_with_its_channel(env: str, start: Start) -> None:
    worker, driver = start(env, "oracle")
    assert (driver.hello.worker_id, driver.hello.pid, driver.hello.host) == (
        "worker 1",
        worker.pid,
        socket.gethostname(),
    )
    for task_index in range(3):
        assert driver.play(task_index).problem is None
    assert [frame.end.outcome for frame in driver.reader.of(Ended)] == [Outcome.SUCCESS] * 3
    worker.sock.close()
    assert worker.end_reason(TIMEOUT_S) == "ended with exit code 0"
    assert not is_running(worker.pid)


def test_a_worker_uses_the_entry_points_that_its_driver_has_found(client: ForkServerClient, lines: Lines) -> None:
    with contextlib.closing(client.start_worker("worker 1", lines.add).sock) as sock:
        driver = ChannelDriver(sock)
        environment = Plugin("Elsewhere", "tests.support.fakes:Counter")
        agent = Plugin("Up", "tests.support.fakes:UpAgent")
        driver.send(Configure(setup=RunnerSetup(env=environment, agent=agent)))
        assert driver.play().problem is None
    assert driver.reader.of(Stepped)


def test_what_every_worker_shares_has_no_threads_and_no_environments_of_other_packages() -> None:
    program = """
import importlib, sys, threading
from runner.worker.fork_server import shared_modules
modules = [*shared_modules()]
for name in modules:
    importlib.import_module(name)
assert {"runner.envs.maze", "runner.agents.baselines"} <= set(modules)
print(threading.active_count(), *{"minigrid", "numpy", "ray", "textual"} & set(sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["1"]


def test_commands_reach_a_worker_that_plays(start: Start) -> None:
    worker, driver = start("Maze", "oracle")
    episode_id = driver.start(paused=True)
    assert not driver.reader.wait_for(Paused).resumed
    driver.send(Command(episode_id=episode_id, name="step"))
    assert driver.reader.wait_for(Stepped).step.data.startswith(b'{"index":0,')
    driver.send(Command(episode_id=episode_id, name="cancel", outcome=Outcome.INTERRUPTED))
    assert driver.reader.wait_for(Ended).end.outcome == Outcome.INTERRUPTED
    driver.reader.wait_for(Free)
    driver.send(Stop())
    assert worker.end_reason(TIMEOUT_S) == "ended with exit code 0"


def test_what_an_environment_prints_is_logged_and_is_no_frame(start: Start, lines: Lines) -> None:
    for name in ("worker 1", "worker 7"):
        _, driver = start("Printing", name=name)
        assert driver.play().problem is None
        assert driver.reader.of(Ended)[0].end.outcome == Outcome.SUCCESS
        for text in ("printed by an import", "printed by a step", "written by a step", "echoed by a child"):
            assert lines.wait_for(text) == f"{name}: {text}"


@BOTH_MODES
def test_an_environment_that_exits_ends_its_episode_or_its_worker(start: Start) -> None:
    worker, driver = start("Exiting")
    driver.play(0)
    error = driver.reader.of(Ended)[0].end.error
    assert error is not None
    assert error.type == "SystemExit"
    driver.start(1)
    with pytest.raises(AssertionError, match="the channel ended before Free"):
        driver.reader.wait_for(Free)
    assert worker.end_reason(TIMEOUT_S) == "ended with exit code 3"


@BOTH_MODES
def test_a_child_of_an_environment_sends_no_frames(start: Start) -> None:
    _, driver = start("Forking")
    assert driver.play().problem is None
    assert [frame.end.outcome for frame in driver.reader.of(Ended)] == [Outcome.SUCCESS]
    assert len(driver.reader.of(Stepped)) == 3


def test_standard_input_is_empty(start: Start) -> None:
    _, driver = start("ReadingInput")
    driver.play()
    error = driver.reader.of(Ended)[0].end.error
    assert error is not None
    assert error.type == "EOFError"


@pytest.mark.parametrize(
    ("client", "env"),
    [("fork", "Blocking"), ("fork", "HoldingLock"), ("spawn", "HoldingLock")],
    indirect=["client"],
)
def test_a_worker_that_hangs_is_killed_with_its_children(env: str, start: Start, lines: Lines) -> None:
    worker, driver = start(env)
    driver.start()
    driver.reader.wait_for(Reset)
    children = [int(lines.wait_for("child").split()[-1])] if env == "HoldingLock" else []
    worker.kill()
    worker.kill()
    assert worker.end_reason(TIMEOUT_S) == "was ended by SIGKILL"
    wait_until_gone([worker.pid, *children], TIMEOUT_S)


@BOTH_MODES
def test_a_worker_has_the_present_state_of_its_driver_but_no_descriptors(
    start: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    start("Maze", "oracle")
    monkeypatch.setenv("REPORTED", "set after the start of the server")
    monkeypatch.chdir(tmp_path)
    for _ in range(3):
        worker, driver = start("Reporting")
        assert psutil.Process(worker.pid).cwd() == str(tmp_path)
        driver.play()
        variable, is_leader, descriptors = driver.reader.of(Reset)[0].reset.env_episode_id.split("|")
        assert variable == "set after the start of the server"
        assert is_leader == "True"
        # the standard streams, the channel and its bell, three for each of two event loops, and the listing itself
        assert int(descriptors) <= 12
        assert not worker.sock.get_inheritable()


def test_a_server_that_was_killed_takes_its_workers_along_and_is_replaced(
    client: ForkServerClient, start: Start
) -> None:
    first, _ = start("Maze", "oracle")
    assert client.pid is not None
    os.kill(client.pid, signal.SIGKILL)
    second, driver = start("Maze", "oracle")
    assert driver.play().problem is None
    first.sock.close()
    wait_until_gone([first.pid], TIMEOUT_S)
    assert first.end_reason(0) == "closed its connection"
    assert is_running(second.pid)


@BOTH_MODES
@pytest.mark.parametrize("has_new_server", [False, True])
def test_what_an_environment_started_does_not_survive_a_killed_server(
    client: ForkServerClient, start: Start, lines: Lines, *, has_new_server: bool
) -> None:
    worker, driver = start("HoldingLock")
    driver.start()
    child = int(lines.wait_for("child").split()[-1])
    assert client.pid is not None
    os.kill(client.pid, signal.SIGKILL)
    if has_new_server:
        start("Maze", "oracle")
    worker.kill()
    wait_until_gone([worker.pid, child], 10)


def test_a_worker_that_does_not_end_with_its_closed_server_is_killed_with_its_children(
    client: ForkServerClient, start: Start, lines: Lines
) -> None:
    worker, driver = start("HoldingLock")  # its channel stays open
    driver.start()
    child = int(lines.wait_for("child").split()[-1])
    client.close()
    wait_until_gone([worker.pid, child], TIMEOUT_S)


def test_a_worker_that_has_played_shares_most_of_its_memory(start: Start) -> None:
    worker, driver = start("Maze", "oracle")
    assert driver.play().problem is None
    memory = psutil.Process(worker.pid).memory_full_info()
    assert memory.uss < 0.4 * memory.rss, memory  # 0.2, and 0.6 if it shared only the files of its code


def test_a_server_that_replies_too_late_is_replaced(
    client: ForkServerClient, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runner.pool.fork_server.CLOSE_TIMEOUT_S", 0.1)
    first, _ = start("Maze", "oracle")
    pid, control = client.pid, client._control
    assert pid is not None
    assert control is not None
    control.settimeout(0.5)
    os.kill(pid, signal.SIGSTOP)
    first.kill()
    second, driver = start("Maze", "oracle")
    assert driver.play().problem is None
    assert client.pid != pid
    assert driver.hello.pid == second.pid
    wait_until_gone([first.pid], TIMEOUT_S)


def test_a_server_that_cannot_start_is_reported(lines: Lines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 'no module \033[2J named runner' >&2\nexit 1\n")
    python.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(python))
    client = ForkServerClient()
    with pytest.raises(WorkerStartError, match=r"ended: no module ␛\[2J named runner; .* or set workers to 0"):
        client.start_worker("worker 1", lines.add)
    client.close()


def test_no_process_survives_a_killed_driver(environ: dict[str, str]) -> None:
    with run_driver("HoldingLock", "UpAgent", 2, environ) as driver:
        pids = [int(pid) for pid in read_line(driver).split()]
        ask_for_episode(driver)
        pids.append(int(read_line(driver, "child").split()[-1]))
        os.kill(driver.pid, signal.SIGKILL)
        wait_until_gone(pids, 10)


def test_a_driver_that_ends_before_its_server_warns_of_nothing(environ: dict[str, str]) -> None:
    command = [sys.executable, "-W", "error::ResourceWarning", "-c", LEAVING_DRIVER]
    driver = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, env=environ, cwd=REPOSITORY)
    assert (driver.returncode, driver.stderr) == (0, "")
    wait_until_gone([int(pid) for pid in driver.stdout.split()], 10)


def test_ctrl_c_reaches_only_the_driver(environ: dict[str, str]) -> None:
    with run_driver("Maze", "oracle", 1, environ) as driver:
        read_line(driver)
        os.killpg(driver.pid, signal.SIGINT)
        read_line(driver, "interrupted")
        ask_for_episode(driver)
        assert read_line(driver) == "None\n"


def test_workers_of_a_driver_with_40_files(environ: dict[str, str]) -> None:
    with run_driver("Maze", "oracle", 8, environ, n_files=40) as driver:
        read_line(driver)
        ask_for_episode(driver)
        assert [read_line(driver) for _ in range(8)] == ["None\n"] * 8
        driver.communicate(timeout=TIMEOUT_S)
        assert driver.returncode == 0
