"""Reading of the model servers: rates and means between two readings, and servers that hang, flood or lie."""

from __future__ import annotations

import asyncio

import pytest

from runner.config.profile import EndpointConfig
from runner.inference import server_metrics
from runner.inference.http import MAX_SMALL_BODY
from runner.inference.manager import InferenceManager
from runner.inference.metrics_text import Reading, parse_metrics
from runner.inference.server_metrics import increases, ollama_load, server_load
from runner.types.phases import ServerTimes
from tests.support.inference import VirtualTime, agent_settings
from tests.support.metrics_texts import LLAMA_CPP, OLLAMA_PS, SGLANG, TENSORZERO, VLLM
from tests.support.rude_model import Behavior, PendingRequest, RudeModel, completion_response, http_response


def text_response(text: bytes) -> bytes:
    return http_response(200, text, "text/plain; version=0.0.4")


def serve(behavior: Behavior, path: str = "/metrics") -> RudeModel:
    return RudeModel(completion_response("up"), routes={path: behavior})


def manager(server: RudeModel, clock: VirtualTime, kind: str = "openai", **endpoint: str) -> InferenceManager:
    config = EndpointConfig(url=server.url, name="lab", kind=kind, **endpoint)  # type: ignore[arg-type]
    return InferenceManager(agent_settings(config), {"KEY": "s3cret"}, clock.timing())


async def test_the_second_reading_gives_rates_and_means() -> None:
    clock = VirtualTime()
    with serve(text_response(VLLM)) as server:
        reader = manager(server, clock)
        (first,) = await reader.read_servers()
        later = VLLM.replace(b"17921.0", b"18001.0").replace(b"420.5", b"440.5").replace(b" 140.0", b" 145.0")
        server.routes = {"/metrics": text_response(later.replace(b"5030.0", b"5130.0").replace(b"3680.0", b"3730.0"))}
        clock.elapsed_s += 2.0
        (second,) = await reader.read_servers()
    assert (first.running, first.waiting, first.kv_cache, first.tokens_per_s) == (16.0, 12.0, 0.97, None)
    assert first.times == ServerTimes()
    assert (second.tokens_per_s, second.prompt_tokens_per_s, second.prefix_hits) == (40.0, 50.0, 0.5)
    assert second.times == ServerTimes(queue_s=4.0, prefill_s=0.0, decode_s=0.0)


def test_a_counter_that_was_reset_counts_from_zero() -> None:
    assert increases({"generated": 900.0, "prompted": 5.0, "gone": 1.0}, {"generated": 30.0, "prompted": 7.0}) == {
        "generated": 30.0,
        "prompted": 2.0,
    }


def test_the_prefill_of_sglang_is_its_time_to_the_first_token_without_the_queue() -> None:
    grown = {"queue_sum": 4.0, "queue_count": 2.0, "first_token_sum": 10.0, "first_token_count": 2.0}
    grown |= {"latency_sum": 27.0, "latency_count": 3.0}
    load = server_load("lab", Reading("sglang", {}), grown, 2.0)
    assert load.times == ServerTimes(queue_s=2.0, prefill_s=3.0, decode_s=4.0)


@pytest.mark.parametrize("text", [VLLM, SGLANG, LLAMA_CPP, TENSORZERO])
async def test_each_server_is_read_over_http(text: bytes) -> None:
    with serve(text_response(text)) as server:
        (load,) = await manager(server, VirtualTime(), api_key_env="KEY").read_servers()
        (request,) = server.requests
    assert (load.endpoint, request.headers["authorization"]) == ("lab", "Bearer s3cret")


async def test_ollama_lists_its_models() -> None:
    with serve(http_response(200, OLLAMA_PS), "/api/ps") as server:
        (load,) = await manager(server, VirtualTime(), "ollama").read_servers()
    assert (load.server, load.models) == ("ollama", ("qwen3:8b 6.2 GiB, 100% on the GPU",))


@pytest.mark.parametrize("body", [b"", b"[]", b'{"models":3}', b'{"models":null}', b"\xff"])
def test_an_answer_that_is_not_a_list_of_models_gives_no_load(body: bytes) -> None:
    assert ollama_load("lab", body) is None


def test_names_of_models_are_safe_to_show() -> None:
    load = ollama_load("lab", b'{"models":[{"name":"a\\u001b[31m\\u202e","size":0},{"name":3},7]}')
    assert load is not None
    assert load.models is not None
    assert all(name.isprintable() for name in load.models)
    assert load.models[1:] == ("?", "?")


async def test_a_server_without_metrics_rests_for_a_minute() -> None:
    clock = VirtualTime()
    with serve(http_response(404, b"not found")) as server:
        reader = manager(server, clock)
        assert await reader.read_servers() == []
        clock.elapsed_s += 59.0
        assert await reader.read_servers() == []
        assert len(server.requests) == 1
        clock.elapsed_s += 2.0
        await reader.read_servers()
        assert len(server.requests) == 2


