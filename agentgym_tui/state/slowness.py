"""What slows the running batch down: its newest steps, the load of the model servers, and failing endpoints."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from agentgym_tui.state.data_model import BatchRun, Episode, StepState
from agentgym_tui.state.endpoint_use import LIMIT_REACHED, endpoint_use
from agentgym_tui.state.normalize import clip_name
from runner.events.live import ModelMetrics
from runner.inference.metrics_text import SERVER_NAMES
from runner.results.bottleneck import Bottleneck, ServerState, find_bottleneck
from runner.types import Phases

if TYPE_CHECKING:
    from agentgym_tui.state.endpoints import EndpointState
    from agentgym_tui.state.run_store import RunStore

WINDOW_S: Final = 60.0
"""Age of the oldest step that counts, unless there are fewer than ``MIN_STEPS`` newer ones."""
MIN_STEPS: Final = 5
MAX_STEPS: Final = 200
METRICS_S: Final = 10.0
"""Seconds for which the metrics of a server count; a node sends new ones every 2 s."""
ANSWERED_S: Final = 5.0
"""Seconds after an answer for which an endpoint counts as answering, whatever its health check has found."""
WAIT_S: Final = 5.0
"""Seconds after which what a step in progress waits for counts, too; most steps end earlier."""
_MAX_NUMBER: Final = 1e9


class RecentStep(msgspec.Struct, frozen=True, gc=False):
    """What counts of a step: when it was received, by the console's clock, its times, and who answered."""

    seen_s: float
    batch_id: str
    phases: Phases | None
    endpoint: str | None
    warnings: tuple[str, ...]
    model_s: float
    ttft_s: float | None


class RecentSteps:
    """The newest steps of all batches.

    Args:
        now: returns the time of the console's monotonic clock in seconds.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._steps: deque[RecentStep] = deque(maxlen=MAX_STEPS)

    def add(self, steps: Iterable[StepState], batch_id: str) -> None:
        """Add new steps of an episode of a batch."""
        now = self._now()
        self._steps.extend(
            RecentStep(now, batch_id, each.phases, each.endpoint, each.warnings, each.model_s, each.ttft_s)
            for each in steps
        )

    def newest(self) -> tuple[list[RecentStep], float]:
        """Return the steps of the last ``WINDOW_S`` seconds, the newest last, and the seconds that they cover."""
        now = self._now()
        is_cut = len(self._steps) == MAX_STEPS and self._steps[0].seen_s > now - WINDOW_S
        steps = [step for step in self._steps if step.seen_s >= now - WINDOW_S]
        return steps, now - self._steps[0].seen_s if is_cut else WINDOW_S

    def of_batch(self, batch_id: str) -> list[RecentStep]:
        """Return the steps of a batch that count, the newest last."""
        steps = [step for step in self._steps if step.batch_id == batch_id]
        newest = sum(step.seen_s >= self._now() - WINDOW_S for step in steps)
        return steps[-max(newest, MIN_STEPS) :]


def server_state(item: ModelMetrics) -> ServerState:
    """Return the load of a server as far as a bottleneck depends on it, with numbers that can be shown."""
    numbers = {
        name: None if (value := getattr(item, name)) is None else min(max(value, 0.0), _MAX_NUMBER)
        for name in ("waiting", "kv_cache", "tokens_per_s", "queue_s", "prefill_s", "decode_s")
    }
    server = next((name for key, name in SERVER_NAMES.items() if key == item.server), clip_name(item.server))
    return ServerState(endpoint=clip_name(item.endpoint), server=server, **numbers)


def present_bottleneck(store: RunStore) -> Bottleneck:
    """Return what the running batch waits for most; its ``sentence`` holds untrusted names."""
    batch = store.active_batch()
    if batch is None or batch.status != "running" or store.is_lost(batch):
        return Bottleneck("none")
    steps = store.endpoint_registry.recent_steps.of_batch(batch.batch_id)
    if batch.model is None:
        return find_bottleneck(steps)
    now, endpoints = store.now(), store.endpoints
    states = [each.metrics for each in endpoints.values() if each.metrics_at_s >= now - METRICS_S]
    failing = {name: _reason(each) for name, each in endpoints.items() if _is_failing(each)}
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
            phases = Phases(model=min(wait_s, _MAX_NUMBER))
            waiting.append(RecentStep(store.now(), batch.batch_id, phases, answer.endpoint, (), wait_s, None))
    return waiting


def _reached_limit(store: RunStore, batch: BatchRun, steps: Sequence[RecentStep]) -> str | None:
    """Return a sentence if no request is sent, because an endpoint's limit of requests per minute is reached."""
    episodes = _running(store, batch)
    is_quiet = bool(steps) and steps[-1].seen_s < store.now() - WAIT_S
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


def _is_failing(endpoint: EndpointState) -> bool:
    return endpoint.status in ("down", "wrong") or endpoint.failure is not None or endpoint.rest_s is not None


def _reason(endpoint: EndpointState) -> str:
    return endpoint.failure or endpoint.cause or ""
