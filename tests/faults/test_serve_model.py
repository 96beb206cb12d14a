from __future__ import annotations

import json
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from runner.serve.mock_llm.app import EchoResponder, ScriptResponder
from runner.serve.mock_llm.completion import TEST_MODEL_NAME
from runner.serve.mock_llm.script import Behavior, Fault, ScriptedReply
from tests.support.command import run_agentgym, start_agentgym
from tests.support.model_server import ModelServer

pytestmark = pytest.mark.long

CHAT = "/v1/chat/completions"
CHAT_REQUEST = {"model": TEST_MODEL_NAME, "messages": [{"role": "user", "content": "Say something."}]}
WAIT = httpx.Timeout(20)
NO_WAIT = httpx.Timeout(20, read=0.2)


@pytest.fixture(scope="module")
def model_server() -> Iterator[ModelServer]:
    with ModelServer(EchoResponder(), behavior=Behavior(drip_s=0.05, retry_after_s=3)) as model_server:
        yield model_server


@pytest.fixture(params=[False, True], ids=["complete", "streamed"])
def chat_request(request: pytest.FixtureRequest, model_server: ModelServer) -> dict[str, Any]:
    model_server.inject()
    return {**CHAT_REQUEST, "stream": request.param}


def post(
    model_server: ModelServer, chat_request: dict[str, Any], kind: str, timeout: httpx.Timeout = WAIT
) -> httpx.Response:
    return httpx.post(
        model_server.url + CHAT, json=chat_request, headers={"x-agentgym-test-fault": kind}, timeout=timeout
    )


@pytest.mark.parametrize("status", [401, 429, 500, 503])
def test_an_error_has_openais_format(model_server: ModelServer, chat_request: dict[str, Any], status: int) -> None:
    reply = post(model_server, chat_request, str(status))
    assert reply.status_code == status
    assert TEST_MODEL_NAME in reply.json()["error"]["message"]
    assert reply.headers.get("retry-after") == ("3" if status in (429, 503) else None)


def test_a_reply_can_be_no_json_without_choices_or_a_web_page(
    model_server: ModelServer, chat_request: dict[str, Any]
) -> None:
    def documents(kind: str) -> list[str]:
        parts = post(model_server, chat_request, kind).text.replace("data: ", "").split("\n\n")
        return [part for part in parts if part not in ("", "[DONE]")]

    with pytest.raises(json.JSONDecodeError):
        [json.loads(document) for document in documents("invalid-json")]
    assert all(json.loads(document)["choices"] == [] for document in documents("empty-choices"))
    page = post(model_server, chat_request, "wrong-type")
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert "<h1>" in page.text


def test_a_reply_can_be_huge(model_server: ModelServer) -> None:
    reply = post(model_server, CHAT_REQUEST, "huge")
    assert len(reply.json()["choices"][0]["message"]["content"]) >= 10 << 20


@pytest.mark.parametrize("kind", ["drop", "truncated"])
def test_a_reply_can_end_early(model_server: ModelServer, chat_request: dict[str, Any], kind: str) -> None:
    with pytest.raises(httpx.RemoteProtocolError, match="closed"):
        post(model_server, chat_request, kind)


def test_a_truncated_stream_starts_with_valid_chunks(model_server: ModelServer) -> None:
    received = ""
    with (
        pytest.raises(httpx.RemoteProtocolError),
        httpx.stream(
            "POST", model_server.url + CHAT, json={**CHAT_REQUEST, "stream": True, "agentgym_test_fault": "truncated"}
        ) as reply,
    ):
        for text in reply.iter_text():
            received += text
    assert json.loads(received.split("\n\n")[0].removeprefix("data: "))["choices"]
    assert "[DONE]" not in received


def test_a_reply_can_never_come(model_server: ModelServer, chat_request: dict[str, Any]) -> None:
    with pytest.raises(httpx.ReadTimeout):
        post(model_server, chat_request, "hang", NO_WAIT)


def test_a_reply_can_drip(model_server: ModelServer, chat_request: dict[str, Any]) -> None:
    headers = {"x-agentgym-test-fault": "drip"}
    with httpx.stream("POST", model_server.url + CHAT, json=chat_request, headers=headers, timeout=WAIT) as reply:
        parts = reply.iter_raw()
        assert [next(parts) for _ in range(3)] == ([b"d", b"a", b"t"] if chat_request["stream"] else [b"{", b'"', b"i"])


def test_faults_can_be_limited_to_the_first_requests(model_server: ModelServer, chat_request: dict[str, Any]) -> None:
    model_server.inject(Fault("500", times=2), Fault("429", times=1))
    with httpx.Client(base_url=model_server.url, timeout=WAIT) as client:
        assert [client.post(CHAT, json=chat_request).status_code for _ in range(4)] == [500, 500, 429, 200]


