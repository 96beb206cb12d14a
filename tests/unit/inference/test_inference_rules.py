"""Rules of inference: endpoint chains, costs, and keys that are masked."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from runner.config import AgentSettings
from runner.config.profile import EndpointConfig, Price
from runner.inference.api_keys import DeltaFilter, endpoint_variables, read_api_key, redact_key
from runner.inference.chat_format import ModelReply
from runner.inference.endpoints import GATEWAY_PATH, EndpointSpec, Kind, ollama_url, resolve_endpoints, resolve_target
from runner.inference.errors import EndpointFailure
from runner.inference.http import retry_after_s
from runner.inference.inference_session import token_cost
from runner.inference.tool_calls import tool_call
from runner.types import StreamDelta, Tokens
from runner.util.urls import safe_url

MODEL, FUNCTION = "tensorzero::model_name::", "tensorzero::function_name::f"
NOW = datetime(2025, 1, 1, 12, 0, 0, tzinfo=UTC)


def test_a_profile_resolves_to_a_chain_of_named_endpoints() -> None:
    endpoints = (
        EndpointConfig(url="https://h.example/v1", model="m"),
        EndpointConfig(url="https://h.example/v2", name="gateway"),
    )
    settings = AgentSettings(endpoints=endpoints)
    assert [(spec.name, spec.kind, spec.model) for spec in resolve_endpoints(settings, {})] == [
        ("gateway", "auto", None),
        ("h.example", "auto", "m"),
        ("gateway-2", "auto", None),
        ("ollama", "ollama", "qwen3:8b"),
    ]
    local = AgentSettings(mode="local", endpoints=(EndpointConfig(url="http://h/v1"),), local_fallback=None)
    assert [spec.name for spec in resolve_endpoints(local, {})] == ["h"]
    assert safe_url("https://user:pass@h.example:8443/v1?api_key=1") == "https://***@h.example:8443/v1"


@pytest.mark.parametrize(
    ("variable", "url"),
    [
        ("", "http://127.0.0.1:11434"),
        ("0.0.0.0", "http://127.0.0.1:11434"),
        (":1234", "http://127.0.0.1:1234"),
        ("[::]:5", "http://[::1]:5"),
        ("gpu.lan", "http://gpu.lan:11434"),
        ("http://u:p@gpu.lan", "http://u:p@gpu.lan:80"),
        ("ftp://x", "http://127.0.0.1:11434"),
        ("x:99999", "http://127.0.0.1:11434"),
    ],
)
def test_ollama_host_is_normalized_to_a_url(variable: str, url: str) -> None:
    assert ollama_url({"OLLAMA_HOST": variable}) == url


@pytest.mark.parametrize(
    ("kind", "url", "model", "target_url", "target_model"),
    [
        ("tensorzero", "http://g:3030/v1/chat/completions", "m", f"http://g:3030{GATEWAY_PATH}", f"{MODEL}m"),
        ("tensorzero", "http://g", FUNCTION, f"http://g{GATEWAY_PATH}", FUNCTION),
        ("openai", "http://h", "m", "http://h/v1/chat/completions", "m"),
        ("openai", "http://h/api/v1/", "m", "http://h/api/v1/chat/completions", "m"),
        ("openai", "http://h/x/chat/completions?v=1", "m", "http://h/x/chat/completions?v=1", "m"),
        ("ollama", "http://127.0.0.1:11434", "m", "http://127.0.0.1:11434/v1/chat/completions", "m"),
    ],
)
def test_each_kind_has_its_url_and_model_name(
    kind: Kind, url: str, model: str, target_url: str, target_model: str
) -> None:
    target = resolve_target(EndpointSpec(name="x", url=url), kind, model)
    assert (target.url, target.model) == (target_url, target_model)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, None),
        ("3", 3.0),
        ("999999999", 3600.0),
        ("Wed, 01 Jan 2025 12:00:09 GMT", 9.0),
        ("Wed, 01 Jan 2025 11:00:00 GMT", 0.0),
        ("Wed Jan  1 12:00:09 2025", 9.0),
        ("Wednesday, 01-Jan-25 12:00:09 GMT", 9.0),
        ("Wed, 01 Jan 2025 13:00:09 +0100", 9.0),
        ("soon", None),
        ("inf", None),
        ("Xxx, 99 Foo 2025 GMT", None),
    ],
)
def test_retry_after_is_parsed_as_seconds_or_date(header: str | None, seconds: float | None) -> None:
    assert retry_after_s(header, NOW) == seconds


@pytest.mark.parametrize(
    ("price", "cost"),
    [
        (None, None),
        (Price(prompt_per_mtok=1, completion_per_mtok=10), 1000 + 2000),
        (Price(prompt_per_mtok=1, completion_per_mtok=10, cached_per_mtok=0), 600 + 2000),
        (Price(prompt_per_mtok=1, completion_per_mtok=10, reasoning_per_mtok=1), 1000 + 1500 + 50),
    ],
)
def test_the_cost_depends_on_the_price_of_each_token_type(price: Price | None, cost: float | None) -> None:
    assert token_cost(Tokens(1000, 200, 50, 400), price) == (None if cost is None else cost / 1e6)
    assert token_cost(Tokens(10, 0, 5, 99), Price(prompt_per_mtok=1, cached_per_mtok=0)) == 0  # never negative


def test_an_api_key_is_read_from_its_variable() -> None:
    spec = EndpointSpec(name="x", url="http://x", api_key_env="MINE")
    assert read_api_key(spec, "openai", {"MINE": " abc "}) == "abc"
    for environ in ({}, {"MINE": ""}, {"MINE": "a\nb"}, {"MINE": "ä"}):
        with pytest.raises(EndpointFailure, match="MINE"):
            read_api_key(spec, "openai", environ)


@pytest.mark.parametrize("escape", [str, lambda text: text.replace("/", "\\/")])
def test_a_key_in_tool_arguments_is_masked_in_any_escaping(escape: Callable[[str], str]) -> None:
    key = 'sk-"0123/456\\789"abc'
    call = tool_call(0, "c", "up", escape(json.dumps({"key": key, "to": "1"})))
    redacted = redact_key(ModelReply(content=f"it is {key}", tool_calls=[call]), key)
    assert json.loads(redacted.tool_calls[0]["function"]["arguments"]) == {"key": "***", "to": "1"}
    assert redacted.content == "it is ***"


def test_a_key_in_a_field_that_we_do_not_know_is_masked() -> None:
    key = 'sk-"0123/456\\789"abc'
    details = [{"type": "reasoning.text", "signature": f"for {key}"}]
    extra = {"reasoning_details": details, key: {"of": [json.dumps(key)]}}
    call = {**tool_call(0, "c", "up", "{}"), "extra_content": {"google": {"thought_signature": key}}}
    reply = redact_key(ModelReply(refusal=f"no, {key}", extra=extra, tool_calls=[call]), key)
    assert "0123" not in json.dumps(reply.message("a m"))
    assert reply.message()["refusal"] == "no, ***"
    assert reply.tool_calls[0]["extra_content"] == {"google": {"thought_signature": "***"}}
    assert reply.extra == {
        "reasoning_details": [{"type": "reasoning.text", "signature": "for ***"}],
        "***": {"of": ['"***"']},
    }


def test_the_gateways_key_is_sent_only_to_gateways() -> None:
    spec = EndpointSpec(name="gateway", url="http://x", optional_key_env="TENSORZERO_API_KEY")
    environ = {"TENSORZERO_API_KEY": "sk-t0"}
    assert read_api_key(spec, "tensorzero", environ) == "sk-t0"
    assert read_api_key(spec, "openai", environ) is None
    assert read_api_key(spec, "tensorzero", {}) is None


def test_a_worker_elsewhere_gets_only_the_variables_of_its_endpoints() -> None:
    endpoints = (EndpointConfig(url="http://a", api_key_env="MINE"), EndpointConfig(url="http://b", api_key_env="NONE"))
    environ = {"MINE": "k", "TENSORZERO_API_KEY": "t", "OLLAMA_HOST": "gpu", "OTHER_KEY": "o", "PATH": "/bin"}
    assert endpoint_variables(AgentSettings(endpoints=endpoints), environ) == {
        "MINE": "k",
        "OLLAMA_HOST": "gpu",
        "TENSORZERO_API_KEY": "t",
    }
    assert endpoint_variables(AgentSettings(mode="local", local_fallback=None), environ) == {}


@pytest.mark.parametrize("size", [1, 3, 100])
def test_a_key_split_over_deltas_is_masked(size: int) -> None:
    emitted = list[StreamDelta]()
    keyless = DeltaFilter("sk-abcdabc", emitted.append)
    text = "a sk-abcd sk-abcdabc b sk-abcdsk-abcdabc sk-a"
    for start in range(0, len(text), size):
        keyless.add(StreamDelta(text=text[start : start + size], n=1))
    keyless.flush()
    assert "".join(delta.text for delta in emitted) == "a sk-abcd *** b sk-abcd*** sk-a"


@pytest.mark.parametrize("size", [1, 5, 100])
def test_a_key_split_over_tool_call_deltas_is_masked(size: int) -> None:
    key, emitted = 'sk-a/b"c\\d', list[StreamDelta]()
    keyless = DeltaFilter(key, emitted.append)
    quoted = json.dumps({"key": key})
    for number, text in enumerate([quoted, quoted.replace("/", "\\/")]):
        for start in range(0, len(text), size):
            reasoning = StreamDelta(text=key[start : start + 1], part="reasoning", n=1)
            for delta in (
                StreamDelta(text=text[start : start + size], part="call", call=number, tool=key, n=1),
                reasoning,
            ):
                keyless.add(delta)
    keyless.flush()
    calls = ["".join(delta.text for delta in emitted if (delta.part, delta.call) == ("call", n)) for n in (0, 1)]
    assert calls == ['{"key": "***"}'] * 2
    assert {delta.tool for delta in emitted} == {"***", ""}
    assert key not in "".join(delta.text for delta in emitted if delta.part == "reasoning")
