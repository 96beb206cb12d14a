"""Measures the GPU energy and the GPU seconds of each episode from the samples of the machine."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeAlias

from runner.machine.sampler import MachineSampler, Sample
from runner.types.machine import GpuState, GpuUse

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
