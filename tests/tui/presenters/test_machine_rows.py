"""The machine as lines: every value, unknown ones, problems in words, and hostile texts."""

from __future__ import annotations

from typing import Any

import pytest

from agentgym_tui.presenters.cells import Line, line_width
from agentgym_tui.presenters.machine_rows import gpu_problem, machine_lines
from agentgym_tui.presenters.number_format import UNKNOWN
from agentgym_tui.state.data_model import NodeInfo
from agentgym_tui.state.machine import MachineInfo
from runner.types.machine import GpuProcess, GpuState, Machine, Network
from tests.support.console.samples import START

GIB = 1 << 30
GPU = GpuState(
    index=0,
    name="H100",
    util=50.0,
    mem_used=60 * GIB,
    mem_total=80 * GIB,
    power_w=612.0,
    power_limit_w=700.0,
    temperature=71.0,
    throttled=("power limit",),
    mig=False,
    processes=(GpuProcess(pid=7, name="vllm", mem_used=59 * GIB),),
)


def node(**fields: Any) -> NodeInfo:  # noqa: ANN401
    return NodeInfo("box", machine=MachineInfo(Machine(at=START, **{"gpu": [], **fields})))


def texts(lines: list[Line]) -> str:
    return "\n".join("".join(cell.text for cell in line) for line in lines)


def test_a_gpu_has_its_values_its_trend_and_why_it_is_slow() -> None:
    shown = texts(machine_lines(node(gpu=[GPU]), 100))
    for text in ("GPU 0 H100", "612 of 700 W", "71 °C", "50%", "64 GB of 86 GB", "⚠ clocks reduced: power limit"):
        assert text in shown
    assert "7 vllm 63 GB" in shown
    assert "▄" in shown


def test_a_lost_gpu_a_divided_one_and_one_without_values_are_shown() -> None:
    gpus = [
        GpuState(index=0, name="A", lost="the GPU is lost: it fell off the bus, restart the machine"),
        GpuState(index=1, name="B", mig=True),
        GpuState(index=2),
    ]
    shown = texts(machine_lines(node(gpu=gpus), 80))
    assert "✗ the GPU is lost" in shown
    assert "GPU 1 B · MIG: divided into instances" in shown
    assert f"GPU 2 {UNKNOWN}" in shown


def test_why_there_is_no_gpu_is_said_with_the_name_of_the_node() -> None:
    without = node(gpu_cause="no NVIDIA driver; no AMD driver")
    assert gpu_problem(without) == "no GPU on node box: no NVIDIA driver; no AMD driver"
    assert str(gpu_problem(without)) in texts(machine_lines(without, 80))
    assert gpu_problem(node(gpu=[GPU])) == ""
    assert gpu_problem(NodeInfo("box")) == ""
    assert texts(machine_lines(NodeInfo("box"), 80)) == "no sample of the machine of node box yet"


def test_the_host_is_shown_and_what_is_nearly_full_has_a_next_step() -> None:
    net = Network(sent_per_s=2e6, received_per_s=5e3)
    full = node(cpu=25.0, n_cpus=16, ram=97.0, ram_total=64 * GIB, disk_free=GIB, disk_total=100 * GIB, net=net)
    shown = texts(machine_lines(full, 100))
    for text in (
        "25% of 16 CPUs",
        "97% of 69 GB",
        "play fewer episodes",
        "1.1 GB free of 107 GB",
        "prune",
        "↑ 2.0 MB/s",
    ):
        assert text in shown


@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_hostile_texts_stay_one_harmless_line(width: int) -> None:
    hostile = "\x1b[2J\n[b]\u202e" + "x" * 5000
    gpu = GpuState(
        index=10**9,
        name=hostile,
        throttled=(hostile,) * 20,
        processes=(GpuProcess(pid=1, name=hostile),),
        power_w=1e300,
        temperature=-1e300,
        mem_used=1 << 100,
    )
    lines = machine_lines(node(gpu=[gpu, GpuState(index=0, lost=hostile)], gpu_cause=hostile), width)
    assert all("\x1b" not in text and "\u202e" not in text for text in texts(lines).splitlines())
    assert len(texts(lines).splitlines()) == len(lines)
    assert all(line_width(line) < 600 for line in lines)
