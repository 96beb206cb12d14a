"""Samples the machine on a thread of its own while something uses the samples; measures the GPU use of episodes."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import psutil

from runner.errors import catch_foreign, log_failure
from runner.machine.gpus import GpuReader, GpuUnavailable, open_amd, open_nvidia, read_value
from runner.types.machine import MAX_GPUS, GpuState, GpuUse, Machine, Network
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
        times = psutil.cpu_times()
        total = sum(times[:8])  # guest times are part of user times
        busy = total - times.idle - getattr(times, "iowait", 0.0)
        before, self._cpu = self._cpu, (busy, total)
        if before is None or total <= before[1]:
            return None
        return round(max(0.0, min(100 * (busy - before[0]) / (total - before[1]), 100.0)), 1)

    def _network(self) -> Network | None:
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


MAX_CORRECTION_J: Final = 20_000.0
"""A counter that falls by less had been extrapolated too high, which the next intervals pay for; else it was reset."""

_Amount: TypeAlias = Callable[[GpuState, GpuState, float], float | None]


class ShareLedger:
    """Divides amounts, such as joules, among episodes by time, in seconds of one monotonic clock.

    An amount becomes known only at the end of an interval, but an episode may end within it. Such an episode gets its
    share at the rate of the previous interval, and the episodes that go on get the rest. Nothing is lost or counted
    twice: what was added is in the episodes' amounts, ``carry`` and ``unassigned``.

    Attributes:
        carry: what episodes that ended got in excess, as a negative number; the next intervals pay for it.
        unassigned: the amounts of times at which no episode ran.
    """

    def __init__(self) -> None:
        self.carry = 0.0
        self.unassigned = 0.0
        self._amounts: dict[str, float | None] = {}
        self._marks: dict[str, float] = {}
        self._share_s = 0.0  # the share of an episode that has run since the first moment
        self._now: float | None = None
        self._begin: float | None = None
        self._occupied_s = 0.0
        self._rate: float | None = None

    @property
    def running(self) -> dict[str, float | None]:
        return dict(self._amounts)

    def start(self, episode_id: str, now: float) -> None:
        self._advance(now)
        self._amounts[episode_id], self._marks[episode_id] = None, self._share_s

    def stop(self, episode_id: str, now: float) -> float | None:
        """Return None if nothing was measured while the episode ran."""
        self._advance(now)
        amount = self._amounts.pop(episode_id, None)
        share_s = self._share_s - self._marks.pop(episode_id, self._share_s)
        if self._rate is None or not share_s:
            return amount
        estimate = self._rate * share_s
        self.carry -= estimate
        return (amount or 0.0) + estimate

    def add(self, amount: float | None, now: float) -> None:
        """Divide the amount of the time since the previous call; None: it is unknown.

        A negative amount corrects earlier ones; the next amounts pay for it.
        """
        self._advance(now)
        seconds = 0.0 if self._begin is None else now - self._begin
        if amount is not None and seconds > 0:
            self._rate = max(0.0, amount / seconds)
            self._divide(amount, self._occupied_s / seconds)
        else:
            self._rate, self.unassigned = None, self.unassigned + (amount or 0.0)
        self._begin, self._occupied_s = now, 0.0
        self._marks = dict.fromkeys(self._marks, self._share_s)

    def _divide(self, amount: float, occupied: float) -> None:
        used = amount * occupied
        self.unassigned += amount - used
        self.carry += used
        shares = {episode_id: self._share_s - mark for episode_id, mark in self._marks.items()}
        total = sum(shares.values())
        if total <= 0:
            self.unassigned, self.carry = self.unassigned + self.carry, 0.0
            return
        divided = max(0.0, self.carry)
        self.carry -= divided
        for episode_id, share_s in shares.items():
            self._amounts[episode_id] = (self._amounts[episode_id] or 0.0) + divided * share_s / total

    def _advance(self, now: float) -> None:
        if self._now is not None and self._marks:
            self._share_s += (now - self._now) / len(self._marks)
            self._occupied_s += now - self._now
        self._now = now


class GpuMeter:
    """Divides what the GPUs of this machine use among the episodes that run meanwhile; thread-safe."""

    def __init__(self, sampler: MachineSampler, now: Callable[[], float]) -> None:
        self._sampler = sampler
        self._now = now
        self._lock = threading.Lock()
        self._energy, self._seconds = ShareLedger(), ShareLedger()
        self._running: set[str] = set()
        self._shared: set[str] = set()
        self._last: Sample | None = None

    @contextmanager
    def measuring(self) -> Iterator[None]:
        with self._sampler.listening(self.add):
            yield

    def start(self, episode_id: str) -> None:
        with self._lock:
            now = self._now()
            self._running.add(episode_id)
            if len(self._running) > 1:
                self._shared |= self._running
            self._energy.start(episode_id, now)
            self._seconds.start(episode_id, now)

    def stop(self, episode_id: str) -> GpuUse:
        """An unknown episode has an empty result."""
        with self._lock:
            if episode_id not in self._running:
                return GpuUse()
            now = self._now()
            shared = episode_id in self._shared
            self._running.discard(episode_id)
            self._shared.discard(episode_id)
            energy_j, gpu_s = self._energy.stop(episode_id, now), self._seconds.stop(episode_id, now)
            is_measured = energy_j is not None or gpu_s is not None
            return GpuUse(energy_j=_rounded(energy_j), energy_shared=shared and is_measured, gpu_s=_rounded(gpu_s))

    def add(self, sample: Sample) -> None:
        with self._lock:
            now, last, self._last = self._now(), self._last, sample
            self._energy.add(_total(last, sample, _joules), now)
            self._seconds.add(_total(last, sample, _busy_s), now)


def _total(last: Sample | None, sample: Sample, amount: _Amount) -> float | None:
    """Only GPUs that both samples have count; None if none of them has the value."""
    if last is None or (seconds := sample.at_s - last.at_s) <= 0:
        return None
    pairs = zip(last.machine.gpu, sample.machine.gpu, strict=False)
    amounts = [amount(before, gpu, seconds) for before, gpu in pairs if before.uuid == gpu.uuid]
    known = [each for each in amounts if each is not None]
    return sum(known) if known else None


def _joules(before: GpuState, gpu: GpuState, seconds: float) -> float | None:
    counters = before.energy_j, gpu.energy_j
    if counters[0] is not None and counters[1] is not None and counters[1] - counters[0] > -MAX_CORRECTION_J:
        return counters[1] - counters[0]
    return None if gpu.power_w is None else gpu.power_w * seconds


def _busy_s(_: GpuState, gpu: GpuState, seconds: float) -> float | None:
    return None if gpu.util is None else min(gpu.util, 100.0) / 100 * seconds


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
