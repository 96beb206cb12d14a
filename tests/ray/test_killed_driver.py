from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
from ulid import ULID

from tests.ray.conftest import ClusterOfTwo, shown
from tests.support.command import COMMAND
from tests.support.node_events import wait_until

LIMIT_S = 60
DRIVER = Path(__file__).with_name("driver.py")
PROFILE = """
id: two
environments: {lightweight: [{name: Maze}, {name: Stuck}]}
agent:
  mode: local
  endpoints: [{url: "http://127.0.0.1:9/v1/chat/completions", name: lab, kind: openai, api_key_env: LAB_ACCESS}]
ray: {num_cpus: 0.5}
"""
KEY = "6b2e77-known-as-a-key-by-the-profile-alone"


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


def second_batch_hangs(folder: Path) -> bool:
    has_first = (folder / "errors").read_text().count("Maze · UpAgent: task") == 2
    return has_first and len(list(folder.glob("data/runs/*/*.journal.jsonl"))) == 2


def test_the_batches_of_a_command_share_one_cluster_without_keys_that_ends_with_the_killed_command(
    tmp_path: Path, session_folder: Path, plugin_path: Path
) -> None:
    mark, folder = str(ULID()), session_folder / "b"
    folder.mkdir()
    (tmp_path / "two.yaml").write_text(PROFILE)
    environ = {
        "RAY_TMPDIR": str(folder),
        "RAY_ADDRESS": "no-such-host:1",
        "PYTHONPATH": os.pathsep.join([str(DRIVER.parents[2]), str(plugin_path)]),
        "AGENTGYM_TEST_MARK": mark,
        "LAB_ACCESS": KEY,
    }
    options = [
        "--config",
        "two.yaml",
        "--data-dir",
        "data",
        "--agent",
        "UpAgent",
        "--repeat",
        "2",
        "--concurrency",
        "2",
        "--max-rounds",
        "2",
    ]
    command = [COMMAND, "--battery", "lightweight", "--workers", "ray", *options]
    with (tmp_path / "errors").open("w") as errors:
        driver = subprocess.Popen(command, cwd=tmp_path, env={**os.environ, **environ}, stderr=errors)
    try:
        asyncio.run(wait_until(lambda: second_batch_hangs(tmp_path), LIMIT_S))
        processes = [each for each in marked(mark) if each.pid != driver.pid]
    finally:
        driver.kill()
        driver.wait()
    assert len(list((folder / "ray").glob("session_2*"))) == 1
    assert [each for each in processes if KEY in shown(each)] == []
    assert [path for path in folder.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()] == []
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
