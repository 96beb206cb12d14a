"""Environment servers in the listing and the runs of the command."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.envs.maze import Maze
from tests.support.command import COMMAND, ENVIRON, run_agentgym
from tests.support.rude_env_server import EnvironmentHandler, ReceivedRequest, json_response, run_rude_server
from tests.support.serving import serve_environments

pytestmark = pytest.mark.long

PASSWORD = "hunter22"


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A profile with a server for Maze, a missing one for Wordle, and one of another environment for BabyAI."""
    with serve_environments(["Maze"]) as urls, socket.create_server(("127.0.0.1", 0)) as unused:
        unused.close()
        path = tmp_path_factory.mktemp("profile") / "p.yaml"
        path.write_text(
            f"""
id: p
environments:
  lightweight:
    - {{name: Maze, base_url: "{urls["Maze"].replace("//", f"//user:{PASSWORD}@")}"}}
    - {{name: Wordle, base_url: "http://127.0.0.1:1", transport: http}}
  moderate:
    - {{name: BabyAI, base_url: "{urls["Maze"]}"}}
    - {{name: SQLGym}}
    - {{name: "gymnasium:FrozenLake-v1"}}
"""
        )
        yield str(path)


def test_list_envs_shows_servers_and_data(profile: str, tmp_path: Path) -> None:
    completed = run_agentgym(tmp_path, "--config", profile, "--list-envs", "--json")
    rows = {row["name"]: row for row in json.loads(completed.stdout)["environments"]}
    maze = rows["Maze"]
    assert (maze["server"], maze["kind"], maze["mode"], maze["open"]) == ("up", "console", "strict", 0)
    assert maze["latency_s"] > 0
    assert maze["health"] == "AgentGym Console, strict rules, 0 open"
    columns = {name: (row["transport"], row["data_label"], row["server"]) for name, row in rows.items()}
    assert columns["Maze"] == ("http", "", "up")
    assert columns["Wordle"] == (None, None, "down")
    assert columns["BabyAI"] == ("embedded", "", "wrong")
    assert columns["SQLGym"] == ("embedded", "local databases", None)
    assert columns["WebShop"] == ("embedded", "local catalogue", None)
    assert columns["gymnasium:FrozenLake-v1"] == ("embedded", "Gymnasium", None)
    assert (rows["Wordle"]["playable"], rows["Wordle"]["health"]) == (False, "nothing listens there")
    plain = run_agentgym(tmp_path, "--config", profile, "--list-envs").stdout
    assert "local databases" in plain
    assert PASSWORD not in completed.stdout + plain


def test_a_run_prints_and_stores_the_placement(profile: str, tmp_path: Path) -> None:
    completed = run_agentgym(tmp_path, "--config", profile, "--battery", "lightweight", "--agent", "oracle", "--json")
    assert completed.returncode == 1, completed.stderr
    assert "Maze: over HTTP at http://127.0.0.1:" in completed.stderr
    assert "Skipped: Wordle cannot be played at http://127.0.0.1:1: nothing listens there." in completed.stderr
    document = json.loads(completed.stdout)
    ((skipped,), (batch,)) = document["skipped"], document["batches"]
    assert (skipped["env"], skipped["reason"].partition(".")[0]) == ("Wordle", "Wordle cannot be played at http://127")
    (path,) = (tmp_path / "data" / "runs" / batch["batch_id"]).glob("*.json")
    episode = json.loads(path.read_bytes())
    assert (episode["transport"], episode["mode"], episode["outcome"]) == ("http", "strict", "success")
    assert PASSWORD not in completed.stdout + completed.stderr + path.read_text()


def test_a_missing_server_is_a_configuration_error(profile: str, tmp_path: Path) -> None:
    completed = run_agentgym(tmp_path, "--config", profile, "--run", "Wordle", "--agent", "oracle")
    assert completed.returncode == 2
    assert "Start its server, e.g. with: agentgym-runner serve Wordle" in completed.stderr
    dry_run = run_agentgym(tmp_path, "--config", profile, "--run", "Wordle", "--agent", "oracle", "--dry-run")
    assert dry_run.returncode == 1
    assert "FAIL Wordle with oracle: Wordle cannot be played at http://127.0.0.1:1" in dry_run.stdout


def test_a_run_waits_for_a_busy_server(tmp_path: Path) -> None:
    play, is_free = EnvironmentHandler(Maze), False

    async def answer(request: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        nonlocal is_free
        if request.path != "/":
            await play(request, writer)
        elif is_free:
            writer.write(json_response("This is environment lmrl-gym."))
            writer.write_eof()
        is_free = True  # from the second request on; the first one gets no reply

    with run_rude_server() as server:
        server.reset(answer)
        (tmp_path / "p.yaml").write_text(
            f"id: p\nenvironments:\n  moderate:\n    - {{name: Maze, base_url: '{server.url}'}}\n"
        )
        completed = run_agentgym(tmp_path, "--config", "p.yaml", "--run", "Maze", "--agent", "oracle")
    assert completed.returncode == 0, completed.stderr
    reason = f"{server.url}: busy: it accepts connections, but does not reply in time"
    lines = completed.stderr.splitlines()
    assert lines[0] == f"Maze: waiting for its server, 60 s left ({reason})"
    assert lines[1] == f"Maze: over HTTP at {server.url} (AgentGym server, compat rules)"


def test_a_signal_ends_a_battery_that_waits_for_a_busy_server(tmp_path: Path) -> None:
    """The environments after it are not played, and the exit code is that of an interrupted run."""

    async def hang(request: ReceivedRequest, writer: asyncio.StreamWriter) -> None: ...

    with run_rude_server() as server:
        server.reset(hang)
        entries = ("{name: Wordle}", f"{{name: Maze, base_url: '{server.url}'}}", "{name: TextCraft}")
        (tmp_path / "p.yaml").write_text(
            "id: p\nenvironments:\n  moderate:\n" + "".join(f"    - {entry}\n" for entry in entries)
        )
        command = [COMMAND, "--config", "p.yaml", "--battery", "moderate", "--agent", "oracle"]
        with subprocess.Popen(command, cwd=tmp_path, env=ENVIRON, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            for line in process.stderr:
                if line.startswith("Maze: waiting for its server"):
                    process.send_signal(signal.SIGINT)
                    break
            shown = process.stderr.read()
    assert process.returncode == 130, shown
    assert "Skipped: Maze cannot be played" in shown
    assert "Not begun: TextCraft\n" in shown
    assert shown.count("TextCraft") == 1


def test_a_gymnasium_id_is_an_environment(profile: str, tmp_path: Path) -> None:
    completed = run_agentgym(tmp_path, "--run", "gymnasium:CliffWalking-v1", "--agent", "random", "--repeat", "2")
    assert completed.returncode == 0, completed.stderr
    assert "gymnasium:CliffWalking-v1 · Gymnasium" in completed.stdout
