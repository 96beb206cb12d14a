from __future__ import annotations

import asyncio
import base64
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from runner.errors import ConfigError
from runner.serve.host import ServerLimits, Site, check_exposure, read_token, serve_apps
from runner.serve.request_guard import BODY_TIMEOUT_S, RequestGuard

TOKEN = "0123456789abcdef"
JSON = {"content-type": "application/json"}


async def size(scope: Scope, receive: Receive, send: Send) -> None:
    """Respond with the size of the body."""
    body = await Request(scope, receive).body()
    await PlainTextResponse(str(len(body)))(scope, receive, send)


def client(token: str | None = None, body_timeout_s: float = BODY_TIMEOUT_S, **headers: str) -> httpx.AsyncClient:
    app = RequestGuard(
        size, token=token, max_body=1000, allowed_hosts=["node-7.local", ""], body_timeout_s=body_timeout_s
    )
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(app, client=("127.0.0.1", 1)), base_url="http://127.0.0.1:36001", headers=headers
    )


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "127.0.0.1:36001", "localhost:1", "LOCALHOST.", "127.8.9.10:80", "[::1]:36001", "Node-7.Local:36001"],
)
async def test_host_names_of_this_machine_are_accepted(host: str) -> None:
    async with client(host=host) as http:
        assert (await http.get("/")).text == "0"


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:36001", "127.0.0.1.evil.example", "localhost.evil", "", "[::1", "a@127.0.0.1", "0"],
)
async def test_other_host_names_are_rejected(host: str) -> None:
    """With DNS rebinding, the host name of a web page resolves to this machine."""
    async with client(host=host) as http:
        reply = await http.get("/")
        assert (reply.status_code, reply.headers["connection"]) == (403, "close")
        assert "is not allowed; start the server with --allow-host" in reply.json()["detail"]


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:3000"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
async def test_pages_of_other_sites_are_rejected(headers: dict[str, str]) -> None:
    async with client() as http:
        for method in ("GET", "POST", "OPTIONS"):
            assert (await http.request(method, "/", headers=headers)).status_code == 403


async def test_same_origin_pages_and_the_address_bar_are_accepted() -> None:
    async with client(origin="http://127.0.0.1:36001") as http:
        assert (await http.get("/", headers={"sec-fetch-site": "none"})).status_code == 200


async def test_a_body_must_have_the_type_json() -> None:
    async with client() as http:
        for kind in ("text/plain", "application/x-www-form-urlencoded", "", "application/jsonp"):
            assert (await http.post("/", content=b"{}", headers={"content-type": kind})).status_code == 415
        assert (
            await http.post("/", content=b"{}", headers={"content-type": "Application/JSON;charset=utf-8"})
        ).is_success
        assert (await http.post("/")).text == "0"


