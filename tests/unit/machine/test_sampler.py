"""The sampler's thread and the meter that it feeds."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from runner.machine import sampler as sampler_module
from runner.machine.gpus import GpuReader, GpuUnavailable
from runner.machine.sampler import GpuMeter, GpuReaders, MachineSampler, Sample
from runner.types.machine import GpuState, GpuUse, Machine
from runner.util.clock import Clock
from tests.support.manual_clock import ManualClock
from tests.support.waiting_batch import wait_until

LIMIT_S = 10.0
AT = Clock().now()


class Gpus:
    """A reader of GPUs whose readings the test sets."""

    def __init__(self, gpus: Sequence[GpuState] = ()) -> None:
        self.gpus = list(gpus)
        self.n_reads = 0
        self.go_on = threading.Event()
        self.go_on.set()

    def read(self) -> list[GpuState]:
        self.n_reads += 1
        self.go_on.wait(LIMIT_S)
        return self.gpus


def is_sampling() -> bool:
    return any(thread.name == "machine sampler" for thread in threading.enumerate())


def no_gpu() -> GpuReader:
    raise GpuUnavailable("no driver")


def test_nothing_is_sampled_before_and_after_it_is_wanted(tmp_path: Path) -> None:
    gpus = Gpus([GpuState(index=0, util=1.0)])
    sampler = MachineSampler(tmp_path, Clock(), [lambda: gpus], interval_s=0.005)
    assert gpus.n_reads == 0 and not is_sampling()
    samples: list[Sample] = []
    with sampler.listening(samples.append):
        wait_until(lambda: len(samples) >= 3)
    wait_until(lambda: not is_sampling())
    assert samples[-1].machine.gpu == gpus.gpus
    assert samples[-1].machine.ram is not None and samples[-1].machine.disk_free is not None
    n_reads = gpus.n_reads
    wait_until(sampler.latest)
    wait_until(lambda: not is_sampling())
    assert gpus.n_reads > n_reads


def test_a_listener_that_fails_does_not_end_the_samples(tmp_path: Path) -> None:
    def fail(sample: Sample) -> None:
        raise ValueError("broken")

    samples: list[Sample] = []
    sampler = MachineSampler(tmp_path, Clock(), [no_gpu], interval_s=0.005)
    with sampler.listening(fail), sampler.listening(samples.append):
        wait_until(lambda: len(samples) >= 2)
    assert (samples[0].machine.gpu, samples[0].machine.gpu_cause) == ([], "no driver")


def test_a_driver_that_hangs_blocks_nothing_and_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sampler_module, "HANG_S", 0.01)
    gpus = Gpus()
    gpus.go_on.clear()
    sampler = MachineSampler(tmp_path, Clock(), [lambda: gpus], interval_s=0.005)
    try:
        wait_until(lambda: (machine := sampler.latest()) and "has not answered" in (machine.gpu_cause or ""))
    finally:
        gpus.go_on.set()
    wait_until(lambda: (machine := sampler.latest()) and machine.gpu_cause is None)
    wait_until(lambda: not is_sampling())


def test_drivers_are_tried_again_after_a_minute_and_all_causes_are_said() -> None:
    clock, found = ManualClock(), list[Gpus]()

    def open_late() -> GpuReader:
        if not found:
            raise GpuUnavailable("not loaded")
        return found[0]

    readers = GpuReaders([open_late, no_gpu], clock)
    assert readers.read() == ([], "not loaded; no driver")
    found.append(Gpus([GpuState(index=0)]))
    clock.now += 59
    assert readers.read() == ([], "not loaded; no driver")
    clock.now += 1
    assert readers.read() == ([GpuState(index=0)], None)


class Metered:
    """A meter with a clock and samples of the test."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.meter = GpuMeter(MachineSampler(None, Clock(), [no_gpu]), self.clock)

    def sample(self, *gpus: GpuState, after_s: float = 0.0) -> None:
        self.clock.now += after_s
        self.meter.add(Sample(self.clock.now, Machine(at=AT, gpu=list(gpus))))


