"""A console in a real terminal under load: lost items, CPU, memory and response time.

The load comes from a separate process, whose rate is measured; a run with too low a rate is void and repeated.
"""

from __future__ import annotations

import itertools
import signal
import time
from bisect import bisect
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Final, NamedTuple

from tests.benchmarks.bus_load import N_NODES, LoadReport
from tests.benchmarks.console_under_load import Load, MeasuredConsole, run_console
from tests.benchmarks.counted_console import ConsoleCounts
from tests.benchmarks.measure import Row, quartiles
from tests.benchmarks.synthetic_episodes import ENVS

LIVE, FOREIGN = 50_000, 5_000
"""Live items and foreign messages per second."""

FLEET, WARM_UP_S, FLEET_SECONDS = (50_000, 125_000), 1.0, 12.0
"""Live items per second of a fleet, and seconds of the loads before and during the measurement."""

MAX_BEHIND_S: Final = 1.0

SECONDS: Final = 10.0
N_LIVE_ITEMS: Final = 1_000_000
BEFORE_S, STOPPED_S, AFTER_S = 6.0, 20.0, 4.0
MIN_RATE_SHARE: Final = 0.97
"""Share of the target rate below which a run is void."""

MAX_RUNS: Final = 3
MAX_CPU, MAX_MB = 40.0, 120.0
MAX_LIVE_KEY_MS, MAX_FOREIGN_KEY_MS = (5.0, 30.0), (10.0, 100.0)
"""Median and 99th percentile of the milliseconds from a key to its paint, under live items and foreign messages."""

MAX_SLOWDOWN: Final = 1.1
BRANCHES: Final = ("plant", "line0")
"""First rows of the tree of subjects."""


class Measurement(NamedTuple):
    """Measurements during a load: CPU percentages of its seconds or of all of it, and response seconds of each key."""

    sent: LoadReport
    cpu: list[float]
    keys: list[float]


def run() -> list[Row]:
    return [
        *_live(),
        *(row for rate in FLEET for row in _fleet(rate)),
        *_foreign("the events screen"),
        *_foreign("the live screen"),
        *_stopped(),
    ]


def _live() -> Iterator[Row]:
    """Publish a million items and measure during the last seconds."""
    name = f"{LIVE:,} live items/s"
    for _ in range(MAX_RUNS):
        with run_console() as console:
            first = console.watch_load(Load("live", console.url, LIVE, N_LIVE_ITEMS / LIVE - SECONDS))
            measured = _measure_until_idle(console, Load("live", console.url, LIVE, SECONDS), SECONDS)
            megabytes, counts = console.megabytes, console.quit()
        if _is_fast_enough(LIVE, first, measured.sent):
            break
    else:
        yield _void(name, LIVE, first, measured.sent)
        return
    sent = first.n + measured.sent.n
    dropped = first.dropped + measured.sent.dropped
    lost = sent - counts.n_items
    yield from _rows(name, measured, MAX_LIVE_KEY_MS)
    yield Row(f"{name}, lost beyond {dropped:,} dropped, of {sent:,}", f"{lost:,}", "0", lost == 0)
    yield _bounded(f"memory after {counts.n_items:,} items", megabytes, MAX_MB, "{:.0f} MB")


def _fleet(rate: int) -> Iterator[Row]:
    """Publish the items of many nodes in small messages; the higher rate may lose items, but not silently."""
    name = f"{rate:,} live items/s of {N_NODES} nodes"
    for _ in range(MAX_RUNS):
        with run_console() as console:
            first = console.watch_load(Load("fleet", console.url, rate, WARM_UP_S))
            measured = _measure_until_idle(console, Load("fleet", console.url, rate, FLEET_SECONDS), FLEET_SECONDS)
            n_stored, megabytes, counts = console.n_stored(), console.megabytes, console.quit()
        if _is_fast_enough(rate, measured.sent):
            break
    else:
        yield _void(name, rate, measured.sent)
        return
    n_sent = first.n + measured.sent.n
    is_bounded = rate == min(FLEET)
    yield from _rows(name, measured, MAX_LIVE_KEY_MS if is_bounded else None)
    behind_s = _max_behind_s(measured.sent, [(at_s, n - first.n) for at_s, n in counts.samples])
    yield _bounded(f"{name}, longest time behind", behind_s, MAX_BEHIND_S if is_bounded else None, "{:.1f} s")
    yield _reported_loss(name, n_sent, n_stored, counts)
    yield _bounded(f"{name}, memory", megabytes, MAX_MB, "{:.0f} MB")


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


