"""Servers that a node starts: real processes that answer, do not, end, stay, or say what nobody should read."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from runner.config import EnvironmentEntry, Environments, Profile
from runner.errors import ConfigError
from runner.node.env_servers import log as server_log
from runner.node.env_servers import process as server
from runner.node.env_servers.log import ServerLog, log_name
from runner.node.env_servers.manager import EnvServerManager
from runner.node.env_servers.process import child_environ
from tests.support.rude_env import rude_server

WELL = """
import http.server, os, subprocess, sys

class Greeting(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = b'"This is environment lmrl-gym."'
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print("child", child.pid, sorted(os.environ), sys.stdin.read() == "", flush=True)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Greeting).serve_forever()
"""
STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("deaf", flush=True)
time.sleep(60)
"""
ENDING = r"""
import sys
print("one\n" * 30 + "\x1b[2Jthe reason\u202e of hunter2-secret", file=sys.stderr)
sys.exit(3)
"""


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


@pytest.fixture
def servers(tmp_path: Path, port: int) -> Iterator[Callable[..., EnvServerManager]]:
    """Makes servers of an environment Maze with this program."""
    made: list[EnvServerManager] = []

    def make(program: str, **more: object) -> EnvServerManager:
        script = tmp_path / "a server.py"
        script.write_text(program)
        entry = EnvironmentEntry(
            name="Maze",
            server_cmd=f"'{sys.executable}' '{script}' {port}",
            port=port,
            **more,  # type: ignore[arg-type]
        )
        made.append(
            EnvServerManager(Profile(id="p", environments=Environments(lightweight=(entry,))), tmp_path / "logs")
        )
        return made[-1]

    yield make
    for each in made:
        each.close()


