"""``python -m tests.benchmarks.first_step HOW [WORKERS]``: seconds until the first step of a batch of Maze.

HOW is ``embedded`` for one episode in this process, ``cold`` for two workers whose fork server starts with the batch,
and ``warm`` for two workers of a fork server that is ready, each in a process that has imported the driver. The seconds
are those of a node, from a batch of its queue to its first live item of a step: the batch is resolved and placed, its
workers start, and the first one plays a step. ``command`` is ``agentgym-runner`` with that many workers, from its start
to the step on the disk.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from runner.batch.batch import Batch
from runner.batch.observers import BatchItem, SelectiveObserver
from runner.batch.spec import BatchSpec
from runner.batch.workspace import Workspace
from runner.pool.fork_server import open_client
from tests.support.batches import place_spec
from tests.support.command import COMMAND

ENV = "Maze"
LOOK_S = 0.003


def start_batch(how: str, folder: Path) -> None:
    """Play until the first step, print the seconds, and end the process."""
    n_workers = 0 if how == "embedded" else 2
    n_episodes = max(n_workers, 1)
    spec = BatchSpec(env=ENV, agent="oracle", repeat=n_episodes, concurrency=n_episodes, workers=n_workers)
    workspace = Workspace(folder, node="bench", profile="bench")
    if how == "warm":
        worker = open_client().start_worker("warm-up", print)
        worker.sock.close()
        worker.end_reason()
        worker.close()
    started = time.perf_counter()

    def on_step(item: BatchItem) -> None:
        os.write(1, f"{time.perf_counter() - started}\n".encode())  # in one piece: two workers may make first steps
        os._exit(0)

    # As the live items of a node: an observer with a thread gets its items every 50 ms, or when the batch ends.
    observer = SelectiveObserver(on_step, lambda kind: kind == "timestep", is_inline=True)
    Batch(place_spec(spec), workspace, observers=[observer]).run()


def start_command(workers: str, folder: Path) -> None:
    """Run the command and print the seconds until its first step is in a journal or an episode file."""
    n_episodes = "1" if workers == "0" else "2"
    options = ["--run", ENV, "--agent", "oracle", "--repeat", n_episodes, "--concurrency", n_episodes]
    started = time.perf_counter()
    quiet = subprocess.DEVNULL
    with subprocess.Popen(
        [COMMAND, *options, "--workers", workers, "--data-dir", str(folder)], stdout=quiet, stderr=quiet
    ) as process:
        while process.poll() is None and not has_step(folder):
            time.sleep(LOOK_S)
        print(time.perf_counter() - started)  # noqa: T201 - read by the benchmark


def has_step(folder: Path) -> bool:
    """Return whether a journal has a third line, after header and reset, or an episode has been stored."""
    for path in folder.glob("runs/*/*"):
        try:
            if not path.name.endswith(".journal.jsonl") or path.read_bytes().count(b"\n") > 2:
                return True
        except FileNotFoundError:  # the episode has been stored
            return True
    return False


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as data_dir:
        if sys.argv[1] == "command":
            start_command(sys.argv[2], Path(data_dir))
        else:
            start_batch(sys.argv[1], Path(data_dir))
