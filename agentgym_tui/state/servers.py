"""Environments and model endpoints: their health, rewards and success counts, load, and failovers."""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from agentgym_tui.state.episode import Episode, StepState
from runner.events.live import EnvHealth, ModelHealth, ModelMetrics, TokenText
from runner.results.bottleneck import ServerState
from runner.types import UNRATED, Phases, skipped_endpoints

if TYPE_CHECKING:
    from runner.store.index_schema import EpisodeRow

MAX_ENVS: Final = 200
N_POINTS: Final = 500  # reward points per environment
UNRATED_OUTCOMES: Final = frozenset(outcome.value for outcome in UNRATED)  # not in the success rate
MAX_ENDPOINTS: Final = 50
MAX_FAILOVERS: Final = 50
MAX_FAILURES: Final = 20  # number that is kept of an answer
REPEAT_AFTER: Final = timedelta(seconds=60)  # between two reports of the same failover, which every step repeats
WINDOW_S: Final = 60.0  # age of the oldest step that counts, unless there are fewer than ``MIN_STEPS`` newer ones
MIN_STEPS: Final = 5
MAX_STEPS: Final = 200


class EnvironmentState(msgspec.Struct):
    name: str
    tier: str = ""
    ram: str = ""  # what its server needs, as written in the profile
    status: str | None = None
    cause: str | None = None
    note: str | None = None  # scenarios of a family of environments
    latency_s: float | None = None
    transport: str = ""
    open: int | None = None  # number of open instances
    last_reward: float | None = None
    n_rated: int = 0
    n_success: int = 0
    n_errors: int = 0
    n_running: int = 0
    n_players: int = 0  # different agents and models that the success counts sum up
    baseline: str | None = None  # agent without a model whose counts these are; None where a model has run it
    unscored: bool = False  # whether any ended episode is


class RewardPoint(NamedTuple):
    episode_id: str
    reward: float | None
    success: bool | None  # None if it is not known; then it is in no rate
    rated: bool  # False for ``UNRATED_OUTCOMES`` and unscored episodes
    agent: str = ""
    model: str | None = None  # None for a baseline agent
    error: bool = False
    unscored: bool = False


class EnvironmentRegistry:
    """Environments by name: first those of the profile in its order, then all others that are known.

    ``rewards`` are the newest points of each, the oldest first; ``version`` grows with each change of ``envs``.
    """

    def __init__(self) -> None:
        self.envs: dict[str, EnvironmentState] = {}
        self.rewards: dict[str, deque[RewardPoint]] = {}
        self.version = 0
        self._new = defaultdict[str, list[RewardPoint]](list)

    def get(self, env: str) -> EnvironmentState | None:
        """Return an environment, created where needed; None for "" and where ``MAX_ENVS`` are known."""
        if env not in self.envs and env and len(self.envs) < MAX_ENVS:
            self.envs[env] = EnvironmentState(env)
            self.version += 1
        return self.envs.get(env)

    def apply_profile(self, entries: Iterable[tuple[str, str, str | None]]) -> None:
        """Set the order of environments; the profile gives tier, name and memory of the server of each.

        The node no longer checks an environment that only the profile before had, so its health becomes unknown.
        """
        others = dict(self.envs)
        self.envs.clear()
        for tier, env, ram in entries:
            state = self.envs.setdefault(env, others.pop(env, EnvironmentState(env)))
            state.tier, state.ram = tier, ram or ""
        for left in (other for other in others.values() if other.tier):
            left.tier, left.ram, left.status, left.cause, left.note = "", "", None, None, None
            left.latency_s = left.open = None
        self.envs |= others
        self.version += 1

    def apply_health(self, item: EnvHealth) -> bool:
        """Return whether it has changed."""
        before = copy(self.envs.get(item.env))
        if (env := self.get(item.env)) is not None:
            for field in ("status", "cause", "latency_s", "note", "transport", "open"):
                setattr(env, field, getattr(item, field))
        self.version += (changed := env != before)
        return changed

    def add_ended(self, episodes: Iterable[Episode | EpisodeRow]) -> None:
        """Add the rewards of ended episodes, of stored ones the newest first; ``refresh`` sorts them in."""
        for episode in episodes:
            if self.get(episode.env) is not None and len(new := self._new[episode.env]) < N_POINTS:
                new.append(_reward_point(episode))

    def refresh(self, running: Iterable[Episode]) -> None:
        """Recount the running episodes, and the successes where there are new rewards."""
        n_running = Counter([episode.env for episode in running if not episode.node_lost])
        for name in sorted(n_running.keys() - self.envs.keys()):
            self.get(name)
        for env in self.envs.values():
            self.version += env.n_running != n_running[env.name]
            env.n_running = n_running[env.name]
        self.version += bool(self._new)
        for name, points in self._new.items():
            by_id = {point.episode_id: point for point in (*self.rewards.get(name, ()), *points)}
            self.rewards[name] = deque((by_id[episode_id] for episode_id in sorted(by_id)), maxlen=N_POINTS)
            _count_successes(self.envs[name], self.rewards[name])
        self._new.clear()


