"""CPU of short commands, of an idle node, and of ``watch --json``, which is compared with a bare pull loop."""

from __future__ import annotations

import asyncio
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import psutil

from runner.bus.connection import BusAddress, NatsConnection
from tests.benchmarks.bench_command import COMMAND
from tests.benchmarks.bench_consumer import read_batches, store_events
from tests.benchmarks.measure import PAIRS, Row, environ_with_compiled_modules, ratio_of
from tests.support.nats_server import NatsServer
from tests.support.node_process import NodeProcess
from tests.support.subscriptions import SUBJECT

N_MESSAGES = 10_000
MIN_SHARE = 0.8
STARTS = {"--help": 4.0, "--list-envs": 9.0, "--run Maze --agent oracle": 15.0}
"""Commands, and the largest CPU of each compared with an interpreter that does nothing."""
SETTLE_S, IDLE_S, MAX_IDLE_SHARE = 15.0, 40.0, 0.004


def run() -> list[Row]:
    """Measure processes, each with its compiled modules cached."""
    with tempfile.TemporaryDirectory() as folder:
        return [*_starts(folder), _idle_node(Path(folder)), *_watch(folder)]


def _starts(folder: str) -> Iterator[Row]:
    environ = environ_with_compiled_modules(folder)

    def cpu_s(*command: str) -> float:
        before = _children_s()
        subprocess.run(command, cwd=folder, env=environ, capture_output=True, timeout=60, check=True)
        return _children_s() - before

    for command, at_most in STARTS.items():
        own, bare = [COMMAND, *command.split()], [sys.executable, "-c", "pass"]
        pairs = [(cpu_s(*own), cpu_s(*bare)) for _ in range(PAIRS + 1)][1:]
        yield Row.of_ratio(f"{command} / python -c pass, CPU", ratio_of(*zip(*pairs, strict=True)), at_most=at_most)


def _children_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _idle_node(folder: Path) -> Row:
    with NodeProcess(folder / "data") as node:
        usage = psutil.Process(node.pid)
        time.sleep(SETTLE_S)
        started = sum(usage.cpu_times()[:2])
        time.sleep(IDLE_S)
        share = (sum(usage.cpu_times()[:2]) - started) / IDLE_S
    name = f"idle node without its broker, {SETTLE_S:.0f} to {SETTLE_S + IDLE_S:.0f} s after its start, CPU"
    return Row(name, f"{share:.2%}", f"<= {MAX_IDLE_SHARE:.1%}", share <= MAX_IDLE_SHARE)


def _watch(folder: str) -> list[Row]:
    """Measure both from their first line to their last, so that neither's start counts."""
    with NatsServer(Path(folder) / "server") as server:
        asyncio.run(_fill(server))
        watch = [COMMAND, "watch", "--nats", server.url, "--since", "all", "--subject", SUBJECT, "--json"]
        bare = [sys.executable, "-m", "tests.benchmarks.full_commands", server.url]
        pairs = [(_cpu_s(watch, folder), _cpu_s(bare, None)) for _ in range(PAIRS + 1)][1:]
    measured = ratio_of(*zip(*pairs, strict=True))
    return [
        Row.of_ratio("watch --json / bare pull loop, CPU", measured, at_most=1 / MIN_SHARE),
        Row("watch --json", f"{N_MESSAGES / measured.a_median:,.0f} events per CPU second"),
    ]


def _cpu_s(command: list[str], folder: str | None) -> float:
    """Return the CPU seconds of all threads of a command from its first line to the last of ``N_MESSAGES``."""
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        usage = psutil.Process(process.pid)
        process.stdout.readline()
        started = sum(usage.cpu_times()[:2])
        assert sum(1 for _ in islice(process.stdout, N_MESSAGES - 1)) == N_MESSAGES - 1
        used = sum(usage.cpu_times()[:2]) - started
        process.kill()
    return used


async def _fill(server: NatsServer) -> None:
    async with await NatsConnection.open(BusAddress(server.url), name="bench") as connection:
        await store_events(connection, N_MESSAGES)


async def _print_bare(url: str) -> None:
    """Print an empty line per message, undecoded."""
    async with await NatsConnection.open(BusAddress(url), name="bench") as connection:
        async for messages in read_batches(connection, N_MESSAGES):
            sys.stdout.write("\n" * len(messages))
            sys.stdout.flush()
        await asyncio.sleep(60)  # until it is killed


if __name__ == "__main__":
    asyncio.run(_print_bare(sys.argv[1]))
