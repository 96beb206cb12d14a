"""Samples the machine on a thread of its own, while something uses the samples."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

from runner.errors import catch_foreign, log_failure
from runner.machine.amd import open_amd
from runner.machine.gpu_reader import GpuReader, GpuUnavailable, read_value
from runner.machine.nvidia import open_nvidia
from runner.types.machine import MAX_GPUS, GpuState, Machine, Network
from runner.util.clock import Clock

logger = logging.getLogger(__name__)

INTERVAL_S: Final = 2.0
REOPEN_S: Final = 60.0
"""Seconds after which drivers that could not be opened are tried again."""
HANG_S: Final = 10.0
"""Seconds without a new sample after which a driver counts as hanging."""

OpenReader: TypeAlias = Callable[[], GpuReader]
OPENERS: Final[tuple[OpenReader, ...]] = (open_nvidia, open_amd)


class HostReader:
    """Reads the load of the host; rates are those since the previous reading.

    ``data_dir`` is the state directory, whose free space is measured; None: only GPUs are of interest.
    """

    def __init__(self, data_dir: Path | None, now: Callable[[], float]) -> None:
        self._data_dir = data_dir
        self._now = now
        self._cpu: tuple[float, float] | None = None
        self._traffic: tuple[float, int, int] | None = None

    def read(self) -> dict[str, Any]:
        """Return the fields of a ``Machine`` item except those of its GPUs; what cannot be read is None."""
        if self._data_dir is None:
            return {}
        import psutil

        memory = read_value(psutil.virtual_memory)
        disk = read_value(lambda: psutil.disk_usage(str(self._data_dir)))
        return {
            "cpu": read_value(self._cpu_percent),
            "n_cpus": read_value(psutil.cpu_count),
            "ram": None if memory is None else memory.percent,
            "ram_total": None if memory is None else memory.total,
            "disk_free": None if disk is None else disk.free,
            "disk_total": None if disk is None else disk.total,
            "net": read_value(self._network),
        }

    def _cpu_percent(self) -> float | None:
        import psutil

        times = psutil.cpu_times()
        total = sum(times[:8])  # guest times are part of user times
        busy = total - times.idle - getattr(times, "iowait", 0.0)
        before, self._cpu = self._cpu, (busy, total)
        if before is None or total <= before[1]:
            return None
        return round(max(0.0, min(100 * (busy - before[0]) / (total - before[1]), 100.0)), 1)

    def _network(self) -> Network | None:
        import psutil

        counters = psutil.net_io_counters(pernic=True)
        used = [each for name, each in counters.items() if not name.startswith("lo")]
        current = self._now(), sum(each.bytes_sent for each in used), sum(each.bytes_recv for each in used)
        before, self._traffic = self._traffic, current
        if before is None or current[0] <= before[0]:
            return None
        sent, received = (max(0, current[n] - before[n]) / (current[0] - before[0]) for n in (1, 2))
        return Network(sent_per_s=round(sent), received_per_s=round(received))


class Sample(NamedTuple):
    """The time ``at_s`` is in seconds of a monotonic clock."""

    at_s: float
    machine: Machine


Listener: TypeAlias = Callable[[Sample], object]


class GpuReaders:
    """All readers of GPUs that can be opened; the others are tried again after ``REOPEN_S``."""

    def __init__(self, openers: Sequence[OpenReader], now: Callable[[], float]) -> None:
        self._openers = openers
        self._now = now
        self._readers: list[GpuReader] = []
        self._cause: str | None = None
        self._opened_s = -math.inf

    def read(self) -> tuple[list[GpuState], str | None]:
        """If there are no GPUs, the second value is the reason."""
        if not self._readers and self._now() - self._opened_s >= REOPEN_S:
            self._open()
        gpus = [gpu for reader in self._readers for gpu in reader.read()]
        return gpus[:MAX_GPUS], self._cause

    def _open(self) -> None:
        causes: list[str] = []
        for opener in self._openers:
            try:
                self._readers.append(opener())
            except GpuUnavailable as exc:
                causes.append(str(exc))
        self._opened_s = self._now()
        self._cause = None if self._readers else "; ".join(causes) or "GPUs are not read"


class MachineSampler:
    """Samples the machine every ``INTERVAL_S`` seconds while a listener is registered or ``latest`` is called.

    A driver may hang, so only the sampler's daemon thread calls it. Without ``data_dir``, only GPUs are sampled.
    """

    def __init__(
        self,
        data_dir: Path | None,
        clock: Clock,
        openers: Sequence[OpenReader] = OPENERS,
        *,
        interval_s: float = INTERVAL_S,
    ) -> None:
        self._clock = clock
        self._gpus = GpuReaders(openers, clock.monotonic)
        self._host = HostReader(data_dir, clock.monotonic)
        self._interval_s = interval_s
        self._changed = threading.Condition()
        self._listeners: list[Listener] = []
        self._wanted_until_s = -math.inf
        self._thread: threading.Thread | None = None
        self._begun_s: float | None = None
        self._last: Sample | None = None

    def latest(self) -> Machine | None:
        """Return the last sample without waiting, and keep sampling; None if it is too old, because a new one is due.

        If a driver hangs, the sample has that as the cause in place of its GPUs.
        """
        now = self._clock.monotonic()
        with self._changed:
            self._wanted_until_s = now + 2 * self._interval_s
            self._start()
            last, begun_s = self._last, self._begun_s
        if begun_s is not None and now - begun_s > HANG_S:
            cause = f"a GPU driver has not answered for {now - begun_s:.0f} s: see `dmesg`"
            return Machine(at=self._clock.now(), gpu=[], gpu_cause=cause)
        return None if last is None or now - last.at_s > 2 * self._interval_s else last.machine

    @contextmanager
    def listening(self, listener: Listener) -> Iterator[None]:
        """The sampler's thread calls ``listener``."""
        with self._changed:
            self._listeners.append(listener)
            self._start()
        try:
            yield
        finally:
            with self._changed:
                self._listeners.remove(listener)
                self._changed.notify()

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="machine sampler", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._begun_s = self._clock.monotonic()
            with catch_foreign(log_failure(logger, "sampling the machine")):
                self._sample()
            with self._changed:
                self._begun_s = None
                self._changed.wait_for(lambda: not self._is_wanted(), self._interval_s)
                if not self._is_wanted():
                    self._thread = None
                    return

    def _is_wanted(self) -> bool:
        return bool(self._listeners) or self._clock.monotonic() < self._wanted_until_s

    def _sample(self) -> None:
        gpus, cause = self._gpus.read()
        machine = Machine(at=self._clock.now(), gpu=gpus, gpu_cause=cause, **self._host.read())
        with self._changed:
            self._last = sample = Sample(self._clock.monotonic(), machine)
            listeners = list(self._listeners)
        for listener in listeners:
            with catch_foreign(log_failure(logger, "a listener of the machine's samples")):
                listener(sample)
