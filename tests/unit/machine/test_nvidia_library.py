"""The reader of NVIDIA's GPUs through ``ctypes``, with a library that stands in for the driver's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from runner.types.machine import GpuInstance, GpuProcess, GpuState
from tests.support.nvml_library import build_nvml, nvml_environ

READ = """
import sys, msgspec
from runner.machine.gpus import GpuUnavailable
from runner.machine.gpus import open_nvidia
try:
    reader = open_nvidia()
except GpuUnavailable as exc:
    sys.exit(str(exc))
sys.stdout.buffer.write(msgspec.json.encode([reader.read() for _ in range(3)]))
"""

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_nvml(tmp_path_factory.mktemp("nvml"))


def run(library: Path, fault: str) -> subprocess.CompletedProcess[bytes]:
    environ = nvml_environ(library, fault)
    return subprocess.run([sys.executable, "-c", READ], env=environ, capture_output=True, timeout=60, check=False)


def read_gpus(library: Path, fault: str = "") -> list[list[GpuState]]:
    process = run(library, fault)
    assert (process.returncode, process.stderr) == (0, b"")
    return msgspec.json.decode(process.stdout, type=list[list[GpuState]])


def test_two_gpus_are_read_with_all_their_fields(library: Path) -> None:
    first, second = read_gpus(library)[0]
    assert first == GpuState(
        index=0,
        name="Stub A",
        uuid="GPU-a",
        util=40.0,
        mem_used=4 << 30,
        mem_total=16 << 30,
        power_w=250.0,
        power_limit_w=300.0,
        temperature=71.0,
        throttled=("power limit", "temperature (hardware)"),
        mig=False,
        energy_j=5.0,
        processes=first.processes,
    )
    assert first.processes is not None
    assert [(each.pid, each.mem_used) for each in first.processes] == [(1, 1 << 20), (4000000, None)]
    assert first.processes[1] == GpuProcess(pid=4000000)
    assert (second.name, second.util, second.throttled, second.mig, second.processes) == ("Stub B", 50.0, (), None, ())


def test_a_field_that_the_gpu_does_not_support_is_unknown(library: Path) -> None:
    for gpu in read_gpus(library, "unsupported")[0]:
        assert (gpu.power_w, gpu.power_limit_w, gpu.lost) == (None, 300.0, None)


def test_a_gpu_that_is_lost_does_not_hide_the_other_one(library: Path) -> None:
    before, *after = read_gpus(library, "lost")
    assert [gpu.lost for gpu in before] == [None, None]
    for first, second in after:
        assert (first.lost, first.util) == (None, 40.0)
        assert second.lost is not None and "fell off the bus" in second.lost
        assert (second.name, second.mem_total, second.util, second.mem_used) == ("Stub B", 16 << 30, None, None)


def test_the_instances_of_a_divided_gpu_are_read_each(library: Path) -> None:
    divided, whole = read_gpus(library, "mig")[0]
    assert (divided.mig, whole.mig, whole.instances) == (True, None, ())
    first, third = divided.instances  # the place between them is empty
    assert first.processes is not None and [each.pid for each in first.processes] == [1, 4000000]
    name = "Stub A MIG 1g.5gb"
    assert first == GpuInstance(
        index=0, name=name, uuid="MIG-a", mem_used=1 << 30, mem_total=5 << 30, processes=first.processes
    )
    assert third == GpuInstance(index=2, name=name, uuid="MIG-a", mem_used=1 << 30, mem_total=5 << 30, processes=())


def test_a_hostile_name_is_unknown_or_harmless(library: Path) -> None:
    for gpu in read_gpus(library, "hostile")[0]:
        assert gpu.name is None or gpu.name.isprintable()
        assert gpu.util is not None


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        ("not_loaded", "the NVIDIA driver is not loaded: load it with `modprobe nvidia`"),
        ("none", "the NVIDIA driver has no GPU"),
    ],
)
def test_why_no_gpu_can_be_read_is_said(library: Path, fault: str, cause: str) -> None:
    process = run(library, fault)
    assert (process.returncode, process.stderr.decode().strip()) == (1, cause)


def test_a_machine_without_the_library_has_no_driver(tmp_path: Path) -> None:
    process = run(tmp_path / "libnvidia-ml.so.1", "")
    assert process.stderr.decode().strip() in ("no NVIDIA driver", "")  # "" where this machine has a driver
