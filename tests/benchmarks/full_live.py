"""A console in a real terminal under load: lost items, CPU, memory and response time.

The load comes from a separate process, whose rate is measured; a run with too low a rate is void and repeated.
"""

from __future__ import annotations

import itertools
import re
import time
from bisect import bisect
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from tests.benchmarks.bus_load import N_NODES, LoadReport
from tests.benchmarks.console_under_load import (
    FAST_KEY_INTERVAL_S,
    KEY_INTERVAL_S,
    RUN,
    Load,
    MeasuredConsole,
    cursor_on,
    run_console,
)
from tests.benchmarks.counted_console import ConsoleCounts
from tests.benchmarks.measure import Row, quartiles, row
from tests.benchmarks.synthetic_episodes import ENVS

FLEET, WARM_UP_S, FLEET_SECONDS = (50_000, 125_000), 1.0, 12.0
"""Live items per second of a fleet, and seconds of the loads before and during the measurement."""

MAX_BEHIND_S: Final = 1.0

MIN_RATE_SHARE: Final = 0.97
"""Share of the target rate below which a run is void."""

MAX_RUNS: Final = 3
MAX_CPU, MAX_MB = 40.0, 120.0
MAX_KEY_MS = (15.0, 100.0)
"""Median and 99th percentile of the milliseconds from a key to its paint."""

MIN_KEYS, KEY_SECONDS, N_PARTS = 1_000, 40.0, 5
"""Smallest number of keys behind a 99th percentile, seconds of the load under which most of them are pressed, and the
parts of these keys whose 99th percentiles show how much it varies."""

SETTLE_S: Final = 1.5
"""Seconds at the start of a load in which no key is pressed: batches of a new load push the earlier ones down."""

ENV = cursor_on(ENVS)
"""The cursor in the list of environments."""


class Measurement(NamedTuple):
    """Measurements during a load.

    Attributes:
        sent: report of the load.
        cpu: CPU percentage of each second.
        keys: response seconds of each key, in the order in which they were pressed.
        total_cpu: CPU percentage of the whole load with the work left at its end; None where it was not measured.
    """

    sent: LoadReport
    cpu: list[float]
    keys: list[float]
    total_cpu: float | None = None

    def with_keys(self, more: Measurement) -> Measurement:
        return self._replace(keys=self.keys + more.keys)


def run() -> list[Row]:
    return [*(row for rate in FLEET for row in _fleet(rate)), *_fleet(min(FLEET), "runs")]


def _fleet(rate: int, screen: str = "live") -> Iterator[Row]:
    """Publish the items of many nodes in small messages; the higher rate may lose items, but not silently."""
    name = f"{rate:,} live items/s of {N_NODES} nodes, {screen} screen"
    is_bounded, cursor = rate == min(FLEET), RUN if screen == "runs" else ENV
    for _ in range(MAX_RUNS):
        with run_console() as console:
            first = console.watch_load(Load(console.url, rate, WARM_UP_S))
            if screen == "runs":
                console.show_runs()
            load = Load(console.url, rate, FLEET_SECONDS)
            measured = _measure_until_idle(console, load, FLEET_SECONDS, cursor)
            ended_s, megabytes, all_sent = time.perf_counter(), console.megabytes, [first, measured.sent]
            if is_bounded:
                more = _measure_keys(console, Load(console.url, rate, KEY_SECONDS), cursor)
                measured = measured.with_keys(more)
                all_sent.append(more.sent)
            n_stored, counts = console.n_stored(), console.quit()
        if _is_fast_enough(rate, *all_sent[1:]):
            break
    else:
        yield _void(name, rate, *all_sent[1:])
        return
    yield from _rows(name, measured, MAX_KEY_MS if is_bounded else None)
    samples = [(at_s, n - first.n) for at_s, n in counts.samples if at_s < ended_s]
    behind_s = _max_behind_s(measured.sent, samples)
    yield row(f"{name}, longest time behind", behind_s, MAX_BEHIND_S if is_bounded else None, "{:.1f} s")
    yield _reported_loss(name, sum(sent.n for sent in all_sent), n_stored, counts)
    yield row(f"{name}, memory", megabytes, MAX_MB, "{:.0f} MB")


