"""AMD's GPUs, read with the library of ROCm (AMD SMI); the package is in the extra ``amd``."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any, Final

from runner.errors import catch_foreign
from runner.machine.gpu_reader import GpuUnavailable, clean_name, largest, read_value
from runner.types.machine import MAX_GPUS, GpuProcess, GpuState
from runner.util.display_text import one_line

DRIVER: Final = Path("/dev/kfd")
MIB: Final = 1 << 20
_THROTTLING: Final = (
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
        with catch_foreign(_raise_unavailable):
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
            processes=read_value(lambda: _processes(smi.amdsmi_get_gpu_process_list(handle))),
        )

    def _power(self, handle: object) -> float:
        power = self._smi.amdsmi_get_power_info(handle)  # which of the two there is depends on the model
        named = (power["current_socket_power"], power["average_socket_power"])
        return next(float(watts) for watts in named if isinstance(watts, int))

    def _throttling(self, index: int, handle: object) -> tuple[str, ...] | None:
        """Return why the clocks are reduced; None if the GPU does not report it, or not before the next reading."""
        metrics = self._smi.amdsmi_get_gpu_metrics_info(handle)  # a value that the GPU lacks is the text N/A
        if isinstance(bits := metrics["indep_throttle_status"], int):
            return tuple(cause for first, end, cause in _THROTTLING if bits >> first & ((1 << end - first) - 1))
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
    if not DRIVER.exists():
        raise GpuUnavailable("no AMD driver")
    failures: list[BaseException] = []
    with catch_foreign(failures.append):
        return AmdReader(importlib.import_module("amdsmi"))
    if isinstance(failures[0], ModuleNotFoundError):
        raise GpuUnavailable("this machine has an AMD driver: install `agentgym-console[amd]` to see its GPUs")
    if isinstance(failures[0], OSError):
        raise GpuUnavailable("AMD's library libamd_smi.so is missing: install ROCm to see AMD's GPUs")
    raise failures[0]


def _raise_unavailable(exc: BaseException) -> None:
    raise GpuUnavailable(f"the AMD driver does not answer: {one_line(str(exc))[:200]}") from exc


def _processes(running: list[dict[str, Any]]) -> tuple[GpuProcess, ...]:
    named = ((each, None if each["name"] == "N/A" else each["name"]) for each in running)
    return largest(
        GpuProcess(pid=int(each["pid"]), name=clean_name(name), mem_used=int(each["mem"])) for each, name in named
    )
