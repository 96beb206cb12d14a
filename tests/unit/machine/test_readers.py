"""Readers of GPUs with an injected library, and those of the host."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from runner.machine import gpus
from runner.machine.gpus import (
    AmdReader,
    GpuUnavailable,
    NvidiaReader,
    clean_name,
    largest,
    open_amd,
    open_nvidia,
    process_name,
)
from runner.machine.sampler import HostReader
from runner.types.machine import MAX_GPUS, MAX_PROCESSES, GpuProcess
from tests.support.manual_clock import ManualClock


class NVMLError_GpuIsLost(Exception):
    """Named as the library names it."""


class NVMLError_LibRmVersionMismatch(Exception):
    pass


class FakeNvml:
    """NVIDIA's library with ``n`` GPUs; functions in ``faults`` raise, and those without a value do not exist."""

    NVML_TEMPERATURE_GPU = 0
    nvmlMemory_v2 = 1

    def __init__(self, n: int = 1, **faults: BaseException) -> None:
        self.faults = faults
        self.values: dict[str, Any] = {
            "nvmlInit": None,
            "nvmlDeviceGetCount": n,
            "nvmlDeviceGetHandleByIndex": 7,
            "nvmlDeviceGetName": "Old GPU",
            "nvmlDeviceGetUUID": "GPU-1",
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(used=1, total=2),
            "nvmlDeviceGetTemperature": 50,
            "nvmlDeviceGetCurrentClocksThrottleReasons": 0x8,
        }

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        def call(*_: object, **kwargs: object) -> Any:  # noqa: ANN401
            if name in self.faults:
                raise self.faults[name]
            if name not in self.values or kwargs:
                raise RuntimeError("Function Not Found")
            return self.values[name]

        return call


def test_a_driver_that_knows_only_old_functions_is_read_with_them() -> None:
    (gpu,) = NvidiaReader(FakeNvml()).read()
    assert (gpu.name, gpu.mem_used, gpu.temperature, gpu.throttled) == ("Old GPU", 1, 50.0, ("hardware slowdown",))
    assert (gpu.util, gpu.power_w, gpu.mig, gpu.energy_j, gpu.processes, gpu.lost) == (None,) * 6


def test_a_gpu_that_is_lost_from_the_start_is_said_to_be_lost() -> None:
    (gpu,) = NvidiaReader(FakeNvml(nvmlDeviceGetHandleByIndex=NVMLError_GpuIsLost())).read()
    assert gpu.lost == "the GPU is lost: it fell off the bus, restart the machine"


def test_a_gpu_that_comes_back_is_read_again() -> None:
    nvml = FakeNvml()
    reader = NvidiaReader(nvml)
    nvml.faults["nvmlDeviceGetName"] = NVMLError_GpuIsLost()
    assert reader.read()[0].lost
    nvml.faults.clear()
    assert reader.read()[0].lost is None


def test_the_number_of_gpus_is_limited() -> None:
    assert len(NvidiaReader(FakeNvml(1000)).read()) == MAX_GPUS


def test_each_reading_reads_one_energy_counter_and_adds_power_times_time_for_the_others() -> None:
    clock, nvml = ManualClock(), FakeNvml(2)
    nvml.values |= {"nvmlDeviceGetPowerUsage": 200_000, "nvmlDeviceGetTotalEnergyConsumption": 1_000_000}
    reader = NvidiaReader(nvml, clock)
    assert [gpu.energy_j for gpu in reader.read()] == [1000.0, 1000.0]  # the first readings
    nvml.values["nvmlDeviceGetTotalEnergyConsumption"] = 1_500_000
    clock.now += 2
    assert [gpu.energy_j for gpu in reader.read()] == [1000.0 + 2 * 200, 1500.0]
    clock.now += 2
    assert [gpu.energy_j for gpu in reader.read()] == [1500.0, 1500.0 + 2 * 200]
    clock.now += 3600  # nothing was sampled, so the power of that time is not known
    assert [gpu.energy_j for gpu in reader.read()] == [1500.0, 1500.0]


def test_a_driver_that_was_updated_is_named() -> None:
    with pytest.raises(GpuUnavailable, match="restart the machine"):
        NvidiaReader(FakeNvml(nvmlInit=NVMLError_LibRmVersionMismatch()))


def test_an_unknown_failure_of_the_driver_is_one_line() -> None:
    with pytest.raises(GpuUnavailable) as raised:
        NvidiaReader(FakeNvml(nvmlInit=OSError("no\n\x1b[31mdevice" + "x" * 1000)))
    assert str(raised.value).isprintable() and len(str(raised.value)) < 300


def test_without_the_library_of_the_driver_there_is_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "NVML", "libno-such-library.so.1")
    with pytest.raises(GpuUnavailable, match="no NVIDIA driver"):
        open_nvidia()


