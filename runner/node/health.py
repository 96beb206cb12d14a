"""Health of a node's host, environments and models: published on the bus and kept for control requests."""

from __future__ import annotations

import asyncio
import importlib
import itertools
import logging
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from runner.config import Profile
from runner.envs.availability import EnvironmentHealth, environment_health, server_addresses
from runner.envs.http.probe import PROBE_TIMEOUT_S, ServerState, probe_servers
from runner.errors import catch_foreign
from runner.events.control import HealthItem
from runner.events.live import EnvHealth, Gpu, Heartbeat, Host, ModelHealth, ModelMetrics
from runner.inference.profile_models import Models
from runner.node.env_servers.manager import EnvServerManager
from runner.publish.live_publisher import LivePublisher
from runner.util.clock import Clock

if TYPE_CHECKING:
    from runner.inference.health import EndpointHealth
    from runner.inference.server_metrics import ServerLoad

logger = logging.getLogger(__name__)

HEARTBEAT_INTERVAL_S = 2.0
ENVIRONMENTS, MODELS = "the environments", "the models"
HOST_BEATS, ENVS_BEATS, MODELS_BEATS = 2, 5, 7
"""Number of heartbeats between two checks of the host, of the environments and of the models, respectively."""
MODELS_IDLE_BEATS = 60
"""Number of heartbeats between two checks of the models while the node is idle and receives no requests."""


def _always_active() -> bool:
    return True


def _no_problem() -> str | None:
    return None


def _no_cause(env: str) -> None:
    pass


class HealthMonitor:
    """Checks the host, the environments and the models periodically, and keeps the latest results.

    Args:
        profile: lists the environments.
        clock: supplies timestamps.
        servers: environment servers that this node starts, or None.
        models: the profile's models; None: models are not checked.
        is_active: returns whether a batch runs or a request came recently; models are checked more often then. It is
            called in the event loop.
        storage_problem: returns why nothing can be stored, or None; every heartbeat has it.
        heartbeat_interval_s: seconds between two heartbeats; the intervals of the checks are multiples of it.
        probe_timeout_s: maximum seconds for one check of all environment servers.
    """

    def __init__(
        self,
        profile: Profile,
        clock: Clock,
        servers: EnvServerManager | None = None,
        models: Models | None = None,
        is_active: Callable[[], bool] = _always_active,
        storage_problem: Callable[[], str | None] = _no_problem,
        *,
        heartbeat_interval_s: float = HEARTBEAT_INTERVAL_S,
        probe_timeout_s: float = PROBE_TIMEOUT_S,
    ) -> None:
        """Start without results; ``run`` performs the checks."""
        self._profile = profile
        self._clock = clock
        self._servers = servers
        self._models = models
        self._is_active = is_active
        self._storage_problem = storage_problem
        self._heartbeat_interval_s = heartbeat_interval_s
        self._probe_timeout_s = probe_timeout_s
        self._load = HostLoad()
        self._latest: dict[str, list[HealthItem]] = {}
        self._failures: dict[str, str] = {}
        self._beat = asyncio.Event()

    @property
    def latest(self) -> list[HealthItem]:
        """Latest result of each check; thread-safe."""
        return [item for items in list(self._latest.values()) for item in items]

    async def run(self, live: LivePublisher) -> None:
        """Publish heartbeats and check results until cancelled; a check that fails is repeated after its interval."""
        self._update(ENVIRONMENTS, lambda: self._environments({}), live)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch_environments(live))
            if self._models is not None:
                tasks.create_task(self._watch_models(self._models, live))
                tasks.create_task(self._watch_servers(self._models, live))
            for beat in itertools.count():
                live.put(self._heartbeat())
                if beat % HOST_BEATS == 0:
                    self._update("the host", self._host, live)
                await asyncio.sleep(self._heartbeat_interval_s)
                self._beat.set()
                self._beat = asyncio.Event()

    def _heartbeat(self) -> Heartbeat:
        problems: list[str | None] = [None]
        with catch_foreign(partial(self._log_failure, "the disk")):
            problems.append(self._storage_problem())
        return Heartbeat(at=self._clock.now(), storage=problems[-1])

    async def _watch_environments(self, live: LivePublisher) -> None:
        """Check the environments periodically; a separate task, because their servers may answer slowly."""
        addresses = server_addresses(self._profile)
        while True:
            n_changes = self._n_changes
            states = await asyncio.to_thread(probe_servers, addresses, self._probe_timeout_s)
            self._update(ENVIRONMENTS, partial(self._environments, states), live)
            for _ in range(ENVS_BEATS):
                if self._n_changes == n_changes:
                    await self._beat.wait()

    async def _watch_models(self, models: Models, live: LivePublisher) -> None:
        """Check the models periodically; a separate task and thread, because their endpoints may answer slowly."""
        while True:
            with catch_foreign(partial(self._log_failure, MODELS)):
                states = await asyncio.to_thread(models.check)
                self._update(MODELS, partial(self._endpoints, states), live)
            n_beats = 0
            while n_beats < (MODELS_BEATS if self._is_active() else MODELS_IDLE_BEATS):
                await self._beat.wait()
                n_beats += 1

    async def _watch_servers(self, models: Models, live: LivePublisher) -> None:
        """Read the load of the model servers at each heartbeat while episodes run or a client is active."""
        manager = await asyncio.to_thread(lambda: models.manager)  # imports the HTTP client
        while True:
            await self._beat.wait()
            if not self._is_active():
                continue
            with catch_foreign(partial(self._log_failure, "the model servers")):
                for load in await manager.read_servers():
                    live.put(_model_metrics(load, self._clock.now()))
                self._failures.pop("the model servers", None)

    @property
    def _n_changes(self) -> int:
        return 0 if self._servers is None else self._servers.n_changes

    def _update(self, source: str, sample: Callable[[], list[HealthItem]], live: LivePublisher) -> None:
        with catch_foreign(partial(self._log_failure, source)):
            self._latest[source] = items = sample()
            self._failures.pop(source, None)
            for item in items:
                live.put(item)

    def _log_failure(self, source: str, exc: BaseException) -> None:
        # Logs a repeated failure only once.
        reason = f"{type(exc).__name__}: {exc}"
        if self._failures.get(source) != reason:
            self._failures[source] = reason
            logger.warning("health check of %s failed: %s", source, reason)

    def _host(self) -> list[HealthItem]:
        return [self._load.sample(self._clock.now())]

    def _endpoints(self, states: list[EndpointHealth]) -> list[HealthItem]:
        return [_model_health(state, self._clock.now()) for state in states]

    def _environments(self, states: Mapping[str, ServerState]) -> list[HealthItem]:
        start_cause = _no_cause if self._servers is None else self._servers.cause
        at, rows = self._clock.now(), environment_health(self._profile, states)
        return [_env_health(row, at, start_cause(row.name)) for row in rows]


