"""The GPUs of this machine, read with the libraries of their drivers: NVIDIA's NVML, and AMD SMI (extra ``amd``)."""

from __future__ import annotations

import ctypes
import importlib
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

import msgspec

from runner.errors import RunnerError, catch_foreign
from runner.types.machine import MAX_GPUS, MAX_INSTANCES, MAX_PROCESSES, GpuInstance, GpuProcess, GpuState
from runner.util.display_text import one_line

MAX_NAME: Final = 80
"""Number of characters kept of a name that a driver or a process gives."""
_INITIAL_PID_NAMESPACE: Final = 0xEFFFFFFC
"""Inode of the first process namespace of a Linux kernel; every container has another one."""

_Value = TypeVar("_Value")


class GpuUnavailable(RunnerError):
    """No GPU can be read; the message is the cause, in words for the user."""


class GpuReader(Protocol):
    def read(self) -> list[GpuState]:
        """Return the present state of each GPU; a GPU that fails is ``lost`` and does not hide the others."""


def read_value(read: Callable[..., _Value], *args: object, fatal: Collection[str] = ()) -> _Value | None:
    """Return None if it raises an exception, unless the name of its class is in ``fatal``."""
    failures: list[BaseException] = []
    with catch_foreign(failures.append):
        return read(*args)
    if type(failures[0]).__name__ in fatal:
        raise failures[0]
    return None


def clean_name(name: object) -> str | None:
    """Return a name of a driver or process as one short line; None for an empty one."""
    text = name.decode(errors="replace") if isinstance(name, bytes) else str(name or "")
    return one_line(text[: 2 * MAX_NAME])[:MAX_NAME] or None


def largest(processes: Iterable[GpuProcess]) -> tuple[GpuProcess, ...]:
    return tuple(sorted(processes, key=lambda each: -(each.mem_used or 0))[:MAX_PROCESSES])


def process_name(pid: int) -> str | None:
    """Return the name of a process by an id of the driver.

    In a container, the driver's ids belong to the host, so they would name the wrong processes.
    """
    if read_value(lambda: Path("/proc/self/ns/pid").stat().st_ino) != _INITIAL_PID_NAMESPACE:
        return None
    return clean_name(read_value(lambda: Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()))


NVML: Final = "libnvidia-ml.so.1"
NO_NVIDIA_DRIVER: Final = "no NVIDIA driver"

