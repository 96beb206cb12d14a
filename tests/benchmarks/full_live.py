"""A console in a real terminal under load: lost items, CPU, memory and response time.

The load comes from a separate process, whose rate is measured; a run with too low a rate is void and repeated.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Final, NamedTuple

from tests.benchmarks.bus_load import LoadReport
from tests.benchmarks.console_under_load import Load, MeasuredConsole, run_console
from tests.benchmarks.measure import Row, quartiles
from tests.benchmarks.synthetic_episodes import ENVS

LIVE, FOREIGN = 50_000, 5_000
"""Live items and foreign messages per second."""

SECONDS: Final = 10.0
N_LIVE_ITEMS: Final = 1_000_000
BEFORE_S, STOPPED_S, AFTER_S = 6.0, 20.0, 4.0
MIN_RATE_SHARE: Final = 0.97
"""Share of the target rate below which a run is void."""

MAX_RUNS: Final = 3
MAX_CPU, MAX_MEDIAN_MS, MAX_P99_MS, MAX_MB = 40.0, 10.0, 100.0, 120.0
MAX_SLOWDOWN: Final = 1.1
BRANCHES: Final = ("plant", "line0")
"""First rows of the tree of subjects."""


class Measurement(NamedTuple):
    """Measurements during a load: CPU percentages of each second, and response seconds of each key."""

    sent: LoadReport
    cpu: list[float]
    keys: list[float]


def run() -> list[Row]:
    return [*_live(), *_foreign("the events screen"), *_foreign("the live screen"), *_stopped()]


def _live() -> Iterator[Row]:
    """Publish a million items and measure during the last seconds."""
    name = f"{LIVE:,} live items/s"
    for _ in range(MAX_RUNS):
        with run_console() as console:
            first = console.watch_load(Load("live", console.url, LIVE, N_LIVE_ITEMS / LIVE - SECONDS))
            before_s, _ = console.child_usage
            measured = _measure(console, Load("live", console.url, LIVE, SECONDS), ENVS)
            console.wait_until_idle()
            child_s, child_mb = console.child_usage
            megabytes, counts = console.megabytes, console.quit()
        if _is_fast_enough(LIVE, first, measured.sent):
            break
    else:
        yield _void(name, LIVE, first, measured.sent)
        return
    sent = first.n + measured.sent.n
    dropped = first.dropped + measured.sent.dropped
    lost = sent - counts.n_items
    yield from _rows(name, measured)
    child_usage = f"{100 * (child_s - before_s) / SECONDS:.0f}%, {child_mb:.0f} MB"
    yield Row(f"{name}, process that reads large messages", child_usage)
    yield Row(f"{name}, lost beyond {dropped:,} dropped, of {sent:,}", f"{lost:,}", "0", lost == 0)
    yield _bounded(f"memory after {counts.n_items:,} items", megabytes, MAX_MB, "{:.0f} MB")


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
    yield from _rows(name, measured)
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
            counts = console.quit()
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
    lost = sent.n - counts.n_items
    yield Row(f"{name}: caught up, {counts.n_items:,} of {sent.n:,} items", f"{catch_up_s:.1f} s")
    reported = f"{counts.n_missed:,} messages were deleted from their stream before they were read"
    yield Row(f"{name}: report of {lost:,} lost items", reported, "", bool(counts.n_missed) == bool(lost))


def _tenths(sent: LoadReport) -> tuple[list[int], list[int]]:
    """Return the tenths before and during the stop."""
    stop, end = round(10 * BEFORE_S), round(10 * (BEFORE_S + STOPPED_S))
    return sent.tenths[10:stop], sent.tenths[stop:end]


def _measure(console: MeasuredConsole, load: Load, words: Sequence[str]) -> Measurement:
    """Press keys during a load."""
    with load:
        load.start()
        cpu, keys = console.measure_keys(SECONDS - 0.5, words)
        return Measurement(load.wait(), cpu, keys)


def _rows(name: str, measured: Measurement) -> Iterator[Row]:
    low, cpu, high = quartiles(measured.cpu)
    ordered = [1e3 * key for key in sorted(measured.keys)]
    q1, median_ms, q3 = quartiles(ordered)
    p99 = ordered[min(round(0.99 * len(ordered)), len(ordered) - 1)]
    yield Row(f"{name}, published", f"{measured.sent.rate:,.0f}/s")
    yield _bounded(f"{name}, CPU ({low:.0f}-{high:.0f})", cpu, MAX_CPU, "{:.0f}%")
    yield _bounded(f"{name}, key to paint, median ({q1:.1f}-{q3:.1f})", median_ms, MAX_MEDIAN_MS, "{:.1f} ms")
    yield _bounded(f"{name}, key to paint, p99 of {len(ordered)}", p99, MAX_P99_MS, "{:.0f} ms")


def _bounded(name: str, value: float, bound: float, template: str) -> Row:
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
