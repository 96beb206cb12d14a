"""CPU of publishing per episode: the same batch with a broker, and without a publisher."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from runner.batch.batch import Batch
from runner.batch.spec import ResolvedBatch
from runner.batch.workspace import Workspace
from runner.bus.address import BusAddress
from runner.cli.event_thread import EventThread
from runner.events.subjects import DurableNames
from runner.publish.outbox import EventRecorder
from runner.publish.publisher import Sink
from runner.publish.sink import sink_key
from tests.benchmarks.measure import PAIRS, Row, quartiles, ratio_of, seconds
from tests.support.batches import resolved_batch
from tests.support.nats_server import NatsServer

N_EPISODES = 20
N_PAIRS = 2 * PAIRS
"""Many short pairs, because the speed of a shared machine varies by more than the measured difference."""


def run() -> list[Row]:
    """Measure CPU seconds of this process per batch, until the broker has acknowledged the last event.

    Publishing includes the publisher's thread and live items, but not the connection. BabyAI with random actions is the
    cheapest episode; with a model the ratio is smaller.
    """
    with tempfile.TemporaryDirectory() as folder, NatsServer(Path(folder) / "nats") as server:
        workspace = Workspace(Path(folder) / "data", node="bench", profile="bench")
        planned = resolved_batch(env="BabyAI", agent="random", repeat=N_EPISODES)
        address = BusAddress(url=server.url)
        pairs = [_pair(planned, workspace, address, on_first=number % 2 == 0) for number in range(N_PAIRS + 1)]
        workspace.close()
    measured = ratio_of(*zip(*pairs[1:], strict=True))
    q1, added_ms, q3 = quartiles([(on - off) / N_EPISODES * 1e3 for on, off in pairs[1:]])
    min_on, min_off = (min(side) / N_EPISODES * 1e3 for side in zip(*pairs[1:], strict=True))
    return [
        Row(f"CPU per episode, publishing / not ({N_PAIRS} pairs)", str(measured)),
        Row("CPU that publishing adds to an episode", f"{added_ms:.2f} ms ({q1:.2f}-{q3:.2f})"),
        Row(
            "CPU per episode, minimum of all pairs",
            f"{min_on:.1f} ms / {min_off:.1f} ms, {min_on / min_off:.2f}x",
        ),
    ]


def _pair(planned: ResolvedBatch, workspace: Workspace, address: BusAddress, *, on_first: bool) -> tuple[float, float]:
    if on_first:
        on = _with_publishing(planned, workspace, address)
        return on, seconds(Batch(planned, workspace).run)
    off = seconds(Batch(planned, workspace).run)
    return _with_publishing(planned, workspace, address), off


def _with_publishing(planned: ResolvedBatch, workspace: Workspace, address: BusAddress) -> float:
    key = sink_key(Sink("egress", lambda: address)) or ""
    with _publisher(workspace, address) as (recorder, event_thread):

        def play() -> None:
            recorder.record_batch(Batch(planned, workspace, observers=[event_thread.observer]).run())
            _wait_until_sent(recorder, key)

        recorder.record_status("running")
        _wait_until_sent(recorder, key)
        return seconds(play)


@contextmanager
def _publisher(workspace: Workspace, address: BusAddress) -> Iterator[tuple[EventRecorder, EventThread]]:
    recorder = EventRecorder(workspace, DurableNames(), role="run")
    event_thread = EventThread(recorder, workspace, lambda: address, "watched", [])
    try:
        yield recorder, event_thread
    finally:
        event_thread.close()


def _wait_until_sent(recorder: EventRecorder, key: str) -> None:
    while recorder.outbox.n_pending([key]):
        time.sleep(0.05)
