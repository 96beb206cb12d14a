"""Connections of ``serve``: their number, and clients that are idle or send half of a request."""

from __future__ import annotations

import contextlib
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from urllib.parse import urlsplit

import httpx
import pytest

from runner.serve.host import ServerLimits
from tests.support.gated_maze import Gated, serve_gated_maze, start_instance
from tests.support.serving import serve_environments

pytestmark = pytest.mark.long

TOKEN = "a-token-of-the-tests"
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


def test_half_bodies_on_all_connections_do_not_lock_out_a_client() -> None:
    limits = ServerLimits(header_timeout_s=60, max_connections=4)
    head = HEAD.replace(b"GET /", b"POST /maze/create")
    body = b"\r\nContent-Type: application/json\r\nContent-Length: 10\r\n\r\n{"
    with serve_environments(["Maze"], token=TOKEN, limits=limits) as urls, ExitStack() as stack:
        halves = [stack.enter_context(closing(open_connection(urls["Maze"]))) for _ in range(4)]
        for half in halves:
            half.sendall(head + body[:-1])
        for half in halves:
            half.sendall(body[-1:])
        for half in halves:
            assert responds(stack.enter_context(closing(open_connection(urls["Maze"]))))
            assert is_closed(half)


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