def _reward_point(episode: Episode | EpisodeRow) -> RewardPoint:
    return RewardPoint(
        episode_id=episode.episode_id,
        reward=episode.reward,
        success=episode.success,
        rated=episode.outcome not in UNRATED_OUTCOMES and not episode.unscored,
        agent=episode.agent,
        model=episode.models,
        error=episode.outcome == "error",
        unscored=episode.unscored,
    )


def counted_points(points: Iterable[RewardPoint]) -> list[RewardPoint]:
    """Return the points of models that are rated or errors, or those of the newest agent where none has a model."""
    counted = [point for point in points if point.rated or point.error]
    return [point for point in counted if point.model is not None] or [
        point for point in counted if point.agent == counted[-1].agent
    ]


def _count_successes(env: EnvironmentState, points: Sequence[RewardPoint]) -> None:
    """Set the last reward and the success counts: of models, or of the newest baseline where no model has any."""
    env.last_reward = next((point.reward for point in reversed(points) if not point.error), None)
    env.unscored = any(point.unscored for point in points)
    counted = counted_points(points)
    rated = [point for point in counted if point.rated and point.success is not None]
    env.n_rated, env.n_success = len(rated), sum(bool(point.success) for point in rated)
    env.n_errors = sum(point.error for point in counted)
    env.baseline = counted[-1].agent if counted and counted[-1].model is None else None
    env.n_players = len({(point.agent, point.model) for point in rated})


class EndpointState(msgspec.Struct):
    status: str = "unknown"
    cause: str | None = None  # why it has its ``status``
    model: str | None = None
    rest_s: float | None = None  # for which agents still skip it, as of its last health item
    requests_per_minute: int | None = None
    concurrent_requests: int | None = None
    failure: str | None = None  # why its last inference failed
    hint: str | None = None  # what to do about ``cause``
    metrics: ServerState | None = None
    in_memory: tuple[str, ...] | None = None  # models that Ollama holds, and how much of each is on the GPU; untrusted
    metrics_at_s: float = -math.inf  # by the console's monotonic clock

    @property
    def is_answering(self) -> bool:
        return self.status in ("up", "slow", "embedded") and self.failure is None and self.rest_s is None


class Failover(NamedTuple):
    """A change from one endpoint to another. The texts are untrusted."""

    env: str
    failed: tuple[str, ...]  # empty if the first configured endpoint answers again
    reason: str  # why the first in ``failed`` gave no answer
    endpoint: str  # the one that answers now
    at: datetime


class RecentStep(msgspec.Struct, frozen=True, gc=False):
    seen_s: float  # by the console's monotonic clock
    batch_id: str
    phases: Phases | None
    endpoint: str | None
    warnings: Sequence[str]
    model_s: float
    ttft_s: float | None


