"""A console under load: a broker, who publishes and the console in its terminal, and what is measured of them."""

from __future__ import annotations

import asyncio
import itertools
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Self

import msgspec
import psutil

from runner.bus.streams import DEFAULT_STREAMS, ensure_live_stream
from tests.benchmarks.bus_load import READY, Sent
from tests.benchmarks.counted_console import Counted
from tests.support.nats_server import NatsServer
from tests.support.publishing import nats_client
from tests.support.terminal import Terminal

COLUMNS, ROWS = 200, 50
WAIT_S: Final = 60.0
CALM_S: Final = 120.0
LOOK_S, CALM, N_CALM = 0.5, 0.1, 8
"""It is calm when in so many seconds it took not more than this share of a processor."""

PRESS_S: Final = (0.05, 0.1)
"""Seconds between two keys, at random: else they would keep step with what is drawn ten times a second."""

_MARK: Final = rb"\xe2\x96\xb8(?:\x1b\[[0-9;]*m|[^\w\x1b])*(%s)(?=[^\w])"
"""The cursor, and a word at the beginning of its line."""


class Load:
    """A process that publishes, once it is told to."""

    def __init__(self, kind: str, url: str, rate: float, seconds: float) -> None:
        words = [sys.executable, "-m", "tests.benchmarks.bus_load", kind, url, str(rate), str(seconds)]
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> Self:
        assert self._line() == READY
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.communicate()

    def begin(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def sent(self) -> Sent:
        """What it came to; waits for its end. One that ends without a word has sent nothing, which makes a run void."""
        line = self._line()
        return msgspec.json.decode(line, type=Sent) if line else Sent(n=0, seconds=1.0, dropped=0, tenths=[])

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


@contextmanager
def watching() -> Iterator[Watching]:
    """The console in a terminal of its own, looking at a broker of its own."""
    with tempfile.TemporaryDirectory() as folder, NatsServer(Path(folder)) as server:
        asyncio.run(_keep_live(server))
        counts = Path(folder) / "counted"
        command = (sys.executable, "-m", "tests.benchmarks.counted_console", server.url, str(counts))
        with Terminal(*command, columns=COLUMNS, rows=ROWS) as terminal:
            terminal.wait_for("connected", WAIT_S)
            yield Watching(terminal, server.url, counts)


async def _keep_live(server: NatsServer) -> None:
    """As on a node's broker, whose streams are there before anything is said."""
    async with nats_client(server) as client:
        await ensure_live_stream(client.jetstream(), DEFAULT_STREAMS)


class Watching:
    """A console, seen from outside."""

    def __init__(self, terminal: Terminal, url: str, counts: Path) -> None:
        self.url = url
        self._terminal = terminal
        self._counts = counts
        self._process = psutil.Process(terminal.process.pid)

    @property
    def cpu_s(self) -> float:
        """Seconds of a processor it has taken."""
        times = self._process.cpu_times()
        return times.user + times.system

    @property
    def aside(self) -> tuple[float, float]:
        """Seconds of a processor that processes of its own have taken, and megabytes they have."""
        children = self._process.children()
        times = [child.cpu_times() for child in children]
        took_s = sum(each.user + each.system for each in times)
        return took_s, sum(child.memory_info().rss for child in children) / (1 << 20)

    @property
    def megabytes(self) -> float:
        """The most memory it ever had."""
        (line,) = re.findall(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{self._process.pid}/status").read_text())
        return int(line) / 1024

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def loaded(self, load: Load) -> Sent:
        """Have it look at a load."""
        with load:
            load.begin()
            return load.sent()

    def show_events(self) -> None:
        """Its screen of events, the keys in the tree of subjects."""
        self._terminal.send("3")
        self._terminal.wait_for("only what comes from now on", WAIT_S)
        self._terminal.send("t")

    def n_messages(self) -> int:
        """How many that screen has seen, once it says nothing new."""
        self._terminal.wait_until_quiet(2.0)
        (number,) = re.findall(r"([\d,]+) messages ·", self._terminal.text)
        return int(number.replace(",", ""))

    def until_calm(self) -> None:
        """Until it has nothing to do any more."""
        deadline, n_calm = time.perf_counter() + CALM_S, 0
        while time.perf_counter() < deadline:
            before = self.cpu_s
            time.sleep(LOOK_S)
            _ = self._terminal.text  # a console whose terminal takes nothing waits for it
            n_calm = n_calm + 1 if self.cpu_s - before < CALM * LOOK_S else 0
            if n_calm == N_CALM:
                return
        raise AssertionError(f"still at work after {CALM_S:.0f} s")

    def pressed(self, seconds: float, words: Sequence[str]) -> tuple[list[float], list[float]]:
        """Press down and up in the focused list.

        Args:
            seconds: how long.
            words: with which its first lines begin; other lists have a cursor, too.

        Returns:
            Per cent of a processor in each second, and seconds per key until the line it goes to was marked.
        """
        marked = re.compile(_MARK % "|".join(words).encode())
        _, here = self._answer("jg", marked, b"")
        began = looked = time.perf_counter()
        cpu_s, cpu, answers = self.cpu_s, list[float](), list[float]()
        for key in itertools.cycle("jk"):
            time.sleep(random.uniform(*PRESS_S))
            answered, here = self._answer(key, marked, here)
            answers.append(answered)
            now = time.perf_counter()
            if now - looked >= 1.0:
                before, cpu_s = cpu_s, self.cpu_s
                cpu.append(100 * (cpu_s - before) / (now - looked))
                looked = now
            if now - began >= seconds:
                break
        return cpu, answers

    def left(self) -> Counted:
        """Leave it; what it has counted."""
        self._terminal.send("1")
        self._terminal.wait_for("Environments", WAIT_S)
        self._terminal.send("q")
        assert self._terminal.wait_exit(WAIT_S) == 0
        return msgspec.json.decode(self._counts.read_bytes(), type=Counted)

    def _answer(self, keys: str, marked: re.Pattern[bytes], here: bytes) -> tuple[float, bytes]:
        """Seconds until another line than ``here`` is marked, and which."""
        before = self._terminal.n_raw
        found = here

        def moved() -> bool:
            nonlocal found
            found = ([here, *marked.findall(self._terminal.raw_from(before))])[-1]
            return bool(found != here)

        started = time.perf_counter()
        self._terminal.send(keys)
        self._terminal.wait_for(moved, WAIT_S)
        return time.perf_counter() - started, found
