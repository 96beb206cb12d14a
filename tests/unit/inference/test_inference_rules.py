from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime

import httpx
import pytest

from runner.config.profile import AgentSettings, EndpointConfig, Price
from runner.inference import split_thinking
from runner.inference.api_keys import DeltaFilter, KeyFilter, read_api_key, redact_key
from runner.inference.chat_format import ModelReply, tool_call
from runner.inference.circuit_breaker import CircuitBreaker, pause_s, retry_after_s
from runner.inference.endpoints import EndpointSpec, Kind, ollama_url, resolve_endpoints, safe_url
from runner.inference.errors import EndpointFailure, Reason
from runner.inference.http import translate_errors
from runner.inference.providers import GATEWAY_PATH, resolve_target
from runner.inference.session import token_cost
from runner.types import StreamDelta, Tokens

MODEL, FUNCTION = "tensorzero::model_name::", "tensorzero::function_name::f"
NOW = datetime(2025, 1, 1, 12, 0, 0, tzinfo=UTC)


class Ticker:
    """A monotonic clock that stands still."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_chain_of_a_profile() -> None:
    further = (
        EndpointConfig(url="https://h.example/v1", model="m"),
        EndpointConfig(url="https://h.example/v2", name="gateway"),
    )
    settings = AgentSettings(endpoints=further)
    assert [(spec.name, spec.kind, spec.model) for spec in resolve_endpoints(settings, {})] == [
        ("gateway", "auto", None),
        ("h.example", "auto", "m"),
        ("gateway-2", "auto", None),
        ("ollama", "ollama", "qwen3:8b"),
    ]


def test_local_leaves_the_gateway_out_and_no_fallback_leaves_ollama_out() -> None:
    settings = AgentSettings(mode="local", endpoints=(EndpointConfig(url="http://h/v1"),), local_fallback=None)
    assert [spec.name for spec in resolve_endpoints(settings, {})] == ["h"]


@pytest.mark.parametrize(
    ("told", "url"),
    [
        ("", "http://127.0.0.1:11434"),
        ("0.0.0.0", "http://127.0.0.1:11434"),
        ("0.0.0.0:1234", "http://127.0.0.1:1234"),
        (":1234", "http://127.0.0.1:1234"),
        ("[::]:5", "http://[::1]:5"),
        ("gpu.lan", "http://gpu.lan:11434"),
        ("https://gpu.lan/", "https://gpu.lan:443"),
        ("http://u:p@gpu.lan", "http://u:p@gpu.lan:80"),
        ("ftp://x", "http://127.0.0.1:11434"),
        ("x:99999", "http://127.0.0.1:11434"),
    ],
)
def test_ollama_host(told: str, url: str) -> None:
    assert ollama_url({"OLLAMA_HOST": told}) == url


def test_a_shown_url_holds_no_secret() -> None:
    assert safe_url("https://user:pass@h.example:8443/v1?api_key=1") == "https://***@h.example:8443/v1"


@pytest.mark.parametrize(
    ("kind", "url", "model", "asked", "sent"),
    [
        ("tensorzero", "http://g:3030/v1/chat/completions", "m", f"http://g:3030{GATEWAY_PATH}", f"{MODEL}m"),
        ("tensorzero", "http://g", FUNCTION, f"http://g{GATEWAY_PATH}", FUNCTION),
        ("openai", "http://h", "m", "http://h/v1/chat/completions", "m"),
        ("openai", "http://h/api/v1/", "m", "http://h/api/v1/chat/completions", "m"),
        ("openai", "http://h/x/chat/completions?v=1", "m", "http://h/x/chat/completions?v=1", "m"),
        ("ollama", "http://127.0.0.1:11434", "m", "http://127.0.0.1:11434/v1/chat/completions", "m"),
    ],
)
def test_what_is_asked_of_each_kind(kind: Kind, url: str, model: str, asked: str, sent: str) -> None:
    target = resolve_target(EndpointSpec(name="x", url=url), kind, model)
    assert (target.url, target.model) == (asked, sent)


def failure(reason: Reason, retry_after_s: float | None = None) -> EndpointFailure:
    return EndpointFailure(reason, "broken", retry_after_s=retry_after_s)


def test_a_dead_endpoint_rests_longer_each_time_and_is_then_tried_by_one_alone() -> None:
    clock = Ticker()
    breaker = CircuitBreaker(clock)
    for rest_s in (1, 2, 4):
        assert breaker.try_enter()
        breaker.record_failure(failure("connection"), "refused")
        assert (breaker.wait_s(), breaker.try_enter(), breaker.cause) == (rest_s, False, "refused")
        clock.now += rest_s
    assert breaker.try_enter()
    assert not breaker.try_enter()
    breaker.record_success()
    assert breaker.try_enter()
    assert breaker.try_enter()


def test_the_one_who_tries_may_give_up_or_vanish() -> None:
    clock = Ticker()
    breaker = CircuitBreaker(clock)
    breaker.record_failure(failure("connection"), "")
    clock.now += 1
    assert breaker.try_enter()
    breaker.leave()
    assert breaker.try_enter()
    clock.now += 5
    assert breaker.try_enter()


def test_what_hung_rests_long_and_an_error_not_before_the_third() -> None:
    hung, erring = CircuitBreaker(Ticker()), CircuitBreaker(Ticker())
    hung.record_failure(failure("timeout"), "")
    assert hung.wait_s() == 30
    for rest_s in (0, 0, 1):
        erring.record_failure(failure("server"), "")
        assert erring.wait_s() == rest_s


def test_many_failures_at_the_same_time_are_one() -> None:
    breaker = CircuitBreaker(Ticker())
    for _ in range(8):
        breaker.record_failure(failure("connection"), "")
    assert breaker.wait_s() == 1


def test_what_the_endpoint_asks_for_counts() -> None:
    breaker = CircuitBreaker(Ticker())
    breaker.record_failure(failure("busy", retry_after_s=7), "busy")
    assert breaker.wait_s() == 7
    breaker.record_failure(failure("busy", retry_after_s=3), "busy")
    assert breaker.wait_s() == 7


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, None),
        ("3", 3.0),
        ("0.5", 0.5),
        ("-4", 0.0),
        ("999999999", 3600.0),
        ("Wed, 01 Jan 2025 12:00:09 GMT", 9.0),
        ("Wed, 01 Jan 2025 11:00:00 GMT", 0.0),
        ("Wed Jan  1 12:00:09 2025", 9.0),
        ("Wednesday, 01-Jan-25 12:00:09 GMT", 9.0),
        ("Wed, 01 Jan 2025 12:00:09 +0000", 9.0),
        ("Wed, 01 Jan 2025 13:00:09 +0100", 9.0),
        ("12:00:09", None),
        ("soon", None),
        ("nan", None),
        ("inf", None),
        ("Xxx, 99 Foo 2025 GMT", None),
    ],
)
def test_retry_after(header: str | None, seconds: float | None) -> None:
    assert retry_after_s(header, NOW) == seconds


def test_pauses_grow_and_are_half_chance() -> None:
    assert [pause_s(round, min) for round in (1, 2)] == [0.25, 0.5]
    assert [pause_s(round, max) for round in (1, 2)] == [0.5, 1.0]


@pytest.mark.parametrize(
    ("price", "cost"),
    [
        (None, None),
        (Price(prompt_per_mtok=1, completion_per_mtok=10), 1000 + 2000),
        (Price(prompt_per_mtok=1, completion_per_mtok=10, cached_per_mtok=0), 600 + 2000),
        (Price(prompt_per_mtok=1, completion_per_mtok=10, reasoning_per_mtok=1), 1000 + 1500 + 50),
    ],
)
def test_cost(price: Price | None, cost: float | None) -> None:
    assert token_cost(Tokens(1000, 200, 50, 400), price) == (None if cost is None else cost / 1e6)


def test_more_cached_tokens_than_there_were_cost_no_less_than_nothing() -> None:
    assert token_cost(Tokens(10, 0, 5, 99), Price(prompt_per_mtok=1, cached_per_mtok=0)) == 0


@pytest.mark.parametrize(
    ("text", "thought", "answer"),
    [
        ("up", "", "up"),
        ("<think>\nhm\n</think>\n\nup", "hm", "up"),
        ("hm</think>up", "hm", "up"),
        ("<think>for ever", "for ever", ""),
        ("a <THINK>x</Think> b <thinking>y</thinking> c", "x\ny", "a  b  c"),
        ("up </think> down", "up", "down"),
    ],
)
def test_thinking_is_split_off(text: str, thought: str, answer: str) -> None:
    assert split_thinking(text) == (thought, answer)


def test_keys() -> None:
    spec = EndpointSpec(name="x", url="http://x", api_key_env="MINE")
    assert read_api_key(spec, "openai", {"MINE": " abc "}) == "abc"
    for environ in ({}, {"MINE": ""}, {"MINE": "a\nb"}, {"MINE": "ä"}):
        with pytest.raises(EndpointFailure, match="MINE"):
            read_api_key(spec, "openai", environ)


@pytest.mark.parametrize("written", [str, lambda text: text.replace("/", "\\/")])
def test_a_key_in_arguments_is_masked_however_it_is_escaped(written: Callable[[str], str]) -> None:
    key = 'sk-"0123/456\\789"abc'
    call = tool_call(0, "c", "up", written(json.dumps({"key": key, "to": "1"})))
    kept = redact_key(ModelReply(content=f"it is {key}", tool_calls=[call]), key)
    assert json.loads(kept.tool_calls[0]["function"]["arguments"]) == {"key": "***", "to": "1"}
    assert kept.content == "it is ***"


def test_a_connection_that_is_not_made_in_time_rests_as_what_hangs() -> None:
    breaker = CircuitBreaker(Ticker())
    with pytest.raises(EndpointFailure, match="no connection within 5 s") as raised, translate_errors(str):
        raise httpx.ConnectTimeout("")
    breaker.record_failure(raised.value, "")
    assert breaker.wait_s() == 30


def test_the_gateways_key_goes_to_gateways_alone() -> None:
    spec = EndpointSpec(name="gateway", url="http://x", optional_key_env="TENSORZERO_API_KEY")
    environ = {"TENSORZERO_API_KEY": "sk-t0"}
    assert read_api_key(spec, "tensorzero", environ) == "sk-t0"
    assert read_api_key(spec, "openai", environ) is None
    assert read_api_key(spec, "tensorzero", {}) is None


@pytest.mark.parametrize("size", [1, 3, 7, 100])
def test_a_key_in_pieces_is_not_told(size: int) -> None:
    keyless = KeyFilter("sk-abcdabc")
    text = "a sk-abcd sk-abcdabc b sk-abcdsk-abcdabc sk-a"
    told = [keyless.add(text[start : start + size]) for start in range(0, len(text), size)]
    assert "".join([*told, keyless.flush()]) == "a sk-abcd *** b sk-abcd*** sk-a"


@pytest.mark.parametrize("size", [1, 2, 5, 100])
def test_a_key_in_the_pieces_of_a_tool_call_is_not_told(size: int) -> None:
    key, told = 'sk-a/b"c\\d', list[StreamDelta]()
    keyless = DeltaFilter(key, told.append)
    quoted = json.dumps({"key": key})
    for number, text in enumerate([quoted, quoted.replace("/", "\\/")]):
        for start in range(0, len(text), size):
            between = StreamDelta(text=key[start : start + 1], part="reasoning", n=1)
            for piece in (
                StreamDelta(text=text[start : start + size], part="call", call=number, tool=key, n=1),
                between,
            ):
                keyless.add(piece)
    keyless.flush()
    calls = ["".join(piece.text for piece in told if (piece.part, piece.call) == ("call", n)) for n in (0, 1)]
    assert calls == ['{"key": "***"}'] * 2
    assert {piece.tool for piece in told} == {"***", ""}
    assert key not in "".join(piece.text for piece in told if piece.part == "reasoning")
