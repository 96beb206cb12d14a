"""Prometheus texts of model servers: each server's own format, and texts that are damaged or hostile."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.inference.metrics_text import parse_metrics
from tests.support.metrics_texts import LLAMA_CPP, SGLANG, TENSORZERO, VLLM

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
        b" nan",
        b" +Inf",
        b" -1",
        b" 1e999",
        b"1",
        b'{a="} 5',
        b'{a="b" c} 5 x',
        b" 0x10",
        b" " + b"1" * 20_000,
        b" 1 " + b"1" * 4000,
        b'{ ="x"} 1',
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


MARKS = [b"{", b"}", b'"', b"\\", b"=", b",", b" ", b"\n", b"\r\n", b"1", b"e9", b"-", b"nan", b"#"]
PIECES = st.sampled_from([NAME, b"sglang:num_queue_reqs", *MARKS])


@given(st.lists(st.one_of(PIECES, st.binary(max_size=4)), max_size=40).map(b"".join))
def test_any_bytes_give_finite_values_that_are_not_negative(text: bytes) -> None:
    for value in values(text).values():
        assert math.isfinite(value)
        assert value >= 0.0
    assert values(VLLM + b"\n" + text.replace(b"vllm", b"")) == values(VLLM)
