"""Inferences through a manager: usage, streams, keys, connections and spans."""

from __future__ import annotations

import json
import pickle
import re

import pytest

from runner.config.profile import EndpointConfig, Price
from runner.errors import InferenceFault
from runner.inference.manager import InferenceManager
from runner.tracing import SpanList, Tracer
from runner.types import StreamDelta, Tokens
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


async def test_an_inference_has_a_message_and_its_usage(model_server: RudeModel) -> None:
    price = {"qwen35_9b": Price(prompt_per_mtok=1, completion_per_mtok=5)}
    inference = await infer(inference_manager(model_server.url, price=price))
    assert inference.message == {"role": "assistant", "content": "up"}
    usage = inference.usage
    assert (usage.endpoint, usage.model, usage.ttft_s, usage.warnings) == ("a", "qwen35_9b", None, ())
    assert usage.tokens == Tokens(1000, 200)
    assert usage.cost == pytest.approx(0.002)
    assert (inference.finish_reason, inference.used_tools) == ("stop", False)
    assert usage.tokens_per_s is not None
    plain = await infer(inference_manager(model_server.url, stream=True))  # in place of a stream
    assert (plain.message["content"], plain.usage.ttft_s) == ("up", None)
    with pytest.raises(InferenceFault, match=r"has no model endpoint; set agent\.endpoints, agent\.api_endpoint"):
        await infer(inference_manager())


async def test_a_stream_is_emitted_delta_by_delta() -> None:
    deltas: list[StreamDelta] = []
    with RudeModel(stream_response(streamed_answer(["go ", "up"]))) as model_server:
        inference = await infer(inference_manager(model_server.url, stream=True), on_delta=deltas.append)
        assert model_server.chat_requests[0].json()["stream_options"] == {"include_usage": True}
    assert (inference.message["content"], list(map(describe_delta, deltas))) == ("go up", ["? a", "go ", "up"])
    assert inference.usage.ttft_s is not None
    assert [delta.ttft_s for delta in deltas] == [None, *[inference.usage.ttft_s] * 2]
    assert deltas[0].model == inference.usage.model
    assert inference.usage.tokens == Tokens(1000, 200)


async def test_a_sessions_model_replaces_only_the_profiles_default_model(model_server: RudeModel) -> None:
    endpoints = (
        EndpointConfig(url=model_server.url, kind="openai"),
        EndpointConfig(url=model_server.url, kind="openai", model="own"),
    )
    for endpoint, sent in zip(endpoints, ("other", "own"), strict=True):
        manager = InferenceManager(agent_settings(endpoint), {})
        inference = await infer(manager.session(episode_header(), model="other"))
        assert (model_server.chat_requests[-1].json()["model"], inference.usage.model) == (sent, sent)


async def test_cookies_are_not_sent_back() -> None:
    with RudeModel(
        http_response(200, completion_response("up").partition(b"\r\n\r\n")[2], Set_Cookie="a=1; Path=/")
    ) as model_server:
        manager = inference_manager(model_server.url)
        await infer(manager)
        await infer(manager)
        assert "cookie" not in model_server.chat_requests[1].headers


async def test_a_pickled_manager_contains_no_key(model_server: RudeModel, monkeypatch: pytest.MonkeyPatch) -> None:
    endpoint = EndpointConfig(url=model_server.url, kind="openai", api_key_env="MINE")
    pickled = pickle.dumps(InferenceManager(agent_settings(endpoint), {"MINE": KEY}))
    assert KEY.encode() not in pickled
    monkeypatch.setenv("MINE", KEY)
    unpickled: InferenceManager = pickle.loads(pickled)
    await infer(unpickled)
    assert model_server.chat_requests[0].headers["authorization"] == f"Bearer {KEY}"


async def test_a_key_is_masked_in_all_results() -> None:
    message = {"role": "assistant", "content": f"I know {KEY}", "reasoning": KEY}
    message["tool_calls"] = [{"id": KEY, "function": {"name": "up", "arguments": json.dumps({"k": KEY})}}]  # type: ignore[assignment]
    body = json.dumps({"choices": [{"message": message, "finish_reason": KEY}], "model": KEY}).encode()
    spans, deltas = SpanList(), list[StreamDelta]()
    endpoint = {"kind": "openai", "api_key_env": "MINE"}
    with (
        RudeModel(http_response(500, f'{{"error": "bad key {KEY}"}}'.encode())) as first,
        RudeModel(
            stream_response(streamed_answer(["I know ", KEY[:5], KEY[5:], "!"])), http_response(200, body)
        ) as second,
    ):
        endpoints = [EndpointConfig(url=url, name=url[-30:-20], **endpoint) for url in (first.url, second.url)]  # type: ignore[arg-type]
        manager = InferenceManager(agent_settings(*endpoints, stream=True), {"MINE": KEY})
        session = manager.session(episode_header())
        tracer = Tracer(collectors=(spans,))
        inferences = [await infer(session, on_delta=deltas.append, tracer=tracer) for _ in range(2)]
        assert second.chat_requests[0].headers["authorization"] == f"Bearer {KEY}"
    assert KEY not in repr((inferences, spans.spans, deltas))
    assert "".join(delta.text for delta in deltas) == "I know ***!"
    assert any("bad key ***" in (delta.failure or "") for delta in deltas)
    assert "bad key ***" in inferences[0].usage.warnings[0]


async def test_an_endpoint_whose_key_is_not_set_is_skipped(model_server: RudeModel) -> None:
    endpoints = (
        EndpointConfig(url=model_server.url, name="a", kind="openai", api_key_env="MINE"),
        EndpointConfig(url=model_server.url, name="b"),
    )
    inference = await infer(InferenceManager(agent_settings(*endpoints), {}))
    assert inference.usage.endpoint == "b"
    assert inference.usage.warnings == ("a: the variable MINE for its API key is not set",)


