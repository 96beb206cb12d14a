"""What slows the running batch down, and what the agents' own requests show of an endpoint."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

from agentgym_tui.state.batches import BatchRun
from agentgym_tui.state.episode import Episode
from agentgym_tui.state.run_store import RunStore
from agentgym_tui.state.servers import RecentStep
from runner.results.bottleneck import Bottleneck, find_bottleneck
from runner.types import Phases

METRICS_S: Final = 10.0  # for which the metrics of a server count; a node sends new ones every 2 s
ANSWERED_S: Final = 5.0  # after an answer, an endpoint counts as answering, whatever its health check finds
WAIT_S: Final = 5.0  # after which what a step in progress waits for counts, too; most steps end earlier
MIN_ANSWERS: Final = 2  # for a rate
MAX_REASONS: Final = 3
LIMIT_REACHED: Final = 0.95  # part of the requests per minute from which the limit counts as reached


class Spread(NamedTuple):
    median_s: float
    p95_s: float


class EndpointUse(NamedTuple):
    """Use of an endpoint by the running episodes, from their newest steps."""

    n_in_flight: int = 0  # requests that wait for an answer or receive one
    answers_per_min: float | None = None  # None if there are too few
    answer: Spread | None = None  # time to its end, with failed attempts before it
    first_token: Spread | None = None  # None where no answer was streamed
    failures: Sequence[tuple[str, int]] = ()  # the most frequent reason first; untrusted


def endpoint_use(store: RunStore, endpoint: str) -> EndpointUse:
    steps, seconds = store.endpoint_registry.newest_steps()
    answers = [step for step in steps if step.endpoint == endpoint]
    requests = (episode.streaming for episode in store.running_episodes())
    warnings = (warning.partition(": ") for step in steps for warning in step.warnings)
    return EndpointUse(
        sum(request is not None and request.endpoint == endpoint for request in requests),
        60.0 * len(answers) / seconds if len(answers) >= MIN_ANSWERS and seconds > 0.0 else None,
        _spread([step.model_s for step in answers]),
        _spread([step.ttft_s for step in answers if step.ttft_s is not None]),
        Counter(reason for name, colon, reason in warnings if colon and name == endpoint).most_common(MAX_REASONS),
    )


def _spread(durations_s: Sequence[float]) -> Spread | None:
    if not durations_s:
        return None
    ordered = sorted(durations_s)
    return Spread(*(ordered[math.ceil(share * len(ordered)) - 1] for share in (0.5, 0.95)))


def present_bottleneck(store: RunStore) -> Bottleneck:
    """Return what the running batch waits for most; its ``sentence`` holds untrusted names."""
    batch = store.batch_registry.active()
    if batch is None or batch.status != "running" or store.is_lost(batch):
        return Bottleneck("none")
    steps = store.endpoint_registry.steps_of(batch.batch_id)
    if batch.model is None:
        return find_bottleneck(steps)
    now, endpoints = store.now(), store.endpoints
    states = [each.metrics for each in endpoints.values() if each.metrics_at_s >= now - METRICS_S]
    failing = {
        name: each.failure or each.cause or ""
        for name, each in endpoints.items()
        if each.status in ("down", "wrong") or each.failure is not None or each.rest_s is not None
    }
    has_answer = any(step.endpoint and step.seen_s >= now - ANSWERED_S for step in steps)
    is_down = len(failing) == len(endpoints) and not has_answer
    if not is_down and (limit := _reached_limit(store, batch, steps)) is not None:
        return Bottleneck("own", limit, 1.0)
    steps = [*_unanswered(store, batch), *steps]
    return find_bottleneck(steps, [state for state in states if state is not None], failing, is_down=is_down)


def _unanswered(store: RunStore, batch: BatchRun) -> list[RecentStep]:
    """Return the steps in progress whose model has not begun to answer for ``WAIT_S``."""
    waiting: list[RecentStep] = []
    for episode in _running(store, batch):
        answer, wait_s = episode.streaming, store.answer_wait_s(episode)
        if answer is not None and answer.first_at is None and wait_s is not None and wait_s >= WAIT_S:
            phases = Phases(model=wait_s)
            waiting.append(RecentStep(store.now(), batch.batch_id, phases, answer.endpoint, (), wait_s, None))
    return waiting


def _reached_limit(store: RunStore, batch: BatchRun, steps: Sequence[RecentStep]) -> str | None:
    """Return a sentence if no request is sent, because an endpoint's limit of requests per minute is reached."""
    episodes = _running(store, batch)
    is_quiet = steps and steps[-1].seen_s < store.now() - WAIT_S
    if not is_quiet or not episodes or any(episode.streaming is not None for episode in episodes):
        return None
    for name, endpoint in store.endpoints.items():
        limit = endpoint.requests_per_minute
        if limit is not None and (endpoint_use(store, name).answers_per_min or 0.0) >= LIMIT_REACHED * limit:
            return f"waiting for the rate limit of {name}: at most {limit:,} requests/min"
    return None


def _running(store: RunStore, batch: BatchRun) -> list[Episode]:
    episodes = (each for each in store.running_episodes() if each.batch_id == batch.batch_id)
    return [each for each in episodes if not each.paused and not each.node_lost]
