"""Servers that hang, drip, disconnect, redirect or lie: each causes one clear error, and no step is sent twice."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import socket
from collections.abc import Iterator
from contextlib import closing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.envs.http import HttpEnvironment, ServerAddress, client, pool
from runner.envs.http import session as instance
from runner.envs.maze import Maze
from runner.errors import EnvironmentFault
from runner.types import Action
from tests.support.rude_env_server import (
    EnvironmentHandler,
    Handler,
    ReceivedRequest,
    RudeServer,
    http_response,
    json_response,
    run_rude_server,
)

UP = Action(text="move up")
PLAYED = {"observation": "x", "reward": 0, "done": False}


@pytest.fixture(scope="module")
def server() -> Iterator[RudeServer]:
    with run_rude_server() as serving:
        yield serving


def maze(server: RudeServer, timeout_s: float = 10) -> HttpEnvironment:
    return HttpEnvironment(env="maze", address=ServerAddress(server.url, timeout_s))


def replies(reply: bytes, *, and_closes: bool = False) -> Handler:
    async def answer(request: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(reply)
        if and_closes:
            writer.close()

    return answer


async def hangs(request: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(3600)


def drips(first: bytes, drop: bytes) -> Handler:
    async def answer(request: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(first)
        while not writer.transport.is_closing():
            writer.write(drop)
            await writer.drain()
            await asyncio.sleep(0.01)

    return answer


def floods(first: bytes, chunk: bytes) -> Handler:
    async def answer(request: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(first)
        while not writer.transport.is_closing():
            writer.write(chunk)
            await writer.drain()

    return answer


async def resets(request: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
    writer.write(b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{"obs')
    await writer.drain()
    linger = (1).to_bytes(4, "little") + (0).to_bytes(4, "little")
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    writer.transport.abort()


def gold(shown: str) -> str:
    return json.dumps({"state": shown, "info": {"ground_truth": "SELECT gold"}})


LATE = "got no complete reply within 0.3 s. The server hangs or is overloaded: check its log, or raise timeout_sec"
BROKE = "got no complete reply: the connection broke"
LARGE = "returned more than 8 MiB. This may be another server"
CHUNKED = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
RUDE: dict[str, tuple[Handler, str]] = {
    "hangs": (hangs, LATE),
    "drips a body": (drips(CHUNKED, b"1\r\n[\r\n"), LATE),
    "drips headers": (drips(b"HTTP/1.1 200 OK\r\n", b"x: y\r\n"), LATE),
    "drips interim replies": (drips(b"", b"HTTP/1.1 102 Processing\r\n\r\n"), LATE),
    "floods headers": (floods(b"HTTP/1.1 200 OK\r\nx: ", b"x" * 65536), BROKE),
    "sends 10 MB": (replies(http_response(b"[" * 10_000_000)), LARGE),
    "never ends": (floods(CHUNKED, b"10000\r\n" + b"x" * 65536 + b"\r\n"), LARGE),
    "breaks off": (replies(http_response(gold("x"))[:-9], and_closes=True), BROKE),
    "resets the connection": (resets, BROKE),
    "says nothing": (replies(b"", and_closes=True), BROKE),
    "speaks no HTTP": (replies(b"SSH-2.0-OpenSSH\r\n", and_closes=True), BROKE),
    "sends no JSON": (replies(http_response(gold("x")[:-3])), "which is not JSON"),
    "sends a page": (
        replies(http_response("<html>", kind="text/html")),
        "200 and 6 bytes of text/html, which is not JSON",
    ),
    "sends bytes that are no UTF-8": (replies(http_response(b'{"observation": "\xff"}')), "which is not JSON"),
    "sends deep JSON": (replies(http_response(b"[" * 1_000_000)), "which is not JSON"),
    "sends nothing": (
        replies(b"HTTP/1.1 204 No Content\r\n\r\n"),
        "returned status 204 and no body, which is not JSON",
    ),
    "redirects": (
        replies(http_response("", 302, location="/maze/elsewhere")),
        "was redirected (status 302). Redirects are not",
    ),
    "compresses": (replies(http_response(gzip.compress(b"{}"), content_encoding="gzip")), "returned a compressed body"),
    "fails": (
        replies(http_response("Internal Server Error", 500, "text/plain")),
        '500 "Internal Server Error". Check the server',
    ),
    "refuses the fields": (
        replies(http_response('{"detail": [{"loc": ["body", "id"], "msg": "Required"}]}', 422)),
        "422 ",
    ),
    "has an error": (replies(json_response({"error": "0"})), 'returned an error "0". Check the server'),
    "has an error without a text": (replies(json_response({"error": ""})), "returned an error without a text"),
    "answers another question": (
        replies(json_response({"state": "x", "info": "gold"})),
        "; expected a text at observation",
    ),
    "has an endless reward": (
        replies(http_response('{"observation": "x", "reward": 1e999, "done": true}')),
        "which is not JSON",
    ),
}


@pytest.mark.parametrize("how", RUDE)
async def test_a_rude_answer_ends_the_episode_with_its_error(server: RudeServer, how: str) -> None:
    rudely, message = RUDE[how]
    server.reset(EnvironmentHandler(Maze, rudely))
    env = maze(server, 0.3 if message == LATE else 10)
    await env.reset()
    with pytest.raises(EnvironmentFault) as caught:
        await env.step(UP)
    told_error = str(caught.value)
    assert told_error.startswith(f'Maze: POST {server.url}/maze/step {{"id": 0, "action": "move up"}} ')
    assert message in told_error
    assert told_error.isprintable()
    assert "gold" not in told_error
    with pytest.raises(EnvironmentFault, match="call reset first"):
        await env.step(UP)
    await env.cleanup()
    assert [request.path.rpartition("/")[2] for request in server.requests] == ["create", "reset", "step", "close"]


async def test_the_declared_content_type_of_a_reply_is_ignored(server: RudeServer) -> None:
    server.reset(EnvironmentHandler(Maze, replies(http_response(json.dumps(PLAYED), kind="text/plain"))))
    env = maze(server)
    await env.reset()
    assert (await env.step(UP))[0][0]["content"] == "x"
    await env.cleanup()


async def test_connections_that_the_server_closes_in_the_meantime_are_not_used_again(server: RudeServer) -> None:
    before = server.n_closed
    server.reset(EnvironmentHandler(Maze, replies(json_response(PLAYED), and_closes=True)))
    env = maze(server)
    await env.reset()
    for step in range(5):
        await env.step(UP)
        await asyncio.to_thread(server.wait_closed, before + step + 1)
    await env.cleanup()
    assert [request.path for request in server.requests].count("/maze/step") == 5
    assert server.n_connections == 6


async def test_connections_are_given_up_before_a_server_would_close_them(
    server: RudeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert pool.KEEPALIVE_S < 2
    monkeypatch.setattr(pool, "KEEPALIVE_S", 0.0)
    server.reset(EnvironmentHandler(Maze))
    env = maze(server)
    await env.reset()
    await env.step(UP)
    await env.cleanup()
    assert server.n_connections == len(server.requests) == 4


def free_port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        port: int = listener.getsockname()[1]
        return port


async def test_an_absent_server_is_reported_with_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "CONNECT_RETRY_DELAYS_S", (0.0, 0.0))
    url = f"http://me:hidden@127.0.0.1:{free_port()}"
    env = HttpEnvironment(env="maze", address=ServerAddress(url))
    with pytest.raises(EnvironmentFault) as caught:
        await env.reset()
    await env.cleanup()
    assert "/maze/create {} reached no server" in str(caught.value)
    assert "Start the server, or correct its port or base_url in the profile" in str(caught.value)
    assert "hidden" not in str(caught.value)


async def test_connecting_is_tried_again_while_a_server_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "CONNECT_RETRY_DELAYS_S", (0.02,) * 500)
    port = free_port()
    env = HttpEnvironment(env="maze", address=ServerAddress(f"http://127.0.0.1:{port}", 20))
    resetting = asyncio.create_task(env.reset())
    await asyncio.sleep(0)
    with run_rude_server(port) as late:
        late.reset(EnvironmentHandler(Maze))
        await resetting
        await env.cleanup()
        assert [request.path.rpartition("/")[2] for request in late.requests] == ["create", "reset", "close"]


@pytest.mark.parametrize(
    ("answer", "warning"),
    [
        (replies(http_response('{"detail": "Not Found"}', 404)), ""),
        (replies(http_response('{"detail": "Method Not Allowed"}', 405)), ""),
        (replies(http_response("closed", kind="text/html")), ""),
        (replies(http_response("Internal Server Error", 500, "text/plain")), 'status 500 "Internal Server Error"'),
        (replies(b"", and_closes=True), "the connection broke"),
        (hangs, "did not close instance 0 within 0.2 s"),
    ],
)
async def test_a_failing_close_is_logged_at_most(
    server: RudeServer,
    answer: Handler,
    warning: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(instance, "CLOSE_TIMEOUT_S", 0.2)
    served = EnvironmentHandler(Maze)

    async def but_for_close(request: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        await (answer if request.path.endswith("close") else served)(request, writer)

    server.reset(but_for_close)
    env = maze(server)
    await env.reset()
    with caplog.at_level(logging.WARNING, "runner"):
        await env.cleanup()
    assert len(caplog.records) == bool(warning)
    assert warning in caplog.text


async def test_a_cancelled_step_is_not_taken_back_up(server: RudeServer) -> None:
    reached = asyncio.Event()
    loop = asyncio.get_running_loop()

    async def never(request: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        loop.call_soon_threadsafe(reached.set)
        await hangs(request, writer)

    server.reset(EnvironmentHandler(Maze, never))
    env = maze(server)
    await env.reset()
    stepping = asyncio.create_task(env.step(UP))
    await asyncio.wait_for(reached.wait(), 10)
    stepping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stepping
    with pytest.raises(EnvironmentFault, match="call reset first"):
        await env.step(UP)
    await env.cleanup()
    assert [request.path.rpartition("/")[2] for request in server.requests] == ["create", "reset", "step", "close"]


STATUS_LINES = st.sampled_from([b"HTTP/1.1 200 OK", b"HTTP/1.1 101 X", b"HTTP/1.0 999 \xff", b"HTTP/9.9 200", b""])
HEADERS = st.lists(
    st.tuples(
        st.sampled_from([b"content-length", b"transfer-encoding", b"content-type", b"set-cookie", b"connection"]),
        st.sampled_from([b"5", b"-1", b"chunked", b"close", b"\xff\x00", b"a=b; expires=x", b"x; charset=\xff"]),
    ),
    max_size=3,
)  # fmt: skip


@settings(max_examples=25, deadline=None)
@given(STATUS_LINES, HEADERS, st.binary(max_size=30) | st.just(json.dumps(PLAYED).encode()))
def test_no_bytes_do_more_than_a_fault(
    server: RudeServer, status: bytes, headers: list[tuple[bytes, bytes]], body: bytes
) -> None:
    head = b"".join(b"%s: %s\r\n" % header for header in headers)
    server.reset(EnvironmentHandler(Maze, replies(status + b"\r\n" + head + b"\r\n" + body, and_closes=True)))

    async def play() -> None:
        env = maze(server, 5)
        await env.reset()
        try:
            await env.step(UP)
        except EnvironmentFault as exc:
            assert str(exc).isprintable()
        finally:
            await env.cleanup()

    asyncio.run(play())
