"""NVIDIA's GPUs, read with the driver's management library (NVML)."""

from __future__ import annotations

import ctypes
import importlib
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import msgspec

from runner.errors import catch_foreign
from runner.machine.gpu_reader import GpuUnavailable, clean_name, largest, process_name, read_value
from runner.types.machine import MAX_GPUS, MAX_INSTANCES, GpuInstance, GpuProcess, GpuState
from runner.util.display_text import one_line

LIBRARY: Final = "libnvidia-ml.so.1"
NO_DRIVER: Final = "no NVIDIA driver"

_START_FAILURES: Final = {
    "NVMLError_LibraryNotFound": NO_DRIVER,
    "NVMLError_DriverNotLoaded": "the NVIDIA driver is not loaded: load it with `modprobe nvidia`",
    "NVMLError_NoPermission": "no permission for the NVIDIA driver: check the access rights of /dev/nvidia*",
    "NVMLError_LibRmVersionMismatch": "the NVIDIA driver was updated: restart the machine to load the new one",
}
_LOSSES: Final = {
    "NVMLError_GpuIsLost": "the GPU is lost: it fell off the bus, restart the machine",
    "NVMLError_ResetRequired": "the GPU needs a reset: `nvidia-smi --gpu-reset`",
}
MAX_EXTRAPOLATION_S: Final = 10.0
"""Seconds since the reading before, e.g. as nothing used the samples, after which power times time is no estimate."""
_THROTTLING: Final = {
    0x4: "power limit",
    0x8: "hardware slowdown",
    0x20: "temperature",
    0x40: "temperature (hardware)",
    0x80: "power supply (power brake)",
}
"""Reasons by bit; others, such as an idle GPU or clocks set by the user, slow nothing down against one's will."""
_STATIC: Final = ("name", "uuid", "mem_total", "power_limit_w")
"""Fields that are still shown of a GPU that was lost."""


