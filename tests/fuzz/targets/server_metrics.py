"""What a model server sends as its metrics: Prometheus text, or Ollama's list of models."""

from __future__ import annotations

import math

from runner.inference.metrics_text import parse_metrics
from runner.inference.server_metrics import increases, ollama_load, server_load
from tests.fuzz.oracles import check_displayable

TOKENS = (
    b"vllm:num_requests_waiting",
    b"vllm:request_queue_time_seconds_sum",
    b"vllm:request_queue_time_seconds_count",
    b"sglang:token_usage",
    b"llamacpp:requests_deferred",
    b'{engine="0",model_name="m"} ',
    b" 12\n",
    b" NaN\n",
    b" +Inf\n",
    b'{"models":[{"name":"a","size":2,"size_vram":1}]}',
)


def check(data: bytes) -> None:
    reading = parse_metrics(data)
    if reading is not None:
        half = parse_metrics(data[: len(data) // 2])
        grown = increases({} if half is None else half.values, reading.values)
        load = server_load("lab", reading, grown, 2.0)
        numbers = (*reading.values.values(), load.waiting, load.kv_cache, load.prefix_hits, load.tokens_per_s)
        for number in (*numbers, load.times.queue_s, load.times.prefill_s, load.times.decode_s, load.overhead_s):
            assert number is None or (math.isfinite(number) and number >= 0.0), reading
    listed = ollama_load("lab", data)
    for text in () if listed is None else listed.models or ():
        check_displayable(text)
