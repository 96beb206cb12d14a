"""Prometheus text of a model server: the few samples of known names, under names that all servers share.

https://prometheus.io/docs/instrumenting/exposition_formats/ describes the format, which prometheus-client reads. It is
given one line at a time, because a bad one ends its reading, and only lines of known names: it takes 500 ns a byte.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

import msgspec

Server: TypeAlias = Literal["vllm", "sglang", "llama.cpp", "tensorzero", "ollama"]

SERVER_NAMES: Final[Mapping[str, str]] = {
    "vllm": "vLLM",
    "sglang": "SGLang",
    "llama.cpp": "llama.cpp",
    "tensorzero": "TensorZero",
    "ollama": "Ollama",
}
"""What users call each server."""

_ALIASES: Final[Mapping[Server, Mapping[str, str]]] = {
    "vllm": {  # vllm/v1/metrics/loggers.py; names with gpu_ are those before version 0.9
        "vllm:num_requests_running": "running",
        "vllm:num_requests_waiting": "waiting",
        "vllm:kv_cache_usage_perc": "kv_cache",
        "vllm:gpu_cache_usage_perc": "kv_cache",
        "vllm:prefix_cache_queries_total": "prefix_queries",
        "vllm:gpu_prefix_cache_queries_total": "prefix_queries",
        "vllm:prefix_cache_hits_total": "prefix_hits",
        "vllm:gpu_prefix_cache_hits_total": "prefix_hits",
        "vllm:generation_tokens_total": "generated",
        "vllm:prompt_tokens_total": "prompted",
        "vllm:request_queue_time_seconds": "queue",
        "vllm:request_prefill_time_seconds": "prefill",
        "vllm:request_decode_time_seconds": "decode",
    },
    "sglang": {  # docs/references/production_metrics.md and srt/metrics/collector.py
        "sglang:num_running_reqs": "running",
        "sglang:num_queue_reqs": "waiting",
        "sglang:token_usage": "kv_cache",
        "sglang:cache_hit_rate": "hit_rate",
        "sglang:generation_tokens_total": "generated",
        "sglang:prompt_tokens_total": "prompted",
        "sglang:queue_time_seconds": "queue",
        "sglang:time_to_first_token_seconds": "first_token",
        "sglang:e2e_request_latency_seconds": "latency",
    },
    "llama.cpp": {  # tools/server/README.md
        "llamacpp:requests_processing": "running",
        "llamacpp:requests_deferred": "waiting",
        "llamacpp:kv_cache_usage_ratio": "kv_cache",
        "llamacpp:tokens_predicted_total": "generated",
        "llamacpp:prompt_tokens_total": "prompted",
    },
    "tensorzero": {  # https://www.tensorzero.com/docs/operations/export-prometheus-metrics
        "tensorzero_output_tokens_total": "generated",
        "tensorzero_input_tokens_total": "prompted",
        "tensorzero_inference_latency_overhead_seconds": "overhead",
    },
}
"""The seconds of a histogram are two samples, their sum and their count."""
_FIELDS: Final[Mapping[bytes, tuple[Server, str]]] = {
    f"{name}{part}".encode(): (server, field + part)
    for server, names in _ALIASES.items()
    for name, field in names.items()
    for part in (("_sum", "_count") if name.endswith("_seconds") else ("",))
}
_NAME: Final = re.compile(rb"[a-zA-Z_:][a-zA-Z0-9_:]*(?=[ \t{])")
_MAX_VALUE: Final = 1e18
_MAX_BYTES: Final = 256 << 10
"""Of the lines of known names; more than the servers of 100 engines write. What follows them is ignored."""
_LARGEST: Final = frozenset({"kv_cache", "hit_rate"})
"""Fields of which the largest sample counts; of all others, the samples of all models and engines are added up."""


class Reading(msgspec.Struct, frozen=True):
    """The known samples of one text: the server that writes such names, and the values by the names of this module."""

    server: Server
    values: Mapping[str, float]


def parse_metrics(text: bytes) -> Reading | None:
    """Return the known samples of a text, None without any; damaged lines and impossible values are ignored."""
    server: Server | None = None
    samples: dict[bytes, list[float]] = {}
    n_bytes = 0
    for line in text.split(b"\n"):
        name = _NAME.match(line)
        if name is None or name[0] not in _FIELDS or server not in (None, _FIELDS[name[0]][0]):
            continue
        if (n_bytes := n_bytes + len(line)) > _MAX_BYTES:
            break
        if (value := _value(line)) is not None:
            server = _FIELDS[name[0]][0]
            samples.setdefault(name[0], []).append(value)
    if server is None:
        return None
    values: dict[str, float] = {}
    for name_bytes, found in samples.items():  # the first name of a field is the current one
        _, field = _FIELDS[name_bytes]
        values.setdefault(field, max(found) if field in _LARGEST else sum(found))
    return Reading(server, values)


def _value(line: bytes) -> float | None:
    from prometheus_client.parser import text_string_to_metric_families

    try:
        ((sample,),) = (family.samples for family in text_string_to_metric_families(line.decode()))
        value = float(sample.value)
    except (ValueError, LookupError, OverflowError):  # the parser indexes damaged labels, and divides long timestamps
        return None
    return value if 0.0 <= value <= _MAX_VALUE else None
