"""Commands, nodes and the console under limits of open files."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pytest
from ulid import ULID

from tests.support.command import (
    COMMAND,
    environ_with_environments,
    limited_command,
    run_agentgym,
    start_agentgym,
)
from tests.support.env_server_process import EnvServerProcess
from tests.support.node_process import NodeProcess, clean_environ
from tests.support.terminal import Terminal, terminal_environ

pytestmark = [pytest.mark.long, pytest.mark.timeout(180)]

CONSOLE = str(Path(COMMAND).with_name("agentgym-tui"))
N_EPISODES = 256
RUN = ["--run", "Maze", "--agent", "oracle", "--repeat", str(N_EPISODES), "--concurrency", str(N_EPISODES)]
LOWERED = (
    r"concurrency lowered from 256 to (\d+): the limit of open files is (\d+), (?:the|a worker) process needs (\d+)"
)
SENTENCE = r"(?:agentgym-runner|agentgym-tui): .* needs \d+ open files and the limit is 12; raise it with ulimit -n"


def run_limited(
    cwd: Path, n_files: int, *options: str, soft: int | None = None, environ: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return run_agentgym(cwd, *options, environ=environ, prefix=limited_command(n_files, soft=soft))


def stored_episodes(data_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_bytes()) for path in data_dir.glob("runs/*/*.json")]


def outcomes(data_dir: Path) -> Counter[str]:
    return Counter(episode["outcome"] for episode in stored_episodes(data_dir))


def test_256_episodes_at_once_run_at_the_usual_soft_limit(tmp_path: Path) -> None:
    if psutil.Process().rlimit(psutil.RLIMIT_NOFILE)[1] < 20_000:
        pytest.skip("raise the hard limit of open files to 20000 (ulimit -Hn)")
    done = run_limited(tmp_path, 20_000, *RUN, soft=1024)
    assert done.returncode == 0, done.stderr
    assert outcomes(tmp_path / "data") == {"success": N_EPISODES}
    assert "lowered" not in done.stderr


@pytest.mark.parametrize(("n_files", "workers", "per_episode"), [(256, 0, 6), (64, 0, 6), (64, 1, 1)])
def test_a_run_lowers_a_concurrency_that_does_not_fit_and_completes(
    tmp_path: Path, n_files: int, workers: int, per_episode: int
) -> None:
    done = run_limited(tmp_path, n_files, *RUN, "--workers", str(workers))
    assert done.returncode == 0, done.stderr
    (lowered,) = re.findall(LOWERED, done.stderr)
    assert int(lowered[1]) == n_files
    assert int(lowered[0]) <= (n_files - int(lowered[2])) / per_episode
    assert outcomes(tmp_path / "data") == {"success": N_EPISODES}


def test_a_run_on_a_server_stays_within_its_limit(tmp_path: Path, maze_server: EnvServerProcess) -> None:
    maze = {"name": "Maze", "port": maze_server.port, "transport": "http"}
    (tmp_path / "p.yaml").write_text(json.dumps({"id": "p", "environments": {"lightweight": [maze]}}))
    done = run_limited(tmp_path, 128, *RUN, "--config", str(tmp_path / "p.yaml"))
    assert done.returncode == 0, done.stderr
    assert re.search(LOWERED, done.stderr)
    assert outcomes(tmp_path / "data") == {"success": N_EPISODES}


def test_a_run_without_threads_lowers_its_concurrency_and_completes(
    tmp_path: Path, maze_server: EnvServerProcess
) -> None:
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("run as root with setpriv (util-linux), which becomes a user without other processes")
    maze = {"name": "Maze", "base_url": f"http://localhost:{maze_server.port}", "transport": "http"}
    (tmp_path / "p.yaml").write_text(json.dumps({"id": "p", "environments": {"lightweight": [maze]}}))
    done = run_agentgym(tmp_path, *RUN, "--workers", "0", "--config", "p.yaml", prefix=limited_threads(8))
    assert done.returncode == 0, done.stderr
    assert "concurrency lowered from 256 to 2: no more threads; raise the limits of processes" in done.stderr
    assert "Traceback" not in done.stderr
    assert outcomes(tmp_path / "data") == {"success": N_EPISODES}


def limited_threads(n_threads: int) -> list[str]:
    """Return the prefix of a command that runs as another user, who may read and write all files."""
    capabilities = "+dac_override,+dac_read_search"
    user = ["setpriv", "--reuid=12345", "--regid=12345", "--clear-groups", f"--inh-caps={capabilities}"]
    shell = ["bash", "-c", f'ulimit -u {n_threads} && exec "$@"', "bash"]
    return [*user, f"--ambient-caps={capabilities}", *shell]


@pytest.mark.parametrize("command", [RUN, ["node"], ["serve", "Maze", "--port", "0"]])
def test_a_hopeless_limit_is_one_sentence(tmp_path: Path, command: list[str]) -> None:
    done = run_limited(tmp_path, 12, *command)
    assert done.returncode == 2
    assert re.fullmatch(f"{SENTENCE}\n", done.stderr)
    assert not (tmp_path / "data").exists()


def test_a_node_that_does_not_fit_is_one_sentence_in_the_console(tmp_path: Path) -> None:
    done = run_limited(tmp_path, 64, "node")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    options = ("launch", "--data-dir", str(tmp_path / "data"), "--node", "n1")
    with Terminal(*limited_command(64, CONSOLE, *options), env=terminal_environ(), cwd=tmp_path) as terminal:
        terminal.wait_for("open files and the limit is 64", 40)
        terminal.send("q")
        assert terminal.wait_exit() == 0
    with Terminal(*limited_command(12, CONSOLE, *options), env=terminal_environ(), cwd=tmp_path) as terminal:
        assert terminal.wait_exit(40) == 2
        assert re.search(SENTENCE, terminal.text)


def test_a_server_lowers_its_connections_and_answers(tmp_path: Path) -> None:
    serving = start_agentgym(tmp_path, "serve", "Maze", "--port", "0", prefix=limited_command(64))
    with serving as (process, output, printed):
        maze = {"name": "Maze", "base_url": output.readline().split()[0], "transport": "http"}
        (tmp_path / "p.yaml").write_text(json.dumps({"id": "p", "environments": {"lightweight": [maze]}}))
        options = ("--run", "Maze", "--agent", "oracle", "--repeat", "32", "--concurrency", "12")
        done = run_limited(tmp_path, 1024, *options, "--config", str(tmp_path / "p.yaml"))
        process.terminate()
        errors = printed.read()
    assert done.returncode == 0, done.stderr
    assert "connections lowered from 512 to 16 (1 site): the limit of open files is 64" in errors
    assert "Traceback" not in errors


def test_a_run_without_files_stores_its_episodes_and_stops(tmp_path: Path) -> None:
    (tmp_path / "hoard").touch()
    environ = environ_with_environments(tmp_path, "Hoarding") | {"HOARD": str(tmp_path / "hoard")}
    options = ("--run", "Hoarding", "--agent", "random", "--repeat", "100", "--concurrency", "8")
    done = run_limited(tmp_path, 256, *options, environ=environ)
    assert done.returncode == 130, done.stderr
    assert "interrupted: no more open files (the limit is 256); raise it with ulimit -n" in done.stderr
    assert "Free what ran out, then run:" in done.stderr
    assert "Traceback" not in done.stderr
    assert "not stored" not in done.stdout
    episodes = stored_episodes(tmp_path / "data")
    errors = {episode["error"]["type"] for episode in episodes if episode["outcome"] == "error"}
    assert errors == {"resources"}
    assert {episode["outcome"] for episode in episodes} <= {"success", "truncated", "error", "interrupted"}
    assert not list((tmp_path / "data").glob("runs/*/*.journal.jsonl"))


async def test_a_batch_of_a_node_without_files_is_resumed_with_another_concurrency(tmp_path: Path) -> None:
    (hoard := tmp_path / "hoard").touch()
    environ = clean_environ() | environ_with_environments(tmp_path, "Hoarding") | {"HOARD": str(hoard)}
    batch: dict[str, Any] = {
        "batch_id": str(ULID()),
        "envs": ["Hoarding"],
        "agent": "random",
        "repeat": 100,
        "workers": 2,
    }
    with NodeProcess(tmp_path / "data", env=environ) as node:
        process = psutil.Process(node.pid)
        limits = process.rlimit(psutil.RLIMIT_NOFILE)
        process.rlimit(psutil.RLIMIT_NOFILE, (160, limits[1]))
        async with await node.connect() as connection:
            (accepted,) = await node.request(connection, "start", **batch, concurrency=200)
            assert accepted["concurrency"] == 200
            assert re.findall(LOWERED.replace("256", "200"), accepted["warning"]) == [("56", "160", "16")]
            await node.wait_for_batch(connection, batch["batch_id"], "interrupted")
            interrupted = stored_episodes(node.data_dir)
            hoard.unlink()
            process.rlimit(psutil.RLIMIT_NOFILE, limits)
            (resumed,) = await node.request(connection, "start", **batch, concurrency=3, resume=True)
            assert (resumed["concurrency"], resumed["warning"]) == (3, None)
            await node.wait_for_batch(connection, batch["batch_id"], "completed", n_done=100)
        status, errors = await asyncio.to_thread(node.terminate)
    assert status == 0
    assert "Traceback" not in errors
    assert "concurrency lowered from 200 to 56: the limit of open files is 160" in errors
    assert re.search("interrupted with .* episodes left: no more open files", errors)
    assert {episode["error"]["type"] for episode in interrupted if episode["outcome"] == "error"} == {"resources"}
    played = [episode["task_index"] for episode in stored_episodes(node.data_dir) if is_finished(episode)]
    assert sorted(played) == list(range(100))


def is_finished(episode: dict[str, Any]) -> bool:
    return episode["outcome"] not in ("interrupted", "error")
