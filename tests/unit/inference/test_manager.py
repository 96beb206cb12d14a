from __future__ import annotations

import asyncio
import json
import logging
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from runner.config.profile import EndpointConfig, FeedbackMetrics, Price
from runner.errors import InferenceFault
from runner.inference import InferenceManager
from runner.tracing import SpanList, Tracer
from runner.types import Span, StreamDelta, Tokens
from tests.support.inference import (
    TOOLS,
    VirtualTime,
    agent_settings,
    describe_delta,
    episode_header,
    infer,
    inference_manager,
)
from tests.support.rude_model import (
    Behavior,
    PendingRequest,
    RudeModel,
    completion_response,
    delta_chunk,
    http_response,
    sse_event,
    stream_response,
    streamed_answer,
)

KEY = "sk-0123456789abcdef"
GATEWAY_ID = "01a1febd-adab-7631-81fc-0d45a7fed731"
TENSORZERO = http_response(200, b'{"gateway": "ok", "clickhouse": "ok"}')


async def test_an_answer_and_what_it_took(model: RudeModel) -> None:
    price = {"qwen35_9b": Price(prompt_per_mtok=1, completion_per_mtok=5)}
    inference = await infer(inference_manager(model.url, price=price))
    assert inference.message == {"role": "assistant", "content": "up"}
    usage = inference.usage
    assert (usage.endpoint, usage.model, usage.ttft_s, usage.warnings) == ("a", "qwen35_9b", None, ())
    assert usage.tokens == Tokens(1000, 200)
    assert usage.cost == pytest.approx(0.002)
    assert (inference.finish_reason, inference.used_tools) == ("stop", False)
    assert usage.tokens_per_s is not None


async def test_a_stream_is_told_as_it_comes() -> None:
    told: list[StreamDelta] = []
    with RudeModel(stream_response(streamed_answer(["go ", "up"]))) as model:
        inference = await infer(inference_manager(model.url, stream=True), on_delta=told.append)
        assert model.chat_requests[0].json()["stream_options"] == {"include_usage": True}
    assert (inference.message["content"], list(map(describe_delta, told))) == ("go up", ["? a", "go ", "up"])
    assert inference.usage.ttft_s is not None
    assert [piece.ttft_s for piece in told] == [None, *[inference.usage.ttft_s] * 2]
    assert told[0].model == inference.usage.model
    assert inference.usage.tokens == Tokens(1000, 200)


async def test_plain_json_in_answer_to_a_request_for_a_stream_is_accepted(model: RudeModel) -> None:
    inference = await infer(inference_manager(model.url, stream=True))
    assert (inference.message["content"], inference.usage.ttft_s) == ("up", None)


async def test_the_model_of_a_session_takes_the_place_of_the_profiles_alone(model: RudeModel) -> None:
    endpoints = (
        EndpointConfig(url=model.url, kind="openai"),
        EndpointConfig(url=model.url, kind="openai", model="own"),
    )
    for endpoint, sent in zip(endpoints, ("other", "own"), strict=True):
        manager = InferenceManager(agent_settings(endpoint), {})
        inference = await infer(manager.session(episode_header(), model="other"))
        assert (model.chat_requests[-1].json()["model"], inference.usage.model) == (sent, sent)


