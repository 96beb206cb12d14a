"""Servers of ``serve`` with hostile clients, web pages, signals and slow environments."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from runner.cli.serve import THREADS, main_serve
from runner.errors import ConfigError
from tests.support.command import Started, run_agentgym, start_agentgym
from tests.support.gated_maze import Gated, serve_gated_maze, start_instance
from tests.support.serving import serve_environments

pytestmark = pytest.mark.long

TOKEN = "a-token-of-the-tests"
BOMB = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"


@pytest.fixture
def gated_url() -> Iterator[str]:
    with serve_gated_maze() as url:
        yield url


@pytest.fixture(scope="module")
def maze_url() -> Iterator[str]:
    with serve_environments(["Maze"], token=TOKEN) as urls:
        yield urls["Maze"]


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


def serve_command(folder: Path, *options: str) -> AbstractContextManager[Started]:
    return start_agentgym(folder, "serve", *options, environ={"SERVE_TOKEN": TOKEN})


async def test_a_signal_during_a_step_stops_the_server_in_time(tmp_path: Path) -> None:
    options = ("sqlgym", "--port", "0", "--token", "SERVE_TOKEN", "--host", "0.0.0.0")
    with serve_command(tmp_path, *options) as (process, output, _):
        ready = await asyncio.to_thread(output.readline)
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
    with serve_command(tmp_path, "--all", "--config", str(tmp_path / "p.yaml")) as (process, output, _):
        for _ in ports:
            await asyncio.to_thread(output.readline)
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