def _foreign(screen: str) -> Iterator[Row]:
    """Publish messages of another application."""
    name = f"{FOREIGN:,} foreign messages/s, {screen}"
    for _ in range(MAX_RUNS):
        with run_console() as console:
            if screen == "the events screen":
                console.show_events()
                measured = _measure(console, Load("foreign", console.url, FOREIGN, SECONDS), BRANCHES)
                console.wait_until_idle()
                lost = measured.sent.n - console.n_messages()
            else:
                console.watch_load(Load("live", console.url, LIVE / 2, SECONDS / 2))
                measured = _measure(console, Load("foreign", console.url, FOREIGN, SECONDS), ENVS)
                lost = None
        if _is_fast_enough(FOREIGN, measured.sent):
            break
    else:
        yield _void(name, FOREIGN, measured.sent)
        return
    yield from _rows(name, measured, MAX_FOREIGN_KEY_MS)
    if lost is not None:
        yield Row(f"{name}, lost of {measured.sent.n:,}", f"{lost:,}", "0", lost == 0)


def _stopped() -> Iterator[Row]:
    """Stop the console under load and continue it later."""
    name = f"console stopped for {STOPPED_S:.0f} s"
    for _ in range(MAX_RUNS):
        with run_console() as console, Load("live", console.url, LIVE, BEFORE_S + STOPPED_S + AFTER_S) as load:
            load.start()
            time.sleep(BEFORE_S)
            console.signal(signal.SIGSTOP)
            time.sleep(STOPPED_S)
            console.signal(signal.SIGCONT)
            resumed = time.perf_counter()
            sent = load.wait()
            console.wait_until_idle()
            catch_up_s = time.perf_counter() - resumed
            n_stored, counts = console.n_stored(), console.quit()
        if _is_fast_enough(LIVE, sent):
            break
    else:
        yield _void(name, LIVE, sent)
        return
    before, during = (median(part) for part in _tenths(sent))
    slowdown = before / max(during, 1)
    yield Row(
        f"{name}: publisher, rate before / during", f"{slowdown:.2f}x", f"<= {MAX_SLOWDOWN}x", slowdown <= MAX_SLOWDOWN
    )
    yield Row(f"{name}: dropped by the publisher", f"{sent.dropped:,}", "0", sent.dropped == 0)
    yield Row(f"{name}: caught up, {counts.n_items:,} of {sent.n:,} items", f"{catch_up_s:.1f} s")
    yield _reported_loss(name, sent.n, n_stored, counts)


def _tenths(sent: LoadReport) -> tuple[list[int], list[int]]:
    """Return the tenths before and during the stop."""
    stop, end = round(10 * BEFORE_S), round(10 * (BEFORE_S + STOPPED_S))
    return sent.tenths[10:stop], sent.tenths[stop:end]


def _measure(console: MeasuredConsole, load: Load, words: Sequence[str], seconds: float = SECONDS) -> Measurement:
    """Press keys during a load."""
    with load:
        load.start()
        cpu, keys = console.measure_keys(seconds - 0.5, words)
        return Measurement(load.wait(), cpu, keys)


def _measure_until_idle(console: MeasuredConsole, load: Load, seconds: float) -> Measurement:
    """Press keys during a load of ``seconds``; the CPU is that of the whole load with the work left at its end."""
    before_s = console.cpu_s
    measured = _measure(console, load, ENVS, seconds)
    console.wait_until_idle()
    cpu = 100 * (console.cpu_s - before_s) / seconds
    return measured._replace(cpu=[cpu] * 2)


def _rows(name: str, measured: Measurement, max_key_ms: tuple[float, float] | None) -> Iterator[Row]:
    """Compare CPU and response time with their bounds; none of them is bounded without `max_key_ms`."""
    low, cpu, high = quartiles(measured.cpu)
    ordered = [1e3 * key for key in sorted(measured.keys)]
    q1, median_ms, q3 = quartiles(ordered)
    p99 = ordered[min(round(0.99 * len(ordered)), len(ordered) - 1)]
    yield Row(f"{name}, published", f"{measured.sent.rate:,.0f}/s")
    max_cpu, max_median_ms, max_p99_ms = (MAX_CPU, *max_key_ms) if max_key_ms else (None,) * 3
    yield _bounded(f"{name}, CPU of all processes ({low:.0f}-{high:.0f})", cpu, max_cpu, "{:.0f}%")
    yield _bounded(f"{name}, key to paint, median ({q1:.1f}-{q3:.1f})", median_ms, max_median_ms, "{:.1f} ms")
    yield _bounded(f"{name}, key to paint, p99 of {len(ordered)}", p99, max_p99_ms, "{:.0f} ms")


def _bounded(name: str, value: float, bound: float | None, template: str) -> Row:
    if bound is None:
        return Row(name, template.format(value))
    return Row(name, template.format(value), f"<= {template.format(bound)}", value <= bound)


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
