"""Registry of model endpoints: the health of each endpoint, and the changes from one endpoint to another."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from copy import copy
from datetime import datetime, timedelta
from typing import Final, NamedTuple

import msgspec

from agentgym_tui.state.data_model import Episode, StepState
from agentgym_tui.state.normalize import MAX_CAUSE_CHARS, as_aware, clamp_optional, clip_name, clip_names, clip_optional
from agentgym_tui.state.slowness import RecentSteps, server_state
from agentgym_tui.state.streaming_answer import MAX_FAILURES
from runner.events.live import ModelHealth, ModelMetrics, TokenText
from runner.results.bottleneck import ServerState
from runner.types import skipped_endpoints

MAX_ENDPOINTS: Final = 50
MAX_FAILOVERS: Final = 50
MAX_MODELS: Final = 20
"""Largest number of models in memory that are kept of an endpoint."""
REPEAT_AFTER: Final = timedelta(seconds=60)
"""Shortest time between two reports of the same failover, which every step repeats."""


class EndpointState(msgspec.Struct):
    """State of a model endpoint.

    Attributes:
        cause: why the endpoint has its ``status``; None if there is nothing to explain.
        model: name of the model that is requested from the endpoint.
        rest_s: seconds for which agents still skip the endpoint after a failure, as of its last health item; None if
            agents use it.
        requests_per_minute: limit of the profile; None if there is none.
        concurrent_requests: limit of the profile; None if there is none.
        failure: why the last inference of the endpoint failed; None if the inference succeeded.
        hint: what to do about ``cause``.
        metrics: the newest load of its server; None if it reports none.
        in_memory: the models that Ollama holds in memory, and how much of each is on the GPU; untrusted texts.
        metrics_at_s: when that load was received, in seconds of the console's monotonic clock.
        reporters: the nodes whose current processes have reported its health.
    """

    status: str = "unknown"
    cause: str | None = None
    model: str | None = None
    rest_s: float | None = None
    requests_per_minute: int | None = None
    concurrent_requests: int | None = None
    failure: str | None = None
    hint: str | None = None
    metrics: ServerState | None = None
    in_memory: tuple[str, ...] | None = None
    metrics_at_s: float = -math.inf
    reporters: frozenset[str] = frozenset()

    @property
    def is_answering(self) -> bool:
        """Whether an agent can expect an answer from the endpoint now."""
        return self.status in ("up", "slow", "embedded") and self.failure is None and self.rest_s is None


class Failover(NamedTuple):
    """A change from one endpoint to another. The texts are untrusted.

    Attributes:
        env: environment of the episode in which the change was observed.
        failed: endpoints that gave no answer; empty if the first configured endpoint answers again.
        reason: why the first endpoint in ``failed`` gave no answer.
        endpoint: the endpoint that answers now.
        at: when the change was observed.
    """

    env: str
    failed: tuple[str, ...]
    reason: str
    endpoint: str
    at: datetime


class EndpointRegistry:
    """Endpoints by name, in the order in which agents try them.

    Args:
        now: returns the time of the console's monotonic clock in seconds.

    Attributes:
        recent_steps: the newest steps of all batches, and where their time went.
        failovers: the newest changes from one endpoint to another and back, the newest last.
        n_failovers: number of all changes, including those no longer in ``failovers``.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.endpoints: dict[str, EndpointState] = {}
        self.failovers: deque[Failover] = deque(maxlen=MAX_FAILOVERS)
        self.n_failovers = 0
        self.recent_steps = RecentSteps(now)
        self._now = now
        self._reported_at: dict[tuple[tuple[str, ...], str], datetime] = {}

    def apply_health(self, item: ModelHealth, node: str) -> bool:
        """Store the health that ``node`` reported for an endpoint; return whether it has changed."""
        before = copy(self.endpoints.get(clip_name(item.endpoint)))
        if (endpoint := self._get(item.endpoint)) is not None:
            endpoint.status, endpoint.cause = item.status, clip_optional(item.cause, MAX_CAUSE_CHARS)
            endpoint.model, endpoint.rest_s = clip_optional(item.model), item.rest_s
            endpoint.reporters |= {node}
            endpoint.hint = clip_optional(item.hint, MAX_CAUSE_CHARS)
            endpoint.requests_per_minute = clamp_optional(item.requests_per_minute)
            endpoint.concurrent_requests = clamp_optional(item.concurrent_requests)
            if item.rest_s is None:
                endpoint.failure = None
        return endpoint != before

    def forget_reports(self, node: str) -> None:
        """Drop the endpoints that only an earlier process of ``node`` reported: its new profile may not have them."""
        for name, endpoint in list(self.endpoints.items()):
            if node in endpoint.reporters:
                endpoint.reporters -= {node}
                if not endpoint.reporters:
                    del self.endpoints[name]

    def apply_metrics(self, item: ModelMetrics) -> bool:
        """Store the load that a node reported for an endpoint's server; return whether it has changed."""
        endpoint, state = self._get(item.endpoint), server_state(item)
        if endpoint is None:
            return False
        in_memory = None if item.models is None else tuple(clip_names(item.models, MAX_MODELS))
        is_new = (endpoint.metrics, endpoint.in_memory) != (state, in_memory)
        endpoint.metrics, endpoint.in_memory, endpoint.metrics_at_s = state, in_memory, self._now()
        return is_new

    def apply_request(self, item: TokenText, episode: Episode) -> None:
        """Update endpoints and failovers from an item that reports a request or a failed one.

        Args:
            item: the item, which was not yet applied to the episode.
            episode: its episode.
        """
        before = episode.streaming
        failures = before.failures if before is not None and before.step == item.step else ()
        if item.failure is not None:
            failures = (*failures, item.failure[:MAX_CAUSE_CHARS])[-MAX_FAILURES:]
            failed, _, reason = item.failure.partition(": ")
            if (endpoint := self._get(failed)) is not None:
                endpoint.failure = reason[:MAX_CAUSE_CHARS]
        if item.endpoint is not None and failures and item.step > episode.last_step_index and episode.running:
            self._record_failover(episode.env, failures, item.endpoint, item.at)

    def apply_steps(self, steps: Sequence[StepState], episode: Episode, at: datetime) -> None:
        """Update endpoints and failovers from steps of an episode.

        Args:
            steps: the new steps of the episode.
            episode: the episode.
            at: when the last of the steps ended.
        """
        self.recent_steps.add(steps, episode.batch_id)
        for step in steps:
            if step.endpoint is None or not (step.warnings or step is steps[-1]):
                continue  # the newest step names the same endpoint
            self.mark_answered(step.endpoint)
            if step.warnings and step.skipped_endpoints:
                self._record_failover(episode.env, step.warnings, step.endpoint, at)
            elif self.failovers and self.failovers[-1].failed:
                self._add_failover(Failover(episode.env, (), "", step.endpoint, as_aware(at)))

    def mark_answered(self, endpoint: str) -> None:
        """Record that an endpoint answers."""
        if (known := self._get(endpoint)) is not None:
            known.failure = known.rest_s = None
            known.status = "up" if known.status == "unknown" else known.status

    def _record_failover(self, env: str, failures: Sequence[str], endpoint: str, at: datetime) -> None:
        if failed := skipped_endpoints(endpoint, failures):
            reason = failures[0].partition(": ")[2][:MAX_CAUSE_CHARS]
            self._add_failover(Failover(env, tuple(map(clip_name, failed)), reason, clip_name(endpoint), as_aware(at)))

    def _add_failover(self, failover: Failover) -> None:
        key = failover.failed, failover.endpoint
        reported_at = self._reported_at.get(key)
        if reported_at is not None and failover.at - reported_at < REPEAT_AFTER:  # also where this one is older
            return
        if len(self._reported_at) >= MAX_FAILOVERS:
            self._reported_at.clear()
        self._reported_at[key] = failover.at
        self.failovers.append(failover)
        self.n_failovers += 1

    def _get(self, endpoint: str) -> EndpointState | None:
        known = clip_name(endpoint)
        if known not in self.endpoints and known and len(self.endpoints) < MAX_ENDPOINTS:
            self.endpoints[known] = EndpointState()
        return self.endpoints.get(known)