async def test_a_body_has_a_size_limit_declared_or_not() -> None:
    async def chunks(n_bytes: int) -> AsyncIterator[bytes]:
        for _ in range(n_bytes // 100):
            yield b"x" * 100

    async with client() as http:
        assert (await http.post("/", content=b"x" * 1000, headers=JSON)).text == "1000"
        assert (await http.post("/", content=b"x" * 1001, headers=JSON)).status_code == 413
        assert (await http.post("/", content=chunks(1000), headers=JSON)).text == "1000"
        assert (await http.post("/", content=chunks(1100), headers=JSON)).status_code == 413
        assert (await http.post("/", content=chunks(100))).status_code == 415


async def test_a_configured_token_is_required() -> None:
    as_password = base64.b64encode(f":{TOKEN}".encode()).decode()
    async with client(TOKEN) as http:
        for sent in ("", "Bearer", f"Bearer {TOKEN}x", f"Token {TOKEN}", "Basic !", "Basic é", "Bearer \xff"):
            reply = await http.get("/", headers=[(b"authorization", sent.encode("latin-1"))])
            assert reply.status_code == 401
            assert reply.headers["www-authenticate"] == "Bearer"
            assert TOKEN not in reply.text
        for sent in (f"Bearer {TOKEN}", f"bearer  {TOKEN}", f"Basic {as_password}"):
            assert (await http.get("/", headers={"authorization": sent})).is_success


async def test_a_missing_body_times_out() -> None:
    async def wait_forever() -> AsyncIterator[bytes]:
        yield b"x"
        await asyncio.Event().wait()

    async with client(body_timeout_s=0.05) as http:
        assert (await http.post("/", content=wait_forever(), headers=JSON)).status_code == 408


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.2", "node-7.local", ""])
def test_a_public_host_requires_a_token(host: str) -> None:
    with pytest.raises(ConfigError, match="give --token"):
        check_exposure(host, None)
    check_exposure(host, TOKEN)


def test_a_loopback_host_requires_no_token() -> None:
    for host in ("127.0.0.1", "::1", "localhost", "127.1.2.3"):
        check_exposure(host, None)


def test_a_token_comes_from_a_variable_or_a_private_file(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    file.chmod(0o600)
    assert read_token(None, {}) is None
    assert read_token("SERVE_TOKEN", {"SERVE_TOKEN": f" {TOKEN} "}) == TOKEN
    assert read_token(f"@{file}", {}) == TOKEN


@pytest.mark.parametrize("token", ["", "short", "with a space in it", "é" * 20, "x" * 600])
def test_an_invalid_token_is_rejected_and_not_quoted(token: str, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(token)
    file.chmod(0o600)
    for source in ("VARIABLE", f"@{file}"):
        with pytest.raises(ConfigError, match="16 to 512 visible") as caught:
            read_token(source, {"VARIABLE": token})
        assert not token or token not in str(caught.value)


def test_a_value_given_as_the_token_is_not_quoted() -> None:
    with pytest.raises(ConfigError, match="must be the name of a variable") as caught:
        read_token(TOKEN, {})
    assert TOKEN not in str(caught.value)


def test_a_token_file_must_be_private(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN)
    file.chmod(0o640)
    with pytest.raises(ConfigError, match="chmod 600"):
        read_token(f"@{file}", {})
    os.mkfifo(tmp_path / "pipe", 0o600)
    for other in ("pipe", "missing", "with\0null"):
        with pytest.raises(ConfigError):
            read_token(f"@{tmp_path / other}", {})


async def test_no_site_is_served_if_one_address_is_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ready: list[str] = []
        sites = [Site(size, "127.0.0.1", 0, "free"), Site(size, "127.0.0.1", port, "taken")]
        with pytest.raises(ConfigError, match=f"The address 127.0.0.1, port {port} is in use"):
            await serve_apps(sites, on_ready=ready.append, stop=asyncio.Event())
        assert ready == []


@pytest.mark.parametrize("host", ["no.such.host.invalid", "1.2.3.4", "x" * 300, "a..b"])
async def test_an_unusable_address_is_named(host: str) -> None:
    with pytest.raises(ConfigError, match="Cannot listen on"):
        await serve_apps([Site(size, host, 0, "")], on_ready=str, stop=asyncio.Event())


async def test_an_endless_request_does_not_prevent_shutdown() -> None:
    entered, stop, ready = asyncio.Event(), asyncio.Event(), asyncio.Queue[str]()

    async def wait_forever(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            entered.set()
            await asyncio.Event().wait()

    sites, limits = [Site(wait_forever, "127.0.0.1", 0, "x")], ServerLimits(shutdown_timeout_s=0)
    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        group.create_task(serve_apps(sites, on_ready=ready.put_nowait, stop=stop, limits=limits))
        url = (await ready.get()).split()[0]
        with pytest.raises(httpx.HTTPStatusError, match="500"):
            async with httpx.AsyncClient() as http, asyncio.TaskGroup() as requests:
                request_task = requests.create_task(http.get(url))
                await entered.wait()
                stop.set()
            request_task.result().raise_for_status()