async def test_spans_follow_the_genai_conventions(model_server: RudeModel) -> None:
    spans = SpanList()
    inference = await infer(inference_manager(model_server.url, temperature=0.5), tracer=Tracer(collectors=(spans,)))
    request, parent = spans.spans
    assert (request.name, request.category, request.parent) == ("chat qwen35_9b", "inference", parent.id)
    port = int(model_server.origin.rpartition(":")[2])
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
        "gen_ai.response.model": "served-model",
        "gen_ai.response.finish_reasons": "stop",
        "gen_ai.usage.input_tokens": 1000,
        "gen_ai.usage.output_tokens": 200,
        "gen_ai.usage.cache_read.input_tokens": 0,
        "gen_ai.usage.reasoning.output_tokens": 0,
        "agentgym.endpoint": "a",
        "server.address": "127.0.0.1",
        "server.port": port,
    }
    flows = {(flow.span, flow.phase, flow.id) for flow in spans.flows}
    flow_id = next(id for span, phase, id in flows if span == parent.id)
    assert flows == {
        (parent.id, "start", flow_id),
        (request.id, "end", flow_id),
        (request.id, "start", inference.flow_id),
    }
    failed = SpanList()
    with RudeModel(http_response(503, b"")) as failing:
        await infer(inference_manager(failing.url, model_server.url), tracer=Tracer(collectors=(failed,)))
    requests = [span for span in failed.spans if span.category == "inference"]
    assert [span.attributes.get("error.type") for span in requests] == ["503", None]


async def test_an_empty_answer_is_requested_once_more_in_the_shape_that_was_learned() -> None:
    refusal = http_response(400, b'{"error": "m does not support tools"}')
    with RudeModel(refusal, completion_response(""), completion_response("up")) as server:
        inference = await infer(inference_manager(server.url), tools=TOOLS)
        assert ["tools" in request.json() for request in server.chat_requests] == [True, False, False]
    assert inference.message["content"] == "up"


async def test_the_deltas_of_a_failed_stream_are_withdrawn(model_server: RudeModel) -> None:
    deltas: list[StreamDelta] = []
    with (
        RudeModel(stream_response(sse_event(delta_chunk(content="half an")))) as broken,
        RudeModel(stream_response(streamed_answer(["go ", "up"]))) as working,
    ):
        inference = await infer(inference_manager(broken.url, working.url, stream=True), on_delta=deltas.append)
    failed = "< a: the stream ended in the middle of the reply"
    assert inference.message["content"] == "go up"
    assert list(map(describe_delta, deltas)) == ["? a", "half an", failed, "? b", "go ", "up"]


async def test_a_skipped_endpoint_is_reported_before_the_next_one_answers() -> None:
    deltas: list[StreamDelta] = []
    with RudeModel(completion_response("up")) as unreachable:
        pass
    with RudeModel(completion_response("up")) as working:
        manager = inference_manager(unreachable.url, working.url)
        for _ in range(2):
            await infer(manager, on_delta=deltas.append)
    first, second = list(map(describe_delta, deltas))[:3], list(map(describe_delta, deltas))[3:]
    assert first[0] == "? a"
    assert first[1].startswith("< a: no connection")
    assert re.match(r"a: no connection.*; tried again in [1-9]\d* s", second[0])
    assert [first[2], *second[1:]] == ["? b", "? b"]


async def test_an_encoded_login_is_masked_in_failures() -> None:
    def quote(exchange: PendingRequest) -> None:
        exchange.send(http_response(401, exchange.request.headers["authorization"].encode()))

    with RudeModel(quote, completion_response("up")) as quoting:
        manager = inference_manager(quoting.url.replace("://", "://me:pass%20word@"))
        with pytest.raises(InferenceFault, match=r"HTTP 401: Basic \*\*\*"):
            await infer(manager)


async def test_a_login_together_with_a_key_is_rejected(model_server: RudeModel) -> None:
    endpoint = EndpointConfig(url=model_server.url.replace("://", "://me:password@"), kind="openai", api_key_env="MINE")
    n_requests = len(model_server.requests)
    with pytest.raises(
        InferenceFault, match="its URL has a login and MINE has a key, but only one of them can be sent"
    ):
        await infer(InferenceManager(agent_settings(endpoint), {"MINE": KEY}))
    assert len(model_server.requests) == n_requests


async def test_the_warning_about_a_refused_key_names_its_variable(model_server: RudeModel) -> None:
    with RudeModel(http_response(403, b'{"error": "expired"}')) as refusing:
        endpoints = (
            EndpointConfig(url=refusing.url, name="a", kind="openai", api_key_env="MINE"),
            EndpointConfig(url=model_server.url, name="b", kind="openai"),
        )
        inference = await infer(InferenceManager(agent_settings(*endpoints), {"MINE": KEY}))
    (warning,) = inference.usage.warnings
    assert warning.startswith("a: a model server answers, but the API key is missing")
    assert warning.endswith("HTTP 403: expired; set the variable MINE to a valid key")


async def test_no_wait_exceeds_the_episodes_time_limit() -> None:
    virtual_time = VirtualTime()
    with RudeModel(http_response(429, b"", Retry_After="30")) as busy:
        with pytest.raises(InferenceFault, match="429"):
            await infer(inference_manager(busy.url, virtual_time=virtual_time), time_left_s=20)
        assert (len(busy.chat_requests), virtual_time.sleeps) == (1, [])