_START_FAILURES: Final = {
    "NVMLError_LibraryNotFound": NO_NVIDIA_DRIVER,
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
_NVIDIA_THROTTLING: Final = {
    0x4: "power limit",
    0x8: "hardware slowdown",
    0x20: "temperature",
    0x40: "temperature (hardware)",
    0x80: "power supply (power brake)",
}
"""Reasons by bit; others, such as an idle GPU or clocks set by the user, slow nothing down against one's will."""
_STATIC: Final = ("name", "uuid", "mem_total", "power_limit_w")
"""Fields that are still shown of a GPU that was lost."""


_get = partial(read_value, fatal=_LOSSES)
"""Reads a value that this GPU or driver may not have; raises ``NVMLError`` if the GPU is lost."""


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
        with catch_foreign(_raise_nvidia_unavailable):
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
        power_w = _get(lambda: float(nvml.nvmlDeviceGetPowerUsage(handle)) / 1000)
        mig = _get(lambda: bool(nvml.nvmlDeviceGetMigMode(handle)[0]))
        state = GpuState(
            index=index,
            name=clean_name(_get(nvml.nvmlDeviceGetName, handle)),
            uuid=clean_name(_get(nvml.nvmlDeviceGetUUID, handle)),
            util=_get(lambda: float(nvml.nvmlDeviceGetUtilizationRates(handle).gpu)),
            power_w=power_w,
            power_limit_w=_get(lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000),
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
            millijoules = _get(self._nvml.nvmlDeviceGetTotalEnergyConsumption, handle)
            energy_j = None if millijoules is None else millijoules / 1000
        else:
            energy_j += (power_w or 0.0) * (now - last_s)
        self._energy[index] = now, energy_j
        return energy_j

    def _instances(self, handle: object) -> Iterator[GpuInstance]:
        """Yield the instances of a divided GPU; the driver numbers places, of which some may be empty."""
        nvml = self._nvml
        n_places = _get(nvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0
        for index in range(min(n_places, MAX_INSTANCES)):
            if (instance := _get(nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, index)) is not None:
                name = clean_name(_get(nvml.nvmlDeviceGetName, instance))
                uuid = clean_name(_get(nvml.nvmlDeviceGetUUID, instance))
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
            "processes": _get(lambda: _nvidia_processes(nvml.nvmlDeviceGetComputeRunningProcesses(handle))),
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
        return None if bits is None else tuple(name for bit, name in _NVIDIA_THROTTLING.items() if bits & bit)

    def _first(self, *reads: Callable[[], Any]) -> Any | None:  # noqa: ANN401
        """Return the value of the first function that this driver has; the later ones are those of older drivers."""
        return next((value for read in reads if (value := _get(read)) is not None), None)


def open_nvidia() -> NvidiaReader:
    """Raises ``GpuUnavailable`` if there is no driver or GPU."""
    if read_value(lambda: ctypes.CDLL(NVML)) is None:  # without the 15 ms that the import takes
        raise GpuUnavailable(NO_NVIDIA_DRIVER)
    if (nvml := read_value(lambda: importlib.import_module("pynvml"))) is None:
        raise GpuUnavailable("the package nvidia-ml-py is missing: install it to see NVIDIA's GPUs")
    return NvidiaReader(nvml)


def _raise_nvidia_unavailable(exc: BaseException) -> None:
    raise GpuUnavailable(_describe(exc, _START_FAILURES, "the NVIDIA driver does not answer")) from exc


def _describe(exc: BaseException, known: dict[str, str], other: str) -> str:
    return known.get(type(exc).__name__) or f"{other}: {one_line(str(exc))[:200]}"


def _nvidia_processes(running: list[Any]) -> tuple[GpuProcess, ...]:
    return largest(
        GpuProcess(
            pid=int(each.pid),
            name=process_name(int(each.pid)),
            mem_used=None if each.usedGpuMemory is None else int(each.usedGpuMemory),
        )
        for each in running
    )


AMD_DRIVER: Final = Path("/dev/kfd")
MIB: Final = 1 << 20
_AMD_THROTTLING: Final = (
    (0, 8, "power limit"),
    (16, 24, "current limit"),
    (32, 46, "temperature"),
    (46, 48, "hardware slowdown"),
)
"""First bit, bit after the last, and cause, of ``indep_throttle_status``; from the Linux driver's ``amdgpu_smu.h``."""
_RESIDENCIES: Final = {
    "ppt_residency_acc": "power limit",
    "socket_thm_residency_acc": "temperature",
    "vr_thm_residency_acc": "temperature",
    "hbm_thm_residency_acc": "temperature",
    "prochot_residency_acc": "hardware slowdown",
}
"""Counters of GPUs without that status, which grow while the GPU is throttled, and the cause of each."""


class AmdReader:
    """Reads the GPUs of an AMD driver; raises ``GpuUnavailable`` without driver or GPU.

    ``smi`` is the module ``amdsmi``, or one with the same functions.
    """

    def __init__(self, smi: Any) -> None:  # noqa: ANN401 - a library without types
        self._smi = smi
        self._residencies: dict[int, dict[str, int]] = {}  # at the previous reading, by GPU
        with catch_foreign(_raise_amd_unavailable):
            smi.amdsmi_init()
            self._handles = list(smi.amdsmi_get_processor_handles())
        if not self._handles:
            raise GpuUnavailable("the AMD driver has no GPU")

    def read(self) -> list[GpuState]:
        return [self._read_gpu(index, handle) for index, handle in enumerate(self._handles[:MAX_GPUS])]

    def _read_gpu(self, index: int, handle: object) -> GpuState:
        smi = self._smi
        memory = read_value(lambda: smi.amdsmi_get_gpu_vram_usage(handle)) or {}
        activity = read_value(lambda: smi.amdsmi_get_gpu_activity(handle))
        return GpuState(
            index=index,
            name=clean_name(read_value(lambda: smi.amdsmi_get_gpu_asic_info(handle)["market_name"])),
            uuid=clean_name(read_value(lambda: smi.amdsmi_get_gpu_device_uuid(handle))),
            lost=None if memory or activity else "the GPU cannot be read: see `amd-smi`, and restart the machine",
            util=read_value(lambda: float((activity or {})["gfx_activity"])),
            mem_used=read_value(lambda: int(memory["vram_used"]) * MIB),
            mem_total=read_value(lambda: int(memory["vram_total"]) * MIB),
            power_w=read_value(lambda: self._power(handle)),
            power_limit_w=read_value(lambda: smi.amdsmi_get_power_cap_info(handle)["power_cap"] / 1e6),
            temperature=read_value(lambda: self._temperature(handle)),
            throttled=read_value(lambda: self._throttling(index, handle)),
            energy_j=read_value(lambda: self._energy(handle)),
            processes=read_value(lambda: _amd_processes(smi.amdsmi_get_gpu_process_list(handle))),
        )

    def _power(self, handle: object) -> float:
        power = self._smi.amdsmi_get_power_info(handle)  # which of the two there is depends on the model
        named = (power["current_socket_power"], power["average_socket_power"])
        return next(float(watts) for watts in named if isinstance(watts, int))

    def _throttling(self, index: int, handle: object) -> tuple[str, ...] | None:
        """Return why the clocks are reduced; None if the GPU does not report it, or not before the next reading."""
        metrics = self._smi.amdsmi_get_gpu_metrics_info(handle)  # a value that the GPU lacks is the text N/A
        if isinstance(bits := metrics["indep_throttle_status"], int):
            return tuple(cause for first, end, cause in _AMD_THROTTLING if bits >> first & ((1 << end - first) - 1))
        counts = {name: metrics[name] for name in _RESIDENCIES if isinstance(metrics.get(name), int)}
        before, self._residencies[index] = self._residencies.get(index), counts
        if not counts or before is None:
            return None
        grown = [
            cause for name, cause in _RESIDENCIES.items() if counts.get(name, 0) > before.get(name, counts.get(name, 0))
        ]
        return tuple(dict.fromkeys(grown))

    def _temperature(self, handle: object) -> float:
        smi = self._smi
        sensor, metric = smi.AmdSmiTemperatureType.HOTSPOT, smi.AmdSmiTemperatureMetric.CURRENT
        return float(smi.amdsmi_get_temp_metric(handle, sensor, metric))

    def _energy(self, handle: object) -> float:
        count = self._smi.amdsmi_get_energy_count(handle)
        return float(count["energy_accumulator"] * count["counter_resolution"] / 1e6)


def open_amd() -> AmdReader:
    """Raises ``GpuUnavailable`` if there is no driver, library or GPU."""
    if not AMD_DRIVER.exists():
        raise GpuUnavailable("no AMD driver")
    failures: list[BaseException] = []
    with catch_foreign(failures.append):
        return AmdReader(importlib.import_module("amdsmi"))
    if isinstance(failures[0], ModuleNotFoundError):
        raise GpuUnavailable("this machine has an AMD driver: install `agentgym-console[amd]` to see its GPUs")
    if isinstance(failures[0], OSError):
        raise GpuUnavailable("AMD's library libamd_smi.so is missing: install ROCm to see AMD's GPUs")
    raise failures[0]


def _raise_amd_unavailable(exc: BaseException) -> None:
    raise GpuUnavailable(f"the AMD driver does not answer: {one_line(str(exc))[:200]}") from exc


def _amd_processes(running: list[dict[str, Any]]) -> tuple[GpuProcess, ...]:
    named = ((each, None if each["name"] == "N/A" else each["name"]) for each in running)
    return largest(
        GpuProcess(pid=int(each["pid"]), name=clean_name(name), mem_used=int(each["mem"])) for each, name in named
    )