def _env_health(row: EnvironmentHealth, at: datetime, start_cause: str | None) -> EnvHealth:
    state, availability = row.server, row.availability
    return EnvHealth(
        at=at,
        env=row.name,
        status=availability.status,
        latency_s=None if state is None else state.latency_s,
        transport=availability.transport,
        open=None if state is None else state.open,
        cause=start_cause or availability.cause,
        note=availability.note,
    )


def _model_health(state: EndpointHealth, at: datetime) -> ModelHealth:
    return ModelHealth(
        at=at,
        endpoint=state.name,
        status="wrong" if state.status == "misconfigured" else state.status,
        cause=state.cause,
        hint=state.hint,
        model=state.model,
        latency_s=state.latency_s,
        rest_s=state.rest_s,
    )


def _model_metrics(load: ServerLoad, at: datetime) -> ModelMetrics:
    return ModelMetrics(
        at=at,
        endpoint=load.endpoint,
        server=load.server,
        running=load.running,
        waiting=load.waiting,
        kv_cache=load.kv_cache,
        prefix_hits=load.prefix_hits,
        tokens_per_s=load.tokens_per_s,
        prompt_tokens_per_s=load.prompt_tokens_per_s,
        queue_s=load.times.queue_s,
        prefill_s=load.times.prefill_s,
        decode_s=load.times.decode_s,
        overhead_s=load.overhead_s,
        models=None if load.models is None else list(load.models),
    )


class HostLoad:
    """Measures the load of the host since the previous sample; the CPU load of the first sample is 0."""

    def __init__(self) -> None:
        """Load NVIDIA's management library, if available, to measure the GPU load."""
        self._nvml = _nvml()

    def sample(self, at: datetime) -> Host:
        """Return the load of the host since the previous call."""
        import psutil

        return Host(at=at, cpu=psutil.cpu_percent(), ram=psutil.virtual_memory().percent, gpu=self._gpus())

    def _gpus(self) -> list[Gpu] | None:
        if self._nvml is None:
            return None
        gpus: list[Gpu] = []
        with catch_foreign(_ignore):
            gpus += [_gpu(self._nvml, index) for index in range(self._nvml.nvmlDeviceGetCount())]
        return gpus or None


def _nvml() -> Any | None:  # noqa: ANN401 - an optional library without types
    """Return NVIDIA's management library; None if it is not installed or finds no driver."""
    loaded: list[Any] = []
    with catch_foreign(_ignore):
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
        loaded.append(nvml)
    return loaded[0] if loaded else None


def _gpu(nvml: Any, index: int) -> Gpu:  # noqa: ANN401
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    name = nvml.nvmlDeviceGetName(handle)
    return Gpu(
        name=name.decode(errors="replace") if isinstance(name, bytes) else str(name),
        util=float(nvml.nvmlDeviceGetUtilizationRates(handle).gpu),
        mem_used=int(memory.used),
        mem_total=int(memory.total),
    )


def _ignore(exc: BaseException) -> None:
    pass  # without a readable GPU, ``gpu`` is None