def _reported_loss(name: str, n_sent: int, n_stored: int, counts: ConsoleCounts) -> Row:
    """Compare the lost messages with those that the console reports as lost."""
    n_lost = n_stored - counts.n_messages
    lost = f"{n_lost:,} of {n_stored:,} messages, {n_sent - counts.n_items:,} of {n_sent:,} items"
    return Row(f"{name}, lost: {lost}; reported", f"{counts.n_missed:,}", f"{n_lost:,}", counts.n_missed == n_lost)


def _max_behind_s(sent: LoadReport, samples: Sequence[tuple[float, int]]) -> float:
    """Return the longest time by which the console was behind a load, to a tenth of a second."""
    n_sent = list(itertools.accumulate(sent.tenths))
    last = max(n for _, n in samples)
    return max((at_s - sent.started_s - bisect(n_sent, n) / 10 for at_s, n in samples if 0 <= n < last), default=0.0)


def _measure(
    console: MeasuredConsole,
    load: Load,
    cursor: re.Pattern[bytes],
    seconds: float,
    interval_s: tuple[float, float] = KEY_INTERVAL_S,
) -> Measurement:
    """Press keys during a load."""
    with load:
        load.start()
        time.sleep(SETTLE_S)
        cpu, keys = console.measure_keys(seconds - SETTLE_S - 0.5, cursor, interval_s)
        return Measurement(load.wait(), cpu, keys)


def _measure_keys(console: MeasuredConsole, load: Load, cursor: re.Pattern[bytes] = ENV) -> Measurement:
    """Press many keys during a load of ``KEY_SECONDS``, faster than while the CPU is measured."""
    measured = _measure(console, load, cursor, KEY_SECONDS, FAST_KEY_INTERVAL_S)
    console.wait_until_idle()
    return measured


def _measure_until_idle(
    console: MeasuredConsole, load: Load, seconds: float, cursor: re.Pattern[bytes] = ENV
) -> Measurement:
    """Press keys during a load of ``seconds``; the CPU is that of the whole load with the work left at its end."""
    before_s = console.cpu_s
    measured = _measure(console, load, cursor, seconds)
    console.wait_until_idle()
    return measured._replace(total_cpu=100 * (console.cpu_s - before_s) / seconds)


def _rows(name: str, measured: Measurement, max_key_ms: tuple[float, float] | None) -> Iterator[Row]:
    """Compare CPU and response time with their bounds; none of them is bounded without `max_key_ms`."""
    low, cpu, high = quartiles(measured.cpu)
    cpu = cpu if measured.total_cpu is None else measured.total_cpu
    keys_ms = [1e3 * key for key in measured.keys]
    q1, median_ms, q3 = quartiles(keys_ms)
    size = -(-len(keys_ms) // N_PARTS)
    parts = sorted(_p99(keys_ms[first : first + size]) for first in range(0, len(keys_ms), size))
    yield Row(f"{name}, published", f"{measured.sent.rate:,.0f}/s")
    max_cpu, max_median_ms, max_p99_ms = (MAX_CPU, *max_key_ms) if max_key_ms else (None,) * 3
    yield row(f"{name}, CPU of all processes ({low:.0f}-{high:.0f})", cpu, max_cpu, "{:.0f}%")
    yield row(f"{name}, key to paint, median ({q1:.1f}-{q3:.1f})", median_ms, max_median_ms, "{:.1f} ms")
    p99_name = f"{name}, key to paint, p99 of {len(keys_ms):,} (of its parts {parts[0]:.0f}-{parts[-1]:.0f})"
    yield row(p99_name, _p99(keys_ms), max_p99_ms, "{:.0f} ms")
    if max_key_ms:
        yield Row(f"{name}, keys", f"{len(keys_ms):,}", f">= {MIN_KEYS:,}", len(keys_ms) >= MIN_KEYS)


def _p99(values: Sequence[float]) -> float:
    return sorted(values)[min(round(0.99 * len(values)), len(values) - 1)]


def _is_fast_enough(rate: float, *sent: LoadReport) -> bool:
    return all(each.rate >= MIN_RATE_SHARE * rate for each in sent)


def _void(name: str, rate: float, *sent: LoadReport) -> Row:
    rates = ", ".join(f"{each.rate:,.0f}" for each in sent)
    return Row(
        f"{name}: void, the load was too slow {MAX_RUNS} times",
        f"{rates}/s",
        f">= {MIN_RATE_SHARE * rate:,.0f}/s",
        False,
    )
