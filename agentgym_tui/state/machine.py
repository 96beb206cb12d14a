"""State and recent history of a node's machine, and trends of what nodes report, with bounded texts and numbers."""

from __future__ import annotations

import math
from collections import deque
from typing import Any, Final, TypeAlias

import msgspec

from agentgym_tui.state.normalize import MAX_CAUSE_CHARS, clip_name, clip_optional
from runner.types.machine import MAX_GPUS, MAX_INSTANCES, MAX_PROCESSES, GpuInstance, GpuProcess, GpuState, Machine

N_SAMPLES: Final = 150
"""Number of samples kept of each value: five minutes."""

MAX_SERIES: Final = 500
"""Number of series that ``Trends`` keeps."""

RATE_INTERVAL_S: Final = 2.0
"""Shortest time between two samples of a rate: nodes send a heartbeat as often."""

SERVER_TRENDS: Final = ("running", "waiting", "kv_cache", "prefix_hits", "tokens_per_s")
"""Fields of ``model.metrics`` items that have a trend."""

SeriesKey: TypeAlias = tuple[str, str]
"""What is measured, and of which node, endpoint, environment or batch."""

MAX_BYTES: Final = 1 << 60
MAX_VALUE: Final = 1e12
MAX_REASONS: Final = 8
MAX_PID: Final = 1 << 32


class History:
    """The last ``N_SAMPLES`` values of each series by name; None where a value was not known."""

    def __init__(self) -> None:
        self._series: dict[str, deque[float | None]] = {}

    def add(self, values: dict[str, float | None]) -> None:
        """Add a sample of all series; a series that it lacks, such as one of a GPU that is gone, is dropped."""
        self._series = {name: self._series.get(name) or deque(maxlen=N_SAMPLES) for name in values}
        for name, value in values.items():
            self._series[name].append(value)

    def get(self, name: str) -> tuple[float | None, ...]:
        """Return the values of a series, oldest first; empty if there is none of this name."""
        return tuple(self._series.get(name, ()))


class Trends:
    """The newest values of each series, the newest last."""

    def __init__(self) -> None:
        self._series: dict[SeriesKey, deque[float | None]] = {}
        self._counted: dict[str, tuple[float, int]] = {}

    def add(self, what: str, name: str, value: float | None) -> None:
        """Add a value, None if it is not known; at the limit, drop the series that has not grown for longest."""
        series = self._series.pop((what, name), None)
        if series is None:
            series = deque(maxlen=N_SAMPLES)
            if len(self._series) >= MAX_SERIES:
                del self._series[next(iter(self._series))]
        self._series[what, name] = series
        series.append(value)

    def sample_rate(self, what: str, total: int, now_s: float) -> None:
        """Add the rate per second of a growing number, unless the last sample is too new."""
        since_s, before = self._counted.setdefault(what, (now_s, total))
        if (passed_s := now_s - since_s) >= RATE_INTERVAL_S:
            self.add(what, "", (total - before) / passed_s)
            self._counted[what] = now_s, total

    def get(self, what: str, name: str) -> tuple[float | None, ...]:
        """Return the values of a series, the oldest first; empty if it is not known."""
        return tuple(self._series.get((what, name), ()))


class MachineInfo:
    """The latest sample of a machine, and the recent ones.

    Attributes:
        latest: the latest sample, with bounded texts and numbers.
        history: series ``cpu``, ``ram``, ``disk_free``, ``sent`` and ``received``, and for each GPU ``util:N``,
            ``mem:N`` (percent), ``power:N`` and ``temperature:N`` with its place ``N`` in ``latest.gpu``.
    """

    def __init__(self, first: Machine) -> None:
        self.history = History()
        self.latest = first
        self.add(first)

    def add(self, sample: Machine) -> None:
        """Add a sample, which is untrusted."""
        self.latest = machine = bounded(sample)
        values: dict[str, float | None] = {
            "cpu": machine.cpu,
            "ram": machine.ram,
            "disk_free": machine.disk_free,
            "sent": None if machine.net is None else machine.net.sent_per_s,
            "received": None if machine.net is None else machine.net.received_per_s,
        }
        for place, gpu in enumerate(machine.gpu):
            values |= {
                f"util:{place}": gpu.util,
                f"mem:{place}": memory_percent(gpu),
                f"power:{place}": gpu.power_w,
                f"temperature:{place}": gpu.temperature,
            }
        self.history.add(values)


def memory_percent(gpu: GpuState | GpuInstance) -> float | None:
    """Return the used part of the memory of a GPU or an instance in percent; None if it is not known."""
    return 100 * gpu.mem_used / gpu.mem_total if gpu.mem_used is not None and gpu.mem_total else None


def bounded(machine: Machine) -> Machine:
    """Return a sample with bounded texts, lists and numbers."""
    net = machine.net
    rates = (
        None if net is None else {name: _number(value) or 0.0 for name, value in msgspec.structs.asdict(net).items()}
    )
    return msgspec.structs.replace(
        machine,
        gpu=[_gpu(gpu) for gpu in machine.gpu[:MAX_GPUS]],
        gpu_cause=clip_optional(machine.gpu_cause, MAX_CAUSE_CHARS),
        cpu=_percent(machine.cpu),
        ram=_percent(machine.ram),
        n_cpus=_bytes(machine.n_cpus),
        ram_total=_bytes(machine.ram_total),
        disk_free=_bytes(machine.disk_free),
        disk_total=_bytes(machine.disk_total),
        net=net if net is None or rates is None else msgspec.structs.replace(net, **rates),
    )


def _gpu(gpu: GpuState) -> GpuState:
    return GpuState(
        **_shared(gpu),
        lost=clip_optional(gpu.lost, MAX_CAUSE_CHARS),
        util=_percent(gpu.util),
        power_w=_number(gpu.power_w),
        power_limit_w=_number(gpu.power_limit_w),
        temperature=_number(gpu.temperature, low=-MAX_VALUE),
        throttled=None if gpu.throttled is None else tuple(map(clip_name, gpu.throttled[:MAX_REASONS])),
        mig=gpu.mig,
        instances=tuple(GpuInstance(**_shared(each)) for each in gpu.instances[:MAX_INSTANCES]),
        energy_j=_number(gpu.energy_j),
    )


def _shared(gpu: GpuState | GpuInstance) -> dict[str, Any]:
    """Return the bounded fields that a GPU and an instance both have."""
    used, total = _bytes(gpu.mem_used), _bytes(gpu.mem_total)
    return {
        "index": max(0, min(gpu.index, MAX_PID)),
        "name": clip_optional(gpu.name),
        "uuid": clip_optional(gpu.uuid),
        "mem_used": used if used is None or total is None else min(used, total),
        "mem_total": total,
        "processes": None if gpu.processes is None else tuple(map(_process, gpu.processes[:MAX_PROCESSES])),
    }


def _process(process: GpuProcess) -> GpuProcess:
    pid = max(0, min(process.pid, MAX_PID))
    return GpuProcess(pid=pid, name=clip_optional(process.name), mem_used=_bytes(process.mem_used))


def _bytes(number: int | None) -> int | None:
    return None if number is None else max(0, min(number, MAX_BYTES))


def _percent(value: float | None) -> float | None:
    return _number(value, high=100.0)


def _number(value: float | None, low: float = 0.0, high: float = MAX_VALUE) -> float | None:
    return None if value is None or not math.isfinite(value) else max(low, min(value, high))