class EndpointRegistry:
    """Endpoints by name, in the order in which agents try them.

    ``failovers`` are the newest changes from one endpoint to another and back; ``n_failovers`` counts all.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.endpoints: dict[str, EndpointState] = {}
        self.failovers: deque[Failover] = deque(maxlen=MAX_FAILOVERS)
        self.n_failovers = 0
        self._recent_steps: deque[RecentStep] = deque(maxlen=MAX_STEPS)
        self._now = now
        self._reported_at: dict[tuple[tuple[str, ...], str], datetime] = {}

    def apply_health(self, item: ModelHealth) -> bool:
        before = copy(self.endpoints.get(item.endpoint))
        if (endpoint := self._get(item.endpoint)) is not None:
            for field in ("status", "cause", "model", "rest_s", "hint", "requests_per_minute", "concurrent_requests"):
                setattr(endpoint, field, getattr(item, field))
            if item.rest_s is None:
                endpoint.failure = None
        return endpoint != before

    def apply_metrics(self, item: ModelMetrics) -> bool:
        from runner.inference.metrics_text import SERVER_NAMES

        if (endpoint := self._get(item.endpoint)) is None:
            return False
        names = ("endpoint", "waiting", "kv_cache", "tokens_per_s", "queue_s", "prefill_s", "decode_s")
        server = SERVER_NAMES.get(item.server, item.server)
        state = ServerState(server=server, **{name: getattr(item, name) for name in names})
        in_memory = None if item.models is None else tuple(dict.fromkeys(item.models))
        is_new = (endpoint.metrics, endpoint.in_memory) != (state, in_memory)
        endpoint.metrics, endpoint.in_memory, endpoint.metrics_at_s = state, in_memory, self._now()
        return is_new

    def apply_request(self, item: TokenText, episode: Episode) -> None:
        """Update endpoints and failovers from an item, not yet applied to its episode, that reports a request."""
        before = episode.streaming
        failures = before.failures if before is not None and before.step == item.step else ()
        if item.failure is not None:
            failures = (*failures, item.failure)[-MAX_FAILURES:]
            failed, _, reason = item.failure.partition(": ")
            if (endpoint := self._get(failed)) is not None:
                endpoint.failure = reason
        if item.endpoint is not None and failures and item.step > episode.last_step_index and episode.running:
            self._record_failover(episode.env, failures, item.endpoint, item.at)

    def apply_steps(self, steps: Sequence[StepState], episode: Episode, at: datetime) -> None:
        """Update endpoints and failovers from new steps, the last of which ended ``at``."""
        for step in steps:
            phases, times = step.phases, (step.model_s, step.ttft_s)
            recent = RecentStep(self._now(), episode.batch_id, phases, step.endpoint, step.warnings, *times)
            self._recent_steps.append(recent)
            if step.endpoint is None or not (step.warnings or step is steps[-1]):
                continue  # the newest step names the same endpoint
            self.mark_answered(step.endpoint)
            if step.warnings and step.skipped_endpoints:
                self._record_failover(episode.env, step.warnings, step.endpoint, at)
            elif self.failovers and self.failovers[-1].failed:
                self._add_failover(Failover(episode.env, (), "", step.endpoint, at))

    def newest_steps(self) -> tuple[list[RecentStep], float]:
        """Return the steps of the last ``WINDOW_S``, the newest last, and the seconds that they cover."""
        now, steps = self._now(), self._recent_steps
        is_cut = len(steps) == MAX_STEPS and steps[0].seen_s > now - WINDOW_S
        return [step for step in steps if step.seen_s >= now - WINDOW_S], now - steps[0].seen_s if is_cut else WINDOW_S

    def steps_of(self, batch_id: str) -> list[RecentStep]:
        steps = [step for step in self._recent_steps if step.batch_id == batch_id]
        newest = sum(step.seen_s >= self._now() - WINDOW_S for step in steps)
        return steps[-max(newest, MIN_STEPS) :]

    def mark_answered(self, endpoint: str) -> None:
        if (known := self._get(endpoint)) is not None:
            known.failure = known.rest_s = None
            known.status = "up" if known.status == "unknown" else known.status

    def _record_failover(self, env: str, failures: Sequence[str], endpoint: str, at: datetime) -> None:
        if failed := skipped_endpoints(endpoint, failures):
            self._add_failover(Failover(env, tuple(failed), failures[0].partition(": ")[2], endpoint, at))

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
        if endpoint not in self.endpoints and endpoint and len(self.endpoints) < MAX_ENDPOINTS:
            self.endpoints[endpoint] = EndpointState()
        return self.endpoints.get(endpoint)
