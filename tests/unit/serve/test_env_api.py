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
from runner.serve.env_api import DIALECTS, EnvironmentApp, environment_app
from runner.serve.env_api.pool import InstancePool, PoolRejected
from runner.serve.env_api.routing import MalformedRequest, RequestField, decode_body, parse_payload
from runner.types import Mode
from runner.util.clock import Clock
from tests.support.manual_clock import ManualClock

FIELDS = (RequestField("id"), RequestField("action", "string"), RequestField("data_idx", required=False, default=7))


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as executor:
        yield executor


def client_of(app: EnvironmentApp) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app.application()), base_url="http://127.0.0.1")


def errors(body: bytes) -> list[tuple[str, tuple[str | int, ...]]]:
    with pytest.raises(MalformedRequest) as caught:
        parse_payload(FIELDS, decode_body(body))
    return [(problem.type, problem.loc) for problem in caught.value.errors]


@pytest.mark.parametrize(
    ("value", "expected"), [(3, 3), ("3", 3), (" +1_0.0 ", 10), (3.0, 3), (True, 1), (-1, -1), (10**30, 10**30)]
)
def test_integers_are_parsed_like_fastapi(value: object, expected: int) -> None:
    body = json.dumps({"id": value, "action": "x", "more": 1}).encode()
    assert parse_payload(FIELDS, decode_body(body)) == {"id": expected, "action": "x", "data_idx": 7}


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (None, "int_type"),
        ([], "int_type"),
        (3.5, "int_from_float"),
        ("", "int_parsing"),
        ("1e3", "int_parsing"),
        ("٣", "int_parsing"),
        ("9" * 4301, "int_parsing_size"),
    ],
)
def test_invalid_integers_have_fastapis_errors(value: object, problem: str) -> None:
    assert errors(json.dumps({"id": value, "action": "x"}).encode()) == [(problem, ("body", "id"))]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"", [("missing", ("body",))]),
        (b"null", [("missing", ("body",))]),
        (b"[1]", [("model_attributes_type", ("body",))]),
        (b"{}", [("missing", ("body", "id")), ("missing", ("body", "action"))]),
        (b'{"id": 0, "action": 1}', [("string_type", ("body", "action"))]),
        (b"{bad json", [("json_invalid", ("body", 1))]),
        (b'{"id": NaN}', [("json_invalid", ("body", 0))]),
        (b'{"id": 0, "action": "\\ud800"}', [("json_invalid", ("body", 0))]),
        (b"[" * 100_000, [("json_invalid", ("body", 0))]),
        (b"\xff", [("json_invalid", ("body", 0))]),
        (b'{"action": "\xff"}', [("json_invalid", ("body", 0))]),
    ],
)
def test_malformed_bodies_have_fastapis_errors(body: bytes, expected: list[Any]) -> None:
    assert errors(body) == expected


def test_large_values_are_not_echoed() -> None:
    with pytest.raises(MalformedRequest) as caught:
        parse_payload(FIELDS, {"id": "x" * 100_000, "action": 3})
    assert [bytes(problem.input) for problem in caught.value.errors] == [b"null", b"3"]


def test_a_full_pool_rejects_and_never_reuses_ids() -> None:
    pool = InstancePool(Maze, limit=2, idle_s=60)
    first, second = pool.open(), pool.open()
    with pytest.raises(PoolRejected, match="2 environments open, which is its limit"):
        pool.open()
    pool.remove(first)
    assert pool.open().instance_id not in (first.instance_id, second.instance_id)
    assert pool.touch(first.instance_id) is None


async def test_idle_instances_are_removed_unless_in_use() -> None:
    clock = ManualClock()
    pool = InstancePool(Maze, limit=9, idle_s=60, clock=Clock(monotonic=clock))
    idle, used, working = pool.open(), pool.open(), pool.open()
    clock.now += 59
    assert pool.remove_idle() == []
    pool.touch(used.instance_id)
    clock.now += 2
    async with working.lock:
        assert pool.remove_idle() == [idle]
    assert pool.remove_idle() == [working]
    assert pool.instance_ids == [used.instance_id]


@pytest.mark.parametrize("body", [{}, {"session_id": None}, {"session_id": -1}, None])
async def test_webshop_needs_no_session_as_on_agentgyms_server(
    body: dict[str, Any] | None, executor: ThreadPoolExecutor
) -> None:
    app = environment_app("WebShop", mode="compat", max_open=2, idle_s=60, executor=executor)
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
    app = environment_app("maze", mode="strict", max_open=1, idle_s=60, executor=executor, clock=Clock(monotonic=clock))
    async with client_of(app) as http:
        created = (await http.post("/maze/create")).json()
        full = (await http.post("/maze/create")).json()
        assert "which is its limit" in full["error"]
        clock.now += 61
        assert (await http.get("/health")).json()["open"] == 0
        reply = await http.post("/maze/reset", json={**created, "game": 0})
        assert reply.json() == {"error": f"The id {created['id']} is not valid."}
        assert (await http.post("/maze/create")).json()["id"] != created["id"]


@pytest.mark.parametrize(("mode", "label"), [("strict", "as published"), ("compat", "as published")])
async def test_a_server_describes_its_environment(mode: Mode, label: str, executor: ThreadPoolExecutor) -> None:
    app = environment_app("Maze", mode=mode, max_open=3, idle_s=60, executor=executor)
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
    app = environment_app("Maze", mode="strict", max_open=3, idle_s=60, executor=executor)
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
        async with client_of(
            EnvironmentApp(dialect, Broken(), InstancePool(Broken, limit=1, idle_s=9), executor)
        ) as http:
            await http.post(f"{dialect.prefix}/create")
            await http.post(f"{dialect.prefix}/reset", json={dialect.id_field: 0, dialect.task_field.name: 0})
            reply = await http.post(f"{dialect.prefix}/step", json={dialect.id_field: 0, "action": "secret"})
            assert (reply.status_code, "The environment failed: SystemExit" in reply.text) == (status, True)
            assert "secret" not in reply.text


def test_an_environment_without_a_protocol_is_rejected(
    executor: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(DIALECTS, "Maze")
    with pytest.raises(ConfigError, match="no protocol for Maze"):
        environment_app("Maze", mode="strict", max_open=1, idle_s=60, executor=executor)


@pytest.mark.parametrize("name", DIALECTS)
async def test_a_malformed_body_of_create_is_rejected_and_opens_nothing(
    name: str, executor: ThreadPoolExecutor
) -> None:
    app = environment_app(name, mode="compat", max_open=2, idle_s=60, executor=executor)
    create, as_json = f"{DIALECTS[name].prefix}/create", {"content-type": "application/json"}
    async with client_of(app) as http:
        for path in (create, "/createEnv"):
            for body in (b"{bad json", b"{", b'{"a": NaN}', b"\xff", b"[" * 100_000):
                reply = await http.post(path, content=body, headers=as_json)
                assert reply.status_code == 422
                assert [problem["type"] for problem in reply.json()["detail"]] == ["json_invalid"]
        assert (await http.get("/health")).json()["open"] == 0
        assert (await http.post(create, content=b"{}", headers=as_json)).status_code == 200


async def test_create_ignores_a_body_that_is_json(executor: ThreadPoolExecutor) -> None:
    app = environment_app("Maze", mode="strict", max_open=8, idle_s=60, executor=executor)
    async with client_of(app) as http:
        for body in (b"", b"null", b"[1]", b'{"id": "x"}', b'"text"'):
            reply = await http.post("/maze/create", content=body, headers={"content-type": "application/json"})
            assert reply.json().keys() == {"id"}