def gpu(energy_j: float | None = None, util: float | None = None, **fields: float | str) -> GpuState:
    return GpuState(index=0, energy_j=energy_j, util=util, **fields)  # type: ignore[arg-type]


def test_an_episode_alone_has_the_energy_of_all_gpus_and_is_not_shared() -> None:
    metered = Metered()
    metered.sample(gpu(100.0, 50.0), gpu(200.0, 0.0, uuid="b"))
    metered.meter.start("a")
    metered.sample(gpu(400.0, 50.0), gpu(300.0, 0.0, uuid="b"), after_s=2)
    assert metered.meter.stop("a") == GpuUse(energy_j=400.0, energy_shared=False, gpu_s=1.0)
    assert metered.meter.stop("a") == GpuUse()


def test_episodes_at_the_same_time_share_by_time() -> None:
    metered = Metered()
    metered.sample(gpu(0.0))
    metered.meter.start("a")
    metered.meter.start("b")
    metered.sample(gpu(100.0), after_s=2)
    assert metered.meter.stop("a") == GpuUse(energy_j=50.0, energy_shared=True)
    metered.sample(gpu(200.0), after_s=2)
    assert metered.meter.stop("b") == GpuUse(energy_j=150.0, energy_shared=True)


def test_power_stands_in_for_an_energy_counter_that_is_missing_or_was_reset() -> None:
    metered = Metered()
    metered.meter.start("a")
    metered.sample(gpu(None, power_w=10.0))
    metered.sample(gpu(None, power_w=20.0), after_s=2)
    metered.sample(gpu(50_000.0, power_w=20.0), after_s=2)
    metered.sample(gpu(1.0, power_w=30.0), after_s=2)
    assert metered.meter.stop("a").energy_j == 40 + 40 + 60


def test_a_counter_that_was_extrapolated_too_high_is_corrected_and_no_episode_gets_less_than_nothing() -> None:
    metered = Metered()
    metered.meter.start("a")
    metered.sample(gpu(0.0))
    metered.sample(gpu(300.0, power_w=150.0), after_s=2)
    metered.meter.start("b")
    metered.sample(gpu(200.0, power_w=150.0), after_s=2)
    assert metered.meter.stop("b") == GpuUse(energy_j=0.0, energy_shared=True)
    metered.sample(gpu(500.0, power_w=150.0), after_s=2)
    assert metered.meter.stop("a").energy_j == 500


def test_without_a_readable_gpu_nothing_is_measured() -> None:
    metered = Metered()
    for _ in range(3):
        metered.sample(after_s=2)
        metered.meter.start("a")
    metered.meter.start("b")
    assert metered.meter.stop("a") == GpuUse()


def test_a_gpu_that_is_lost_meanwhile_counts_until_then() -> None:
    metered = Metered()
    metered.sample(gpu(0.0, 100.0))
    metered.meter.start("a")
    metered.sample(gpu(100.0, 100.0), after_s=2)
    metered.sample(GpuState(index=0, lost="it fell off the bus"), after_s=2)
    metered.clock.now += 1
    assert metered.meter.stop("a") == GpuUse(energy_j=100.0, gpu_s=2.0)


def test_a_batch_is_measured_from_real_samples() -> None:
    gpus = Gpus([gpu(None, 50.0, power_w=100.0)])
    clock = Clock()
    sampler = MachineSampler(None, clock, [lambda: gpus], interval_s=0.005)
    meter = GpuMeter(sampler, clock.monotonic)
    with meter.measuring():
        meter.start("a")
        wait_until(lambda: gpus.n_reads >= 4)
        use = meter.stop("a")
    assert use.energy_j is not None and use.energy_j > 0 and use.gpu_s is not None
    wait_until(lambda: not is_sampling())
