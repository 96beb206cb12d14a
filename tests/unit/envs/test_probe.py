"""Addresses and greetings of servers, and probes of well-behaved and of misbehaving ones."""

from __future__ import annotations

import asyncio
import socket
import threading

import pytest

from runner.config import EnvironmentEntry
from runner.envs.http.server import (
    BUSY,
    MAX_RESPONSE_BYTES,
    NOT_LISTENING,
    ServerAddress,
    ServerIdentity,
    ServerState,
    identify_server,
    probe_servers,
)
from runner.envs.placement import server_address
from runner.errors import ConfigError
from tests.support.rude_env_server import Handler, ReceivedRequest, RudeServer, http_response, json_response
from tests.support.serving import serve_environments

CONSOLE_GREETING = "AgentGym Console 0.1.0: Maze (compat, as published)"


def probe_replies(rude_server: RudeServer, answers: dict[str, bytes], env: str = "Maze", url: str = "") -> ServerState:
    """Probe a server with these replies by path; other paths return 404."""

    async def answer(request: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(answers.get(request.path, http_response('{"detail":"Not Found"}', 404)))
        writer.write_eof()

    rude_server.reset(answer)
    return probe_servers({env: ServerAddress(url or rude_server.url)})[env]


def test_our_server_reports_its_environment_and_open_instances() -> None:
    with serve_environments(["Maze"]) as urls:
        state = probe_servers({"Maze": ServerAddress(urls["Maze"], 7.0)})["Maze"]
    assert (state.status, state.open, state.cause) == ("up", 0, None)
    assert state.address == ServerAddress(urls["Maze"], 7.0, n_tasks=25, lists_actions=True, places=64)
    assert state.identity is not None
    assert (state.identity.kind, state.identity.mode, state.identity.label) == ("console", "strict", "as published")
    assert state.latency_s is not None
    assert state.latency_s >= 0


def test_a_server_with_a_token_requires_it() -> None:
    token = "a-token-of-sixteen-or-more"
    with serve_environments(["Maze"], token=token) as urls:
        with_token = probe_servers({"Maze": ServerAddress(urls["Maze"].replace("//", f"//:{token}@"))})["Maze"]
        without_token = probe_servers({"Maze": ServerAddress(urls["Maze"])})["Maze"]
    assert with_token.status == "up"
    assert without_token.status == "wrong"
    assert "HTTP 401" in (without_token.cause or "")
    assert token not in repr(with_token)


@pytest.mark.parametrize(
    ("reply", "shown"),
    [
        (json_response("This is environment BabyAI."), 'HTTP 200: "This is environment BabyAI."'),
        (json_response({"hello": 1}), 'HTTP 200: {"hello": 1}'),
        (http_response("<html>\x1b[2J</html>", kind="text/html"), "HTTP 200: <html>␛[2J</html>"),
        (http_response(b"\xff\xfe\x00", kind="text/plain"), "HTTP 200: "),
        (http_response("[" * 10_000), "HTTP 200: ["),
        (http_response("moved", 302, location="http://elsewhere/"), "HTTP 302: moved"),
        (http_response("no", 404), "HTTP 404: no"),
    ],
)
def test_another_program_is_a_wrong_server_with_a_safe_cause(rude_server: RudeServer, reply: bytes, shown: str) -> None:
    state = probe_replies(rude_server, {"/": reply})
    assert (state.status, state.usable) == ("wrong", False)
    assert shown in (state.cause or "")
    assert (state.cause or "").isprintable()


def test_a_cause_shows_no_variable_of_the_server(rude_server: RudeServer) -> None:
    entry = EnvironmentEntry(
        name="Maze", base_url=rude_server.url, env={"HUB": "sup3r-hush", "KEY": "line-one\nline-two"}
    )
    address = server_address(entry)
    assert address is not None

    async def answer(request: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(http_response("failed with sup3r-hush and line-two", 500))
        writer.write_eof()

    rude_server.reset(answer)
    state = probe_servers({"Maze": address})["Maze"]
    assert state.cause == "GET / returned HTTP 500: failed with *** and ***"
    assert "sup3r" not in repr(state)


@pytest.mark.parametrize(
    ("env", "path", "base"),
    [
        ("Maze", "/maze", ""),
        ("Wordle", "/lm/wordle/", "/lm"),
        ("Maze", "/wordle", "/wordle"),
        ("BabyAI", "/babyai", "/babyai"),
    ],
)
def test_agentgyms_url_of_a_mounted_environment_names_its_server(env: str, path: str, base: str) -> None:
    address = server_address(EnvironmentEntry(name=env, base_url=f"http://lab-2:8000{path}"))
    assert address is not None
    assert address.base == f"http://lab-2:8000{base}"


def test_an_unidentified_server_is_usable(rude_server: RudeServer) -> None:
    state = probe_replies(rude_server, {"/": json_response("hello")})
    assert (state.status, state.identity and state.identity.kind, state.address.dialect) == ("up", "unknown", "env")


@pytest.mark.parametrize("greeting", [http_response("no", 404), json_response("hello")])
def test_a_server_with_the_other_dialect_is_identified_by_its_paths(rude_server: RudeServer, greeting: bytes) -> None:
    not_allowed = http_response('{"detail":"Method Not Allowed"}', 405)
    state = probe_replies(rude_server, {"/": greeting, "/createEnv": not_allowed})
    kind = state.identity and state.identity.kind
    assert (state.status, kind, state.address.dialect) == ("up", "unknown", "createEnv")


@pytest.mark.parametrize(
    "health", [http_response("?"), json_response({"open": "many"}), http_response("no", 500), b"", json_response([])]
)
def test_an_unreadable_health_reply_is_ignored(rude_server: RudeServer, health: bytes) -> None:
    state = probe_replies(rude_server, {"/": json_response(CONSOLE_GREETING), "/health": health})
    assert (state.status, state.open, state.address.n_tasks) == ("up", None, None)


def test_a_path_in_the_address_prefixes_every_request(rude_server: RudeServer) -> None:
    state = probe_replies(
        rude_server,
        {"/gym/": json_response(CONSOLE_GREETING), "/gym/health": json_response({"open": 3, "n_tasks": 25})},
        url=rude_server.url + "/gym/",
    )
    assert (state.status, state.open) == ("up", 3)
    assert [request.path for request in rude_server.requests] == ["/gym/", "/gym/health"]


def probe_handler(rude_server: RudeServer, answer: Handler, within_s: float = 5.0) -> ServerState:
    rude_server.reset(answer)
    return probe_servers({"Maze": ServerAddress(rude_server.url)}, within_s)["Maze"]


async def drip_headers(request: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nx: ")
    while True:
        writer.write(b"y")
        await writer.drain()
        await asyncio.sleep(0.01)


async def send_endless_body(request: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n")
    while True:
        writer.write(b'"' + b"x" * 65_536)
        await writer.drain()


def test_a_slow_reply_is_busy(rude_server: RudeServer) -> None:
    state = probe_handler(rude_server, drip_headers, within_s=0.3)
    assert (state.status, state.latency_s, state.gone) == ("busy", None, True)
    assert state.cause == BUSY


@pytest.mark.parametrize(
    ("reply", "gone"),
    [
        (b"", True),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{", True),
        (b"SSH-2.0-OpenSSH\r\n", False),
        (http_response("broken", 500), False),
        (json_response("This is environment BabyAI."), False),
        (json_response("This is environment lmrl-gym."), False),
    ],
)
def test_a_server_that_replies_is_not_gone(rude_server: RudeServer, reply: bytes, gone: bool) -> None:
    assert probe_replies(rude_server, {"/": reply}).gone == gone


def test_an_endless_reply_is_read_up_to_the_limit(rude_server: RudeServer) -> None:
    state = probe_handler(rude_server, send_endless_body)
    assert state.status == "wrong"
    assert MAX_RESPONSE_BYTES < 1 << 20


def test_a_closed_port_and_an_invalid_address_are_down() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    states = probe_servers(
        {
            "Maze": ServerAddress(f"http://127.0.0.1:{port}"),
            "Wordle": ServerAddress("http://user:hunter22@127.0.0.1:1/?q"),
            "SQLGym": ServerAddress("http://name.invalid:80"),
        }
    )
    assert {state.status for state in states.values()} == {"down"}
    assert states["Maze"].cause == NOT_LISTENING
    assert {env: state.gone for env, state in states.items()} == {"Maze": True, "Wordle": False, "SQLGym": True}
    assert "Correct its base_url" in (states["Wordle"].cause or "")
    assert "hunter22" not in repr(states)
    assert probe_servers({}) == {}


def test_all_servers_are_probed_in_parallel(rude_server: RudeServer) -> None:
    barrier = threading.Barrier(4)

    async def answer_together(request: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        await asyncio.to_thread(barrier.wait, 10)
        writer.write(json_response("This is environment lmrl-gym."))
        writer.write_eof()

    rude_server.reset(answer_together)
    states = probe_servers({env: ServerAddress(rude_server.url) for env in ("Maze", "maze", "MAZE", "Wordle")}, 20)
    assert [state.status for state in states.values()] == ["up"] * 4


@pytest.mark.parametrize(
    ("url", "base"),
    [
        ("http://127.0.0.1:36003", "http://127.0.0.1:36003"),
        ("http://[::1]:1/", "http://[::1]:1"),
        ("https://me:word@host/below/", "https://host/below"),
    ],
)
def test_the_base_url_has_no_login_and_no_trailing_slash(url: str, base: str) -> None:
    assert ServerAddress(url).base == base


@pytest.mark.parametrize(
    ("url", "header"),
    [
        ("http://host", ""),
        ("http://me:wo%3Ard@host", "Basic bWU6d286cmQ="),
        ("http://me@host", "Basic bWU6"),
        ("http://:a-token@host", "Bearer a-token"),
    ],
)
def test_the_login_of_a_url_becomes_the_authorization_header(url: str, header: str) -> None:
    assert ServerAddress(url).login.get("Authorization", "") == header


def test_the_login_of_a_url_is_not_shown() -> None:
    address = ServerAddress("http://me:hidden@host:1")
    assert "hidden" not in f"{address!r} {address} {address.base}"
    with pytest.raises(ConfigError) as caught:
        _ = ServerAddress("http://:hidden%0Aword@host:1").login
    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["", "host:1", "ftp://host", "http://", "http://host:99999", "http://host?x=1", "http://host#x", "http://[1"]
)
def test_an_invalid_address_is_rejected(url: str) -> None:
    with pytest.raises(ConfigError, match="Correct its base_url"):
        _ = ServerAddress(url).base


@pytest.mark.parametrize(
    ("env", "payload", "expected"),
    [
        ("maze", "AgentGym Console 0.1.0: Maze (strict, x)", ServerIdentity("console", "Maze", "strict", "x")),
        ("Wordle", "AgentGym Console 0.1.0: Maze (strict, x)", ServerIdentity("wrong", "Maze", "strict", "x")),
        ("BabyAI", "This is environment BabyAI.", ServerIdentity("agentgym", "BabyAI", "compat")),
        ("Maze", "This is environment LMRL-Gym.", ServerIdentity("agentgym", "LMRL-Gym", "compat")),
        ("SciWorld", "This is environment ScienceWorld.", ServerIdentity("agentgym", "ScienceWorld", "compat")),
        ("Sokoban", "This is environment Sokoban.", ServerIdentity("agentgym", "Sokoban", "compat")),
        ("SQLGym", "ok", ServerIdentity("agentgym", mode="compat")),
        ("BabyAI", "This is environment TextCraft.", ServerIdentity("wrong", "TextCraft", "compat")),
        ("BabyAI", "ok", ServerIdentity("wrong")),
        ("BabyAI", "Welcome!", ServerIdentity("unknown")),
        ("Sokoban", "ok", ServerIdentity("unknown")),
        ("BabyAI", {"status": "ok"}, ServerIdentity("wrong")),
        ("BabyAI", "x" * 1000, ServerIdentity("wrong")),
    ],
)
def test_a_server_is_identified_by_its_greeting(env: str, payload: object, expected: ServerIdentity) -> None:
    assert identify_server(env, payload) == expected


def test_a_greeting_is_safe_to_show() -> None:
    identity = identify_server("maze", "AgentGym Console 0.1.0: Maze (strict, \x1b[2J\u202e)")
    assert identity.label == "␛[2J\\u{202e}"
