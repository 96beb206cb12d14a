from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from textual.pilot import Pilot

from runner.types import WorkerCounts
from runner.types.machine import GpuProcess, GpuState, Machine, Network
from tests.support.console.fake_session import FakeSession, empty_session
from tests.support.console.pilot import console_app, wait_for_text
from tests.support.console.samples import NODE, START, FakeClock, busy_store, env_health, live, model_health, progress
from tests.support.console.snapshots import LOOKS, SnapCompare

pytestmark = pytest.mark.usefixtures("utc")


def loaded_session() -> FakeSession:
    """Session of a node with a history of loads, a slow and a failed model server, and lost workers."""
    clock = FakeClock()
    store = busy_store(clock)
    store.nodes[NODE].machine = None
    for n in range(40):
        clock.at += 2.0
        cpu, ram = 30.0 + n * 41 % 60, 50.0 + n
        busy = GpuState(
            index=0,
            name="NVIDIA H100",
            util=40.0 + n * 23 % 60,
            mem_used=(50 + n // 2) << 30,
            mem_total=80 << 30,
            power_w=612.0,
            power_limit_w=700.0,
            temperature=84.0,
            throttled=("temperature",),
            processes=(GpuProcess(pid=4242, name="vllm", mem_used=60 << 30),),
        )
        at = START + timedelta(seconds=2 * n)
        net = Network(sent_per_s=2e3, received_per_s=1e5 * (n % 5))
        space: dict[str, Any] = {
            "disk_free": 41 * 10**9,
            "disk_total": 512 * 10**9,
            "n_cpus": 16,
            "ram_total": 64 << 30,
        }
        gpus = [busy, GpuState(index=1, name="NVIDIA H100", lost="the GPU is lost: it fell off the bus")]
        store.apply_events([live(Machine(at=at, gpu=gpus, cpu=cpu, ram=ram, net=net, **space))])
        store.apply_events([live(model_health("tensorzero", "up", None, model="qwen35_9b", latency_s=0.1 + n % 7 / 9))])
        workers = WorkerCounts(n=min(n, 4), lost=n // 39)
        store.apply_events([live(progress(seq=10 + n, workers=workers))])
    refused = model_health("ollama", "down", "http://127.0.0.1:11434: connection refused", hint="start `ollama serve`")
    store.apply_events([live(refused)])
    served: dict[str, Any] = {"transport": "http", "latency_s": 0.012, "open": 3}
    store.apply_events([live(env_health("BabyAI", "up", **served), env_health("SQLGym", "slow", **served))])
    store.apply_events([live(env_health("WebShop", "down", transport="http", cause="connection refused"))])
    return FakeSession(store)


@LOOKS
def test_machine_with_problems(snap_compare: SnapCompare, size: tuple[int, int], theme: str) -> None:
    async def run_before(pilot: Pilot[None]) -> None:
        pilot.app.theme = theme
        await pilot.press("5")
        await wait_for_text(pilot, "6 problems", "NVIDIA H100")
        await pilot.pause()

    assert snap_compare(console_app(loaded_session()), terminal_size=size, run_before=run_before)


def test_machine_of_an_idle_node(snap_compare: SnapCompare) -> None:
    async def run_before(pilot: Pilot[None]) -> None:
        await pilot.press("5")
        await wait_for_text(pilot, "nothing is wrong")
        await pilot.pause()

    assert snap_compare(console_app(empty_session()), run_before=run_before)