def until(holds: Callable[[], bool], timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, "this never became true"
        time.sleep(0.01)


def settled(servers: EnvServerManager) -> str:
    servers.wait_for("maze", lambda: False)
    return servers.cause("maze") or ""


def test_a_server_is_started_once_and_ends_with_all_it_started(
    servers: Callable[..., EnvServerManager], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_API_KEY", "hunter2-secret")
    monkeypatch.setenv("NATS_URL", "nats://user:hunter2@bus")
    monkeypatch.setenv("PLAIN", "1")
    kept = servers(WELL)
    assert kept.start("maze").status == "starting"
    assert settled(kept) == ""
    assert kept.start("Maze").status == "running"
    log = tmp_path / "logs" / "server-Maze.log"
    (said,) = [line for line in log.read_text().splitlines() if line.startswith("child")]
    assert "'PLAIN'" in said
    assert "SOME_API_KEY" not in said
    assert "NATS_URL" not in said
    assert said.endswith(" True")
    child = psutil.Process(int(said.split()[1]))
    assert kept.stop("MAZE").status == "stopped"
    until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)
    assert (kept.cause("Maze"), log.stat().st_mode & 0o777) == (None, 0o600)
    assert kept.start("Maze").status == "starting"  # again
    assert settled(kept) == ""


def test_a_server_that_ends_is_reported_with_its_last_words(
    servers: Callable[..., EnvServerManager], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_SECRET", "hunter2-secret")
    kept = servers(ENDING)
    kept.start("Maze")
    cause = settled(kept)
    assert "it ended with exit code 3; its last words: one | one | one | one | ␛[2Jthe reason\\u{202e} of ***" in cause
    assert "server-Maze.log" in cause


@pytest.mark.long
def test_a_server_that_never_answers_is_given_up_and_forced_to_end(
    servers: Callable[..., EnvServerManager], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "READY_TIMEOUT_S", 0.5)
    kept = servers(STUBBORN)
    kept.start("Maze")
    assert "it is starting" in (kept.cause("Maze") or "")
    assert "it did not answer as it should within 0.5 s: nothing listens there; its last words: deaf" in settled(kept)
    assert not [child for child in psutil.Process().children(recursive=True) if "a server.py" in str(child.cmdline())]


def test_a_server_of_something_else_is_given_up_soon_and_says_what_it_answers(
    servers: Callable[..., EnvServerManager], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "WRONG_SERVER_TIMEOUT_S", 0.2)
    kept = servers(WELL.replace("lmrl-gym", "BabyAI"))
    kept.start("Maze")
    cause = settled(kept)
    assert (
        'it is no server of this environment: GET / was answered with HTTP 200: "This is environment BabyAI."' in cause
    )
    assert kept.start("Maze").status == "starting"


def test_a_server_that_answers_with_errors_while_it_reads_is_waited_for(
    servers: Callable[..., EnvServerManager], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "POLL_INTERVAL_S", 0.01)
    n_errors = "self.send_response(500 if len(asked) < 5 else 200)"
    kept = servers("asked = []\n" + WELL.replace("self.send_response(200)", f"asked.append(1); {n_errors}"))
    kept.start("Maze")
    assert settled(kept) == ""
    assert kept.start("Maze").status == "running"


def test_an_autostart_that_cannot_begin_is_the_cause_of_its_environment(tmp_path: Path) -> None:
    entry = EnvironmentEntry(
        name="Maze", port=1, server_cmd="no-such-program --key sk-ant-hunter22hunter22", autostart=True
    )
    kept = EnvServerManager(Profile(id="p", environments=Environments(lightweight=(entry,))), tmp_path)
    kept.autostart()
    assert kept.n_changes == 1
    assert "its server: it was not started: " in (kept.cause("maze") or "")
    assert "no-such-program, which is not installed here" in (kept.cause("maze") or "")
    with pytest.raises(ConfigError, match="has not started a server"):
        kept.stop("Maze")


def test_nothing_is_started_where_something_answers(tmp_path: Path) -> None:
    with rude_server() as other:
        entry = EnvironmentEntry(name="Maze", server_cmd="true", base_url=other.url, autostart=True)
        broken = EnvironmentEntry(name="Wordle", autostart=True)
        kept = EnvServerManager(
            Profile(id="p", environments=Environments(lightweight=(broken, entry))), tmp_path / "logs"
        )
        kept.autostart()
        assert f"nothing was started at {other.url}: " in settled(kept)
    assert not (tmp_path / "logs").exists()


def test_a_server_of_a_node_that_stops_is_not_begun(servers: Callable[..., EnvServerManager]) -> None:
    kept = servers(WELL)
    kept.start("Maze")
    kept.close()
    assert kept.cause("Maze") is None
    assert kept.stop("Maze").status == "stopped"
    with pytest.raises(ConfigError, match="about to stop"):
        kept.start("Maze")


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        (EnvironmentEntry(name="Maze", port=1), "has no server_cmd"),
        (EnvironmentEntry(name="Maze", port=1, server_cmd="it's"), "cannot be split"),
        (EnvironmentEntry(name="Maze", port=1, server_cmd="''"), "is not installed here"),
        (EnvironmentEntry(name="Maze", port=1, server_cmd=" "), "is blank"),
        (EnvironmentEntry(name="Maze", port=1, server_cmd="no-such-program; touch x"), "starts no-such-program;"),
        (EnvironmentEntry(name="Maze", server_cmd="true"), "no port"),
        (EnvironmentEntry(name="Other", server_cmd="true"), "has no environment 'Maze'"),
    ],
)
def test_what_cannot_be_started_is_said_at_once(tmp_path: Path, entry: EnvironmentEntry, said: str) -> None:
    kept = EnvServerManager(Profile(id="p", environments=Environments(lightweight=(entry,))), tmp_path)
    with pytest.raises(ConfigError) as refused:
        kept.start("Maze")
    assert said in str(refused.value)
    with pytest.raises(ConfigError):
        kept.stop("Maze")


def test_a_log_stays_small_and_its_name_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_log, "MAX_BYTES", 1000)
    log = ServerLog(tmp_path / "logs" / log_name("../Maze"))
    source, sink = os.pipe()
    with os.fdopen(source, "rb") as output:
        os.write(sink, b"".join(b"line %d\n" % number for number in range(500)) + b"\xff\n\n" + b"x" * 10_000)
        os.close(sink)
        log.drain(output)
    files = sorted((tmp_path / "logs").iterdir())
    assert [file.parent for file in files] == [tmp_path / "logs"] * 2
    assert all(file.stat().st_size <= 2100 for file in files)
    assert "line 499" in log.recent_output or "x" in log.recent_output
    assert len({log_name(name) for name in ("a/b", "a_b", "a\\b", "..", "")}) == 5


def test_our_commands_are_found_by_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    assert child_environ({"PATH": "/bin"})["PATH"] == f"/bin{os.pathsep}{Path(sys.executable).parent}"
    assert child_environ({"A_TOKEN": "x", "HOME": "/h"}).keys() == {"HOME", "PATH"}
