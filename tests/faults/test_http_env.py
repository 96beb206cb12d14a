"""Servers that are slow, flood or send invalid replies: each causes one error; no step is sent twice."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.batch.batch import Batch
from runner.batch.workspace import Workspace
from runner.envs.http.client import DEFAULT_TIMINGS, HttpTimings
from runner.envs.http.environment import HttpEnvironment
from runner.envs.http.server import ServerAddress
from runner.envs.maze import Maze
from runner.envs.placement import Placement
from runner.errors import EnvironmentFault
from runner.results.statistics import wilson_interval
from runner.results.summary import summarize_results
from runner.types import Action
from tests.support.batches import resolved_batch
from tests.support.env_server_process import free_port
from tests.support.http_replies import operations
from tests.support.rude_env_server import (
    EnvironmentHandler,
    Handler,
    ReceivedRequest,
    RudeServer,
    http_response,
    json_response,
    run_rude_server,
)

pytestmark = pytest.mark.long

UP = Action(text="move up")
STEP_REPLY = {"observation": "x", "reward": 0, "done": False}


@pytest.fixture(scope="module")
def rude_server() -> Iterator[RudeServer]:
    with run_rude_server() as server:
        yield server


def maze_over_http(
    server: RudeServer, timeout_s: float = 10, timings: HttpTimings = DEFAULT_TIMINGS
) -> HttpEnvironment:
    return HttpEnvironment(env="maze", address=ServerAddress(server.url, timeout_s), timings=timings)


def reply_with(reply: bytes, *, close_after: bool = False) -> Handler:
    async def answer(request: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(reply)
        if close_after:
            writer.close()

    return answer


async def hang(request: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(3600)


def drip(first: bytes, drop: bytes) -> Handler:
    async def answer(request: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(first)
        while not writer.transport.is_closing():
            writer.write(drop)
            await writer.drain()
            await asyncio.sleep(0.01)

    return answer


def flood(first: bytes, chunk: bytes) -> Handler:
    async def answer(request: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(first)
        while not writer.transport.is_closing():
            writer.write(chunk)
            await writer.drain()

    return answer


def body_with_gold(shown: str) -> str:
    return json.dumps({"state": shown, "info": {"ground_truth": "SELECT gold"}})


LATE_ERROR = (
    "got no complete reply within 0.3 s. The server hangs or is overloaded: check its log, or raise timeout_sec"
)
BROKEN_ERROR = "got no complete reply: the connection broke"
LARGE_ERROR = "returned a body that is larger than 8 MiB. This may be another server"
CHUNKED_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
RUDE_REPLIES: dict[str, tuple[Handler, str]] = {
    "slow body": (drip(CHUNKED_HEAD, b"1\r\n[\r\n"), LATE_ERROR),
    "slow headers": (drip(b"HTTP/1.1 200 OK\r\n", b"x: y\r\n"), LATE_ERROR),
    "slow interim replies": (drip(b"", b"HTTP/1.1 102 Processing\r\n\r\n"), LATE_ERROR),
    "endless header": (flood(b"HTTP/1.1 200 OK\r\nx: ", b"x" * 65536), BROKEN_ERROR),
    "10 MB": (reply_with(http_response(b"[" * 10_000_000)), LARGE_ERROR),
    "endless body": (flood(CHUNKED_HEAD, b"10000\r\n" + b"x" * 65536 + b"\r\n"), LARGE_ERROR),
    "incomplete JSON": (reply_with(http_response(body_with_gold("x")[:-3])), "which is not JSON"),
    "HTML page": (
        reply_with(http_response("<html>", kind="text/html")),
        "200 and 6 bytes of text/html, which is not JSON",
    ),
    "invalid UTF-8": (reply_with(http_response(b'{"observation": "\xff"}')), "which is not JSON"),
    "deep JSON": (reply_with(http_response(b"[" * 1_000_000)), "which is not JSON"),
    "no body": (reply_with(b"HTTP/1.1 204 No Content\r\n\r\n"), "returned status 204 and no body, which is not JSON"),
    "status 500": (
        reply_with(http_response("Internal Server Error", 500, "text/plain")),
        '500 "Internal Server Error". Check the server',
    ),
    "status 422": (reply_with(http_response('{"detail": [{"loc": ["body", "id"], "msg": "Required"}]}', 422)), "422 "),
    "error field": (reply_with(json_response({"error": "0"})), 'returned an error "0". Check the server'),
    "empty error field": (reply_with(json_response({"error": ""})), "returned an error without a text"),
    "other fields": (reply_with(json_response({"state": "x", "info": "gold"})), "; expected a text at observation"),
    "infinite reward": (
        reply_with(http_response('{"observation": "x", "reward": 1e999, "done": true}')),
        "which is not JSON",
    ),
}


@pytest.mark.parametrize("case", RUDE_REPLIES)
async def test_an_invalid_reply_ends_the_episode_with_an_error(rude_server: RudeServer, case: str) -> None:
    handler, message = RUDE_REPLIES[case]
    rude_server.reset(EnvironmentHandler(Maze, handler))
    env = maze_over_http(rude_server, 0.3 if message == LATE_ERROR else 10)
    await env.reset()
    with pytest.raises(EnvironmentFault) as caught:
        await env.step(UP)
    error = str(caught.value)
    assert error.startswith(f'Maze: POST {rude_server.url}/maze/step {{"id": 0, "action": "move up"}} ')
    assert message in error
    assert error.isprintable()
    assert "gold" not in error
    with pytest.raises(EnvironmentFault, match="call reset first"):
        await env.step(UP)
    await env.cleanup()
    assert operations(rude_server) == ["create", "reset", "step", "close"]


async def test_the_declared_content_type_of_a_reply_is_ignored(rude_server: RudeServer) -> None:
    rude_server.reset(EnvironmentHandler(Maze, reply_with(http_response(json.dumps(STEP_REPLY), kind="text/plain"))))
    env = maze_over_http(rude_server)
    await env.reset()
    assert (await env.step(UP))[0][0]["content"] == "x"
    await env.cleanup()


async def test_a_connection_that_the_server_closed_is_not_reused() -> None:
    with run_rude_server() as server:  # a server of its own: no connection of another test closes late
        server.reset(EnvironmentHandler(Maze, reply_with(json_response(STEP_REPLY), close_after=True)))
        env = maze_over_http(server)
        await env.reset()
        for step in range(5):
            await env.step(UP)
            await asyncio.to_thread(server.wait_closed, step + 1)
        await env.cleanup()
    assert [request.path for request in server.requests].count("/maze/step") == 5
    assert server.n_connections == 6


async def test_idle_connections_are_closed_before_the_server_closes_them(rude_server: RudeServer) -> None:
    assert HttpTimings().keepalive_s < 2
    rude_server.reset(EnvironmentHandler(Maze))
    env = maze_over_http(rude_server, timings=HttpTimings(keepalive_s=0.0))
    await env.reset()
    await env.step(UP)
    await env.cleanup()
    assert rude_server.n_connections == len(rude_server.requests) == 5


async def test_connecting_is_retried_while_a_server_starts() -> None:
    timings = HttpTimings(connect_retry_delays_s=(0.02,) * 500)
    port = free_port()
    env = HttpEnvironment(env="maze", address=ServerAddress(f"http://127.0.0.1:{port}", 20), timings=timings)
    resetting = asyncio.create_task(env.reset())
    await asyncio.sleep(0)
    with run_rude_server(port) as started_server:
        started_server.reset(EnvironmentHandler(Maze))
        await resetting
        await env.cleanup()
        assert operations(started_server) == ["create", "reset", "close"]


@pytest.mark.parametrize(
    ("answer", "warning"),
    [
        (reply_with(http_response('{"detail": "Not Found"}', 404)), ""),
        (reply_with(http_response('{"detail": "Method Not Allowed"}', 405)), ""),
        (reply_with(http_response("closed", kind="text/html")), ""),
        (reply_with(http_response("Internal Server Error", 500, "text/plain")), 'status 500 "Internal Server Error"'),
        (reply_with(b"", close_after=True), "the connection broke"),
        (hang, "did not close instance 0 within 0.2 s"),
    ],
)
async def test_a_failed_close_is_at_most_logged(
    rude_server: RudeServer, answer: Handler, warning: str, caplog: pytest.LogCaptureFixture
) -> None:
    served = EnvironmentHandler(Maze)

    async def answer_close_only(request: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        await (answer if request.path.endswith("close") else served)(request, writer)

    rude_server.reset(answer_close_only)
    env = maze_over_http(rude_server, timings=HttpTimings(close_timeout_s=0.2))
    await env.reset()
    with caplog.at_level(logging.WARNING, "runner"):
        await env.cleanup()
    assert len(caplog.records) == bool(warning)
    assert warning in caplog.text


STATUS_LINES = st.sampled_from([b"HTTP/1.1 200 OK", b"HTTP/1.1 101 X", b"HTTP/1.0 999 \xff", b"HTTP/9.9 200", b""])
HEADERS = st.lists(
    st.tuples(
        st.sampled_from([b"content-length", b"transfer-encoding", b"content-type", b"set-cookie", b"connection"]),
        st.sampled_from([b"5", b"-1", b"chunked", b"close", b"\xff\x00", b"a=b; expires=x", b"x; charset=\xff"]),
    ),
    max_size=3,
)  # fmt: skip


@settings(max_examples=25, deadline=None)
@given(STATUS_LINES, HEADERS, st.binary(max_size=30) | st.just(json.dumps(STEP_REPLY).encode()))
def test_any_bytes_cause_at_most_a_fault(
    rude_server: RudeServer, status: bytes, headers: list[tuple[bytes, bytes]], body: bytes
) -> None:
    head = b"".join(b"%s: %s\r\n" % header for header in headers)
    rude_server.reset(EnvironmentHandler(Maze, reply_with(status + b"\r\n" + head + b"\r\n" + body, close_after=True)))

    async def reset_and_step() -> None:
        env = maze_over_http(rude_server, 5)
        await env.reset()
        try:
            await env.step(UP)
        except EnvironmentFault as exc:
            assert str(exc).isprintable()
        finally:
            await env.cleanup()

    asyncio.run(reset_and_step())


def test_errors_of_a_server_are_no_failures_of_the_agent(rude_server: RudeServer, tmp_path: Path) -> None:
    answers = EnvironmentHandler(Maze)

    async def fail_odd_instances(request: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        if request.path.endswith("/step") and request.payload["id"] % 2:
            writer.write(http_response("bad gateway", status=502, kind="text/html"))
        else:
            await answers(request, writer)

    rude_server.reset(fail_odd_instances)
    workspace = Workspace(tmp_path, node="n", profile="p")
    with closing(workspace):
        placement = Placement(transport="http", address=ServerAddress(rude_server.url), mode="compat")
        result = Batch(resolved_batch(placement, env="Maze", agent="oracle", repeat=12), workspace).run()
        (row,) = summarize_results(workspace.index)
    assert result.outcomes == row.outcomes == {"success": 6, "error": 6}
    for counts in (result, row):
        assert (counts.n_rated, counts.n_success, counts.n_errors, counts.success_rate) == (6, 6, 6, 1.0)
        assert counts.success_interval == wilson_interval(6, 6)
