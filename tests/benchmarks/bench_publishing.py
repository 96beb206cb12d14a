"""What announcing costs an episode: the same batch with a broker that gets everything, and with no publisher at all."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from runner.batch.batch import Batch
from runner.batch.spec import BatchSpec
from runner.batch.state_dir import Workspace
from runner.bus.address import BusAddress
from runner.cli.event_thread import EventThread
from runner.events.subjects import DurableNames
from runner.publish.event_recorder import EventRecorder
from runner.publish.publisher import Sink
from runner.publish.sink import sink_key
from tests.benchmarks.measure import PAIRS, Row, quartiles, ratio_of, seconds
from tests.support.nats_server import NatsServer

N_EPISODES = 20
N_PAIRS = 2 * PAIRS
"""Many short ones: the speed of a shared machine changes by more than what is measured."""


def run() -> list[Row]:
    """CPU seconds of this process per batch, from its start until the broker has acknowledged its last event.

    With publishing these include the publisher's thread, live items and all; connecting is left out, which a process
    does once. Episodes are BabyAI's with random actions, the cheapest there are: any model makes the ratio smaller.
    """
    with tempfile.TemporaryDirectory() as folder, NatsServer(Path(folder) / "nats") as server:
        workspace = Workspace(Path(folder) / "data", node="bench", profile="bench")
        spec = BatchSpec(env="BabyAI", agent="random", repeat=N_EPISODES).validated()
        address = BusAddress(url=server.url)
        pairs = [_pair(spec, workspace, address, on_first=number % 2 == 0) for number in range(N_PAIRS + 1)]
        workspace.close()
    measured = ratio_of(*zip(*pairs[1:], strict=True))
    q1, added_ms, q3 = quartiles([(on - off) / N_EPISODES * 1e3 for on, off in pairs[1:]])
    least_on, least_off = (min(side) / N_EPISODES * 1e3 for side in zip(*pairs[1:], strict=True))
    return [
        Row.of_ratio(f"CPU per episode, publishing / not ({N_PAIRS} pairs)", measured, at_most=1.10),
        Row("CPU that publishing adds to an episode", f"{added_ms:.2f} ms ({q1:.2f}-{q3:.2f})"),
        Row(
            "CPU per episode while the machine was quietest",
            f"{least_on:.1f} ms / {least_off:.1f} ms, {least_on / least_off:.2f}x",
        ),
    ]


def _pair(spec: BatchSpec, workspace: Workspace, address: BusAddress, *, on_first: bool) -> tuple[float, float]:
    if on_first:
        on = _with_publishing(spec, workspace, address)
        return on, seconds(Batch(spec, workspace).run)
    off = seconds(Batch(spec, workspace).run)
    return _with_publishing(spec, workspace, address), off


def _with_publishing(spec: BatchSpec, workspace: Workspace, address: BusAddress) -> float:
    place = sink_key(Sink("egress", lambda: address)) or ""
    with _publisher(workspace, address) as (recorder, event_thread):

        def play() -> None:
            recorder.record_batch(Batch(spec, workspace, observers=[event_thread], on_record=recorder.record_episode).run())
            _until_sent(recorder, place)

        recorder.record_status("running")
        _until_sent(recorder, place)
        return seconds(play)


@contextmanager
def _publisher(workspace: Workspace, address: BusAddress) -> Iterator[tuple[EventRecorder, EventThread]]:
    recorder = EventRecorder(workspace, DurableNames(), role="run")
    event_thread = EventThread(recorder, workspace, lambda: address)
    try:
        yield recorder, event_thread
    finally:
        event_thread.close()
        recorder.close()


def _until_sent(recorder: EventRecorder, place: str) -> None:
    recorder.flush()
    while recorder.outbox.has_pending([place]):
        time.sleep(0.05)
