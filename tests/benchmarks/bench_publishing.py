"""What announcing costs an episode: the same batch with a broker that gets everything, and with none."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from runner.announcer import Announcer
from runner.batch import Batch
from runner.cli.outlet import Outlet
from runner.events.address import BusAddress
from runner.events.codec import DurableNames
from runner.spec import BatchSpec
from runner.workspace import Workspace
from tests.benchmarks.measure import Row, ratio
from tests.nats_server import NatsServer

N_EPISODES = 40


def run() -> list[Row]:
    """CPU of this process, which the publisher's thread is part of, per batch."""
    with tempfile.TemporaryDirectory() as folder, NatsServer(Path(folder) / "nats") as server:
        workspace = Workspace(Path(folder) / "data", node="bench", profile="bench")
        address = BusAddress(url=server.url)
        spec = BatchSpec(env="BabyAI", agent="random", repeat=N_EPISODES).checked()

        announcer = Announcer(workspace, DurableNames(), role="run")
        outlet = Outlet(announcer, workspace, lambda: address)

        def silent() -> None:
            Batch(spec, workspace).run()

        def announced() -> None:
            announcer.result(Batch(spec, workspace, observers=[outlet], on_record=announcer.record).run())
            while announcer.outbox.has_pending(["egress"]):
                time.sleep(0.02)

        measured = ratio(announced, silent)
        outlet.close()
        announcer.close()
        workspace.close()
    each_ms = (measured.a_median / N_EPISODES * 1e3, measured.b_median / N_EPISODES * 1e3)
    return [
        Row.of_ratio("CPU per episode, publishing / not", measured, at_most=1.10),
        Row("CPU per episode", f"{each_ms[0]:.1f} ms / {each_ms[1]:.1f} ms"),
    ]