class FakeSmi:
    """AMD's library with two GPUs, of which the second does not answer."""

    AmdSmiTemperatureType = SimpleNamespace(HOTSPOT=1)
    AmdSmiTemperatureMetric = SimpleNamespace(CURRENT=2)

    def __init__(self, **metrics: object) -> None:
        self.metrics = metrics

    def amdsmi_init(self) -> None: ...

    def amdsmi_get_processor_handles(self) -> list[str]:
        return ["first", "second"]

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        values: dict[str, Any] = {
            "amdsmi_get_gpu_asic_info": {"market_name": "Instinct\x1b[2J"},
            "amdsmi_get_gpu_device_uuid": "u-1",
            "amdsmi_get_gpu_vram_usage": {"vram_total": 1024, "vram_used": 512},
            "amdsmi_get_gpu_activity": {"gfx_activity": 90},
            "amdsmi_get_power_info": {"current_socket_power": "N/A", "average_socket_power": 210},
            "amdsmi_get_power_cap_info": {"power_cap": 750_000_000},
            "amdsmi_get_temp_metric": 61,
            "amdsmi_get_energy_count": {"energy_accumulator": 2_000_000, "counter_resolution": 15.3},
            "amdsmi_get_gpu_metrics_info": self.metrics,
            "amdsmi_get_gpu_process_list": [{"pid": 5, "name": "N/A", "mem": 7}],
        }

        def call(handle: str, *_: object) -> Any:  # noqa: ANN401
            if handle == "second":
                raise RuntimeError("no answer")
            return values[name]

        return call


def test_amd_gpus_are_read_and_one_that_does_not_answer_is_lost() -> None:
    first, second = AmdReader(FakeSmi()).read()
    assert first.name is not None and first.name.isprintable()
    assert (first.util, first.mem_used, first.power_w, first.power_limit_w) == (90.0, 512 << 20, 210.0, 750.0)
    assert (first.temperature, first.mig, first.lost) == (61.0, None, None)
    assert first.energy_j == pytest.approx(30.6)
    assert first.processes == (GpuProcess(pid=5, mem_used=7),)
    assert second.lost is not None and second.util is None


@pytest.mark.parametrize(
    ("bits", "causes"),
    [
        (0, ()),
        (1 << 3 | 1 << 7, ("power limit",)),
        (1 << 17, ("current limit",)),
        (1 << 36 | 1 << 47, ("temperature", "hardware slowdown")),
        (1 << 10 | 1 << 60, ()),
        ("N/A", None),
    ],
)
def test_the_throttling_cause_of_amd_is_that_of_its_status_bits(bits: object, causes: tuple[str, ...] | None) -> None:
    assert AmdReader(FakeSmi(indep_throttle_status=bits)).read()[0].throttled == causes


def test_amd_gpus_without_status_bits_are_throttled_while_their_counters_grow() -> None:
    smi = FakeSmi(indep_throttle_status="N/A", ppt_residency_acc=10, hbm_thm_residency_acc=5, vr_thm_residency_acc=5)
    reader = AmdReader(smi)
    assert reader.read()[0].throttled is None, "one reading shows no growth"
    assert reader.read()[0].throttled == ()
    smi.metrics.update(ppt_residency_acc=11)
    assert reader.read()[0].throttled == ("power limit",)
    smi.metrics.update(hbm_thm_residency_acc=6, vr_thm_residency_acc=9, ppt_residency_acc="N/A")
    assert reader.read()[0].throttled == ("temperature",)
    assert reader.read()[0].throttled == ()


def test_amd_without_driver_or_package_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(gpus, "AMD_DRIVER", tmp_path / "kfd")
    with pytest.raises(GpuUnavailable, match="no AMD driver"):
        open_amd()
    (tmp_path / "kfd").touch()
    monkeypatch.setattr(importlib, "import_module", missing(ModuleNotFoundError("amdsmi")))
    with pytest.raises(GpuUnavailable, match=r"agentgym-console\[amd\]"):
        open_amd()
    monkeypatch.setattr(importlib, "import_module", missing(OSError("Could not load libamd_smi.so")))
    with pytest.raises(GpuUnavailable, match="install ROCm"):
        open_amd()


def missing(exc: Exception) -> Any:  # noqa: ANN401
    def import_module(name: str) -> None:
        raise exc

    return import_module


def test_names_are_short_printable_lines() -> None:
    assert clean_name(b"A100\xff\x1b]0;x\x07") is not None
    for name in (b"A\xff\n", "a\u202eb\x00", "x" * 1000):
        cleaned = clean_name(name)
        assert cleaned is not None and cleaned.isprintable() and len(cleaned) <= 80
    assert (clean_name(None), clean_name(""), process_name(0)) == (None, None, None)


def test_the_processes_with_the_most_memory_are_kept() -> None:
    kept = largest(GpuProcess(pid=pid, mem_used=pid or None) for pid in range(100))
    assert [each.pid for each in kept] == list(range(99, 99 - MAX_PROCESSES, -1))


def test_the_host_is_read_and_rates_need_two_readings(tmp_path: Path) -> None:
    clock = ManualClock()
    reader = HostReader(tmp_path, clock)
    first = reader.read()
    assert (first["cpu"], first["net"]) == (None, None)
    assert 0 < first["ram"] < 100 and first["disk_free"] <= first["disk_total"] and first["n_cpus"] >= 1
    clock.now += 2
    second = reader.read()
    assert second["cpu"] is None or 0 <= second["cpu"] <= 100  # None: the counters have ticks of 10 ms
    assert second["net"].sent_per_s >= 0


def test_a_directory_that_is_gone_hides_only_the_disk(tmp_path: Path) -> None:
    fields = HostReader(tmp_path / "gone", ManualClock()).read()
    assert fields["disk_free"] is None and fields["ram"] is not None