async def test_a_server_that_hangs_costs_the_time_limit_and_delays_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_metrics, "READ_TIMEOUT_S", 0.2)

    def hang(pending: PendingRequest) -> None:
        pending.stopping.wait(20)

    with serve(hang) as hanging, serve(text_response(VLLM)) as other:
        configs = [EndpointConfig(url=each.url, name=each.origin[-5:], kind="openai") for each in (hanging, other)]
        reader = InferenceManager(agent_settings(*configs), {})
        async with asyncio.timeout(10):
            loads = await reader.read_servers()
            assert len(await reader.read_servers()) == 1
    assert len(hanging.requests) == 1
    assert [load.endpoint for load in loads] == [other.origin[-5:]]


async def test_a_server_that_sends_100_mb_costs_1_mib() -> None:
    sent: list[int] = []

    def flood(pending: PendingRequest) -> None:
        pending.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 104857600\r\n\r\n")
        for _ in range(1600):
            pending.send(b"#" * 65_536)
            sent.append(65_536)

    with serve(flood) as server:
        async with asyncio.timeout(20):
            assert await manager(server, VirtualTime()).read_servers() == []
    assert sum(sent) < 104_857_600 // 2 + MAX_SMALL_BODY


async def test_the_means_split_the_next_answer_and_are_forgotten_with_the_server() -> None:
    clock = VirtualTime()
    with serve(text_response(VLLM)) as server:
        reader = manager(server, clock)
        gate = reader._context.gate
        await reader.read_servers()
        assert gate.server_times.values.get("lab") is None
        clock.elapsed_s += 2.0
        server.routes = {"/metrics": text_response(VLLM.replace(b"420.5", b"440.5").replace(b" 140.0", b" 145.0"))}
        await reader.read_servers()
        assert gate.server_times.values.get("lab") == ServerTimes(queue_s=4.0, prefill_s=0.0, decode_s=0.0)
        clock.elapsed_s += 2.0
        await reader.read_servers()  # no request ended: the means stay
        assert gate.server_times.values.get("lab") is not None
        server.routes = {"/metrics": http_response(500, b"")}
        await reader.read_servers()
        assert gate.server_times.values.get("lab") is None


NAME = b"vllm:num_requests_waiting"


def values(text: bytes) -> dict[str, float]:
    reading = parse_metrics(text)
    return {} if reading is None else dict(reading.values)


@pytest.mark.parametrize(
    ("text", "server", "expected"),
    [
        (VLLM, "vllm", {"running": 16.0, "waiting": 12.0, "kv_cache": 0.97, "queue_sum": 420.5, "queue_count": 140.0}),
        (SGLANG, "sglang", {"running": 162.0, "waiting": 2826.0, "kv_cache": 0.28, "generated": 7557572.0}),
        (LLAMA_CPP, "llama.cpp", {"running": 4.0, "waiting": 46.0, "kv_cache": 0.491063, "generated": 3469.0}),
        (TENSORZERO, "tensorzero", {"generated": 120.0, "overhead_sum": 0.087712334, "overhead_count": 1.0}),
    ],
)
def test_the_text_of_each_server_is_read(text: bytes, server: str, expected: dict[str, float]) -> None:
    reading = parse_metrics(text)
    assert reading is not None
    assert reading.server == server
    assert expected.items() <= reading.values.items()


def test_requests_of_all_engines_are_added_and_the_fullest_cache_counts() -> None:
    text = (
        b'vllm:num_requests_waiting{engine="0"} 3\nvllm:num_requests_waiting{engine="1"} 4.0 1700000000000\n'
        b'vllm:kv_cache_usage_perc{engine="0"} 0.2\nvllm:kv_cache_usage_perc{engine="1"} 0.9\r\n'
    )
    assert values(text) == {"waiting": 7.0, "kv_cache": 0.9}


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{} 1",
        b" 1",
        b" +Inf",
        b" -1",
        b" 1e999",
        b'{a="} 5',
        b'{a="b" c} 5 x',
        b" " + b"1" * 20_000,
        b'{a="\xff"} 1',
    ],
)
def test_damaged_lines_are_ignored(line: bytes) -> None:
    expected = {"waiting": 1.0} if line in (b"{} 1", b" 1") else {}
    assert values(NAME + line + b"\n") == expected


def test_a_damaged_line_loses_no_other() -> None:
    assert values(NAME + b'{a="} 5\n' + NAME + b" 1\n# TYPE 7\n" + NAME + b" 2\n") == {"waiting": 3.0}


def test_what_follows_256_KiB_of_known_lines_is_ignored() -> None:
    line = NAME + b'{a="' + b"x" * 1000 + b'"} 1\n'
    n_lines = (256 << 10) // (len(line) - 1)
    assert values(line * 1000) == {"waiting": n_lines}
    assert values(b"unknown 1\n" * 100_000 + line) == {"waiting": 1.0}


def test_a_label_may_hold_anything() -> None:
    assert values(NAME + rb'{model_name="a} 7 \" \\",engine="0"} 4' + b"\n") == {"waiting": 4.0}


def test_a_text_without_known_names_is_that_of_no_known_server() -> None:
    assert parse_metrics(b"python_gc_objects_collected_total 12\n<html>") is None
