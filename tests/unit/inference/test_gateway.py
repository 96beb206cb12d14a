"""Inference through a real TensorZero gateway."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from runner.config.profile import EndpointConfig
from runner.inference.manager import InferenceManager
from runner.types import Message, StreamDelta, Tokens
from runner.types.sequences import TokenSequence
from tests.support.inference import CHAT, TOOLS, agent_settings, episode_header, infer
from tests.support.rude_model import (
    PendingRequest,
    RudeModel,
    chat_completion,
    completion_response,
    http_response,
    sse_event,
    stream_response,
    streamed_answer,
)
from tests.support.tensorzero_gateway import Gateway

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def provider() -> Iterator[RudeModel]:
    with RudeModel(completion_response("up")) as server:
        yield server


@pytest.fixture(scope="module")
def gateway(provider: RudeModel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    folder = tmp_path_factory.mktemp("gateway")
    with Gateway(folder, provider.url.removesuffix("/chat/completions"), ("qwen35_9b", "other")) as server:
        yield server


@pytest.fixture(autouse=True)
def _clear_requests(provider: RudeModel) -> None:
    provider.requests.clear()


def manager_of(gateway: Gateway, **agent: object) -> InferenceManager:
    """Return a manager with the default profile's URL path, which is not the gateway's, and plain model name."""
    return InferenceManager(agent_settings(mode="api", api_endpoint=gateway.url, **agent), {})


async def test_the_default_profile_works_and_keeps_the_gateways_episode_id(
    gateway: Gateway, provider: RudeModel
) -> None:
    provider.script = [completion_response("up")]
    manager = manager_of(gateway, temperature=0.5, max_tokens=100)
    session = manager.session(episode_header())
    first, second = await infer(session), await infer(session)
    assert (first.message, first.usage.endpoint) == ({"role": "assistant", "content": "up"}, "gateway")
    assert second.usage.tokens == Tokens(1000, 200)
    assert manager.endpoints[0].kind == "tensorzero"
    assert len(session._gateway_ids) == 1  # the gateway validates the id in the second request
    assert [request.json()["model"] for request in provider.chat_requests] == ["qwen35_9b"] * 2


async def test_streams_tools_and_reasoning_pass_through(gateway: Gateway, provider: RudeModel) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "up", "arguments": "{}"}}
    reply = {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [call]}
    provider.script = [
        stream_response(streamed_answer(["go ", "up"])),
        http_response(200, json.dumps(chat_completion(reply, "tool_calls")).encode()),
    ]
    deltas: list[StreamDelta] = []
    streamed = await infer(manager_of(gateway, stream=True), on_delta=deltas.append)
    assert (streamed.message["content"], streamed.usage.tokens, "".join(delta.text for delta in deltas)) == (
        "go up",
        Tokens(1000, 200),
        "go up",
    )
    called = await infer(manager_of(gateway), tools=TOOLS)
    assert called.used_tools
    assert called.message["tool_calls"] == [call]
    assert called.message["reasoning_content"] == "hm"
    result: Message = {"role": "tool", "tool_call_id": "c1", "content": "at 1"}
    session = manager_of(gateway).session(episode_header())
    await session.infer([*CHAT, called.message, result], tools=TOOLS, time_left_s=20)
    assert [message["role"] for message in provider.chat_requests[-1].json()["messages"]] == [
        "user",
        "assistant",
        "tool",
    ]


async def test_a_health_check_runs_no_model(gateway: Gateway, provider: RudeModel) -> None:
    (known,) = await manager_of(gateway).check()
    (unknown,) = await manager_of(gateway, model="unheard_of").check()
    assert (known.status, unknown.status) == ("up", "misconfigured")
    assert unknown.cause is not None
    assert "unheard_of" in unknown.cause
    assert provider.chat_requests == []


async def test_a_model_without_tools_is_detected_through_the_gateway(gateway: Gateway, provider: RudeModel) -> None:
    def refuse_tools(exchange: PendingRequest) -> None:
        refusal = http_response(400, b'{"error": {"message": "m does not support tools"}}')
        exchange.send(refusal if "tools" in exchange.request.json() else completion_response("up"))

    provider.script = [refuse_tools]
    inference = await infer(manager_of(gateway), tools=TOOLS)
    assert (inference.message["content"], inference.used_tools) == ("up", False)


def vllm_stream() -> bytes:
    """Return a stream of vLLM with a thought and a tool call; a parser keeps the text of the first ids back."""
    call = {"id": "c1", "type": "function", "index": 0, "function": {"name": "up", "arguments": ""}}
    deltas = [{"content": ""}, {"reasoning_content": "hm"}, {"tool_calls": [call]}, {}]
    first = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}], "prompt_token_ids": [1, 2]}
    usage = {"choices": [], "usage": {"prompt_tokens": 2, "completion_tokens": 4, "total_tokens": 6}}
    chunks: list[dict[str, Any]] = [first]
    for id, delta in enumerate(deltas, 7):
        choice = {"index": 0, "delta": delta, "logprobs": {"content": [{"token": "a", "logprob": -0.5}]}}
        chunks.append({"choices": [choice | {"token_ids": [id], "finish_reason": None if delta else "tool_calls"}]})
    common = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    return b"".join(sse_event(common | chunk) for chunk in (*chunks, usage)) + sse_event(b"[DONE]")


def vllm_reply() -> bytes:
    logprobs = {"content": [{"token": "a", "logprob": -0.5}] * 4}
    message = {"role": "assistant", "content": "up"}
    choice = {"index": 0, "message": message, "logprobs": logprobs, "finish_reason": "stop", "token_ids": [7, 8, 9, 10]}
    usage = {"prompt_tokens": 2, "completion_tokens": 4, "total_tokens": 6}
    reply = {"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": usage}
    return json.dumps(reply | {"prompt_token_ids": [1, 2]}).encode()


async def tokens_through(gateway: Gateway, *, stream: bool) -> TokenSequence:
    """Return the tokens of one answer of the model."""
    endpoint = EndpointConfig(url=gateway.url, name="g", kind="tensorzero", token_ids=True)
    manager = InferenceManager(agent_settings(endpoint, stream=stream, model="qwen35_9b"), {})
    found: list[TokenSequence] = []
    await manager.session(episode_header()).infer(CHAT, tools=TOOLS, time_left_s=20, on_tokens=found.append)
    (sequence,) = found
    return sequence


@pytest.mark.parametrize("stream", [False, True])
async def test_token_ids_of_the_provider_pass_through(gateway: Gateway, provider: RudeModel, stream: bool) -> None:
    provider.script = [stream_response(vllm_stream()) if stream else http_response(200, vllm_reply())]
    sequence = await tokens_through(gateway, stream=stream)
    assert (sequence.prompt_ids, sequence.completion_ids) == ([1, 2], [7, 8, 9, 10])
    assert (sequence.logprobs, sequence.n_completion, sequence.problems) == ([-0.5] * 4, 4, ())
    (request,) = (request.json() for request in provider.chat_requests)
    assert (request["return_token_ids"], request["logprobs"]) == (True, True)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_provider_that_refuses_token_ids_is_asked_without_them(
    gateway: Gateway, provider: RudeModel, stream: bool
) -> None:
    refusal = http_response(400, b'{"error": {"message": "Unrecognized request argument: return_token_ids"}}')
    answer = stream_response(streamed_answer(["up"])) if stream else completion_response("up")
    provider.script = [lambda each: each.send(refusal if "return_token_ids" in each.request.json() else answer)]
    assert (await tokens_through(gateway, stream=stream)).problems == ("no_ids", "no_logprobs", "no_prompt_ids")
    # the gateway turns the refusal into a server error, which is repeated once before it counts
    assert ["return_token_ids" in request.json() for request in provider.chat_requests] == [True, True, False]
