"""Environment servers of a node as real processes: they respond, hang, exit, ignore signals or print secrets."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from runner.config import EnvironmentEntry, Environments, Profile
from runner.errors import ConfigError
from runner.node.env_servers import DEFAULT_TIMINGS, EnvServerManager, ServerLog, StartTimings, log_name
from tests.support.rude_env_server import run_rude_server
from tests.support.waiting_batch import wait_until

pytestmark = pytest.mark.long

WORKING_SERVER = """
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
UNSTOPPABLE_SERVER = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ignoring", flush=True)
time.sleep(60)
"""
SILENT_SERVER = """
import signal, socket, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
listening = socket.create_server(("127.0.0.1", int(sys.argv[1])))
print("silent", flush=True)
time.sleep(60)
"""
FAILING_SERVER = r"""
import sys
print("one\n" * 30 + "\x1b[2Jthe reason\u202e of hunter2-secret", file=sys.stderr)
sys.exit(3)
"""


@pytest.fixture
def create_manager(tmp_path: Path, port: int) -> Iterator[Callable[..., EnvServerManager]]:
    """Return a factory of managers whose environment Maze is served by the given program."""
    managers: list[EnvServerManager] = []

    def create(program: str, timings: StartTimings = DEFAULT_TIMINGS, **options: object) -> EnvServerManager:
        script = tmp_path / "a server.py"
        script.write_text(program)
        entry = EnvironmentEntry(
            name="Maze",
            server_cmd=f"'{sys.executable}' '{script}' {port}",
            port=port,
            **options,  # type: ignore[arg-type]
        )
        profile = Profile(id="p", environments=Environments(lightweight=(entry,)))
        managers.append(EnvServerManager(profile, tmp_path / "logs", timings))
        return managers[-1]

    yield create
    for manager in managers:
        manager.close()


def wait_for_cause(manager: EnvServerManager) -> str:
    manager.wait_for("maze", lambda: False)
    return manager.cause("maze") or ""


def test_a_server_is_started_once_and_stops_with_its_child_processes(
    create_manager: Callable[..., EnvServerManager], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_API_KEY", "hunter2-secret")
    monkeypatch.setenv("NATS_URL", "nats://user:hunter2@bus")
    monkeypatch.setenv("PLAIN", "1")
    manager = create_manager(WORKING_SERVER)
    assert manager.start("maze").status == "starting"
    assert wait_for_cause(manager) == ""
    assert manager.start("Maze").status == "running"
    log_file = tmp_path / "logs" / "server-Maze.log"
    (printed,) = [line for line in log_file.read_text().splitlines() if line.startswith("child")]
    assert "'PLAIN'" in printed
    assert "SOME_API_KEY" not in printed
    assert "NATS_URL" not in printed
    assert printed.endswith(" True")
    child = psutil.Process(int(printed.split()[1]))
    assert manager.stop("MAZE").status == "stopped"
    wait_until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)
    assert (manager.cause("Maze"), log_file.stat().st_mode & 0o777) == (None, 0o600)
    assert manager.start("Maze").status == "starting"  # again
    assert wait_for_cause(manager) == ""


def test_a_server_that_ends_is_reported_with_its_last_output(
    create_manager: Callable[..., EnvServerManager], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_SECRET", "hunter2-secret")
    manager = create_manager(FAILING_SERVER)
    manager.start("Maze")
    cause = wait_for_cause(manager)
    assert "it ended with exit code 3; last output: one | one | one | one | ␛[2Jthe reason\\u{202e} of ***" in cause
    assert "server-Maze.log" in cause


def test_a_server_that_never_responds_is_killed(create_manager: Callable[..., EnvServerManager]) -> None:
    manager = create_manager(UNSTOPPABLE_SERVER, StartTimings(ready_timeout_s=0.5))
    manager.start("Maze")
    assert "it is starting" in (manager.cause("Maze") or "")
    assert "it was not ready within 0.5 s: nothing listens there; last output: ignoring" in wait_for_cause(manager)
    assert not [child for child in psutil.Process().children(recursive=True) if "a server.py" in str(child.cmdline())]


def test_a_waiting_batch_gets_the_cause_of_the_slowest_failure(create_manager: Callable[..., EnvServerManager]) -> None:
    timings = StartTimings(ready_timeout_s=0.1)  # the probe, the stop and the kill take seconds after that
    manager = create_manager(SILENT_SERVER, timings)
    manager.start("Maze")
    started = time.monotonic()
    cause = wait_for_cause(manager)
    assert "it was not ready within 0.1 s: " in cause
    assert cause.endswith(".log)")
    assert timings.ready_timeout_s < time.monotonic() - started < timings.outcome_timeout_s


def test_a_wait_ends_at_once_when_it_is_cancelled(create_manager: Callable[..., EnvServerManager]) -> None:
    manager = create_manager(UNSTOPPABLE_SERVER)
    manager.start("Maze")
    started = time.monotonic()
    manager.wait_for("Maze", lambda: True)
    assert time.monotonic() - started < 5
    assert "it is starting" in (manager.cause("Maze") or "")


def test_a_wrong_server_is_rejected_soon_with_its_response(create_manager: Callable[..., EnvServerManager]) -> None:
    manager = create_manager(WORKING_SERVER.replace("lmrl-gym", "BabyAI"), StartTimings(wrong_server_timeout_s=0.2))
    manager.start("Maze")
    cause = wait_for_cause(manager)
    assert 'it is not a server of this environment: GET / returned HTTP 200: "This is environment BabyAI."' in cause
    assert manager.start("Maze").status == "starting"


def test_a_server_that_returns_errors_while_it_loads_is_awaited(
    create_manager: Callable[..., EnvServerManager],
) -> None:
    n_errors = "self.send_response(500 if len(request) < 5 else 200)"
    program = "request = []\n" + WORKING_SERVER.replace("self.send_response(200)", f"request.append(1); {n_errors}")
    manager = create_manager(program, StartTimings(poll_interval_s=0.01))
    manager.start("Maze")
    assert wait_for_cause(manager) == ""
    assert manager.start("Maze").status == "running"


def test_a_failed_autostart_is_reported_as_the_cause(tmp_path: Path) -> None:
    entry = EnvironmentEntry(
        name="Maze", port=1, server_cmd="no-such-program --key sk-ant-hunter22hunter22", autostart=True
    )
    manager = EnvServerManager(Profile(id="p", environments=Environments(lightweight=(entry,))), tmp_path)
    manager.autostart()
    assert manager.n_changes == 1
    assert "its server: it was not started: " in (manager.cause("maze") or "")
    assert "no-such-program, which is not installed here" in (manager.cause("maze") or "")
    with pytest.raises(ConfigError, match="did not start a server"):
        manager.stop("Maze")


def test_no_server_is_started_where_one_responds(tmp_path: Path) -> None:
    with run_rude_server() as other_server:
        entry = EnvironmentEntry(name="Maze", server_cmd="true", base_url=other_server.url, autostart=True)
        broken = EnvironmentEntry(name="Wordle", autostart=True)
        manager = EnvServerManager(
            Profile(id="p", environments=Environments(lightweight=(broken, entry))), tmp_path / "logs"
        )
        manager.autostart()
        assert f"not started at {other_server.url}: " in wait_for_cause(manager)
    assert not (tmp_path / "logs").exists()


def test_a_closed_manager_starts_no_server(create_manager: Callable[..., EnvServerManager]) -> None:
    manager = create_manager(WORKING_SERVER)
    manager.start("Maze")
    manager.close()
    assert manager.cause("Maze") is None
    assert manager.stop("Maze").status == "stopped"
    with pytest.raises(ConfigError, match="this node is stopping"):
        manager.start("Maze")


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        (EnvironmentEntry(name="Maze", port=1), "has no server_cmd"),
        (EnvironmentEntry(name="Maze", port=1, server_cmd="it's"), "not a valid command line"),
        (EnvironmentEntry(name="Maze", port=1, server_cmd="''"), "is not installed here"),
        (EnvironmentEntry(name="Maze", port=1, server_cmd=" "), "is empty"),
        (EnvironmentEntry(name="Maze", port=1, server_cmd="no-such-program; touch x"), "starts no-such-program;"),
        (EnvironmentEntry(name="Maze", server_cmd="true"), "no port"),
        (EnvironmentEntry(name="Other", server_cmd="true"), "has no environment 'Maze'"),
    ],
)
def test_invalid_entries_are_rejected_at_once(tmp_path: Path, entry: EnvironmentEntry, expected: str) -> None:
    manager = EnvServerManager(Profile(id="p", environments=Environments(lightweight=(entry,))), tmp_path)
    with pytest.raises(ConfigError) as caught:
        manager.start("Maze")
    assert expected in str(caught.value)
    with pytest.raises(ConfigError):
        manager.stop("Maze")


def test_a_log_is_rotated_and_its_name_is_a_file_name(tmp_path: Path) -> None:
    server_log = ServerLog(tmp_path / "logs" / log_name("../Maze"), max_bytes=1000)
    source, sink = os.pipe()
    with os.fdopen(source, "rb") as output:
        os.write(sink, b"".join(b"line %d\n" % number for number in range(500)) + b"\xff\n\n" + b"x" * 10_000)
        os.close(sink)
        server_log.drain(output)
    files = sorted((tmp_path / "logs").iterdir())
    assert [file.parent for file in files] == [tmp_path / "logs"] * 2
    assert all(file.stat().st_size <= 2100 for file in files)
    assert "line 499" in server_log.recent_output or "x" in server_log.recent_output
    assert len({log_name(name) for name in ("a/b", "a_b", "a\\b", "..", "")}) == 5
