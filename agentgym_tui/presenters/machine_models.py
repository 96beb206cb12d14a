"""The section of the machine screen about model servers: their health, our requests to them, and their own metrics."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from agentgym_tui.presenters.answering_endpoint import endpoint_state
from agentgym_tui.presenters.bottleneck import LIMIT_REACHED, METRICS_S, EndpointUse, Spread, endpoint_use
from agentgym_tui.presenters.cells import Cell, Tone
from agentgym_tui.presenters.machine_items import Item, MachineView, Problem, Section, is_sustained, problem_from_cause
from agentgym_tui.presenters.number_format import (
    format_count,
    format_duration,
    format_percent,
    format_rate,
    format_time_left,
    pluralize,
)
from agentgym_tui.safe_text import masked_line
from agentgym_tui.state.nodes import SERVER_TRENDS
from agentgym_tui.state.servers import EndpointState

KV_CACHE_LIMIT: Final = 0.95
"""Used part of a KV cache from which it is a problem."""
MAX_REASON: Final = 100
"""Number of characters shown of the reason of failed requests."""
MAX_MODEL: Final = 100
"""Number of characters shown of a model in memory."""

NO_METRICS: Final = "none read; SGLang needs --enable-metrics, llama.cpp --metrics"
"""Shown for a server that answers, while no metrics of it were read."""


def model_section(view: MachineView) -> Section:
    """Return the model endpoints in the order in which agents try them."""
    endpoints = view.store.endpoints
    return Section(
        "models",
        "Model servers",
        [item for name, endpoint in endpoints.items() for item in _endpoint_items(view, name, endpoint)],
        "no model endpoint has been checked yet: the node checks those of its profile",
    )


def _endpoint_items(view: MachineView, name: str, endpoint: EndpointState) -> Iterator[Item]:
    state = endpoint_state(endpoint)
    answers = endpoint.is_answering
    tone: Tone = ("warn" if endpoint.status == "slow" else "good") if answers else "bad"
    parts = [f"{('●' if answers else '✗')} {state}"]
    parts += [masked_line(endpoint.model, 60)] if endpoint.model else []
    latencies = view.store.trends.get("model latency", name)
    if latencies and latencies[-1] is not None:
        parts.append(f"answers in {format_duration(latencies[-1])}")
    problems = list(_endpoint_problems(endpoint))
    now = Cell(" · ".join(parts), tone)
    yield Item(f"model {name}", masked_line(name, 60), now, latencies, problems=problems)
    if not view.problems_only:
        yield from _use_items(name, endpoint, endpoint_use(view.store, name))
    if endpoint.metrics_at_s >= view.store.now() - METRICS_S:
        yield from _load_items(view, name)
        yield from _memory_items(name, endpoint.in_memory)
    elif answers and not view.problems_only:
        yield Item(f"metrics {name}", "  metrics", Cell(NO_METRICS, "dim"))


def _use_items(name: str, endpoint: EndpointState, use: EndpointUse) -> Iterator[Item]:
    """Yield what the requests of the running episodes show, beside the limits of the profile."""
    at_once, per_minute = endpoint.concurrent_requests, endpoint.requests_per_minute
    requests = [f"{format_count(use.n_in_flight)} in flight"] if use.n_in_flight else []
    if use.answers_per_min is not None:
        requests.append(f"{format_rate(use.answers_per_min)} answers/min")
    if requests:
        yield Item(f"use {name}", "  our requests", Cell(" · ".join(requests)))
    limits = [f"{format_count(per_minute)} requests/min"] if per_minute is not None else []
    limits += [f"{format_count(at_once)} in flight"] if at_once is not None else []
    if limits:
        is_reached = (at_once is not None and use.n_in_flight >= at_once) or (
            per_minute is not None and (use.answers_per_min or 0.0) >= LIMIT_REACHED * per_minute
        )
        text = f"at most {' and '.join(limits)}"
        now = Cell(f"! {text}: reached" if is_reached else text, "warn" if is_reached else "plain")
        yield Item(f"limit {name}", "  rate limit", now)
    if use.answer is not None:
        parts = [_spread_text(use.answer)]
        parts += [] if use.first_token is None else [f"first token {_spread_text(use.first_token)}"]
        yield Item(f"answers {name}", "  our answers", Cell(" · ".join(parts)))
    if use.failures:
        failed = [f"{n:,} x {masked_line(reason, MAX_REASON)}" for reason, n in use.failures]
        now = Cell(f"! {', '.join(failed)}", "warn")
        yield Item(f"failures {name}", "  failures", now)


def _spread_text(spread: Spread) -> str:
    return f"{format_duration(spread.median_s)}, 95% within {format_duration(spread.p95_s)}"


def _memory_items(name: str, in_memory: Sequence[str] | None) -> Iterator[Item]:
    if in_memory is not None:
        models = ", ".join([masked_line(model, MAX_MODEL) for model in in_memory]) or "no model"
        yield Item(f"memory {name}", "  in memory", Cell(models))


def _load_items(view: MachineView, name: str) -> Iterator[Item]:
    """Yield the load of a server by its own metrics."""
    trends = {what: view.store.trends.get(what, name) for what in SERVER_TRENDS}
    last = {what: values[-1] for what, values in trends.items() if values and values[-1] is not None}
    running, waiting, kv_cache = last.get("running"), last.get("waiting"), last.get("kv_cache")
    if running is not None or waiting is not None:
        shown = [(running, "running"), (waiting, "waiting")]
        text = " · ".join(f"{format_count(round(min(n, 1e12)))} {word}" for n, word in shown if n is not None)
        problems = list(_queue_problems(trends["waiting"], waiting))
        now = Cell(f"! {text}" if problems else text, "warn" if problems else "plain")
        trend = trends["waiting" if waiting else "running"]
        yield Item(f"requests {name}", "  requests", now, trend, problems=problems)
    if kv_cache is not None:
        hits = last.get("prefix_hits")
        parts = [f"{format_percent(100 * kv_cache)} used"]
        parts += [] if hits is None else [f"prefix hits {format_percent(100 * hits)}"]
        problems = list(_cache_problems(trends["kv_cache"], kv_cache))
        now = Cell(" ".join([*(["!"] if problems else []), " · ".join(parts)]), "warn" if problems else "plain")
        yield Item(f"cache {name}", "  KV cache", now, trends["kv_cache"], 1.0, problems)
    if (rate := last.get("tokens_per_s")) is not None:
        now = Cell(f"{format_rate(rate)} tokens/s")
        yield Item(f"tokens {name}", "  speed", now, trends["tokens_per_s"])


def _queue_problems(trend: Sequence[float | None], waiting: float | None) -> Iterator[Problem]:
    if is_sustained(trend, waiting, 1.0) and waiting is not None:
        text = f"{pluralize(round(min(waiting, 1e12)), 'request waits', 'requests wait')} in its queue"
        yield Problem(text, "play fewer episodes at once, or add a server to the profile")


def _cache_problems(trend: Sequence[float | None], kv_cache: float) -> Iterator[Problem]:
    if is_sustained(trend, kv_cache, KV_CACHE_LIMIT):
        text = f"its KV cache is {format_percent(100 * kv_cache)} full: requests wait or are computed again"
        yield Problem(text, "play fewer episodes at once, or give the server more GPU memory")


def _endpoint_problems(endpoint: EndpointState) -> Iterator[Problem]:
    if endpoint.status in ("down", "wrong"):
        what = "it does not answer" if endpoint.status == "down" else "it answers, but cannot be used"
        step = "start the server, or correct its URL in the profile"
        yield problem_from_cause(what, endpoint.cause, step, hint=endpoint.hint, is_on_live=True)
    elif endpoint.status == "slow":
        step = "play fewer episodes at once, or add a server to the profile"
        slow = "it answers slowly"
        yield problem_from_cause(slow, endpoint.cause, step, hint=endpoint.hint, tone="warn", is_on_live=True)
    elif endpoint.failure is not None:
        step = "agents use the next endpoint; read the log of this server if it fails again"
        yield problem_from_cause("the last request failed", endpoint.failure, step, is_on_live=True)
    elif endpoint.rest_s is not None:
        what = f"agents skip it for {format_time_left(endpoint.rest_s)} after a failure"
        step = "wait: agents try it again by themselves"
        yield problem_from_cause(what, endpoint.cause, step, hint=endpoint.hint, tone="warn", is_on_live=True)