class NvidiaReader:
    """Reads the GPUs of an NVIDIA driver; raises ``GpuUnavailable`` without driver or GPU.

    The driver takes 5 ms of CPU time to read an energy counter (an H200 with driver 580), 20 times as long as all other
    values of a GPU. So each reading reads the counter of one GPU in turn, and adds power times time for the others.
    """

    def __init__(self, nvml: Any, now: Callable[[], float] = time.monotonic) -> None:  # noqa: ANN401 - no types
        self._nvml = nvml
        self._now = now
        self._turn = -1
        self._energy: dict[int, tuple[float, float | None]] = {}
        self._known: dict[int, GpuState] = {}
        with catch_foreign(_raise_unavailable):
            nvml.nvmlInit()
            self._n_gpus = int(nvml.nvmlDeviceGetCount())
        if not self._n_gpus:
            raise GpuUnavailable("the NVIDIA driver has no GPU")

    def read(self) -> list[GpuState]:
        n_gpus = min(self._n_gpus, MAX_GPUS)
        self._turn = (self._turn + 1) % n_gpus
        return [self._read_gpu(index) for index in range(n_gpus)]

    def _read_gpu(self, index: int) -> GpuState:
        losses: list[BaseException] = []
        with catch_foreign(losses.append):
            self._known[index] = state = self._state(index)
            return state
        known = self._known.get(index, GpuState(index=index))
        static = {name: getattr(known, name) for name in _STATIC}
        return GpuState(index=index, lost=_describe(losses[0], _LOSSES, "the GPU cannot be read"), **static)

    def _state(self, index: int) -> GpuState:
        nvml = self._nvml
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        power_w = self._get(lambda: float(nvml.nvmlDeviceGetPowerUsage(handle)) / 1000)
        mig = self._get(lambda: bool(nvml.nvmlDeviceGetMigMode(handle)[0]))
        state = GpuState(
            index=index,
            name=clean_name(self._get(nvml.nvmlDeviceGetName, handle)),
            uuid=clean_name(self._get(nvml.nvmlDeviceGetUUID, handle)),
            util=self._get(lambda: float(nvml.nvmlDeviceGetUtilizationRates(handle).gpu)),
            power_w=power_w,
            power_limit_w=self._get(lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000),
            temperature=self._temperature(handle),
            throttled=self._throttling(handle),
            mig=mig,
            instances=tuple(self._instances(handle)) if mig else (),
            energy_j=self._energy_j(index, handle, power_w),
        )
        return msgspec.structs.replace(state, **self._memory_use(handle))

    def _energy_j(self, index: int, handle: object, power_w: float | None) -> float | None:
        now = self._now()
        last_s, energy_j = self._energy.get(index, (now, None))
        if index == self._turn or energy_j is None or now - last_s > MAX_EXTRAPOLATION_S:
            millijoules = self._get(self._nvml.nvmlDeviceGetTotalEnergyConsumption, handle)
            energy_j = None if millijoules is None else millijoules / 1000
        else:
            energy_j += (power_w or 0.0) * (now - last_s)
        self._energy[index] = now, energy_j
        return energy_j

    def _instances(self, handle: object) -> Iterator[GpuInstance]:
        """Yield the instances of a divided GPU; the driver numbers places, of which some may be empty."""
        nvml = self._nvml
        n_places = self._get(nvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0
        for index in range(min(n_places, MAX_INSTANCES)):
            if (instance := self._get(nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, index)) is not None:
                name = clean_name(self._get(nvml.nvmlDeviceGetName, instance))
                uuid = clean_name(self._get(nvml.nvmlDeviceGetUUID, instance))
                yield GpuInstance(index=index, name=name, uuid=uuid, **self._memory_use(instance))

    def _memory_use(self, handle: object) -> dict[str, Any]:
        nvml = self._nvml
        memory = self._first(
            partial(nvml.nvmlDeviceGetMemoryInfo, handle, version=nvml.nvmlMemory_v2),
            partial(nvml.nvmlDeviceGetMemoryInfo, handle),
        )
        return {
            "mem_used": None if memory is None else int(memory.used),
            "mem_total": None if memory is None else int(memory.total),
            "processes": self._get(lambda: _processes(nvml.nvmlDeviceGetComputeRunningProcesses(handle))),
        }

    def _temperature(self, handle: object) -> float | None:
        nvml, sensor = self._nvml, self._nvml.NVML_TEMPERATURE_GPU
        read = self._first(
            lambda: nvml.nvmlDeviceGetTemperatureV(handle, sensor),
            lambda: nvml.nvmlDeviceGetTemperature(handle, sensor),
        )
        return None if read is None else float(read)

    def _throttling(self, handle: object) -> tuple[str, ...] | None:
        nvml = self._nvml
        bits = self._first(
            lambda: nvml.nvmlDeviceGetCurrentClocksEventReasons(handle),
            lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle),
        )
        return None if bits is None else tuple(name for bit, name in _THROTTLING.items() if bits & bit)

    def _first(self, *reads: Callable[[], Any]) -> Any | None:  # noqa: ANN401
        """Return the value of the first function that this driver has; the later ones are those of older drivers."""
        return next((value for read in reads if (value := self._get(read)) is not None), None)

    def _get(self, read: Callable[..., Any], *args: object) -> Any | None:  # noqa: ANN401
        """Return None if this GPU or driver does not have the value; raises ``NVMLError`` if the GPU is lost."""
        failures: list[BaseException] = []
        with catch_foreign(failures.append):
            return read(*args)
        if type(failures[0]).__name__ in _LOSSES:
            raise failures[0]
        return None


def open_nvidia() -> NvidiaReader:
    """Raises ``GpuUnavailable`` if there is no driver or GPU."""
    if read_value(lambda: ctypes.CDLL(LIBRARY)) is None:  # without the 15 ms that the import takes
        raise GpuUnavailable(NO_DRIVER)
    if (nvml := read_value(lambda: importlib.import_module("pynvml"))) is None:
        raise GpuUnavailable("the package nvidia-ml-py is missing: install it to see NVIDIA's GPUs")
    return NvidiaReader(nvml)


def _raise_unavailable(exc: BaseException) -> None:
    raise GpuUnavailable(_describe(exc, _START_FAILURES, "the NVIDIA driver does not answer")) from exc


def _describe(exc: BaseException, known: dict[str, str], other: str) -> str:
    return known.get(type(exc).__name__) or f"{other}: {one_line(str(exc))[:200]}"


def _processes(running: list[Any]) -> tuple[GpuProcess, ...]:
    return largest(
        GpuProcess(
            pid=int(each.pid),
            name=process_name(int(each.pid)),
            mem_used=None if each.usedGpuMemory is None else int(each.usedGpuMemory),
        )
        for each in running
    )
