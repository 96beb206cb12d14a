from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from runner import __version__
from runner.envs.maze import Maze
from runner.errors import ConfigError
from runner.serve.env_api import DIALECTS, EnvironmentApp, PoolOptions, environment_app
from runner.types import Mode
from runner.util.clock import Clock
from tests.support.gated_maze import Gated, serve_gated_maze, start_instance
from tests.support.manual_clock import ManualClock


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as executor:
        yield executor


def client_of(app: EnvironmentApp) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app.application()), base_url="http://127.0.0.1")


async def reset_status(http: httpx.AsyncClient, body: bytes) -> int:
    """Send a reset; check the form of its 422."""
    reply = await http.post("/maze/reset", content=body, headers={"content-type": "application/json"})
    if reply.status_code == 422:
        (problem,) = reply.json()["detail"]
        assert (set(problem), problem["loc"]) == ({"type", "loc", "msg"}, ["body"])
    return reply.status_code


@pytest.mark.parametrize(
    ("number", "task_index"), [(3, 3), ("3", 3), (3.0, 3), ("3.0", 3), (-1, 24), (True, 1), (10**30, 0)]
)
async def test_a_number_may_be_text_as_on_agentgyms_server(
    number: object, task_index: int, executor: ThreadPoolExecutor
) -> None:
    app = environment_app("Maze", "strict", PoolOptions(executor, 1, 60))
    async with client_of(app) as http:
        created = (await http.post("/maze/create")).json()
        reply = await http.post("/maze/reset", json={"id": str(created["id"]), "game": number, "more": 1})
        assert reply.json() == {"observation": Maze().reset(task_index=task_index)[0]["content"]}


async def test_malformed_bodies_are_rejected(executor: ThreadPoolExecutor) -> None:
    app = environment_app("Maze", "strict", PoolOptions(executor, 1, 60))
    async with client_of(app) as http:
        created = (await http.post("/maze/create")).json()["id"]
        values: tuple[object, ...] = (None, [], 3.5, "", "x", "٣", "9" * 4301)
        for value in values:
            assert await reset_status(http, json.dumps({"id": created, "game": value}).encode()) == 422
        for body in (b"", b"null", b"[1]", b"{}", b"{bad json", b"[" * 100_000, b"\xff", b'{"id": NaN, "game": 0}'):
            assert await reset_status(http, body) == 422
        for body in (b'{"id": 0, "game": "\\ud800"}', b'{"game": 0, "x": "\xff"}', b'{"id":' * 2000):
            assert await reset_status(http, body) == 422


@pytest.mark.parametrize("body", [{}, {"session_id": None}, {"session_id": -1}, None])
async def test_webshop_needs_no_session_as_on_agentgyms_server(
    body: dict[str, Any] | None, executor: ThreadPoolExecutor
) -> None:
    app = environment_app("WebShop", "compat", PoolOptions(executor, 2, 60))
    async with client_of(app) as http:
        instance = (await http.post("/create")).json()
        if body is not None:
            reset = await http.post("/reset", json={"env_idx": instance, **body})
            assert (reset.status_code, reset.json()[1]) == (200, None)
        step = await http.post("/step", json={"env_idx": instance, "action": "search[<r>]"})
        assert "Page 1 (Total results: 50)" in step.json()["state"]
        instruction = (await http.get(f"/instruction_text?env_idx={instance}")).json()
        assert instruction.startswith("Instruction: ")


async def test_an_idle_instance_is_closed(executor: ThreadPoolExecutor) -> None:
    clock = ManualClock()
    app = environment_app("maze", "strict", PoolOptions(executor, 1, 60, clock=Clock(monotonic=clock)))
    async with client_of(app) as http:
        created = (await http.post("/maze/create")).json()
        full = (await http.post("/maze/create")).json()
        assert "which is its limit" in full["error"]
        clock.now += 61
        assert (await http.get("/health")).json()["open"] == 0
        reply = await http.post("/maze/reset", json={**created, "game": 0})
        assert reply.json() == {"error": f"The id {created['id']} is not valid."}
        assert (await http.post("/maze/create")).json()["id"] != created["id"]