async def test_connections_are_kept_and_closed_with_their_loop(model: RudeModel) -> None:
    manager = inference_manager(model.url)

    def play() -> None:
        async def both() -> None:
            await infer(manager)
            await infer(manager)

        asyncio.run(both())

    threads = [threading.Thread(target=play) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        await asyncio.to_thread(thread.join, 20)
    assert len(model.chat_requests) == 8  # and a connection left open would be a warning, which fails the test


async def test_cookies_are_not_kept() -> None:
    with RudeModel(http_response(200, completion_response("up").partition(b"\r\n\r\n")[2], Set_Cookie="a=1; Path=/")) as model:
        manager = inference_manager(model.url)
        await infer(manager)
        await infer(manager)
        assert "cookie" not in model.chat_requests[1].headers


async def test_a_pickled_manager_holds_no_key(model: RudeModel, monkeypatch: pytest.MonkeyPatch) -> None:
    endpoint = EndpointConfig(url=model.url, kind="openai", api_key_env="MINE")
    travelling = pickle.dumps(InferenceManager(agent_settings(endpoint), {"MINE": KEY}))
    assert KEY.encode() not in travelling
    monkeypatch.setenv("MINE", KEY)
    arrived: InferenceManager = pickle.loads(travelling)
    await infer(arrived)
    assert model.chat_requests[0].headers["authorization"] == f"Bearer {KEY}"


async def test_a_key_is_in_nothing_that_comes_back() -> None:
    said = {"role": "assistant", "content": f"I know {KEY}", "reasoning": KEY}
    said["tool_calls"] = [{"id": KEY, "function": {"name": "up", "arguments": json.dumps({"k": KEY})}}]  # type: ignore[assignment]
    body = json.dumps({"choices": [{"message": said, "finish_reason": KEY}], "model": KEY}).encode()
    spans, told = SpanList(), list[StreamDelta]()
    endpoint = {"kind": "openai", "api_key_env": "MINE"}
    with (
        RudeModel(http_response(500, f'{{"error": "bad key {KEY}"}}'.encode())) as failing,
        RudeModel(stream_response(streamed_answer(["I know ", KEY[:5], KEY[5:], "!"])), http_response(200, body)) as quoting,
    ):
        endpoints = [EndpointConfig(url=url, name=url[-30:-20], **endpoint) for url in (failing.url, quoting.url)]  # type: ignore[arg-type]
        manager = InferenceManager(agent_settings(*endpoints, stream=True), {"MINE": KEY})
        session = manager.session(episode_header())
        tracer = Tracer(collectors=(spans,))
        inferences = [await infer(session, on_delta=told.append, tracer=tracer) for _ in range(2)]
        assert quoting.chat_requests[0].headers["authorization"] == f"Bearer {KEY}"
    assert KEY not in repr((inferences, spans.spans, told))
    assert "".join(piece.text for piece in told) == "I know ***!"
    assert any("bad key ***" in (piece.failure or "") for piece in told)
    assert "bad key ***" in inferences[0].usage.warnings[0]


async def test_a_key_that_is_not_set_is_never_guessed(model: RudeModel) -> None:
    endpoints = (
        EndpointConfig(url=model.url, name="a", kind="openai", api_key_env="MINE"),
        EndpointConfig(url=model.url, name="b"),
    )
    inference = await infer(InferenceManager(agent_settings(*endpoints), {}))
    assert inference.usage.endpoint == "b"
    assert inference.usage.warnings == ("a: the variable MINE for its API key is not set",)


async def test_spans_are_named_after_the_conventions(model: RudeModel) -> None:
    spans = SpanList()
    inference = await infer(inference_manager(model.url, temperature=0.5), tracer=Tracer(collectors=(spans,)))
    request, outer = spans.spans
    assert (request.name, request.category, request.parent) == ("chat qwen35_9b", "inference", outer.id)
    port = int(model.origin.rpartition(":")[2])
    rate = request.attributes.pop("agentgym.tokens_per_s")
    assert rate == inference.usage.tokens_per_s
    assert request.attributes == {
        "semantic": "inference",
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "qwen35_9b",
        "gen_ai.request.stream": False,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.conversation.id": "episode-1",
        "gen_ai.response.model": "said-model",
        "gen_ai.response.finish_reasons": "stop",
        "gen_ai.usage.input_tokens": 1000,
        "gen_ai.usage.output_tokens": 200,
        "gen_ai.usage.cache_read.input_tokens": 0,
        "gen_ai.usage.reasoning.output_tokens": 0,
        "agentgym.endpoint": "a",
        "server.address": "127.0.0.1",
        "server.port": port,
    }
    arrows = {(flow.span, flow.phase, flow.id) for flow in spans.flows}
    leaving = next(id for span, phase, id in arrows if span == outer.id)
    assert arrows == {
        (outer.id, "start", leaving),
        (request.id, "end", leaving),
        (request.id, "start", inference.flow_id),
    }


async def test_a_failed_request_is_a_span_with_its_error(model: RudeModel) -> None:
    spans = SpanList()
    with RudeModel(http_response(503, b"")) as failing:
        await infer(inference_manager(failing.url, model.url), tracer=Tracer(collectors=(spans,)))
    requests: list[Span] = [span for span in spans.spans if span.category == "inference"]
    assert [span.attributes.get("error.type") for span in requests] == ["503", None]


async def test_a_model_without_tools_is_asked_without_them_from_then_on(model: RudeModel) -> None:
    with RudeModel(http_response(400, b'{"error": "m does not support tools"}'), completion_response("up")) as toolless:
        manager = inference_manager(toolless.url)
        session = manager.session(episode_header())
        assert manager.supports_tools(session)
        first, second = await infer(session, tools=TOOLS), await infer(session, tools=TOOLS)
        assert [("tools" in request.json()) for request in toolless.chat_requests] == [True, False, False]
    assert not manager.supports_tools(session)
    assert (first.used_tools, second.used_tools) == (False, False)
    assert "retried without tools" in first.usage.warnings[0]
    assert second.usage.warnings == ()
    assert (await infer(inference_manager(model.url), tools=TOOLS)).used_tools


async def test_the_half_of_a_stream_that_failed_is_taken_back(model: RudeModel) -> None:
    told: list[StreamDelta] = []
    with (
        RudeModel(stream_response(sse_event(delta_chunk(content="half an")))) as broken,
        RudeModel(stream_response(streamed_answer(["go ", "up"]))) as whole,
    ):
        inference = await infer(inference_manager(broken.url, whole.url, stream=True), on_delta=told.append)
    failed = "< a: the stream ended in the middle of the reply"
    assert inference.message["content"] == "go up"
    assert list(map(describe_delta, told)) == ["? a", "half an", failed, "? b", "go ", "up"]


async def test_that_an_endpoint_is_passed_over_is_told_before_another_one_answers() -> None:
    told: list[StreamDelta] = []
    with RudeModel(completion_response("up")) as gone:
        pass
    with RudeModel(completion_response("up")) as whole:
        manager = inference_manager(gone.url, whole.url)
        for _ in range(2):
            await infer(manager, on_delta=told.append)
    first, second = list(map(describe_delta, told))[:3], list(map(describe_delta, told))[3:]
    assert first[0] == "? a"
    assert first[1].startswith("< a: no connection")
    assert second[0].startswith("a: retry in ")
    assert [first[2], *second[1:]] == ["? b", "? b"]


async def test_a_login_is_in_no_failure_in_the_form_it_is_sent() -> None:
    def quote(exchange: PendingRequest) -> None:
        exchange.send(http_response(401, exchange.request.headers["authorization"].encode()))

    with RudeModel(quote, completion_response("up")) as quoting:
        manager = inference_manager(quoting.url.replace("://", "://me:pass%20word@"))
        with pytest.raises(InferenceFault, match=r"HTTP 401: Basic \*\*\*"):
            await infer(manager)


async def test_a_login_and_a_key_are_not_both_taken(model: RudeModel) -> None:
    endpoint = EndpointConfig(url=model.url.replace("://", "://me:password@"), kind="openai", api_key_env="MINE")
    asked = len(model.requests)
    with pytest.raises(
        InferenceFault, match="its URL has a login and MINE has a key, but only one of them can be sent"
    ):
        await infer(InferenceManager(agent_settings(endpoint), {"MINE": KEY}))
    assert len(model.requests) == asked


async def test_a_profile_without_endpoints_says_so() -> None:
    with pytest.raises(InferenceFault, match=r"has no model endpoint; set agent\.api_endpoint"):
        await infer(inference_manager())


async def test_no_endpoint_is_waited_for_beyond_the_episode() -> None:
    virtual_time = VirtualTime()
    with RudeModel(http_response(429, b"", Retry_After="30")) as busy:
        with pytest.raises(InferenceFault, match="429"):
            await infer(inference_manager(busy.url, virtual_time=virtual_time), time_left_s=20)
        assert (len(busy.chat_requests), virtual_time.sleeps) == (1, [])


def test_nothing_heavy_is_loaded_before_it_is_needed() -> None:
    loaded = "import sys, runner.inference; print(*{'httpx', 'starlette', 'hydra'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == ""
