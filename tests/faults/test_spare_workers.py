"""Spare processes of the fork server: they become workers in the state of their driver, and end with it."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from runner.pool.fork_server import ForkServerClient
from runner.worker.fork_server import N_SPARES
from runner.worker.frames import Ended, Reset
from tests.conftest import Install
from tests.faults.test_worker_processes import read_line, wait_until_gone
from tests.support.command import REPOSITORY
from tests.support.worker_frames import TIMEOUT_S, ChannelDriver

pytestmark = pytest.mark.long

MAX_IDLE_MB = 40.0

DRIVER = """
import time
from runner.pool.fork_server import ForkServerClient

client = ForkServerClient()
client.preload()
print(client.pid, flush=True)
time.sleep(600)
"""


@pytest.fixture
def client(install: Install) -> Iterator[ForkServerClient]:
    """A client whose server has its spares."""
    rude = {name: f"tests.support.rude_environments:{name}" for name in ("Printing", "Reporting")}
    install(rude, {"UpAgent": "tests.support.fakes:UpAgent"})
    client = ForkServerClient("fork")
    client.preload()
    yield client
    client.close()


@contextlib.contextmanager
def start_worker(
    client: ForkServerClient, log: Callable[[str], None] = print, name: str = "worker 1"
) -> Iterator[tuple[int, ChannelDriver]]:
    """Start a worker; yield its process id and its driver. It ends with the context."""
    worker = client.start_worker(name, log)
    with worker.sock:
        yield worker.pid, ChannelDriver(worker.sock)
    assert worker.end_reason(TIMEOUT_S) == "ended with exit code 0"


def wait_for_spares(server: int | None) -> set[int]:
    """Wait until a fork server without workers has all its spares, each in its own process group; return their ids."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        spares = {child.pid for child in psutil.Process(server).children()}
        if len(spares) == N_SPARES and {os.getpgid(pid) for pid in spares} == spares:
            return spares
        assert time.monotonic() < deadline, f"spares: {spares}"
        time.sleep(0.02)


def count_page_faults(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[7])


def test_spares_become_workers_with_the_present_state_of_their_driver(
    client: ForkServerClient, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    spares = wait_for_spares(client.pid)
    monkeypatch.setenv("REPORTED", "set after the fork")
    monkeypatch.chdir(tmp_path)
    with contextlib.ExitStack() as workers:
        for pid, driver in [workers.enter_context(start_worker(client)) for _ in spares]:
            assert pid in spares
            assert driver.hello.pid == pid
            assert Path(f"/proc/{pid}/cwd").readlink() == tmp_path
            driver.configure("Reporting", "UpAgent")
            assert driver.play().problem is None
            variable, is_leader, descriptors = driver.reader.of(Reset)[0].reset.env_episode_id.split("|")
            assert (variable, is_leader) == ("set after the fork", "True")
            # the standard streams, the channel and its bell, three for each of two event loops, and the listing itself
            assert int(descriptors) <= 12


def test_a_spare_writes_to_the_log_of_its_worker(client: ForkServerClient) -> None:
    spares, lines = wait_for_spares(client.pid), queue.SimpleQueue[str]()
    with start_worker(client, lines.put, "worker 7") as (pid, driver):
        assert pid in spares
        driver.configure("Printing", "UpAgent")
        assert driver.play().problem is None
    found = [lines.get(timeout=TIMEOUT_S) for _ in range(3)]
    assert "worker 7: printed by an import" in found


def test_spares_are_replaced_when_no_worker_is_left(client: ForkServerClient) -> None:
    spares = wait_for_spares(client.pid)
    with start_worker(client), start_worker(client):
        pass
    assert not wait_for_spares(client.pid) & spares


def test_an_episode_of_a_spare_copies_few_memory_pages(client: ForkServerClient) -> None:
    spares, n_faults = wait_for_spares(client.pid), list[int]()
    with contextlib.ExitStack() as workers:
        for n in range(N_SPARES + 1):
            pid, driver = workers.enter_context(start_worker(client))
            assert (pid in spares) == (n < N_SPARES)
            before = count_page_faults(pid)
            driver.configure("Reporting", "UpAgent")
            assert driver.play().problem is None
            assert [frame.end.error for frame in driver.reader.of(Ended)] == [None]
            n_faults.append(count_page_faults(pid) - before)
    assert max(n_faults[:N_SPARES]) < 0.6 * n_faults[N_SPARES], n_faults


def test_a_spare_takes_little_memory(client: ForkServerClient) -> None:
    for pid in wait_for_spares(client.pid):
        assert psutil.Process(pid).memory_full_info().pss / 2**20 < MAX_IDLE_MB


def test_killed_spares_are_passed_over(client: ForkServerClient) -> None:
    spares = wait_for_spares(client.pid)
    for pid in spares:
        os.kill(pid, signal.SIGKILL)
    wait_until_gone(list(spares), TIMEOUT_S)
    with start_worker(client) as (pid, driver):
        assert pid not in spares
        driver.configure("Maze")
        assert driver.play().problem is None


@pytest.mark.parametrize("ends", ["closed", "killed"])
def test_spares_end_with_their_server(client: ForkServerClient, ends: str) -> None:
    spares = wait_for_spares(client.pid)
    assert client.pid is not None
    if ends == "closed":
        client.close()
    else:
        os.kill(client.pid, signal.SIGKILL)
    wait_until_gone(list(spares), 10)


def test_spares_do_not_survive_a_killed_driver() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", DRIVER], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as driver:
        try:
            server = int(read_line(driver))
            pids = [server, *wait_for_spares(server)]
        finally:
            driver.kill()
        wait_until_gone(pids, 10)
