"""Token ids and log-probabilities of model calls, over real HTTP, and from hostile replies."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.config.profile import EndpointConfig
from runner.errors import InferenceFault
from runner.inference.manager import InferenceManager
from runner.inference.token_capture import TokenCapture
from runner.serve.mock_llm.app import ScriptResponder
from runner.serve.mock_llm.completion import token_id, token_logprob
from runner.serve.mock_llm.script import Fault, ScriptedCall, ScriptedReply
from runner.types.sequences import MAX_SEQUENCE_IDS, MAX_TOKEN_ID, Label, TokenSequence
from tests.support.examples import examples
from tests.support.inference import CHAT, TOOLS, VirtualTime, agent_settings, episode_header
from tests.support.json_values import JSON_VALUES
from tests.support.model_server import ModelServer
from tests.support.rude_model import RudeModel, http_response, sse_event, stream_response

REPLY = ScriptedReply(content="go through the door", reasoning_content="doors open", tool_calls=(ScriptedCall("up"),))
TOKENS = ["door", "s op", "en", "go t", "hrou", "gh t", "he d", "oor", "up", "{}"]


async def captured(
    *urls: str,
    stream: bool = False,
    label: Label = "agent",
    token_ids: bool = True,
    model: str = "m",
    fails: bool = False,
) -> list[TokenSequence]:
    """Return the sequences of one inference over these endpoints."""
    endpoints = [
        EndpointConfig(url=url, name=f"e{n}", kind="openai", token_ids=token_ids) for n, url in enumerate(urls)
    ]
    chosen = agent_settings(*endpoints, stream=stream, model=model)
    sequences: list[TokenSequence] = []
    session = InferenceManager(chosen, {}, VirtualTime().timing()).session(episode_header())
    try:
        await session.infer(CHAT, tools=TOOLS, time_left_s=60, on_tokens=sequences.append, label=label)
    except InferenceFault:
        assert fails
    return sequences


@pytest.mark.parametrize(("stream", "label"), [(False, "agent"), (True, "auxiliary")])
async def test_ids_and_log_probabilities_are_those_that_the_endpoint_sent(stream: bool, label: Label) -> None:
    with ModelServer(ScriptResponder([REPLY]), models=["m"]) as server:
        (sequence,) = await captured(server.url, stream=stream, label=label)
        request = json.loads(server.received[-1].body)
    assert (request["return_token_ids"], request["logprobs"]) == (True, True)
    assert (sequence.label, sequence.endpoint, sequence.model, sequence.problems) == (label, "e0", "m", ())
    assert sequence.completion_ids == list(map(token_id, TOKENS))
    assert sequence.logprobs == list(map(token_logprob, TOKENS))
    assert sequence.n_completion == len(TOKENS)
    assert sequence.prompt_ids[:3] == [token_id(part) for part in ("coun", "t to", " 3")] or sequence.prompt_ids
    assert sequence.loss_mask == [0] * len(sequence.prompt_ids) + [int(label == "agent")] * len(TOKENS)


async def test_nothing_is_asked_for_without_the_key_of_the_profile() -> None:
    with ModelServer(ScriptResponder([REPLY]), models=["m"]) as server:
        assert await captured(server.url, token_ids=False) == []
        assert not {"return_token_ids", "logprobs"} & json.loads(server.received[-1].body).keys()


async def test_an_answer_without_ids_says_so() -> None:
    body = {"choices": [{"message": {"role": "assistant", "content": "up"}}], "usage": {"completion_tokens": 1}}
    with RudeModel(http_response(200, json.dumps(body).encode())) as server:
        (sequence,) = await captured(server.url)
    assert sequence.problems == ("no_ids", "no_logprobs", "no_prompt_ids")
    assert (sequence.completion_ids, sequence.is_trained, sequence.loss_mask) == ([], False, [])


async def test_an_endpoint_that_refuses_the_fields_is_asked_without_them_from_then_on() -> None:
    refusal = http_response(400, b'{"error": {"message": "Unrecognized request argument: return_token_ids"}}')
    answer = http_response(200, b'{"choices": [{"message": {"content": "up"}}]}')
    with RudeModel(refusal, answer) as server:
        (sequence,) = await captured(server.url)
        first, second = (request.json() for request in server.chat_requests)
    assert "return_token_ids" in first and "return_token_ids" not in second
    assert sequence.problems == ("no_ids", "no_logprobs", "no_prompt_ids")


def event(ids: list[int], text: str = "a", **fields: Any) -> bytes:  # noqa: ANN401
    logprobs = {"content": [{"logprob": -0.5} for _ in ids]}
    choice = {"index": 0, "delta": {"content": text}, "token_ids": ids, "logprobs": logprobs}
    return sse_event({"choices": [choice], **fields})


USAGE = sse_event({"choices": [], "usage": {"prompt_tokens": 2, "completion_tokens": 3}})
DONE = sse_event(b"[DONE]")


async def test_ids_in_the_shape_of_vllm() -> None:
    """The prompt's ids come beside the choices, those of the completion, with the end of text, in the choice.

    Source: https://github.com/vllm-project/vllm, ``tests/entrypoints/openai/test_return_token_ids.py`` (chat
    completions with tools, and streamed ones) and ``vllm/entrypoints/openai/chat_completion/protocol.py``.
    """
    texts = ("up", "<|im_end|>")
    logprobs: dict[str, Any] = {"content": [{"token": text, "logprob": -0.25, "bytes": None} for text in texts]}
    message: dict[str, Any] = {"role": "assistant", "content": "up", "refusal": None, "tool_calls": []}
    choice = {"index": 0, "message": message, "logprobs": logprobs, "finish_reason": "stop", "stop_reason": None}
    usage = {"prompt_tokens": 3, "total_tokens": 5, "completion_tokens": 2, "prompt_tokens_details": None}
    common = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m", "kv_transfer_params": None}
    whole = common | {"choices": [choice | {"token_ids": [705, 151645]}], "usage": usage, "prompt_logprobs": None}
    whole |= {"prompt_token_ids": [151644, 872, 198]}
    with RudeModel(http_response(200, json.dumps(whole).encode())) as server:
        (sequence,) = await captured(server.url)
    assert (sequence.prompt_ids, sequence.completion_ids) == ([151644, 872, 198], [705, 151645])
    assert (sequence.logprobs, sequence.problems, sequence.is_trained) == ([-0.25, -0.25], (), True)


async def test_ids_in_the_streamed_shape_of_vllm() -> None:
    """The first chunk has the prompt's ids, and a chunk without text may have ids of the completion.

    Source: as above, and https://github.com/vllm-project/vllm/pull/29074, after which a chunk is sent for ids whose
    text a parser of tool calls keeps back.
    """
    first = {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
    body = sse_event({"choices": [first], "prompt_token_ids": [1, 2]}) + event([7], text="") + event([8, 9])
    with RudeModel(stream_response(body + USAGE + DONE)) as server:
        (sequence,) = await captured(server.url, stream=True)
    assert (sequence.prompt_ids, sequence.completion_ids, sequence.problems) == ([1, 2], [7, 8, 9], ())


async def test_ids_in_the_shape_of_sglang() -> None:
    """Both are in the choice.

    Source: https://github.com/sgl-project/sglang/pull/30917 (whole replies) and /pull/37365 (names of the fields).
    """
    choice = {"index": 0, "message": {"content": "up"}, "token_ids": [7], "prompt_token_ids": [1, 2]}
    body = {"choices": [choice | {"logprobs": {"content": [{"logprob": -0.5}]}}], "usage": {"completion_tokens": 1}}
    with RudeModel(http_response(200, json.dumps(body).encode())) as server:
        (sequence,) = await captured(server.url)
    assert (sequence.prompt_ids, sequence.completion_ids, sequence.problems) == ([1, 2], [7], ())


def quoted(reply: object, **fields: object) -> dict[str, object]:
    return {"provider_type": "vllm", "api_type": "chat_completions", "data": json.dumps(reply), **fields}


OF_MODEL = {"choices": [{"message": {"content": "up"}, "token_ids": [7]}], "prompt_token_ids": [1]}


@pytest.mark.parametrize(
    ("entries", "ids"),
    [
        ([quoted(OF_MODEL, model_inference_id="a")], [7]),
        ([quoted({"error": "down"}), quoted(OF_MODEL, model_inference_id="a")], [7]),
        ([quoted(OF_MODEL, model_inference_id="a"), quoted(OF_MODEL, model_inference_id="b")], []),
        ([quoted(OF_MODEL, model_inference_id="a") | {"data": "no JSON"}], []),
        ([quoted([1], model_inference_id="a"), None, 3], []),
    ],
)
async def test_ids_that_tensorzero_quotes(entries: list[object], ids: list[int]) -> None:
    """Failed providers are quoted without ``model_inference_id``; of several answers it is unknown which was chosen.

    Source: https://github.com/tensorzero/tensorzero, ``RawResponseEntry`` in ``tensorzero-types``, and answers of the
    gateway 2026.6.0, which ``test_gateway.py`` uses.
    """
    body = {"choices": [{"message": {"content": "up"}}], "tensorzero_raw_response": entries}
    with RudeModel(http_response(200, json.dumps(body).encode())) as server:
        (sequence,) = await captured(server.url)
    assert sequence.completion_ids == ids


async def test_a_stream_that_lost_ids_is_incomplete() -> None:
    body = event([7], prompt_token_ids=[1, 2]) + event([8]) + USAGE + DONE
    with RudeModel(stream_response(body)) as server:
        (sequence,) = await captured(server.url, stream=True)
    assert (sequence.prompt_ids, sequence.completion_ids, sequence.problems) == ([1, 2], [7, 8], ("incomplete",))
    assert (sequence.is_trained, sequence.loss_mask) == (False, [0, 0, 0, 0])


async def test_an_answer_that_another_endpoint_replaced_is_discarded() -> None:
    broken = stream_response(event([7, 8], prompt_token_ids=[1, 2]))
    with RudeModel(broken) as first, ModelServer(ScriptResponder([REPLY]), models=["m"]) as second:
        discarded, answer = await captured(first.url, second.url, stream=True)
    assert (discarded.label, discarded.endpoint, discarded.completion_ids) == ("discarded", "e0", [7, 8])
    assert discarded.cause == "the stream ended in the middle of the reply"
    assert (answer.label, answer.endpoint, answer.problems) == ("agent", "e1", ())


async def test_an_answer_that_a_retry_replaced_is_discarded_and_a_refusal_has_none() -> None:
    with ModelServer(ScriptResponder([REPLY]), models=["m"]) as server:
        server.inject(Fault("truncated", times=1))
        labels = [sequence.label for sequence in await captured(server.url, stream=True)]
        server.inject(Fault("500", times=1))
        assert (labels, [each.label for each in await captured(server.url)]) == (["discarded", "agent"], ["agent"])


def test_a_million_ids_are_kept_and_the_next_is_too_long() -> None:
    capture, many = TokenCapture("e", "m"), [1] * (MAX_SEQUENCE_IDS + 1)
    capture.add({"choices": [{"token_ids": many}], "prompt_token_ids": many})
    sequence = capture.sequence("agent", None)
    assert (len(sequence.prompt_ids), len(sequence.completion_ids)) == (MAX_SEQUENCE_IDS, MAX_SEQUENCE_IDS)
    assert "too_long" in sequence.problems and not sequence.is_trained


NUMBERS = st.one_of(st.integers(-(2**70), 2**70), st.floats(), st.booleans(), st.none(), JSON_VALUES)


IDS = st.lists(NUMBERS, max_size=5) | JSON_VALUES
LOGPROBS = JSON_VALUES | st.fixed_dictionaries({"content": st.lists(st.fixed_dictionaries({"logprob": NUMBERS}))})
CHOICES = st.fixed_dictionaries({}, optional={"index": NUMBERS, "token_ids": IDS, "logprobs": LOGPROBS})
PARTS = st.fixed_dictionaries(
    {}, optional={"prompt_token_ids": IDS, "choices": JSON_VALUES | st.lists(CHOICES, max_size=2)}
)


@settings(max_examples=examples(150), deadline=None)
@given(parts=st.lists(PARTS, max_size=4), n_completion=st.none() | st.integers(0, 10))
def test_any_reply_gives_valid_ids_and_names_what_it_lacks(
    parts: list[dict[str, Any]], n_completion: int | None
) -> None:
    capture = TokenCapture("e", "m")
    for part in parts:
        capture.add(part)
    sequence = capture.sequence("agent", n_completion)
    ids = sequence.prompt_ids + sequence.completion_ids
    assert all(type(each) is int and 0 <= each <= MAX_TOKEN_ID for each in ids)
    assert all(-1e300 < each <= 0 for each in sequence.logprobs)
    problems, n_ids, n_logprobs = set(sequence.problems), len(sequence.completion_ids), len(sequence.logprobs)
    assert ("no_ids" in problems) == (n_ids == 0) and ("no_prompt_ids" in problems) == (not sequence.prompt_ids)
    assert ("no_logprobs" in problems) == (n_logprobs == 0)
    assert ("unequal" in problems) == (0 < n_ids != n_logprobs > 0)
    assert ("incomplete" in problems) == (n_ids > 0 and n_completion not in (None, n_ids))
