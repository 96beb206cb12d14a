"""Servers of ``serve`` with hostile clients, web pages, signals and slow environments."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from runner.cli.serve import THREADS, main_serve
from runner.envs.maze import Maze
from runner.errors import ConfigError
from runner.serve.env_api import DIALECTS, EnvironmentApp
from runner.serve.env_api.pool import InstancePool
from runner.serve.host import DEFAULT_LIMITS, ServerLimits, guard_app
from tests.support.command import COMMAND, ENVIRON, run_agentgym
from tests.support.serving import serve_environments, serve_in_thread

pytestmark = pytest.mark.long

TOKEN = "a-token-of-the-tests"
BOMB = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"


class Gated(Maze):
    """Each step waits for a permit; counts the steps that run at the same time."""

    entered = threading.Semaphore(0)
    permit = threading.Semaphore(0)
    n_running = 0
    max_running = 0

    def _step(self, text: str) -> tuple[str, float, bool]:
        Gated.n_running += 1
        Gated.max_running = max(Gated.max_running, Gated.n_running)
        self.entered.release()
        assert self.permit.acquire(timeout=30)
        Gated.n_running -= 1
        return super()._step(text)


@pytest.fixture
def gated_url() -> Iterator[str]:
    with serve_gated_maze() as url:
        yield url


@contextmanager
def serve_gated_maze(limits: ServerLimits = DEFAULT_LIMITS) -> Iterator[str]:
    """Serve a Maze whose steps wait for permits; yield its URL."""
    Gated.entered, Gated.permit, Gated.max_running = threading.Semaphore(0), threading.Semaphore(0), 0
    with ThreadPoolExecutor(8) as executor:
        app = EnvironmentApp(DIALECTS["Maze"], Gated(), InstancePool(Gated, limit=4, idle_s=60), executor)
        with serve_in_thread({"Maze": guard_app(app.application())}, limits) as urls:
            yield urls["Maze"]


@pytest.fixture(scope="module")
def maze_url() -> Iterator[str]:
    with serve_environments(["Maze"], token=TOKEN) as urls:
        yield urls["Maze"]


def start_instance(http: httpx.Client) -> dict[str, int]:
    instance: dict[str, int] = http.post("/maze/create").json()
    assert http.post("/maze/reset", json={**instance, "game": 0}).is_success
    return instance


def raw_response(url: str, request: bytes) -> bytes:
    """Return the response to these bytes, up to the end of the connection."""
    parts = urlsplit(url)
    assert parts.hostname
    assert parts.port
    with closing(socket.create_connection((parts.hostname, parts.port), timeout=20)) as connection:
        connection.sendall(request)
        response = b""
        while chunk := connection.recv(65536):
            response += chunk
        return response


def test_steps_of_one_instance_never_overlap(gated_url: str) -> None:
    with httpx.Client(base_url=gated_url, timeout=60) as http, ThreadPoolExecutor(4) as threads:
        instance = start_instance(http)
        body = {**instance, "action": "move right"}
        steps = [threads.submit(http.post, "/maze/step", json=body) for _ in range(4)]
        for _ in steps:
            assert Gated.entered.acquire(timeout=20)
            Gated.permit.release()
        columns = sorted(step.result().json()["observation"].split("1, ")[1][0] for step in steps)
        assert columns == ["2", "3", "4", "5"]
        assert Gated.max_running == 1


def test_steps_of_two_instances_overlap(gated_url: str) -> None:
    with httpx.Client(base_url=gated_url, timeout=60) as http, ThreadPoolExecutor(4) as threads:
        both = [start_instance(http), start_instance(http)]
        steps = [
            threads.submit(http.post, "/maze/step", json={**instance, "action": "move right"}) for instance in both
        ]
        assert Gated.entered.acquire(timeout=20)
        assert Gated.entered.acquire(timeout=20)
        assert http.get("/health").json()["open"] == 2  # the server still responds
        Gated.permit.release(2)
        assert all(step.result().is_success for step in steps)
        assert Gated.max_running == 2


def test_a_disconnect_during_a_step_leaves_the_instance_usable(gated_url: str) -> None:
    with httpx.Client(base_url=gated_url, timeout=60) as http:
        instance = start_instance(http)
        parts = urlsplit(gated_url)
        body = json.dumps({**instance, "action": "move right"}).encode()
        head = f"POST /maze/step HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Type: application/json\r\n"
        with closing(socket.create_connection((parts.hostname, parts.port))) as connection:
            connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            assert Gated.entered.acquire(timeout=20)
        Gated.permit.release()
        assert "position 1, 2" in http.get("/maze/observation", params=instance).json()
        assert http.post("/maze/close", json=instance).json() is True


def test_a_step_after_close_is_an_error(gated_url: str) -> None:
    with httpx.Client(base_url=gated_url, timeout=60) as http, ThreadPoolExecutor(4) as threads:
        instance = start_instance(http)
        first = threads.submit(http.post, "/maze/step", json={**instance, "action": "move right"})
        assert Gated.entered.acquire(timeout=20)
        close = threads.submit(http.post, "/maze/close", json=instance)
        Gated.permit.release()
        assert first.result().is_success
        assert close.result().json() is True
        assert http.post("/maze/step", json={**instance, "action": "move right"}).json() == {
            "error": f"The id {instance['id']} is not valid."
        }


def test_unauthorized_requests_and_web_pages_are_rejected(maze_url: str) -> None:
    login = {"authorization": f"Bearer {TOKEN}"}
    refused = [
        ({}, 401),
        ({"authorization": "Bearer wrong"}, 401),
        ({**login, "host": "evil.example"}, 403),
        ({**login, "origin": "https://evil.example"}, 403),
        ({**login, "sec-fetch-site": "cross-site"}, 403),
        ({**login, "content-type": "text/plain"}, 415),
    ]
    with httpx.Client(base_url=maze_url, timeout=60) as http:
        for headers, status in refused:
            assert http.post("/maze/create", content=b"{}", headers=headers).status_code == status
        assert http.get("/health", headers=login).json()["open"] == 0


def test_a_huge_body_is_rejected_early(maze_url: str) -> None:
    head = f"POST /maze/step HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n"
    typed = head + "Content-Type: application/json\r\n"
    declared = raw_response(maze_url, f"{typed}Content-Length: 99999999999\r\n\r\n".encode())
    chunks = b"".join(b"10000\r\n" + b"x" * 0x10000 + b"\r\n" for _ in range(17))
    chunked = raw_response(maze_url, f"{typed}Transfer-Encoding: chunked\r\n\r\n".encode() + chunks)
    for response in (declared, chunked):
        assert response.startswith(b"HTTP/1.1 413 ")
        assert b"larger than 1048576 bytes" in response


@pytest.mark.parametrize(
    "request_",
    [b"\x16\x03\x01\x02\x00\x01\x00", b"GET\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", b"x" * 100_000 + b"\r\n\r\n"],
)
def test_malformed_http_is_a_bad_request(request_: bytes, maze_url: str) -> None:
    assert raw_response(maze_url, request_).startswith(b"HTTP/1.1 400 ")


def test_a_silent_client_does_not_block_others(maze_url: str) -> None:
    parts = urlsplit(maze_url)
    address = (parts.hostname, parts.port)
    with closing(socket.create_connection(address)) as idle, closing(socket.create_connection(address)) as slow:
        head = f"POST /maze/step HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n"
        slow.sendall(f"{head}Content-Type: application/json\r\nContent-Length: 20\r\n\r\n{{".encode())
        with httpx.Client(base_url=maze_url, headers={"authorization": f"Bearer {TOKEN}"}, timeout=60) as http:
            assert http.get("/").is_success
        assert idle.fileno() >= 0


HEAD = b"GET / HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer " + TOKEN.encode()


def open_connection(url: str) -> socket.socket:
    parts = urlsplit(url)
    return socket.create_connection((parts.hostname, parts.port), timeout=20)


def responds(connection: socket.socket) -> bool:
    """Request the identity of the server; return whether it responds."""
    connection.sendall(HEAD + b"\r\n\r\n")
    reply = b""
    while not reply.endswith(b'published)"') and (chunk := connection.recv(65536)):
        reply += chunk
    return reply.startswith(b"HTTP/1.1 200 ")


def is_closed(connection: socket.socket) -> bool:
    """Wait until the server closes the connection; discards responses."""
    with contextlib.suppress(ConnectionResetError):
        while connection.recv(65536):
            """A response."""
    return True


def test_missing_headers_close_the_connection() -> None:
    with (
        serve_environments(["Maze"], token=TOKEN, limits=ServerLimits(header_timeout_s=0.3)) as urls,
        ExitStack() as stack,
    ):
        idle, half, reused = (stack.enter_context(closing(open_connection(urls["Maze"]))) for _ in range(3))
        half.sendall(HEAD)
        assert responds(reused)
        reused.sendall(HEAD)
        assert is_closed(idle)
        assert is_closed(half)
        assert is_closed(reused)


def test_idle_and_waiting_connections_stay_open() -> None:
    with (
        serve_gated_maze(ServerLimits(header_timeout_s=0.3)) as url,
        httpx.Client(base_url=url, timeout=60) as http,
        ThreadPoolExecutor(1) as thread,
    ):
        instance = start_instance(http)
        with closing(open_connection(url)) as idle, closing(open_connection(url)) as active:
            assert responds(active)
            step = thread.submit(http.post, "/maze/step", json={**instance, "action": "move right"})
            assert Gated.entered.acquire(timeout=20)
            assert is_closed(idle)
            Gated.permit.release()
            assert step.result().is_success
            assert responds(active)


def test_connections_beyond_the_limit_are_closed() -> None:
    with (
        serve_environments(["Maze"], token=TOKEN, limits=ServerLimits(max_connections=2)) as urls,
        ExitStack() as stack,
    ):
        first, second = (stack.enter_context(closing(open_connection(urls["Maze"]))) for _ in range(2))
        assert responds(first)
        assert responds(second)
        assert is_closed(stack.enter_context(closing(open_connection(urls["Maze"]))))
        assert responds(first)


def test_half_headers_on_all_connections_do_not_lock_out_a_client() -> None:
    limits = ServerLimits(header_timeout_s=60, max_connections=8)
    with serve_environments(["Maze"], token=TOKEN, limits=limits) as urls, ExitStack() as stack:
        halves = [stack.enter_context(closing(open_connection(urls["Maze"]))) for _ in range(12)]
        for half in halves[4:]:
            half.sendall(HEAD)
        for half in halves[:4]:
            assert is_closed(half)
        client = stack.enter_context(closing(open_connection(urls["Maze"])))
        assert responds(client)
        assert is_closed(halves[4])
        for half in halves[5:]:  # connections without complete headers make room, one with a request stays open
            assert responds(stack.enter_context(closing(open_connection(urls["Maze"]))))
            assert is_closed(half)
        assert responds(client)
        assert is_closed(stack.enter_context(closing(open_connection(urls["Maze"]))))


def test_a_connection_that_waits_for_its_step_is_never_replaced() -> None:
    with (
        serve_gated_maze(ServerLimits(header_timeout_s=60, max_connections=3)) as url,
        httpx.Client(base_url=url, timeout=60) as http,
        ThreadPoolExecutor(1) as thread,
        ExitStack() as stack,
    ):
        instance = start_instance(http)
        step = thread.submit(http.post, "/maze/step", json={**instance, "action": "move right"})
        assert Gated.entered.acquire(timeout=20)
        halves = [stack.enter_context(closing(open_connection(url))) for _ in range(9)]
        for half in halves[:7]:
            assert is_closed(half)
        Gated.permit.release()
        assert step.result().is_success


@contextmanager
def serve_command(folder: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [COMMAND, "serve", *options],
        cwd=folder,
        env=ENVIRON | {"SERVE_TOKEN": TOKEN},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=30)


async def test_a_signal_during_a_step_stops_the_server_in_time(tmp_path: Path) -> None:
    with serve_command(tmp_path, "sqlgym", "--port", "0", "--token", "SERVE_TOKEN", "--host", "0.0.0.0") as process:
        assert process.stdout
        ready = await asyncio.to_thread(process.stdout.readline)
        url, about = ready.rstrip().split(" ", 1)
        assert about == "SQLGym (strict, local databases)"
        port = urlsplit(url).port
        login = {"authorization": f"Bearer {TOKEN}"}
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=login, timeout=60) as http:
            instance = {"env_idx": (await http.post("/create")).json()}
            await http.post("/reset", json={**instance, "item_id": 0})
            step = asyncio.create_task(http.post("/step", json={**instance, "action": BOMB}))
            while not has_child(process.pid):  # noqa: ASYNC110 - another process has no event
                await asyncio.sleep(0.01)
            process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(8):
                stdout, stderr = await asyncio.to_thread(process.communicate)
                (outcome,) = await asyncio.gather(step, return_exceptions=True)
        assert (process.returncode, stdout, stderr) == (0, "", "")
        assert isinstance(outcome, httpx.Response | httpx.HTTPError)


async def test_slow_steps_of_one_environment_do_not_block_another(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
        ports = {"SQLGym": one.getsockname()[1], "Wordle": two.getsockname()[1]}
    listed = ", ".join(f"{{name: {name}, port: {port}}}" for name, port in ports.items())
    (tmp_path / "p.yaml").write_text(f"id: p\nenvironments:\n  lightweight: [{listed}]\n")
    with serve_command(tmp_path, "--all", "--config", str(tmp_path / "p.yaml")) as process:
        assert process.stdout
        for _ in ports:
            await asyncio.to_thread(process.stdout.readline)
        sqlgym, wordle = (f"http://127.0.0.1:{port}" for port in ports.values())
        async with httpx.AsyncClient(timeout=60) as http, asyncio.TaskGroup() as tasks:
            instances = [(await http.post(f"{sqlgym}/create")).json() for _ in range(THREADS + 8)]
            for instance_id in instances:
                await http.post(f"{sqlgym}/reset", json={"env_idx": instance_id, "item_id": 0})
            bombs = [{"env_idx": instance_id, "action": BOMB} for instance_id in instances]
            steps = [tasks.create_task(http.post(f"{sqlgym}/step", json=bomb)) for bomb in bombs]
            while not has_child(process.pid):  # noqa: ASYNC110 - another process has no event
                await asyncio.sleep(0.01)
            await http.get(f"{sqlgym}/health")
            instance = (await http.post(f"{wordle}/wordle/create")).json()
            assert (await http.post(f"{wordle}/wordle/reset", json={**instance, "seed": 0})).is_success
            n_done = sum(step.done() for step in steps)
            for step in steps:
                step.cancel()
        assert n_done < 8  # the steps that would have blocked the other environment


def has_child(pid: int) -> bool:
    return any(file.read_text() for file in Path(f"/proc/{pid}/task").glob("*/children"))


def test_the_command_names_the_reason_of_a_failed_start(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        completed = run_agentgym(tmp_path, "serve", "maze", "--port", str(port))
    assert (completed.returncode, completed.stdout) == (2, "")
    assert completed.stderr.startswith(f"agentgym-runner: The address 127.0.0.1, port {port} is in use")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["maze", "--host", "0.0.0.0"], "give --token"),
        (["maze", "--token", "SERVE_NO_SUCH"], "must be the name of a variable"),
        (["mase"], "Did you mean Maze"),
        (["maze", "wordle", "--port", "1"], "--port requires a single environment"),
        (["--all", "--port", "1"], "--port requires a single environment"),
        (["webarena"], "WebArena cannot be served: .* transport: http, port: 8000.* can be served: BabyAI, TextCraft"),
        (["nothing-of-the-kind"], "no embedded environment named .* can be served: BabyAI, TextCraft"),
    ],
)
def test_incompatible_options_are_rejected(options: list[str], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        main_serve(options)


@pytest.mark.parametrize("options", [[], ["--all", "maze"], ["maze", "--port", "65536"], ["maze", "--max-open", "0"]])
def test_invalid_options_exit_with_usage(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main_serve(options)
    assert "usage: agentgym-runner serve" in capsys.readouterr().err
