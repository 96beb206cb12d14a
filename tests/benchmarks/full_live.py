"""The console in a real terminal while much is said on its bus: what is lost, what it costs, how long a key takes.

The load comes from a process of its own, whose rate is measured; where it fell short the run is void and repeated.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Final, NamedTuple

from tests.benchmarks.bus_load import Sent
from tests.benchmarks.console_under_load import Load, Watching, watching
from tests.benchmarks.measure import Row, quartiles
from tests.benchmarks.synthetic_episodes import ENVS

LIVE, FOREIGN = 50_000, 5_000
"""Live items, and messages of others, in a second."""

SECONDS: Final = 10.0
N_SEEN: Final = 1_000_000
BEFORE_S, STOPPED_S, AFTER_S = 6.0, 20.0, 4.0
LEAST_SHARE: Final = 0.97
"""Of the wanted rate; with less a run is void."""

TRIES: Final = 3
MAX_CPU, MAX_MEDIAN_MS, MAX_P99_MS, MAX_MB = 40.0, 10.0, 100.0, 120.0
MAX_SLOWER: Final = 1.1
BRANCHES: Final = ("plant", "line0")
"""The first rows of the tree of subjects."""


class Measured(NamedTuple):
    """What was measured while a load went on: per cent of a processor each second, seconds per key."""

    sent: Sent
    cpu: list[float]
    keys: list[float]


def run() -> list[Row]:
    return [*_live(), *_foreign("the events screen"), *_foreign("the live screen"), *_stopped()]


def _live() -> Iterator[Row]:
    """A million items; those of the last seconds are measured."""
    name = f"{LIVE:,} live items/s"
    for _ in range(TRIES):
        with watching() as console:
            first = console.loaded(Load("live", console.url, LIVE, N_SEEN / LIVE - SECONDS))
            before_s, _ = console.aside
            measured = _measured(console, Load("live", console.url, LIVE, SECONDS), ENVS)
            console.until_calm()
            aside_s, aside_mb = console.aside
            megabytes, counted = console.megabytes, console.left()
        if _fast_enough(LIVE, first, measured.sent):
            break
    else:
        yield _void(name, LIVE, first, measured.sent)
        return
    sent = first.n + measured.sent.n
    dropped = first.dropped + measured.sent.dropped
    lost = sent - counted.n_items
    yield from _rows(name, measured)
    aside = f"{100 * (aside_s - before_s) / SECONDS:.0f}%, {aside_mb:.0f} MB"
    yield Row(f"{name}, process that reads large messages", aside)
    yield Row(f"{name}, lost beyond {dropped:,} dropped, of {sent:,}", f"{lost:,}", "0", lost == 0)
    yield _bounded(f"memory after {counted.n_items:,} items", megabytes, MAX_MB, "{:.0f} MB")


def _foreign(screen: str) -> Iterator[Row]:
    """Messages that mean nothing to us, one by one."""
    name = f"{FOREIGN:,} foreign messages/s, {screen}"
    for _ in range(TRIES):
        with watching() as console:
            if screen == "the events screen":
                console.show_events()
                measured = _measured(console, Load("foreign", console.url, FOREIGN, SECONDS), BRANCHES)
                console.until_calm()
                lost = measured.sent.n - console.n_messages()
            else:
                console.loaded(Load("live", console.url, LIVE / 2, SECONDS / 2))
                measured = _measured(console, Load("foreign", console.url, FOREIGN, SECONDS), ENVS)
                lost = None
        if _fast_enough(FOREIGN, measured.sent):
            break
    else:
        yield _void(name, FOREIGN, measured.sent)
        return
    yield from _rows(name, measured)
    if lost is not None:
        yield Row(f"{name}, lost of {measured.sent.n:,}", f"{lost:,}", "0", lost == 0)


def _stopped() -> Iterator[Row]:
    """A console that is stopped under load, and goes on later."""
    name = f"console stopped for {STOPPED_S:.0f} s"
    for _ in range(TRIES):
        with watching() as console, Load("live", console.url, LIVE, BEFORE_S + STOPPED_S + AFTER_S) as load:
            load.begin()
            time.sleep(BEFORE_S)
            console.signal(signal.SIGSTOP)
            time.sleep(STOPPED_S)
            console.signal(signal.SIGCONT)
            continued = time.perf_counter()
            sent = load.sent()
            console.until_calm()
            took = time.perf_counter() - continued
            counted = console.left()
        if _fast_enough(LIVE, sent):
            break
    else:
        yield _void(name, LIVE, sent)
        return
    before, during = (median(part) for part in _tenths(sent))
    slower = before / max(during, 1)
    yield Row(
        f"{name}: who publishes, rate before / during", f"{slower:.2f}x", f"<= {MAX_SLOWER}x", slower <= MAX_SLOWER
    )
    yield Row(f"{name}: dropped by who publishes", f"{sent.dropped:,}", "0", sent.dropped == 0)
    lost = sent.n - counted.n_items
    yield Row(f"{name}: caught up, {counted.n_items:,} of {sent.n:,} items", f"{took:.1f} s")
    said = f"{counted.n_gone:,} messages left their stream before they were read"
    yield Row(f"{name}: what it says of {lost:,} items it lacks", said, "", bool(counted.n_gone) == bool(lost))


def _tenths(sent: Sent) -> tuple[list[int], list[int]]:
    """Those before the stop and those during it."""
    stop, end = round(10 * BEFORE_S), round(10 * (BEFORE_S + STOPPED_S))
    return sent.tenths[10:stop], sent.tenths[stop:end]


def _measured(console: Watching, load: Load, words: Sequence[str]) -> Measured:
    """Keys all the time while a load goes on."""
    with load:
        load.begin()
        cpu, keys = console.pressed(SECONDS - 0.5, words)
        return Measured(load.sent(), cpu, keys)


def _rows(name: str, measured: Measured) -> Iterator[Row]:
    low, cpu, high = quartiles(measured.cpu)
    ordered = [1e3 * key for key in sorted(measured.keys)]
    q1, middle, q3 = quartiles(ordered)
    late = ordered[min(round(0.99 * len(ordered)), len(ordered) - 1)]
    yield Row(f"{name}, published", f"{measured.sent.rate:,.0f}/s")
    yield _bounded(f"{name}, CPU ({low:.0f}-{high:.0f})", cpu, MAX_CPU, "{:.0f}%")
    yield _bounded(f"{name}, key to paint, median ({q1:.1f}-{q3:.1f})", middle, MAX_MEDIAN_MS, "{:.1f} ms")
    yield _bounded(f"{name}, key to paint, p99 of {len(ordered)}", late, MAX_P99_MS, "{:.0f} ms")


def _bounded(name: str, value: float, bound: float, shown: str) -> Row:
    return Row(name, shown.format(value), f"<= {shown.format(bound)}", value <= bound)


def _fast_enough(rate: float, *sent: Sent) -> bool:
    return all(each.rate >= LEAST_SHARE * rate for each in sent)


def _void(name: str, rate: float, *sent: Sent) -> Row:
    rates = ", ".join(f"{each.rate:,.0f}" for each in sent)
    return Row(
        f"{name}: void, the load fell short {TRIES} times", f"{rates}/s", f">= {LEAST_SHARE * rate:,.0f}/s", False
    )