def test_an_instance_in_use_is_not_idle(executor: ThreadPoolExecutor) -> None:
    clock = ManualClock()
    with serve_gated_maze(clock=Clock(monotonic=clock)) as url, httpx.Client(base_url=url, timeout=60) as http:
        used, idle = start_instance(http), start_instance(http)
        step = executor.submit(http.post, "/maze/step", json={**used, "action": "move right"})
        assert Gated.entered.acquire(timeout=20)
        clock.now += 61
        assert http.get("/health").json()["open"] == 1
        Gated.permit.release()
        assert step.result().json().keys() == {"observation", "reward", "done", "truncated"}
        assert http.post("/maze/close", json=idle).json() is False
        assert http.post("/maze/close", json=used).json() is True


@pytest.mark.parametrize(("mode", "label"), [("strict", "as published"), ("compat", "as published")])
async def test_a_server_describes_its_environment(mode: Mode, label: str, executor: ThreadPoolExecutor) -> None:
    app = environment_app("Maze", mode, PoolOptions(executor, 3, 60))
    async with client_of(app) as http:
        assert (await http.get("/")).json() == f"AgentGym Console {__version__}: Maze ({mode}, {label})"
        assert (await http.get("/health")).json() == {
            "env": "Maze",
            "mode": mode,
            "version": __version__,
            "data_label": "",
            "n_tasks": 25,
            "open": 0,
            "limit": 3,
        }


async def test_strict_mode_accepts_any_task_number_and_names_a_missing_reset(executor: ThreadPoolExecutor) -> None:
    app = environment_app("Maze", "strict", PoolOptions(executor, 3, 60))
    async with client_of(app) as http:
        instance = (await http.post("/maze/create")).json()
        early = (await http.post("/maze/step", json={**instance, "action": "move up"})).json()
        assert early == {"error": "The environment 0 has no task yet; reset it first."}
        replies = [(await http.post("/maze/reset", json={**instance, "game": game})).json() for game in (3, 28, -22)]
        assert replies[0] == replies[1] == replies[2] == {"observation": Maze().reset(task_index=3)[0]["content"]}


async def test_a_failing_environment_is_an_error_reply(executor: ThreadPoolExecutor) -> None:
    class Broken(Maze):
        def _step(self, text: str) -> tuple[str, float, bool]:
            raise SystemExit(text)

    for name, status in (("Maze", 200), ("SQLGym", 500)):
        dialect = DIALECTS[name]
        async with client_of(EnvironmentApp(dialect, Broken, PoolOptions(executor, 1, 9))) as http:
            await http.post(f"{dialect.prefix}/create")
            await http.post(f"{dialect.prefix}/reset", json={dialect.id_field: 0, dialect.task_field: 0})
            reply = await http.post(f"{dialect.prefix}/step", json={dialect.id_field: 0, "action": "secret"})
            assert (reply.status_code, "The environment failed: SystemExit" in reply.text) == (status, True)
            assert "secret" not in reply.text


def test_an_environment_without_a_protocol_is_rejected(
    executor: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(DIALECTS, "Maze")
    with pytest.raises(ConfigError, match="no protocol for Maze"):
        environment_app("Maze", "strict", PoolOptions(executor, 1, 60))


@pytest.mark.parametrize("name", DIALECTS)
async def test_a_malformed_body_of_create_is_rejected_and_opens_nothing(
    name: str, executor: ThreadPoolExecutor
) -> None:
    app = environment_app(name, "compat", PoolOptions(executor, 2, 60))
    create, as_json = f"{DIALECTS[name].prefix}/create", {"content-type": "application/json"}
    async with client_of(app) as http:
        for path in (create, "/createEnv"):
            for body in (b"{bad json", b"{", b'{"a": NaN}', b"\xff", b"[" * 100_000):
                reply = await http.post(path, content=body, headers=as_json)
                assert (reply.status_code, reply.json()["detail"][0]["loc"]) == (422, ["body"])
        assert (await http.get("/health")).json()["open"] == 0
        assert (await http.post(create, content=b"{}", headers=as_json)).status_code == 200


async def test_create_ignores_a_body_that_is_json(executor: ThreadPoolExecutor) -> None:
    app = environment_app("Maze", "strict", PoolOptions(executor, 8, 60))
    async with client_of(app) as http:
        for body in (b"", b"null", b"[1]", b'{"id": "x"}', b'"text"'):
            reply = await http.post("/maze/create", content=body, headers={"content-type": "application/json"})
            assert reply.json().keys() == {"id"}
