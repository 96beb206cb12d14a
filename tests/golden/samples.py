"""Live items about the machine and its model servers, which no two runs share, encoded with values of their own."""

from __future__ import annotations

from collections.abc import Iterator

from runner.events.codec import encode
from runner.events.live import LiveBatch, LiveItem, ModelMetrics
from runner.types import WorkerState
from runner.types.machine import GpuInstance, GpuProcess, GpuState, Machine, Network
from tests.support.console.live_items import (
    BOOT,
    NODE,
    START,
    batch_id,
    env_health,
    heartbeat,
    host,
    model_health,
    token,
)

_GPU = GpuState(
    index=0,
    name="H200",
    util=34.0,
    power_w=310.25,
    throttled=("power",),
    instances=(GpuInstance(index=1, mem_used=5 << 30),),
    processes=(GpuProcess(pid=42, name="python"),),
)


def encoded_samples() -> Iterator[bytes]:
    """Yield messages as the node encodes them: each kind of item once with values and once with as few as possible."""
    items: list[LiveItem] = [
        host(),
        Machine(at=START, gpu=[], gpu_cause="no driver"),
        Machine(at=START, gpu=[_GPU], cpu=12.5, n_cpus=8, ram=40.0, net=Network(sent_per_s=1e6, received_per_s=0.5)),
        heartbeat(),
        heartbeat("the disk is full", "7 of 9 episodes"),
        env_health(),
        env_health("Maze", "up", latency_s=0.25, transport="http", open=2, note="3 scenarios"),
        model_health(),
        model_health("gateway", "up", None, model="m", latency_s=1e-05, rest_s=12.0, requests_per_minute=60),
        ModelMetrics(at=START, endpoint="gateway", server="vllm"),
        ModelMetrics(
            at=START, endpoint="gateway", server="ollama", running=2.0, kv_cache=0.125, models=["m", "\u202e"]
        ),
        WorkerState(at=START, batch_id=batch_id(0), seq=0, id="w0", host="lab", pid=None, state="starting"),
        WorkerState(at=START, batch_id=batch_id(0), seq=1, id="w0", host="lab", pid=42, state="lost"),
        token(text="é ✓ \x1b", n=2, ttft_s=0.5),
        token(text="", failure="gateway: HTTP 500", restart=True),
    ]
    for item in items:
        yield encode(LiveBatch(node=NODE, boot=BOOT, dropped=3, items=[item]))
