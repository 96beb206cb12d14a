"""The machine of a node in the console's state: bounded, and with a bounded history."""

from __future__ import annotations

import math
import sys
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgym_tui.state.nodes import N_SAMPLES, MachineInfo
from agentgym_tui.state.normalize import MAX_BYTES, bounded
from agentgym_tui.state.run_store import RunStore
from runner.types.machine import (
    MAX_GPUS,
    MAX_INSTANCES,
    MAX_PROCESSES,
    GpuInstance,
    GpuProcess,
    GpuState,
    Machine,
    Network,
)
from tests.support.console.samples import NODE, START, live

NUMBERS = st.one_of(st.none(), st.floats(), st.integers(-(10**30), 10**30).map(float))
COUNTS = st.one_of(st.none(), st.integers(-(10**40), 10**40))


def machine(second: int = 0, **fields: Any) -> Machine:  # noqa: ANN401
    return Machine(at=START + timedelta(seconds=second), **{"gpu": [], **fields})


def test_a_node_has_its_latest_sample_and_the_history(run_store: RunStore) -> None:
    for second, util in ((0, 10.0), (2, 20.0), (1, 99.0)):  # the last one is late
        gpu = GpuState(index=0, util=util, mem_used=1, mem_total=4)
        run_store.apply_events([live(machine(second, cpu=util, gpu=[gpu]))])
    info = run_store.nodes[NODE].machine
    assert info is not None and info.latest.cpu == 20.0
    assert info.history.get("util:0") == (10.0, 20.0)
    assert info.history.get("mem:0") == (25.0, 25.0)
    assert info.history.get("sent") == (None, None)
    assert info.history.get("util:1") == ()


def test_the_history_is_bounded_and_forgets_gpus_that_are_gone() -> None:
    info = MachineInfo(machine(gpu=[GpuState(index=0, util=1.0)]))
    for second in range(2 * N_SAMPLES):
        info.add(machine(second, cpu=1.0))
    assert len(info.history.get("cpu")) == N_SAMPLES
    assert info.history.get("util:0") == ()


@given(NUMBERS, COUNTS)
def test_numbers_of_any_size_are_bounded(number: float | None, count: int | None) -> None:
    gpu = GpuState(
        index=count or 0,
        util=number,
        mem_used=count,
        mem_total=count,
        power_w=number,
        power_limit_w=number,
        temperature=number,
        energy_j=number,
        processes=(GpuProcess(pid=count or 0, mem_used=count),),
        instances=(GpuInstance(index=count or 0, mem_used=count, mem_total=count),),
    )
    net = Network(sent_per_s=number or 0.0, received_per_s=number or 0.0)
    sample = machine(gpu=[gpu], cpu=number, ram=number, ram_total=count, disk_free=count, net=net, n_cpus=count)
    info = MachineInfo(bounded(sample))
    for value in numbers(msgspec.to_builtins(info.latest)):
        assert math.isfinite(value) and abs(value) <= MAX_BYTES
    assert info.latest.cpu is None or 0 <= info.latest.cpu <= 100
    percents = [value for value in info.history.get("mem:0") if value is not None]
    assert all(0 <= value <= 100 for value in percents)


def numbers(value: object) -> list[float]:
    if isinstance(value, dict | list | tuple):
        return [each for part in (value.values() if isinstance(value, dict) else value) for each in numbers(part)]
    return [value] if isinstance(value, int | float) and not isinstance(value, bool) else []


def test_texts_and_lists_of_any_length_are_bounded() -> None:
    long = "x" * 100_000
    processes = (GpuProcess(pid=1, name=long),) * 100
    gpu = GpuState(
        index=0,
        name=long,
        uuid=long,
        lost=long,
        throttled=(long,) * 100,
        processes=processes,
        instances=(GpuInstance(index=0, name=long, uuid=long, processes=processes),) * 100,
    )
    shown = bounded(machine(gpu=[gpu] * 100, gpu_cause=long))
    assert len(shown.gpu) == MAX_GPUS and len(shown.gpu[0].processes or ()) == MAX_PROCESSES
    instances = shown.gpu[0].instances
    assert len(instances) == MAX_INSTANCES and len(instances[0].processes or ()) == MAX_PROCESSES
    assert len(msgspec.json.encode(shown)) < 2_000_000


@pytest.mark.parametrize("total", [0, None])
def test_memory_without_a_total_has_no_percentage(total: int | None) -> None:
    info = MachineInfo(machine(gpu=[GpuState(index=0, mem_used=sys.maxsize, mem_total=total)]))
    assert info.history.get("mem:0") == (None,)
