from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
from ulid import ULID

from tests.ray.conftest import ClusterOfTwo

LIMIT_S = 60
DRIVER = Path(__file__).with_name("driver.py")
KEY = "sk-6b2e77-a-secret-key-of-a-model"


@contextmanager
def playing_driver(folder: Path, *arguments: str, **environ: str) -> Iterator[tuple[subprocess.Popen[str], set[int]]]:
    """Start a driver, and yield it and the pids of its two workers when they play."""
    variables = {**os.environ, **environ}
    command = [sys.executable, str(DRIVER), str(folder), *arguments]
    with subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        try:
            yield driver, {int(driver.stdout.readline()) for _ in range(2)}
        finally:
            driver.kill()


def marked(mark: str) -> list[psutil.Process]:
    """Return the processes with a variable of this value."""
    found = []
    for process in psutil.process_iter():
        try:
            if mark in process.environ().values():
                found.append(process)
        except psutil.Error:
            continue
    return found


def test_nothing_of_a_killed_driver_plays_on_in_a_cluster(cluster: ClusterOfTwo, tmp_path: Path) -> None:
    with playing_driver(tmp_path, cluster.address) as (driver, pids):
        workers = [psutil.Process(pid) for pid in pids]
        driver.kill()
        _, alive = psutil.wait_procs(workers, timeout=LIMIT_S)
    assert alive == []


def test_a_cluster_of_this_machine_ends_with_its_killed_driver_and_has_no_key(
    tmp_path: Path, plugin_path: Path
) -> None:
    mark = str(ULID())
    path = os.pathsep.join([str(DRIVER.parents[2]), str(plugin_path)])
    environ = {"AGENTGYM_TEST_MARK": mark, "LAB_API_KEY": KEY, "PYTHONPATH": path, "RAY_ADDRESS": "no-such-host:1"}
    with playing_driver(tmp_path, **environ) as (driver, pids):
        processes = [each for each in marked(mark) if each.pid != driver.pid]
        assert pids <= {process.pid for process in processes}
        assert [each for each in processes if KEY in repr((each.environ(), each.cmdline()))] == []
        driver.kill()
        _, alive = psutil.wait_procs(processes, timeout=LIMIT_S)
    assert alive == []
    assert marked(mark) == []


def test_a_killed_head_interrupts_the_batch_and_leaves_the_driver(tmp_path: Path, plugin_path: Path) -> None:
    path = os.pathsep.join([str(DRIVER.parents[2]), str(plugin_path)])
    with playing_driver(tmp_path, PYTHONPATH=path) as (driver, _):
        processes = psutil.Process(driver.pid).children(recursive=True)
        next(process for process in processes if process.name() == "gcs_server").kill()
        output, _ = driver.communicate(timeout=LIMIT_S)
    assert "interrupted the head of the Ray cluster at" in output
    assert driver.returncode == 0
    _, alive = psutil.wait_procs(processes, timeout=LIMIT_S)
    assert alive == []
