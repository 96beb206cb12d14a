"""Where requests to environments and models go: absent servers, redirects, proxies and the exceptions from them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.envs.http.client import HttpTimings
from runner.envs.http.environment import HttpEnvironment
from runner.envs.http.server import ServerAddress, probe_servers
from runner.envs.maze import Maze
from runner.errors import EnvironmentFault, InferenceFault, ServerGone
from runner.types import Action, Inference
from tests.support.command import run_agentgym
from tests.support.http_replies import GOOD, Reply, answer_with, chats, operations, refusing_port, whole
from tests.support.inference import VirtualTime, infer, inference_manager
from tests.support.rude_env_server import EnvironmentHandler, RudeServer, run_rude_server

pytestmark = pytest.mark.long

UP = Action(text="move up")
NO_DELAY = HttpTimings(connect_retry_delays_s=(0.0,))
NOWHERE = "http://model.invalid/v1"
"""No name under ``.invalid`` exists (RFC 2606), so that only a proxy answers."""


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
def fallback() -> Iterator[RudeServer]:
    with run_rude_server() as server:
        server.handler = answer_with(GOOD)
        yield server


@pytest.fixture
def proxy() -> Iterator[RudeServer]:
    """A proxy that answers in place of every server."""
    with run_rude_server() as server:
        server.handler = answer_with(GOOD)
        yield server


def remote_maze(url: str) -> HttpEnvironment:
    return HttpEnvironment(env="maze", address=ServerAddress(url, 20), timings=NO_DELAY)


async def ask(url: str, fallback: RudeServer) -> Inference:
    """Ask the model at ``url``, named ``a``, and after its failure the one that always answers, named ``b``."""
    inference = await infer(inference_manager(url, fallback.url))
    assert inference.message["content"] == "up"
    return inference


@pytest.fixture(params=["refused", "unknown name"])
def absent_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """A URL of a port that refuses connections, or of a host that does not exist."""
    with refusing_port() as port:
        yield f"http://{'127.0.0.1' if request.param == 'refused' else 'nowhere.invalid'}:{port}"


async def test_an_absent_server_of_an_environment_has_executed_nothing(absent_url: str) -> None:
    env = remote_maze(absent_url.replace("://", "://me:hidden@"))
    with pytest.raises(ServerGone) as raised:
        await env.reset()
    await env.cleanup()
    error = str(raised.value)
    assert error.startswith(f"Maze: POST {absent_url}/maze/create {{}} reached no server (")
    assert "Start the server, or correct its port or base_url in the profile" in error
    assert "may have executed" not in error
    assert "hidden" not in error
    assert not raised.value.timed_out


async def test_a_server_that_ends_within_an_episode_has_not_executed_the_next_step() -> None:
    with run_rude_server() as server:
        server.handler = EnvironmentHandler(Maze)
        env = remote_maze(server.url)
        await env.reset()
        await env.step(UP)
    with pytest.raises(ServerGone, match="reached no server") as raised:
        await env.step(UP)
    assert "may have executed" not in str(raised.value)
    await env.cleanup()
    assert operations(server) == ["create", "reset", "step"]


async def test_an_absent_model_is_named_and_the_next_one_answers(absent_url: str, fallback: RudeServer) -> None:
    secret_url = absent_url.replace("://", "://me:hidden@") + "/v1"
    inference = await ask(secret_url, fallback)
    assert inference.usage.endpoint == "b"
    (warning,) = inference.usage.warnings
    assert warning.startswith("a: no connection: ")
    with pytest.raises(InferenceFault) as raised:
        await infer(inference_manager(secret_url, virtual_time=VirtualTime(), model="small"))
    shown = absent_url.replace("://", "://***@")
    assert str(raised.value).startswith(f"no model answered; a ({shown}/v1, model small): no connection: ")
    assert "hidden" not in str(raised.value)


REDIRECTS = [301, 307]
"""One after which a client may send another method, and one after which it repeats the request."""


def redirect(status: int, target: RudeServer) -> Reply:
    location = f"Location: {target.url}/elsewhere\r\n".encode()
    return Reply(lambda body: whole(b"", location).replace(b"200 OK", b"%d Elsewhere" % status), "keep")


@pytest.mark.parametrize("status", REDIRECTS)
async def test_a_redirected_step_is_sent_nowhere_else(status: int, fallback: RudeServer) -> None:
    with run_rude_server() as server:
        server.handler = EnvironmentHandler(Maze, answer_with(redirect(status, fallback)))
        env = remote_maze(server.url)
        await env.reset()
        with pytest.raises(EnvironmentFault) as raised:
            await env.step(UP)
        await env.cleanup()
        assert type(raised.value) is EnvironmentFault
        assert f'{server.url}/maze/step {{"id": 0, "action": "move up"}} was redirected (status {status})' in str(
            raised.value
        )
        assert operations(server) == ["create", "reset", "step", "close"]
    assert fallback.requests == []


@pytest.mark.parametrize("status", REDIRECTS)
async def test_a_redirecting_model_is_wrongly_configured_and_not_followed(status: int, fallback: RudeServer) -> None:
    with run_rude_server() as target, run_rude_server() as server:
        server.handler = answer_with(redirect(status, target))
        usage = (await ask(server.url, fallback)).usage
        assert (usage.endpoint, usage.warnings, chats(server)) == ("b", (f"a: HTTP {status}",), 1)
        with pytest.raises(InferenceFault, match=f"HTTP {status}"):
            await infer(inference_manager(server.url, virtual_time=VirtualTime()))
        assert (chats(server), target.requests) == (2, [])


@pytest.mark.parametrize("variable", ["HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"])
async def test_a_model_is_reached_through_the_proxy(
    variable: str, proxy: RudeServer, fallback: RudeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, proxy.url.replace("://", "://me:pass%20word@"))
    usage = (await ask(NOWHERE, fallback)).usage
    assert (usage.endpoint, usage.warnings) == ("a", ())
    (request,) = proxy.requests
    assert (request.method, request.path) == ("POST", f"{NOWHERE}/chat/completions")
    assert request.headers["host"] == "model.invalid"
    assert request.headers["proxy-authorization"] == "Basic bWU6cGFzcyB3b3Jk"


async def test_the_lower_case_variable_comes_first(
    proxy: RudeServer, fallback: RudeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with refusing_port() as port:
        monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{port}")
        monkeypatch.setenv("http_proxy", proxy.url)
        assert (await ask(NOWHERE, fallback)).usage.endpoint == "a"


async def test_the_proxy_of_https_is_none_of_http(
    proxy: RudeServer, fallback: RudeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", proxy.url)
    assert (await ask(NOWHERE, fallback)).usage.endpoint == "b"
    assert proxy.requests == []


async def test_an_absent_proxy_is_a_failed_connection(fallback: RudeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with refusing_port() as port:
        monkeypatch.setenv("HTTP_PROXY", f"http://me:hidden@127.0.0.1:{port}")
        (warning,) = (await ask(NOWHERE, fallback)).usage.warnings
    assert warning == f"a: no connection: the proxy http://127.0.0.1:{port} cannot be reached: Connection refused"


@pytest.mark.parametrize(
    ("status", "tries", "cause"),
    [(407, 1, "the proxy {url} refuses its login"), (502, 4, "HTTP 502: no route (through the proxy {url})")],
)
async def test_a_refusal_of_the_proxy_names_it(
    status: int, tries: int, cause: str, proxy: RudeServer, fallback: RudeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", proxy.url.replace("://", "://me:hidden@"))
    refusal = Reply(lambda body: whole(b"no route").replace(b"200 OK", b"%d No" % status), "keep")
    proxy.handler = answer_with(refusal)
    (warning,) = (await ask(NOWHERE, fallback)).usage.warnings
    assert cause.format(url=proxy.url) in warning
    n_before = chats(proxy)
    with pytest.raises(InferenceFault) as raised:
        await infer(inference_manager(NOWHERE, virtual_time=VirtualTime()))
    assert cause.format(url=proxy.url) in str(raised.value)
    assert "hidden" not in warning + str(raised.value)
    assert chats(proxy) - n_before == tries


async def test_a_model_on_this_machine_needs_no_proxy(
    proxy: RudeServer, fallback: RudeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALL_PROXY", proxy.url)
    for host in ("127.0.0.1", "localhost"):
        assert (await ask(fallback.url.replace("127.0.0.1", host), fallback)).usage.endpoint == "a"
    assert (chats(fallback), proxy.requests) == (2, [])


async def test_an_environment_elsewhere_is_reached_through_the_proxy(
    proxy: RudeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", proxy.url)
    proxy.handler = EnvironmentHandler(Maze)
    env = remote_maze("http://gym.invalid")
    await env.reset()
    await env.step(UP)
    await env.cleanup()
    assert operations(proxy) == ["create", "reset", "step", "close"]
    assert {request.headers["host"] for request in proxy.requests} == {"gym.invalid"}
    await asyncio.to_thread(probe_servers, {"Maze": ServerAddress("http://gym.invalid")})
    assert proxy.requests[-1].path == "http://gym.invalid/"


async def test_an_environment_behind_an_absent_proxy_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with refusing_port() as port:
        monkeypatch.setenv("http_proxy", f"http://me:hidden@127.0.0.1:{port}")
        with pytest.raises(ServerGone) as raised:
            await remote_maze("http://gym.invalid").reset()
        state = (await asyncio.to_thread(probe_servers, {"Maze": ServerAddress("http://gym.invalid")}))["Maze"]
    cause = f"the proxy http://127.0.0.1:{port} cannot be reached: Connection refused"
    assert f"reached no server ({cause})" in str(raised.value)
    assert (state.status, state.cause) == ("down", cause)


async def test_an_environment_on_this_machine_is_reached_without_a_proxy(
    proxy: RudeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, proxy.url)
    with run_rude_server(host="127.0.0.2") as server:
        server.handler = EnvironmentHandler(Maze)
        env = remote_maze(server.url)
        await env.reset()
        await env.step(UP)
        await env.cleanup()
        assert operations(server) == ["create", "reset", "step", "close"]
    assert proxy.requests == []


@pytest.mark.parametrize("exceptions", ["model.invalid", "*.invalid"])
async def test_no_proxy_exempts_a_model(
    exceptions: str, proxy: RudeServer, fallback: RudeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", proxy.url)
    monkeypatch.setenv("NO_PROXY", exceptions)
    usage = (await ask("http://model.invalid:8080/v1", fallback)).usage
    assert proxy.requests == []
    assert usage.endpoint == "b"
    assert usage.warnings[0].startswith("a: no connection: ")


@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_run_and_its_worker_processes_use_the_proxy(workers: str, proxy: RudeServer, tmp_path: Path) -> None:
    endpoint = {"url": NOWHERE, "name": "far", "kind": "openai"}
    agent = {"mode": "local", "local_fallback": None, "model": "small", "endpoints": [endpoint], "stream": False}
    (tmp_path / "far.yaml").write_text(json.dumps({"id": "far", "agent": agent}))
    options = ("--config", "far.yaml", "--run", "Maze", "--repeat", "2", "--max-rounds", "1", "--workers", workers)
    completed = run_agentgym(tmp_path, *options, environ={"http_proxy": proxy.url})
    assert completed.returncode == 0, completed.stderr
    assert chats(proxy) >= 2
    assert {request.headers["host"] for request in proxy.requests} == {"model.invalid"}
