"""A console in a terminal, a broker and a load on it, with measurements."""

from __future__ import annotations

import asyncio
import itertools
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Self

import msgspec
import nats
import psutil

from runner.bus.streams import DEFAULT_STREAMS, ensure_live_stream, stream_info
from runner.events.subjects import LIVE_STREAM
from tests.benchmarks.bus_load import READY, LoadReport
from tests.benchmarks.counted_console import ConsoleCounts
from tests.benchmarks.measure import peak_mb
from tests.support.nats_server import NatsServer
from tests.support.publishing import nats_client
from tests.support.terminal import Terminal

COLUMNS, ROWS = 200, 50
WAIT_S: Final = 60.0
IDLE_TIMEOUT_S: Final = 120.0
IDLE_CHECK_S, IDLE_CPU_SHARE, N_IDLE = 0.5, 0.1, 8
"""The console is idle after ``N_IDLE`` intervals of ``IDLE_CHECK_S`` with less than this share of a CPU."""

KEY_INTERVAL_S: Final = (0.05, 0.1)
"""Range of the random seconds between two keys; fixed intervals could synchronize with the repaints."""

FAST_KEY_INTERVAL_S: Final = (0.01, 0.03)
"""The same where many keys are measured and the CPU is not."""

TOP_S: Final = 0.5
"""Seconds in which the first line of a list is selected."""

_CURSOR, _GAP = rb"\xe2\x96\xb8", rb"(?:\x1b\[[0-9;]*m|[^\w\x1b])*"
RUN: Final = re.compile(_CURSOR + _GAP + _CURSOR + rb"(?:\x1b\[[0-9;]*m|[^\x1b])*?\b([0-9A-HJKMNP-TV-Z]{26})\b")
"""The cursor on a closed line of the Runs screen, and the id of its batch."""


def cursor_on(words: Sequence[str]) -> re.Pattern[bytes]:
    """Return the pattern of the cursor and one of the words that distinguish a list, at the beginning of its line."""
    return re.compile(_CURSOR + _GAP + rb"(%s)(?=[^\w])" % "|".join(words).encode())


class Load:
    """A process that publishes a load once it is started."""

    def __init__(self, url: str, rate: float, seconds: float) -> None:
        command = [sys.executable, "-m", "tests.benchmarks.bus_load", url, str(rate), str(seconds)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> Self:
        assert self._line() == READY
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.communicate()

    def start(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def wait(self) -> LoadReport:
        """Wait for the end and return the report; an empty report makes the run void."""
        line = self._line()
        return msgspec.json.decode(line, type=LoadReport) if line else LoadReport(n=0, seconds=1.0, tenths=[])

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


@contextmanager
def run_console() -> Iterator[MeasuredConsole]:
    """Run a console on its own broker."""
    with tempfile.TemporaryDirectory() as folder, NatsServer(Path(folder)) as server:
        asyncio.run(_ensure_live_stream(server))
        counts = Path(folder) / "counted"
        command = (sys.executable, "-m", "tests.benchmarks.counted_console", server.url, str(counts))
        with Terminal(*command, columns=COLUMNS, rows=ROWS) as terminal:
            terminal.wait_for("connected", WAIT_S)
            yield MeasuredConsole(terminal, server.url, counts)


async def _ensure_live_stream(server: NatsServer) -> None:
    async with nats_client(server) as client:
        await ensure_live_stream(client.jetstream(), DEFAULT_STREAMS)


async def _n_stored(url: str) -> int:
    client = await nats.connect(url)
    try:
        return (await stream_info(client.jetstream(), LIVE_STREAM)).state.last_seq
    finally:
        await client.close()


class MeasuredConsole:
    def __init__(self, terminal: Terminal, url: str, counts: Path) -> None:
        self.url = url
        self._terminal = terminal
        self._counts = counts
        self._process = psutil.Process(terminal.process.pid)

    @property
    def cpu_s(self) -> float:
        """CPU seconds used so far by the console and all its processes, including those that have ended."""
        times = self._process.cpu_times()
        return sum(times[:4]) + self._child_cpu_s

    @property
    def _child_cpu_s(self) -> float:
        times = [child.cpu_times() for child in self._process.children()]
        return sum(each.user + each.system for each in times)

    @property
    def megabytes(self) -> float:
        """Peak memory in MB."""
        return peak_mb(self._process.pid)

    def watch_load(self, load: Load) -> LoadReport:
        with load:
            load.start()
            return load.wait()

    def n_stored(self) -> int:
        """Return the number of live messages that the broker's stream has stored so far."""
        return asyncio.run(_n_stored(self.url))

    def show_runs(self) -> None:
        self._terminal.send("6")
        self._terminal.wait_for("time left", WAIT_S)

    def wait_until_idle(self) -> None:
        """Wait until the console uses almost no CPU."""
        deadline, n_idle = time.perf_counter() + IDLE_TIMEOUT_S, 0
        while time.perf_counter() < deadline:
            before = self.cpu_s
            time.sleep(IDLE_CHECK_S)
            _ = self._terminal.text  # reads the output, on which the console would block
            n_idle = n_idle + 1 if self.cpu_s - before < IDLE_CPU_SHARE * IDLE_CHECK_S else 0
            if n_idle == N_IDLE:
                return
        raise AssertionError(f"not idle after {IDLE_TIMEOUT_S:.0f} s")

    def measure_keys(
        self, seconds: float, cursor: re.Pattern[bytes], interval_s: tuple[float, float] = KEY_INTERVAL_S
    ) -> tuple[list[float], list[float]]:
        """Press down and up in the focused list, and measure CPU and response times.

        Args:
            seconds: duration.
            cursor: the cursor of the list and, as its group, what differs between its lines.
            interval_s: range of the random seconds between two keys.

        Returns:
            CPU percentages of each second, and for each key the seconds until the cursor was painted on its line.
        """
        self._terminal.send("g")
        time.sleep(TOP_S)  # in one repaint with the next key, nothing would change
        _, line = self._response_time("j", cursor, b"")
        started = last_check = time.perf_counter()
        cpu_s, cpu, responses = self.cpu_s, list[float](), list[float]()
        for key in itertools.cycle("kj"):
            time.sleep(random.uniform(*interval_s))
            response_s, line = self._response_time(key, cursor, line)
            responses.append(response_s)
            now = time.perf_counter()
            if now - last_check >= 1.0:
                before, cpu_s = cpu_s, self.cpu_s
                cpu.append(100 * (cpu_s - before) / (now - last_check))
                last_check = now
            if now - started >= seconds:
                break
        return cpu, responses

    def quit(self) -> ConsoleCounts:
        self._terminal.send("1")
        self._terminal.wait_for("Environments", WAIT_S)
        self._terminal.send("q")
        assert self._terminal.wait_exit(WAIT_S) == 0
        return msgspec.json.decode(self._counts.read_bytes(), type=ConsoleCounts)

    def _response_time(self, keys: str, cursor: re.Pattern[bytes], line: bytes) -> tuple[float, bytes]:
        """Return the seconds until the cursor is on another line than ``line``, and that line."""
        before = self._terminal.n_raw
        current = line

        def moved() -> bool:
            nonlocal current
            current = ([line, *cursor.findall(self._terminal.raw_from(before))])[-1]
            return bool(current != line)

        started = time.perf_counter()
        self._terminal.send(keys)
        self._terminal.wait_for(moved, WAIT_S)
        return time.perf_counter() - started, current
