"""How the machine and the environments of a node are doing, as live items."""

from __future__ import annotations

import asyncio
import importlib
import itertools
from datetime import datetime
from typing import Any

from runner import registry
from runner.clock import Clock
from runner.config import Profile
from runner.errors import boundary
from runner.events.live import LivePublisher
from runner.events.schema import EnvHealth, Gpu, Heartbeat, Host

HEARTBEAT_S = 2.0
HOST_EVERY, HEALTH_EVERY = 2, 5
"""Heartbeats from one look at the machine, and at the environments, to the next."""


async def tell_health(live: LivePublisher, profile: Profile, clock: Clock) -> None:
    """Tell how this node is doing until cancelled."""
    load = HostLoad()
    for beat in itertools.count():
        at = clock.now()
        live.put(Heartbeat(at=at))
        if beat % HOST_EVERY == 0:
            live.put(load.look(at))
        if beat % HEALTH_EVERY == 0:
            for item in environment_health(profile, at):
                live.put(item)
        await asyncio.sleep(HEARTBEAT_S)


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
