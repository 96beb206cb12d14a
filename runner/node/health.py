"""Health of a node's host, environments and models: published on the bus and kept for control requests."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from runner import __version__
from runner.config import Profile
from runner.envs.availability import environment_health, server_addresses
from runner.envs.http.server import PROBE_TIMEOUT_S, ServerState, probe_servers
from runner.errors import catch_foreign
from runner.events.control import HealthItem
from runner.events.live import EnvHealth, Gpu, Heartbeat, Host, ModelHealth, ModelMetrics
from runner.inference.profile_models import Models
from runner.machine.sampler import MachineSampler
from runner.node.env_servers import EnvServerManager
from runner.node.session import watch_servers
from runner.publish.live_publisher import LivePublisher
from runner.store.episode_file import shared_fields
from runner.types.machine import Machine
from runner.util.clock import Clock

if TYPE_CHECKING:
    from runner.inference.health import EndpointHealth
    from runner.inference.server_metrics import ServerLoad

logger = logging.getLogger(__name__)

HEARTBEAT_INTERVAL_S = 2.0
ENVIRONMENTS, MODELS, MACHINE = "the environments", "the models", "the machine"
HOST_BEATS, ENVS_BEATS, MODELS_BEATS = 2, 5, 7
"""Number of heartbeats between two checks of the host, of the environments and of the models, respectively."""
RECEIVED_BEATS = 5
"""Number of heartbeats between two checks whether anything receives the live items of an idle node."""
MODELS_IDLE_BEATS = 60
"""Number of heartbeats between two checks of the models while the node is idle and receives no requests."""


class HealthMonitor(msgspec.Struct):
    """Checks the host, the environments and the models periodically, and keeps the latest results.

    Attributes:
        models: the profile's models; None: models are not checked.
        is_active: returns whether a batch runs or a request came recently; models are checked more often then. It is
            called in the event loop.
        storage_problem: returns why nothing can be stored, or None; every heartbeat has it.
        indexing: returns how far a starting node has read its episodes, or None; every heartbeat has it.
        status, n_waiting: return the node's status and the number of batches that wait; every heartbeat has them.
        sampler: samples the machine while the node is active or anything receives live items; None: not at all.
        heartbeat_interval_s: seconds between two heartbeats; the intervals of the checks are multiples of it.
        probe_timeout_s: maximum seconds for one check of all environment servers.
    """

    profile: Profile
    clock: Clock
    servers: EnvServerManager | None = None
    models: Models | None = None
    is_active: Callable[[], bool] = lambda: True
    storage_problem: Callable[[], str | None] = lambda: None
    indexing: Callable[[], str | None] = lambda: None
    status: Callable[[], str | None] = lambda: None
    n_waiting: Callable[[], int] = lambda: 0
    sampler: MachineSampler | None = None
    heartbeat_interval_s: float = HEARTBEAT_INTERVAL_S
    probe_timeout_s: float = PROBE_TIMEOUT_S
    _machine: Machine | None = None
    _is_received: bool = False
    _latest: dict[str, list[HealthItem]] = {}
    _failures: dict[str, str] = {}
    _beat: asyncio.Event = msgspec.field(default_factory=asyncio.Event)

    @property
    def latest(self) -> list[HealthItem]:
        """Latest result of each check; thread-safe."""
        return [item for items in list(self._latest.values()) for item in items]

    async def run(self, live: LivePublisher) -> None:
        """Publish heartbeats and check results until cancelled; a check that fails is repeated after its interval."""
        self._update(ENVIRONMENTS, lambda: self._environments({}), live)
        async with asyncio.TaskGroup() as tasks:
            # separate tasks, because servers and endpoints may answer slowly
            tasks.create_task(self._watch_environments(live))
            if self.models is not None:
                tasks.create_task(self._watch_models(self.models, live))
                tasks.create_task(self._watch_servers(self.models, live))
            if self.sampler is not None:
                tasks.create_task(self._watch_machine(self.sampler, live))
            for beat in itertools.count():
                storage: str | None = None
                with catch_foreign(partial(self._log_failure, "the disk")):
                    storage = self.storage_problem()
                item = Heartbeat(at=self.clock.now(), storage=storage, indexing=self.indexing(), status=self.status())
                item.profile, item.version, item.n_waiting = self.profile.id, __version__, self.n_waiting()
                live.put(item)
                if beat % HOST_BEATS == 0:
                    self._update("the host", self._host, live)
                await asyncio.sleep(self.heartbeat_interval_s)
                self._beat.set()
                self._beat = asyncio.Event()

    async def _watch_environments(self, live: LivePublisher) -> None:
        addresses = server_addresses(self.profile)
        while True:
            n_changes = self._n_changes
            states = await asyncio.to_thread(probe_servers, addresses, self.probe_timeout_s)
            self._update(ENVIRONMENTS, partial(self._environments, states), live)
            for _ in range(ENVS_BEATS):
                if self._n_changes == n_changes:
                    await self._beat.wait()

    async def _watch_models(self, models: Models, live: LivePublisher) -> None:
        while True:
            with catch_foreign(partial(self._log_failure, MODELS)):
                states = await asyncio.to_thread(models.check)
                checked = [_model_health(state, self.clock.now()) for state in states]
                self._update(MODELS, partial(list[HealthItem], checked), live)
            n_beats = 0
            while n_beats < (MODELS_BEATS if self.is_active() else MODELS_IDLE_BEATS):
                await self._beat.wait()
                n_beats += 1

    async def _watch_servers(self, models: Models, live: LivePublisher) -> None:
        async def is_due() -> bool:
            await self._beat.wait()
            while not (self._is_received or self.is_active()):
                await self._beat.wait()
            return True

        def publish(loads: Sequence[ServerLoad]) -> None:
            for load in loads:
                fields = shared_fields(load, ModelMetrics) | msgspec.structs.asdict(load.times)
                fields["models"] = None if load.models is None else list(load.models)
                live.put(ModelMetrics(at=self.clock.now(), **fields))
            self._failures.pop("the model servers", None)

        await watch_servers(models, is_due, publish, partial(self._log_failure, "the model servers"))

    async def _watch_machine(self, sampler: MachineSampler, live: LivePublisher) -> None:
        for beat in itertools.count():
            if beat % RECEIVED_BEATS == 0 and not self.is_active():
                with catch_foreign(partial(self._log_failure, MACHINE)):
                    self._is_received = await live.is_received()
            before, self._machine = self._machine, None
            if self._is_received or self.is_active():
                self._machine = sampler.latest()
            if self._machine is None:
                self._latest.pop(MACHINE, None)
            elif self._machine is not before:
                self._update(MACHINE, partial(list, [self._machine]), live)
            await self._beat.wait()

    @property
    def _n_changes(self) -> int:
        return 0 if self.servers is None else self.servers.n_changes

    def _update(self, source: str, sample: Callable[[], list[HealthItem]], live: LivePublisher) -> None:
        with catch_foreign(partial(self._log_failure, source)):
            self._latest[source] = items = sample()
            self._failures.pop(source, None)
            for item in items:
                live.put(item)

    def _log_failure(self, source: str, exc: BaseException) -> None:
        reason = f"{type(exc).__name__}: {exc}"
        if self._failures.get(source) != reason:  # a repeated failure is logged only once
            self._failures[source] = reason
            logger.warning("health check of %s failed: %s", source, reason)

    def _host(self) -> list[HealthItem]:
        import psutil

        cpu, ram = psutil.cpu_percent(), psutil.virtual_memory().percent
        return [Host(at=self.clock.now(), cpu=cpu, ram=ram, gpu=_gpus(self._machine))]

    def _environments(self, states: Mapping[str, ServerState]) -> list[HealthItem]:
        items: list[HealthItem] = []
        for row in environment_health(self.profile, states):
            server = {} if row.server is None else shared_fields(row.server, EnvHealth)
            fields = {"latency_s": None, "open": None} | server | shared_fields(row.availability, EnvHealth)
            if self.servers is not None and (start_cause := self.servers.cause(row.name)) is not None:
                fields["cause"] = start_cause
            items.append(EnvHealth(at=self.clock.now(), env=row.name, **fields))
        return items


def _model_health(state: EndpointHealth, at: datetime) -> ModelHealth:
    fields = shared_fields(state, ModelHealth) | msgspec.structs.asdict(state.limit)
    fields["status"] = "wrong" if state.status == "misconfigured" else state.status
    return ModelHealth(at=at, endpoint=state.name, **fields)


def _gpus(machine: Machine | None) -> list[Gpu] | None:
    gpus = [
        Gpu(name=gpu.name or "GPU", util=gpu.util or 0.0, mem_used=gpu.mem_used or 0, mem_total=gpu.mem_total or 0)
        for gpu in (() if machine is None else machine.gpu)
        if gpu.lost is None
    ]
    return gpus or None
