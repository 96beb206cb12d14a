"""The HTTP client for model servers: connections, proxies, logins, TLS and failures."""

from __future__ import annotations

import asyncio
import base64
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import httpx
import pytest
import trustme
from hypothesis import given
from hypothesis import strategies as st

from runner.inference.errors import EndpointFailure
from runner.inference.http import SmallResponse, fetch
from runner.util import http
from runner.util.http import find_proxy, read_body, send_request
from tests.support.inference import infer, inference_manager
from tests.support.rude_model import RudeModel, completion_response, http_response

OK = http_response(200, b"{}")


async def get(url: str) -> SmallResponse:
    return await fetch("GET", url, timeout_s=60)


async def post_from_another_loop(url: str) -> SmallResponse:
    """The end of that loop closes its connections."""
    return await asyncio.to_thread(lambda: asyncio.run(fetch("POST", url, {}, timeout_s=60)))


class Endpoint(asyncio.Protocol):
    """Answers each request; ``n_connections`` counts the connections."""

    n_connections = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        Endpoint.n_connections += 1
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if data.rstrip().endswith(b"}"):
            self._transport.write(completion_response("up"))


async def test_each_of_many_conversations_keeps_one_connection() -> None:
    Endpoint.n_connections = 0
    server = await asyncio.get_running_loop().create_server(Endpoint, "127.0.0.1", 0, backlog=128)
    async with server:
        manager = inference_manager(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1")

        async def converse() -> None:
            for _ in range(5):
                await infer(manager)

        await asyncio.gather(*(converse() for _ in range(64)))
    assert Endpoint.n_connections <= 64


async def test_a_connection_that_the_server_closed_without_notice_is_not_used_again() -> None:
    closed = threading.Event()

    def answer_and_close(connections: socket.socket) -> None:
        for _ in range(3):
            connection, _ = connections.accept()
            with connection:
                received = b""
                while not received.endswith(b"}"):
                    received += connection.recv(1 << 16)
                connection.sendall(completion_response("up"))
                connection.shutdown(socket.SHUT_RDWR)
            closed.set()

    with socket.create_server(("127.0.0.1", 0)) as connections:
        server = threading.Thread(target=answer_and_close, args=(connections,), daemon=True)
        server.start()
        manager = inference_manager(f"http://127.0.0.1:{connections.getsockname()[1]}/v1")
        for _ in range(3):
            assert (await infer(manager)).usage.warnings == ()
            assert closed.wait(60)  # blocks the loop, so that it does not see the end of the connection yet
            closed.clear()
        server.join(60)


@pytest.fixture
def proxy() -> Iterator[RudeModel]:
    with RudeModel(OK, routes={"http://model.example/up": OK}) as server:
        yield server


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.mark.parametrize("variable", ["HTTP_PROXY", "http_proxy", "ALL_PROXY"])
async def test_the_proxy_of_the_environment_is_used(
    variable: str, proxy: RudeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, proxy.origin.replace("://", "://me:pass%20word@"))
    assert (await get("http://model.example/up")).status == 200
    monkeypatch.setenv(variable, proxy.origin.removeprefix("http://"))  # without a scheme it is one for HTTP
    assert (await get("http://model.example/up")).status == 200
    request, _ = proxy.requests
    assert (request.path, request.headers["host"]) == ("http://model.example/up", "model.example")
    assert base64.b64decode(request.headers["proxy-authorization"].removeprefix("Basic ")) == b"me:pass word"


URL = "http://gpu-7.lab.example:8080/v1"
IP, IP6 = "http://10.20.30.40/v1", "http://[2001:db8::7]:9/"
NAMED = [
    *((URL, each) for each in ("gpu-7.lab.example", "other.example, GPU-7.Lab.Example", "lab.example", ".example")),
    *((URL, each) for each in ("gpu-7.lab.example:8080", "gpu-*.lab.example", "*.example", "*")),
    *((IP, each) for each in ("10.20.30.40", "10.20.30.40:80", "10.20.*")),
    ("https://10.20.30.40/v1", "192.168.0.0/16,10.0.0.0/8"),
    *((IP6, each) for each in ("2001:db8::/32", "[2001:db8::7]:9")),
    *((f"http://{host}/v1", "") for host in ("localhost.", "gpu.localhost", "127.200.1.1", "[::1]", "[::]")),
    *((f"http://{host}/v1", "") for host in ("[::ffff:127.0.0.1]", "127.1", "0")),
]
NOT_NAMED = [
    *((URL, each) for each in ("", "gpu-8.lab.example, ,", "pu-7.lab.example", "sub.gpu-7.lab.example")),
    *((URL, each) for each in ("gpu-7.lab.example:81", "10.0.0.0/8", "[, ][", "127.0.0.0/8,::/0")),
    *((IP, each) for each in ("10.20.30.41", "10.20.30.40:8080", "10.20.30.41/32", "0.30.40", "10.20")),
    (IP6, "10.0.0.0/8,fe80::/10"),
    *((f"http://{host}/v1", "") for host in ("notlocalhost", "[::ffff:10.0.0.1]", "10.1")),
]


@pytest.mark.parametrize(
    ("url", "exceptions", "is_named"), [*((*case, True) for case in NAMED), *((*case, False) for case in NOT_NAMED)]
)
def test_no_proxy_exempts_names_networks_and_wildcards(
    url: str, exceptions: str, is_named: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALL_PROXY", "http://me:hidden@proxy.example:3128/?key=hidden")
    monkeypatch.setenv("NO_PROXY", exceptions)
    found = find_proxy(httpx.URL(url))
    assert (found is None) == is_named
    assert found is None or str(found.url) == "http://proxy.example:3128"


@given(st.text(), st.text(alphabet="ax7.*:[]/-, ", max_size=40))
def test_any_exceptions_can_be_read(exceptions: str, others: str) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("http_proxy", "http://proxy.example:3128")
        monkeypatch.setenv("no_proxy", (exceptions + others).replace("\0", "").encode("utf-8", "ignore").decode())
        for url in (URL, "http://10.20.30.40", "http://[2001:db8::7]:9/"):
            found = find_proxy(httpx.URL(url))
            assert found is None or str(found.url) == "http://proxy.example:3128"


@pytest.mark.parametrize(
    ("proxy_url", "cause"),
    [
        ("http://127.0.0.1:9", "the proxy http://127.0.0.1:9 cannot be reached: Connection refused"),
        ("socks5://127.0.0.1:9", "the proxy socks5://127.0.0.1:9 gives no connection: "),
        ("socks4://127.0.0.1:9", "the proxy of the environment for http cannot be used: give http://HOST:PORT"),
        ("http://[::1", "the proxy of the environment for http cannot be used: give http://HOST:PORT"),
        ("http://127.0.0.1:65536", "the proxy of the environment for http cannot be used: give http://HOST:PORT"),
        ("http://", "the proxy of the environment for http cannot be used: give http://HOST:PORT"),
    ],
)
async def test_a_proxy_that_fails_is_named(proxy_url: str, cause: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", proxy_url.replace("://127", "://me:hidden@127"))
    with pytest.raises(EndpointFailure) as raised:
        await get("http://model.example/up")
    assert str(raised.value).startswith(f"no connection: {cause}")
    assert "hidden" not in str(raised.value)


@pytest.mark.parametrize(
    ("scheme", "login", "status", "problem", "reason"),
    [
        ("http", "", 407, "requires a login", "configuration"),
        ("http", "me:hidden@", 407, "refuses its login", "configuration"),
        ("https", "", 407, "requires a login", "configuration"),
        ("https", "me:hidden@", 407, "refuses its login", "configuration"),
        ("https", "", 502, "refuses the connection: 502", "connection"),
    ],
)
async def test_a_proxy_that_refuses_is_named_with_its_cause(
    scheme: str, login: str, status: int, problem: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusal = http_response(status, b"", Proxy_Authenticate="Basic")
    routes = {"model.example:443": refusal, "http://model.example/up": refusal}
    with RudeModel(OK, routes=routes) as proxy:
        monkeypatch.setenv("ALL_PROXY", proxy.origin.replace("://", f"://{login}"))
        with pytest.raises(EndpointFailure, match=f"the proxy {proxy.origin} {problem}") as raised:
            await get(f"{scheme}://model.example/up")
    assert (raised.value.reason, raised.value.status) == (reason, 407 if status == 407 else None)
    assert "hidden" not in str(raised.value)


@pytest.mark.parametrize(
    ("scheme", "url", "replies", "cause"),
    [
        ("http", "https://model.example/v1", [b"", b"SSH-2.0-OpenSSH\r\n\r\n"], "opens no tunnel: it"),
        (
            "socks5",
            "http://model.example/v1",
            [b"", b"\x05", b"HTTP/1.1 400 No\r\n\r\n", b"\x05\xff"],
            "gives no connection: ",
        ),
    ],
)
async def test_a_proxy_that_closes_or_speaks_something_else_has_sent_nothing(
    scheme: str, url: str, replies: list[bytes], cause: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for reply in replies:

        async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, reply: bytes = reply) -> None:
            await reader.read(1 << 16)
            writer.write(reply)
            writer.close()

        async with await asyncio.start_server(refuse, "127.0.0.1", 0) as proxy:
            proxy_url = f"{scheme}://127.0.0.1:{proxy.sockets[0].getsockname()[1]}"
            monkeypatch.setenv("ALL_PROXY", proxy_url)
            with pytest.raises(EndpointFailure, match=f"no connection: the proxy {proxy_url} {cause}"):
                await post_from_another_loop(url)


async def test_a_socks_proxy_looks_the_name_up_and_connects(monkeypatch: pytest.MonkeyPatch) -> None:
    """A SOCKS5 proxy by RFC 1928, with the login of RFC 1929."""
    asked: list[bytes] = []
    ended = asyncio.Event()

    async def serve_socks(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly((await reader.readexactly(2))[1])
        writer.write(b"\x05\x02")
        for _ in range(2):  # user and password, each after its length; the version precedes both
            length = (await reader.readexactly(2 if not asked else 1))[-1]
            asked.append(await reader.readexactly(length))
        writer.write(b"\x01\x00")
        *_, length = await reader.readexactly(5)
        asked.append(await reader.readexactly(length + 2))
        writer.write(b"\x05\x00\x00\x01" + bytes(6))
        upstream_reader, upstream = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(_copy(reader, upstream), _copy(upstream_reader, writer))
        writer.close()
        await writer.wait_closed()
        ended.set()

    loop = asyncio.get_running_loop()
    async with (
        await loop.create_server(Endpoint, "127.0.0.1", 0) as server,
        await asyncio.start_server(serve_socks, "127.0.0.1", 0) as proxy,
    ):
        port = server.sockets[0].getsockname()[1]
        proxy_url = f"socks5h://127.0.0.1:{proxy.sockets[0].getsockname()[1]}"
        monkeypatch.setenv("ALL_PROXY", proxy_url.replace("://", "://me:hidden@"))
        assert (await post_from_another_loop("http://model.example:8000/v1")).status == 200
        await asyncio.wait_for(ended.wait(), 60)
    assert asked == [b"me", b"hidden", b"model.example" + (8000).to_bytes(2)]


async def test_the_time_limit_of_a_connection_is_that_of_a_socks_proxy_too(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = asyncio.Event()

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()
        ended.set()

    async with await asyncio.start_server(hang, "127.0.0.1", 0) as proxy:
        monkeypatch.setenv("ALL_PROXY", f"socks5://127.0.0.1:{proxy.sockets[0].getsockname()[1]}")
        with pytest.raises(httpx.ConnectTimeout, match=r"no connection through the proxy socks5://.* within 0\.1 s"):
            async with send_request("POST", "http://model.example/v1", b"{}", connect_timeout_s=0.1):
                pass
        await asyncio.wait_for(ended.wait(), 60)


async def test_a_login_with_any_characters_and_a_path_and_a_query_are_sent_unchanged() -> None:
    path = "/a%2Fb/c?v=1%2C2&k=a+b&e=%E2%82%AC"
    with RudeModel(OK, routes={path: OK}) as server:
        assert (await get(server.origin.replace("://", "://m%C3%A9:p%40%2F%E2%82%AC@") + path)).status == 200
        sent = server.requests[0].headers["authorization"].removeprefix("Basic ")
    assert base64.b64decode(sent).decode() == "mé:p@/€"


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@asynccontextmanager
async def run_tls_server(authority: trustme.CA, host: str = "localhost") -> AsyncIterator[str]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(host).configure_cert(context)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Endpoint, "127.0.0.1", 0, ssl=context)
    async with server:
        yield f"https://localhost:{server.sockets[0].getsockname()[1]}/v1"


async def test_a_certificate_is_verified_with_the_authorities_of_the_environment(
    authority: trustme.CA, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority.cert_pem.write_to_path(str(tmp_path / "authority.pem"))
    monkeypatch.setattr(http, "_ssl_context", http._ssl_context.__wrapped__)
    async with run_tls_server(authority) as url:
        with pytest.raises(EndpointFailure, match=r"no connection: .*certificate verify failed"):
            await get(url)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authority.pem"))
    async with run_tls_server(authority) as url:
        manager = inference_manager(url)

        def play() -> str | None:  # the client of another loop
            return asyncio.run(infer(manager)).message["content"]

        assert await asyncio.to_thread(play) == "up"


@pytest.mark.parametrize("content", [None, b"no certificate"])
async def test_certificates_that_cannot_be_read_are_the_cause(
    content: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if content is not None:
        (tmp_path / "authority.pem").write_bytes(content)
    monkeypatch.setattr(http, "_ssl_context", http._ssl_context.__wrapped__)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authority.pem"))
    with pytest.raises(EndpointFailure, match=r"no connection: the certificates of SSL_CERT_FILE cannot be used: \S"):
        await get("https://127.0.0.1:9/v1")


async def test_a_failed_tls_handshake_is_the_cause() -> None:
    async def speak_http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(OK)
        writer.close()

    async with await asyncio.start_server(speak_http, "127.0.0.1", 0) as server:
        with pytest.raises(EndpointFailure, match=r"no connection: \[SSL"):
            await get(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1")


async def test_a_cancelled_request_closes_its_connection() -> None:
    arrived, closed = asyncio.Event(), asyncio.Event()

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        arrived.set()
        await reader.read()
        closed.set()
        writer.close()

    server = await asyncio.start_server(hang, "127.0.0.1", 0)
    async with server:
        request = asyncio.create_task(get(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"))
        await asyncio.wait_for(arrived.wait(), 60)
        request.cancel()
        await asyncio.wait_for(closed.wait(), 60)
        with pytest.raises(asyncio.CancelledError):
            await request


async def test_a_loop_that_closes_without_its_generators_leaves_no_client() -> None:
    with RudeModel(completion_response("up")) as server:
        manager = inference_manager(server.url)

        def play() -> None:
            loop = asyncio.new_event_loop()
            loop.run_until_complete(infer(manager))
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()

        for _ in range(2):
            thread = threading.Thread(target=play)
            thread.start()
            await asyncio.to_thread(thread.join, 60)
        assert len(server.chat_requests) == 2


async def test_a_tunnel_is_requested_with_the_login_of_the_proxy(
    authority: trustme.CA, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests: list[bytes] = []
    ended = asyncio.Event()
    authority.cert_pem.write_to_path(str(tmp_path / "authority.pem"))
    monkeypatch.setattr(http, "_ssl_context", http._ssl_context.__wrapped__)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authority.pem"))

    async def tunnel(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append(await reader.readuntil(b"\r\n\r\n"))
        upstream_reader, upstream = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        await asyncio.gather(_copy(reader, upstream), _copy(upstream_reader, writer))
        ended.set()

    async with run_tls_server(authority, "model.example") as url:
        port = int(url.partition("localhost:")[2].partition("/")[0])
        async with await asyncio.start_server(tunnel, "127.0.0.1", 0) as proxy:
            proxy_port = proxy.sockets[0].getsockname()[1]
            monkeypatch.setenv("HTTPS_PROXY", f"http://me:secret@127.0.0.1:{proxy_port}")
            response = await post_from_another_loop("https://me2:own@model.example/v1")
            await asyncio.wait_for(ended.wait(), 60)
    assert response.status == 200
    assert requests[0].startswith(b"CONNECT model.example:443 HTTP/1.1\r\n")
    assert b"Proxy-Authorization: Basic " + base64.b64encode(b"me:secret") in requests[0]
    assert base64.b64encode(b"me2:own") not in requests[0]


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()


async def test_a_chunk_that_is_none_is_a_malformed_reply_and_no_lost_connection() -> None:
    head_received = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n")
        await head_received.wait()
        writer.write(b"zz\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server, asyncio.timeout(20):
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        async with send_request("GET", url) as response:
            chunks = response.aiter_raw()
            assert await anext(chunks) == b"{}"
            head_received.set()
            with pytest.raises(httpx.RemoteProtocolError, match="the reply is not valid HTTP"):
                await anext(chunks)


@pytest.mark.parametrize(
    ("reply", "error", "text"),
    [
        (b"", httpx.ReadError, "the server disconnected"),
        (b"HTTP/1.1 200 OK\r\n", httpx.ReadError, "the server disconnected"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n{}", httpx.ReadError, "the reply is incomplete"),
        (b"HTTP/1.1 the answer\r\n\r\n", httpx.RemoteProtocolError, "the reply is not valid HTTP"),
        (b"HTTP/1.1 200 OK\r\nthe answer\r\n\r\n", httpx.RemoteProtocolError, "the reply is not valid HTTP"),
    ],
)
async def test_a_reply_that_breaks_differs_from_a_connection_that_was_never_made(
    reply: bytes, error: type[httpx.TransportError], text: str
) -> None:
    n_requests = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal n_requests
        await reader.readuntil(b"{}")
        n_requests += 1
        writer.write(reply)
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        with pytest.raises(httpx.TransportError) as raised:
            async with send_request("POST", url, b"{}") as response:
                await read_body(response, 100)
    assert (type(raised.value), str(raised.value), n_requests) == (error, text, 1)


async def test_the_headers_of_a_reply_are_bounded() -> None:
    def with_headers(n: int) -> bytes:
        return b"HTTP/1.1 200 OK\r\n" + b"".join(b"x%d: %s\r\n" % (i, b"x" * 1000) for i in range(n))

    end = b"content-length: 2\r\n\r\n{}"
    long = b"HTTP/1.1 200 OK\r\nx: %s\r\n" % (b"x" * 20_000)
    routes = {"/50": with_headers(50) + end, "/70": with_headers(70) + end, "/long": long + end}
    with RudeModel(OK, routes=routes) as server:
        assert (await get(f"{server.origin}/50")).body == b"{}"
        assert (await get(f"{server.origin}/long")).body == b"{}"
        with pytest.raises(EndpointFailure, match="headers of the reply are larger than 64 KiB"):
            await get(f"{server.origin}/70")