def test_replies_can_be_delayed_in_total_and_per_token() -> None:
    behavior = Behavior(latency_s=0.2, token_latency_s=60)
    with ModelServer(EchoResponder(), behavior=behavior) as model_server:
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(model_server.url + CHAT, json=CHAT_REQUEST, timeout=httpx.Timeout(20, read=0.05))
        assert httpx.post(model_server.url + CHAT, json=CHAT_REQUEST, timeout=WAIT).status_code == 200
        with httpx.stream(
            "POST", model_server.url + CHAT, json={**CHAT_REQUEST, "stream": True}, timeout=WAIT
        ) as reply:
            assert next(reply.iter_lines()).startswith("data: ")


def test_a_scripted_reply_can_have_a_fault() -> None:
    responder = ScriptResponder(
        [ScriptedReply(content="cut", fault="truncated"), ScriptedReply(content="late", delay_s=0.01), "fine"]
    )
    with ModelServer(responder) as model_server:
        with pytest.raises(httpx.RemoteProtocolError):
            httpx.post(model_server.url + CHAT, json=CHAT_REQUEST, timeout=WAIT)
        assert httpx.post(model_server.url + CHAT, json=CHAT_REQUEST, timeout=WAIT).status_code == 200


def test_a_server_stops_with_pending_requests_and_restarts_on_its_port() -> None:
    model_server = ModelServer(EchoResponder(), behavior=Behavior(faults=(Fault("hang", times=1),))).start()
    with socket.create_connection(("127.0.0.1", model_server.port), timeout=20) as waiting:
        body = json.dumps(CHAT_REQUEST)
        head = (
            f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
        )
        waiting.sendall(f"{head}\r\n\r\n{body}".encode())
        while not model_server.received:
            time.sleep(0.01)  # the request arrives on another thread
        model_server.stop()
        assert b" 200 " not in waiting.recv(1000)
    with pytest.raises(httpx.ConnectError):
        httpx.post(model_server.url + CHAT, json=CHAT_REQUEST)
    with model_server:
        assert httpx.post(model_server.url + CHAT, json=CHAT_REQUEST, timeout=WAIT).status_code == 200


def test_the_command_prints_one_line_and_ends_on_sigterm(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text('first\n{"content": "second"}\n')
    options = ("--script", str(script), "--model", "qwen3:8b", "--fault", "500x1")
    with start_agentgym(tmp_path, "serve-model", *options) as (process, output, _):
        url, _, about = output.readline().partition(" ")
        assert url.startswith("http://127.0.0.1:")
        assert about == f"is {TEST_MODEL_NAME}, not a language model: POST /v1/chat/completions\n"
        replies = [httpx.post(url + CHAT, json={**CHAT_REQUEST, "model": "qwen3:8b"}, timeout=WAIT) for _ in range(3)]
        assert replies[0].status_code == 500
        assert [reply.json()["choices"][0]["message"]["content"] for reply in replies[1:]] == ["first", "second"]
        process.send_signal(signal.SIGTERM)
        assert process.communicate(timeout=30) == ("", "")
        assert process.returncode == 0


def test_faults_and_vanished_clients_leave_a_server_that_ends_in_time(tmp_path: Path) -> None:
    with start_agentgym(tmp_path, "serve-model", "--echo", "--token-latency", "60") as (process, output, _):
        url = output.readline().split()[0]
        for kind, error in (
            ("drop", "RemoteProtocolError"),
            ("truncated", "RemoteProtocolError"),
            ("hang", "ReadTimeout"),
        ):
            with pytest.raises(httpx.HTTPError) as caught:
                body = {**CHAT_REQUEST, "agentgym_test_fault": kind}
                httpx.post(url + CHAT, json=body, timeout=NO_WAIT if kind == "hang" else WAIT)
            assert type(caught.value).__name__ == error
        with httpx.stream("POST", url + CHAT, json={**CHAT_REQUEST, "stream": True}, timeout=WAIT) as reply:
            assert next(reply.iter_lines()).startswith("data: ")
        assert httpx.get(f"{url}/health", timeout=WAIT).is_success
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=30) == ("", "")
        assert process.returncode == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--host", "0.0.0.0"], "give --token"),
        (["--token", "NOT_SET"], "--token must be the name of a variable"),
        (["--fault", "flood"], "is not a kind of fault"),
        (["--script", "missing"], "The script missing cannot be read"),
        (["--latency", "nan"], "not a number of seconds"),
    ],
)
def test_the_command_rejects_invalid_options(tmp_path: Path, options: list[str], message: str) -> None:
    completed = run_agentgym(tmp_path, "serve-model", *options)
    assert (completed.returncode, completed.stdout) == (2, "")
    assert message in completed.stderr
