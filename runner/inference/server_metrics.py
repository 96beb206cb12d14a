"""What the servers behind the model endpoints report about their load, compared with the previous reading."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping

import msgspec

from runner.inference.api_keys import read_api_key
from runner.inference.endpoint_state import InferenceContext, LiveEndpoint
from runner.inference.errors import EndpointFailure
from runner.inference.http import bearer_header, fetch
from runner.inference.metrics_text import Reading, Server, parse_metrics
from runner.types.phases import ServerTimes
from runner.types.time_shares import percent_text
from runner.util.display_text import one_line
from runner.util.json_accessors import as_dict, as_list, as_text, decode_json
from runner.util.urls import url_origin

READ_TIMEOUT_S = 2.0
"""Maximum seconds for one reading of one server; ``http.MAX_SMALL_BODY`` is the maximum size of its text."""
REST_S = {"failure": 10.0, "no metrics": 60.0}
"""Seconds until a server is read again that did not answer, or has no metrics that are known."""
MAX_MODELS = 8


class ServerLoad(msgspec.Struct, frozen=True, kw_only=True):
    """The load of one server; rates and means are those since the previous reading, and None is unknown.

    Attributes:
        kv_cache: used part of the KV cache, from 0 to 1.
        prefix_hits: part of the prompt tokens that were found in the prefix cache.
        times: mean seconds of the requests that ended.
        overhead_s: mean seconds that a gateway added to a request.
        models: models that Ollama holds in memory; untrusted names on one line.
    """

    endpoint: str
    server: Server
    running: float | None = None
    waiting: float | None = None
    kv_cache: float | None = None
    prefix_hits: float | None = None
    tokens_per_s: float | None = None
    prompt_tokens_per_s: float | None = None
    times: ServerTimes = ServerTimes()
    overhead_s: float | None = None
    models: tuple[str, ...] | None = None


class MetricsReader:
    """Reads the servers of a profile's endpoints; one object per process, used by one task.

    A server whose kind is not detected yet is left out: the health check detects it. The gate of ``context`` receives
    the servers' means for the split of each answer.
    """

    def __init__(self, context: InferenceContext) -> None:
        self._context = context
        self._now = context.timing.clock.monotonic
        self._previous: dict[str, tuple[float, Reading]] = {}
        self._rests_until: dict[str, float] = {}
        self._means: dict[str, ServerTimes] = {}

    async def read(self) -> list[ServerLoad]:
        """Servers that report no load are left out; takes at most ``READ_TIMEOUT_S`` seconds."""
        due = [each for each in self._context.endpoints if self._rests_until.get(each.spec.name, 0.0) <= self._now()]
        loads = await asyncio.gather(*map(self._read, due))
        return [load for load in loads if load is not None]

    async def _read(self, endpoint: LiveEndpoint) -> ServerLoad | None:
        name, problem = endpoint.spec.name, "no metrics"
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                load = await self._load(endpoint)
        except (TimeoutError, EndpointFailure):
            load, problem = None, "failure"
        if load is None and endpoint.kind != "auto":
            self._rests_until[name] = self._now() + REST_S[problem]
            self._previous.pop(name, None)
            self._means.pop(name, None)
        self._context.gate.server_times.set(name, self._means.get(name))
        return load

    async def _load(self, endpoint: LiveEndpoint) -> ServerLoad | None:
        kind, spec = endpoint.kind, endpoint.spec
        if kind == "auto":
            return None
        headers = bearer_header(read_api_key(spec, kind, self._context.environ))
        path = "/api/ps" if kind == "ollama" else "/metrics"
        reply = await fetch("GET", url_origin(spec.url) + path, None, headers)
        if reply.status != 200:
            return None
        if kind == "ollama":
            return ollama_load(spec.name, reply.body)
        reading, at = parse_metrics(reply.body), self._now()
        if reading is None:
            return None
        previous = self._previous.get(spec.name)
        self._previous[spec.name] = at, reading
        if previous is None or previous[1].server != reading.server:
            return server_load(spec.name, reading, {}, 0.0)
        load = server_load(spec.name, reading, increases(previous[1].values, reading.values), at - previous[0])
        if load.times != ServerTimes():  # a time without finished requests leaves the means as they were
            self._means[spec.name] = load.times
        return load


def increases(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """Return by how much each counter has grown; one that is smaller than before was reset, and counts from 0."""
    both = ((name, before[name], after[name]) for name in before.keys() & after.keys())
    return {name: new - old if new >= old else new for name, old, new in both}


def server_load(endpoint: str, reading: Reading, grown: Mapping[str, float], seconds: float) -> ServerLoad:
    """``grown`` has the growth of each counter since the previous reading; empty without one."""
    values = reading.values
    queries = grown.get("prefix_queries", 0.0)
    hits = grown.get("prefix_hits", 0.0) / queries if queries > 0 else values.get("hit_rate")
    return ServerLoad(
        endpoint=endpoint,
        server=reading.server,
        running=values.get("running"),
        waiting=values.get("waiting"),
        kv_cache=_fraction(values.get("kv_cache")),
        prefix_hits=_fraction(hits),
        tokens_per_s=_rate(grown.get("generated"), seconds),
        prompt_tokens_per_s=_rate(grown.get("prompted"), seconds),
        times=_server_times(grown),
        overhead_s=_mean(grown, "overhead"),
    )


def _server_times(grown: Mapping[str, float]) -> ServerTimes:
    """Return the means of the requests that ended; SGLang has the time to the first token instead of the prefill."""
    queue_s, prefill_s, decode_s = (_mean(grown, phase) for phase in ("queue", "prefill", "decode"))
    first_s, all_s = _mean(grown, "first_token"), _mean(grown, "latency")
    if prefill_s is None and first_s is not None and queue_s is not None:
        prefill_s = max(first_s - queue_s, 0.0)
    if decode_s is None and first_s is not None and all_s is not None:
        decode_s = max(all_s - first_s, 0.0)
    return ServerTimes(queue_s=queue_s, prefill_s=prefill_s, decode_s=decode_s)


def _mean(grown: Mapping[str, float], name: str) -> float | None:
    count = grown.get(f"{name}_count", 0.0)
    total = grown.get(f"{name}_sum")
    return total / count if total is not None and count >= 1.0 else None


def _rate(grown: float | None, seconds: float) -> float | None:
    return grown / seconds if grown is not None and seconds > 0.0 else None


def _fraction(value: float | None) -> float | None:
    return None if value is None else min(value, 1.0)


def ollama_load(endpoint: str, body: bytes) -> ServerLoad | None:
    """Return what Ollama's ``/api/ps`` lists: the models in memory, and how much of each is on the GPU."""
    listed = as_dict(decode_json(body)).get("models")
    if not isinstance(listed, list):
        return None
    models = tuple(_model_text(as_dict(model)) for model in as_list(listed)[:MAX_MODELS])
    return ServerLoad(endpoint=endpoint, server="ollama", models=models)


def _model_text(model: Mapping[str, object]) -> str:
    name = one_line(as_text(model.get("name")), 60) or "?"
    size, on_gpu = model.get("size"), model.get("size_vram")
    if type(size) is not int or type(on_gpu) is not int or not 0 < size < math.inf:
        return name
    return f"{name} {size / 2**30:.1f} GiB, {percent_text(min(max(on_gpu / size, 0.0), 1.0))} on the GPU"
