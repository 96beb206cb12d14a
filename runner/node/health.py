"""How the machine and the environments of a node are doing: as live items, and for who asks."""

from __future__ import annotations

import asyncio
import importlib
import itertools
import logging
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Any

from runner import registry
from runner.clock import Clock
from runner.config import Profile
from runner.errors import boundary
from runner.events.control import HealthItem
from runner.events.live import LivePublisher
from runner.events.schema import EnvHealth, Gpu, Heartbeat, Host

logger = logging.getLogger(__name__)

HEARTBEAT_S = 2.0
HOST_EVERY, ENVS_EVERY = 2, 5
"""Heartbeats from one look at the machine, and at the environments, to the next."""


class Health:
    """Looks at the machine and the environments now and then, and remembers what was last seen."""

    def __init__(self, profile: Profile, clock: Clock) -> None:
        """Nothing was seen before the first ``tell``."""
        self._profile = profile
        self._clock = clock
        self._load = HostLoad()
        self._seen: dict[str, list[HealthItem]] = {}
        self._failures: dict[str, str] = {}

    @property
    def latest(self) -> list[HealthItem]:
        """What was last seen; from any thread."""
        return [item for items in list(self._seen.values()) for item in items]

    async def tell(self, live: LivePublisher) -> None:
        """Tell how this node is doing until cancelled; a look that fails is tried again the next time."""
        for beat in itertools.count():
            live.put(Heartbeat(at=self._clock.now()))
            if beat % HOST_EVERY == 0:
                self._look("the machine", self._machine, live)
            if beat % ENVS_EVERY == 0:
                self._look("the environments", self._environments, live)
            await asyncio.sleep(HEARTBEAT_S)

    def _look(self, at: str, probe: Callable[[], list[HealthItem]], live: LivePublisher) -> None:
        with boundary(partial(self._fail, at)):
            self._seen[at] = items = probe()
            self._failures.pop(at, None)
            for item in items:
                live.put(item)

    def _fail(self, at: str, exc: BaseException) -> None:
        """Say the same thing once, not every few seconds."""
        reason = f"{type(exc).__name__}: {exc}"
        if self._failures.get(at) != reason:
            self._failures[at] = reason
            logger.warning("the health of %s cannot be told: %s", at, reason)

    def _machine(self) -> list[HealthItem]:
        return [self._load.look(self._clock.now())]

    def _environments(self) -> list[HealthItem]:
        return [*environment_health(self._profile, self._clock.now())]


def environment_health(profile: Profile, at: datetime) -> list[EnvHealth]:
    """One item per environment of the profile: whether it can be played embedded."""
    installed = {name.lower() for name in registry.names(registry.ENVS)}
    items: list[EnvHealth] = []
    for _, entry in profile.listed():
        missing = registry.missing_packages(entry.deps)
        cause: str | None = None
        if entry.name.lower() not in installed:
            cause = "not installed"
        elif missing:
            cause = f"needs {', '.join(missing)}"
        items.append(
            EnvHealth(
                at=at,
                env=entry.name,
                status="embedded" if cause is None else "down",
                latency_s=None,
                transport="embedded",
                open=None,
                cause=cause,
            )
        )
    return items


class HostLoad:
    """Load of the machine between two looks; the first one says 0 for the processor."""

    def __init__(self) -> None:
        """Look for GPUs once."""
        self._nvml = _nvml()

    def look(self, at: datetime) -> Host:
        """The load since the last look."""
        import psutil

        return Host(at=at, cpu=psutil.cpu_percent(), ram=psutil.virtual_memory().percent, gpu=self._gpus())

    def _gpus(self) -> list[Gpu] | None:
        if self._nvml is None:
            return None
        gpus: list[Gpu] = []
        with boundary(_ignore):
            gpus += [_gpu(self._nvml, index) for index in range(self._nvml.nvmlDeviceGetCount())]
        return gpus or None


def _nvml() -> Any | None:  # noqa: ANN401 - an optional library without types
    """NVIDIA's management library, where it is installed and finds a driver."""
    found: list[Any] = []
    with boundary(_ignore):
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
