"""Inferences over misbehaving endpoints: fallbacks, retries and accepted deviations."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runner.config.profile import EndpointConfig
from runner.errors import InferenceFault
from runner.inference.manager import InferenceManager
from tests.support.inference import VirtualTime, agent_settings, episode_header, infer, inference_manager
from tests.support.rude_model import (
    FINISH_CHUNK,
    Behavior,
    RudeModel,
    chat_completion,
    completion_response,
    delta_chunk,
    drip,
    finish_without_closing,
    hang,
    http_response,
    sse_event,
    stream_response,
    streamed_answer,
)

pytestmark = pytest.mark.long

FALLBACK_CASES: list[tuple[str, Behavior, str]] = [
    ("busy", http_response(429, b"", Retry_After="7"), "HTTP 429"),
    ("server error", http_response(500, b"oops"), "HTTP 500: oops"),
    ("hang", hang, "no complete answer within"),
    ("slow drip", drip, "no complete answer within"),
    ("truncated stream", stream_response(sse_event(delta_chunk(content="u"))), "ended in the middle"),
    ("invalid JSON", http_response(200, b'{"choices": [{'), "not a JSON object"),
    ("invalid JSON in a stream", stream_response(sse_event(b"{{") + streamed_answer(["up"])), "not a JSON object"),
    ("empty choices", http_response(200, b'{"choices": []}'), "empty"),
    ("empty choice", http_response(200, b'{"choices": [5]}'), "empty"),
    ("10 MB", http_response(200, b'{"choices": "' + b"x" * 10_000_000 + b'"}'), "larger than 4 MiB"),
    ("10 MB stream", stream_response(streamed_answer(["x" * 1_000_000] * 10)), "longer than 2 MiB"),
    ("10 MB error", http_response(500, b"x" * 10_000_000), "HTTP 500: xxx"),
    ("compressed error", http_response(503, gzip.compress(b'{"error": "oops"}'), Content_Encoding="gzip"), "503: oops"),
    ("error in another compression", http_response(503, b"?", Content_Encoding="br"), "HTTP 503: the reply is compres"),
    ("compressed bomb", http_response(503, gzip.compress(b"x" * 50_000_000), Content_Encoding="gzip"), "503: xxx"),
    ("damaged compression", http_response(503, b"oops", Content_Encoding="gzip"), "HTTP 503: the reply is compr"),
    ("cut error", lambda exchange: exchange.send(http_response(503, b"oops!")[:-1]), "HTTP 503: oops"),
    (
        "wrong content type",
        http_response(200, b"<html>Sign in</html>", "text/html"),
        "not a JSON object (media type text/html",
    ),
    ("error as a reason to finish", http_response(200, b'{"choices": [{"finish_reason": "error"}]}'), "with an error"),
    ("error field in JSON", stream_response(b"\nerror: overloaded\n\n", "application/json"), "answer: overloaded"),
    ("error field", stream_response(b'error: {"code": 500, "message": "overloaded"}\n\n'), "answer: overloaded"),
    ("JSON error as a stream", stream_response(b'{"error": {"message": "overloaded"}}'), "answer: overloaded"),
    ("error in a stream", stream_response(sse_event({"error": {"message": "overloaded"}})), "overloaded"),
    ("expired key", http_response(401, b'{"error": {"message": "expired"}}'), "HTTP 401: expired"),
    ("unknown model", http_response(404, b'{"error": "model not found"}'), "HTTP 404: model not found"),
]


@pytest.fixture(scope="module")
def fallback_server() -> Iterator[RudeModel]:
    with RudeModel(completion_response("up")) as server:
        yield server


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize(
    ("behavior", "cause"), [case[1:] for case in FALLBACK_CASES], ids=[case[0] for case in FALLBACK_CASES]
)
async def test_the_next_endpoint_answers_and_a_warning_has_the_cause(
    behavior: Behavior, cause: str, stream: bool, fallback_server: RudeModel
) -> None:
    with RudeModel(behavior) as broken:
        timeout_sec = 1.0 if behavior in (hang, drip) else 20.0
        session = inference_manager(broken.url, fallback_server.url, stream=stream, timeout_sec=timeout_sec).session(
            episode_header()
        )
        inference = await infer(session)
        second = await infer(session)
    assert (inference.message["content"], inference.usage.endpoint, second.usage.endpoint) == ("up", "b", "b")
    (warning,) = inference.usage.warnings
    assert warning.startswith("a: ")
    assert cause in warning
    assert second.usage.warnings[0].startswith("a: ")


async def test_a_hanging_endpoint_is_skipped_in_later_steps(fallback_server: RudeModel) -> None:
    with RudeModel(hang) as hanging:
        session = inference_manager(hanging.url, fallback_server.url, timeout_sec=0.2).session(episode_header())
        warnings = [(await infer(session)).usage.warnings[0] for _ in range(3)]
        assert len(hanging.chat_requests) == 1
    assert "no complete answer within 0.2 s (agent.timeout_sec)" in warnings[0]
    assert re.match(r"a: no complete answer.*; tried again in 30 s", warnings[2])


@pytest.mark.parametrize("status", [400, 413, 422])
async def test_a_request_that_one_endpoint_refuses_is_sent_to_the_next_one(
    status: int, fallback_server: RudeModel
) -> None:
    virtual_time = VirtualTime()
    with RudeModel(http_response(status, b'{"error": {"message": "context of 9 tokens"}}')) as refusing:
        usage = (await infer(inference_manager(refusing.url, fallback_server.url))).usage
        assert (usage.endpoint, usage.warnings) == ("b", (f"a: HTTP {status}: context of 9 tokens",))
        assert len(refusing.chat_requests) == 1
        with RudeModel(refusing.script[0]) as other, pytest.raises(InferenceFault) as raised:
            await infer(inference_manager(refusing.url, other.url, virtual_time=virtual_time))
        assert (len(refusing.chat_requests), len(other.chat_requests), virtual_time.sleeps) == (2, 1, [])
        assert "; the other endpoints refused it, too. Check agent.model" in str(raised.value)
        with pytest.raises(InferenceFault) as raised:
            await infer(inference_manager(refusing.url, virtual_time=virtual_time))
        assert "too" not in str(raised.value)


async def test_retry_after_is_waited_for_if_there_is_no_other_endpoint() -> None:
    virtual_time = VirtualTime()
    script = (
        http_response(429, b"", Retry_After="7"),
        http_response(503, b"", Retry_After="Wed, 01 Jan 2025 12:00:30 GMT"),
        completion_response("up"),
    )
    with RudeModel(*script) as busy:
        inference = await infer(inference_manager(busy.url, virtual_time=virtual_time))
    assert (inference.message["content"], virtual_time.sleeps) == ("up", [7.0, 23.0])
    assert "HTTP 503" in inference.usage.warnings[0]


async def test_retries_are_bounded_with_growing_pauses() -> None:
    virtual_time = VirtualTime()
    with RudeModel(http_response(500, b"oops")) as failing:
        with pytest.raises(InferenceFault, match=r"no model answered; a .*HTTP 500: oops"):
            await infer(inference_manager(failing.url, virtual_time=virtual_time))
        assert len(failing.chat_requests) == 4  # the first one is repeated at once
    assert virtual_time.sleeps == [0.5, 1.0]


async def test_a_server_that_is_down_gets_a_request_in_other_shapes_only_once() -> None:
    virtual_time = VirtualTime()
    with RudeModel(http_response(500, b"oops")) as failing:
        manager = inference_manager(failing.url, virtual_time=virtual_time, temperature=0.5, max_tokens=9)
        with pytest.raises(InferenceFault, match="HTTP 500: oops"):
            await infer(manager)
        shapes = [sorted(request.json().keys() - {"model", "messages"}) for request in failing.chat_requests]
    all, no_limit, no_temperature = ["max_tokens", "temperature"], ["temperature"], ["max_tokens"]
    assert shapes == [all, all, no_temperature, no_limit, [], all, all]
    assert virtual_time.sleeps == [0.5, 1.0]


async def test_the_error_names_every_endpoint_when_none_answers() -> None:
    with RudeModel(http_response(500, b"oops")) as failing, RudeModel(http_response(404, b"gone")) as missing:
        manager = inference_manager(
            "http://user:secret@127.0.0.1:9/v1", failing.url, missing.url, virtual_time=VirtualTime()
        )
        with pytest.raises(InferenceFault) as raised:
            await infer(manager)
        assert len(missing.chat_requests) == 1
    message = str(raised.value)
    for part in ("a (http://***@127.0.0.1:9/v1, ", "no connection", "oops", "gone", "agentgym-runner preflight"):
        assert part in message
    assert "secret" not in message


async def test_a_recovered_endpoint_is_used_again() -> None:
    virtual_time = VirtualTime()
    with (
        RudeModel(*[http_response(500, b"")] * 6, completion_response("home")) as main,
        RudeModel(completion_response("away")) as other,
    ):
        session = inference_manager(main.url, other.url, virtual_time=virtual_time).session(episode_header())
        contents = [(await infer(session)).message["content"] for _ in range(4)]
        virtual_time.elapsed_s += 1
        assert [*contents, (await infer(session)).message["content"]] == ["away"] * 4 + ["home"]


async def test_a_complete_stream_on_an_open_connection_is_accepted() -> None:
    with RudeModel(finish_without_closing) as model:
        inference = await infer(inference_manager(model.url, stream=True, timeout_sec=10))
    assert (inference.message["content"], inference.usage.warnings) == ("up", ())


@pytest.mark.parametrize(
    "start", [b"", b"\r\n\n", b"\xef\xbb\xbf", b": wait:\nfor it\n\n", b"id: 1\n", b"retry: 9\n\n"]
)
@pytest.mark.parametrize("type", ["text/event-stream", "text/plain", "application/json"])
async def test_a_stream_with_any_content_type_and_start_is_accepted(type: str, start: bytes) -> None:
    with RudeModel(stream_response(start + streamed_answer(["go ", "up"]), type)) as model:
        assert (await infer(inference_manager(model.url, stream=True))).message["content"] == "go up"


@pytest.mark.parametrize("start", [b"", b"\n\n", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("type", ["text/event-stream", "application/json"])
async def test_a_json_body_with_any_content_type_and_start_is_accepted(type: str, start: bytes) -> None:
    body = json.dumps(chat_completion({"content": "up"}, None), indent=1).encode()
    with RudeModel(http_response(200, start + body, type)) as model:
        assert (await infer(inference_manager(model.url, stream=True))).message["content"] == "up"


async def test_a_stream_without_done_is_accepted() -> None:
    with RudeModel(stream_response(sse_event(delta_chunk(content="up")) + sse_event(FINISH_CHUNK))) as model:
        assert (await infer(inference_manager(model.url, stream=True))).message["content"] == "up"


async def test_a_cancelled_inference_does_not_count_against_the_endpoint() -> None:
    with RudeModel(hang, completion_response("up")) as model:
        session = inference_manager(model.url).session(episode_header())
        task = asyncio.create_task(infer(session))
        while not model.chat_requests:  # noqa: ASYNC110 - the server runs on another thread
            await asyncio.sleep(0.005)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await infer(session)).usage.warnings == ()


async def test_the_episodes_time_limit_ends_an_inference_without_counting_against_the_endpoint() -> None:
    with RudeModel(hang, completion_response("up")) as model:
        session = inference_manager(model.url).session(episode_header())
        with pytest.raises(InferenceFault, match=r"no complete answer within 0\.\d+ s \(the rest of episode\.max"):
            await infer(session, time_left_s=0.05)
        assert (await infer(session)).message["content"] == "up"


@pytest.mark.parametrize(
    ("limit", "cause"), [("timeout_sec", "no complete answer"), ("first_token_timeout_sec", "no first token")]
)
async def test_a_server_that_hangs_during_detection_is_skipped(
    limit: str, cause: str, fallback_server: RudeModel
) -> None:
    with RudeModel(hang, routes={"/health": hang}) as hanging:
        endpoints = (
            EndpointConfig(url=hanging.url, name="a"),
            EndpointConfig(url=fallback_server.url, name="b", kind="openai"),
        )
        inference = await infer(InferenceManager(agent_settings(*endpoints, **{limit: 0.2}), {}))
    assert (inference.usage.endpoint, inference.usage.warnings) == ("b", (f"a: {cause} within 0.2 s (agent.{limit})",))


HEADS = st.sampled_from(
    [b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 500 No\r\n", b"HTTP/1.1 429 Wait\r\nRetry-After: 0\r\n", b"HTTP/1.1 404 No\r\n"]
)
TYPES = st.sampled_from(
    [b"", b"Content-Type: text/event-stream\r\n", b"Content-Type: application/json\r\n", b"X: \xff\r\n"]
)
BODIES = st.sampled_from([b"data: {}\n\n", b"data: [DONE]\n\n", b'{"choices": [5]}', b'{"error": []}']) | st.binary(
    max_size=30
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(head=HEADS | st.binary(max_size=30), type=TYPES, body=BODIES)
def test_any_response_bytes_lead_to_the_fallback(
    head: bytes, type: bytes, body: bytes, fallback_server: RudeModel
) -> None:
    with RudeModel(head + type + b"\r\n" + body) as broken:
        inference = asyncio.run(infer(inference_manager(broken.url, fallback_server.url, stream=True, timeout_sec=2)))
    assert inference.message["content"] == "up"
