"""How the machine and the environments of a node are doing: as live items, and for who asks."""

from __future__ import annotations

import asyncio
import importlib
import itertools
import logging
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from runner.config import EnvironmentEntry, Profile
from runner.envs.availability import probe_address, availability_of
from runner.envs.http.probe import ServerState, probe_servers
from runner.errors import catch_foreign
from runner.events.control import HealthItem
from runner.events.durable import EnvHealth, Gpu, Heartbeat, Host, ModelHealth
from runner.inference.models import Models
from runner.node.env_servers.manager import EnvServerManager
from runner.publish.live_publisher import LivePublisher
from runner.util.clock import Clock

if TYPE_CHECKING:
    from runner.inference import EndpointHealth

logger = logging.getLogger(__name__)

HEARTBEAT_INTERVAL_S = 2.0
ENVIRONMENTS, MODELS = "the environments", "the models"
HOST_BEATS, ENVS_BEATS, MODELS_BEATS = 2, 5, 7
"""Heartbeats from one look at the machine, at the environments, and at the models to the next."""
MODELS_IDLE_BEATS = 60
"""The same for the models of a node that plays nothing and that nobody asks."""


def _always_active() -> bool:
    """Somebody wants to know."""
    return True


def _no_cause(env: str) -> None:
    """This process started no server."""


class HealthMonitor:
    """Looks at the machine, the environments and the models now and then, and remembers what was last seen.

    Args:
        profile: what can be played.
        clock: says when.
        servers: those that this node starts.
        models: whom agents ask.
        awake: whether anything is played, or anybody has asked lately: else models are seldom looked at.
    """

    def __init__(
        self,
        profile: Profile,
        clock: Clock,
        servers: EnvServerManager | None = None,
        models: Models | None = None,
        is_active: Callable[[], bool] = _always_active,
    ) -> None:
        """Nothing was seen before the first ``run``."""
        self._profile = profile
        self._clock = clock
        self._servers = servers
        self._models = models
        self._is_active = is_active
        self._load = HostLoad()
        self._latest: dict[str, list[HealthItem]] = {}
        self._failures: dict[str, str] = {}

    @property
    def latest(self) -> list[HealthItem]:
        """What was last seen; from any thread."""
        return [item for items in list(self._latest.values()) for item in items]

    async def run(self, live: LivePublisher) -> None:
        """Tell how this node is doing until cancelled; a look that fails is tried again the next time."""
        self._update(ENVIRONMENTS, lambda: self._environments({}), live)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch_environments(live))
            if self._models is not None:
                tasks.create_task(self._watch_models(self._models, live))
            for beat in itertools.count():
                live.put(Heartbeat(at=self._clock.now()))
                if beat % HOST_BEATS == 0:
                    self._update("the machine", self._machine, live)
                await asyncio.sleep(HEARTBEAT_INTERVAL_S)

    async def _watch_environments(self, live: LivePublisher) -> None:
        """Beside the heartbeat, as servers may take their time."""
        addresses = {
            entry.name: address for _, entry in self._profile.listed() if (address := probe_address(entry)) is not None
        }
        while True:
            n_changes = self._n_changes
            states = await asyncio.to_thread(probe_servers, addresses)
            self._update(ENVIRONMENTS, partial(self._environments, states), live)
            for _ in range(ENVS_BEATS):
                if self._n_changes == n_changes:
                    await asyncio.sleep(HEARTBEAT_INTERVAL_S)

    async def _watch_models(self, models: Models, live: LivePublisher) -> None:
        """Beside the heartbeat, and on a thread of its own, as an endpoint may take its time."""
        while True:
            with catch_foreign(partial(self._log_failure, MODELS)):
                states = await asyncio.to_thread(models.check)
                self._update(MODELS, partial(self._endpoints, states), live)
            n_beats = 0
            while n_beats < (MODELS_BEATS if self._is_active() else MODELS_IDLE_BEATS):
                await asyncio.sleep(HEARTBEAT_INTERVAL_S)
                n_beats += 1

    @property
    def _n_changes(self) -> int:
        return 0 if self._servers is None else self._servers.n_changes

    def _update(self, at: str, sample: Callable[[], list[HealthItem]], live: LivePublisher) -> None:
        with catch_foreign(partial(self._log_failure, at)):
            self._latest[at] = items = sample()
            self._failures.pop(at, None)
            for item in items:
                live.put(item)

    def _log_failure(self, at: str, exc: BaseException) -> None:
        """Say the same thing once, not every few seconds."""
        reason = f"{type(exc).__name__}: {exc}"
        if self._failures.get(at) != reason:
            self._failures[at] = reason
            logger.warning("the health of %s cannot be told: %s", at, reason)

    def _machine(self) -> list[HealthItem]:
        return [self._load.sample(self._clock.now())]

    def _endpoints(self, states: list[EndpointHealth]) -> list[HealthItem]:
        return [_model_health(state, self._clock.now()) for state in states]

    def _environments(self, states: Mapping[str, ServerState]) -> list[HealthItem]:
        start_cause = _no_cause if self._servers is None else self._servers.cause
        return [*environment_health(self._profile, self._clock.now(), states, start_cause)]


def environment_health(
    profile: Profile,
    at: datetime,
    states: Mapping[str, ServerState],
    start_cause: Callable[[str], str | None] = _no_cause,
) -> list[EnvHealth]:
    """One item per environment of the profile: whether it can be played, and where that would be now.

    Args:
        profile: what can be played.
        at: when the servers were looked at.
        states: what answers where the profile has a server.
        started: what there is to say of a server that this node started.
    """
    return [_env_health(entry, at, states.get(entry.name), start_cause(entry.name)) for _, entry in profile.listed()]


def _env_health(entry: EnvironmentEntry, at: datetime, state: ServerState | None, start_cause: str | None) -> EnvHealth:
    outlook = availability_of(entry, state)
    return EnvHealth(
        at=at,
        env=entry.name,
        status=outlook.status,
        latency_s=None if state is None else state.latency_s,
        transport=outlook.transport,
        open=None if state is None else state.open,
        cause=start_cause or outlook.cause,
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


class HostLoad:
    """Load of the machine between two looks; the first one says 0 for the processor."""

    def __init__(self) -> None:
        """Look for GPUs once."""
        self._nvml = _nvml()

    def sample(self, at: datetime) -> Host:
        """The load since the last look."""
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
    """NVIDIA's management library, where it is installed and finds a driver."""
    found: list[Any] = []
    with catch_foreign(_ignore):
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
        found.append(nvml)
    return found[0] if found else None


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
    """No GPU to be read is nothing to report: ``gpu`` is then None."""
