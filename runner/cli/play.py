"""``--run`` and ``--battery``: play, show how it goes, and sum up."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from ulid import ULID

from runner.batch import Batch
from runner.cli.logs import log_to
from runner.cli.progress import progress_for
from runner.cli.report import print_summary, tell_recovered
from runner.cli.session import Session
from runner.result import BatchResult
from runner.spec import BatchSpec
from runner.workspace import Workspace

INTERRUPTED = 130


def play(session: Session) -> int:
    """Play what was asked for; returns the exit code."""
    specs = session.specs()
    workspace = Workspace(session.data_dir, node=session.node, profile=session.profile.id)
    log_to(session.data_dir)
    tell_recovered(workspace.recovered)
    try:
        battery_id = str(ULID()) if session.options.battery else None
        results = _play_all(specs, workspace, battery_id)
    finally:
        workspace.close()
    print_summary(results, session.data_dir, as_json=session.options.json)
    if any(result.status != "completed" for result in results):
        return INTERRUPTED
    return 1 if any(result.has_errors for result in results) else 0


def _play_all(specs: list[BatchSpec], workspace: Workspace, battery_id: str | None) -> list[BatchResult]:
    results: list[BatchResult] = []
    for spec in specs:
        with progress_for(spec) as observer:
            batch = Batch(spec, workspace, observers=[observer], battery_id=battery_id)
            with _signals_to(batch):
                results.append(batch.run())
        if results[-1].status != "completed":
            break
    return results


@contextmanager
def _signals_to(batch: Batch) -> Iterator[None]:
    """The first Ctrl-C or SIGTERM cancels at the next step, the second gives up at once."""
    received: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        batch.command("abort" if received else "cancel")
        received.append(number)

    with _handler(signal.SIGINT, handle), _handler(signal.SIGTERM, handle):
        yield


@contextmanager
def _handler(number: signal.Signals, handle: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    before = signal.signal(number, handle)
    try:
        yield
    finally:
        signal.signal(number, before)
