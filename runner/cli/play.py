"""``--run`` and ``--battery``: play, show how it goes, and sum up."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from types import FrameType

from ulid import ULID

from runner.announcer import Announcer, durable_names
from runner.batch import Batch
from runner.cli.egress import egress_of
from runner.cli.logs import log_to
from runner.cli.progress import progress_for
from runner.cli.report import print_summary, tell_recovered
from runner.cli.session import Session
from runner.node.state import node_lives
from runner.observers import Observer
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
    battery_id = str(ULID()) if session.options.battery else None
    with closing(workspace), _announced(session, workspace) as (announcer, observers):
        results = _play_all(specs, workspace, announcer, observers, battery_id)
    print_summary(results, session.data_dir, as_json=session.options.json)
    if any(result.status != "completed" for result in results):
        return INTERRUPTED
    return 1 if any(result.has_errors for result in results) else 0


@contextmanager
def _announced(session: Session, workspace: Workspace) -> Iterator[tuple[Announcer, list[Observer]]]:
    """What becomes of the events: delivered where there is a bus to deliver to, else kept in the outbox."""
    announcer = Announcer(workspace, durable_names(session.profile.nats), role="run")
    egress = egress_of(session.profile)
    with closing(announcer):
        if egress() is None and not node_lives(workspace.data_dir):
            announcer.status("running")
            yield announcer, []
            announcer.status("stopped")
            return
        from runner.cli.outlet import Outlet

        with closing(Outlet(announcer, workspace, egress)) as outlet:
            announcer.status("running")
            yield announcer, [outlet]
            announcer.status("stopped")


def _play_all(
    specs: list[BatchSpec],
    workspace: Workspace,
    announcer: Announcer,
    observers: list[Observer],
    battery_id: str | None,
) -> list[BatchResult]:
    results: list[BatchResult] = []
    for spec in specs:
        with progress_for(spec) as progress:
            batch = Batch(
                spec,
                workspace,
                observers=[progress, *observers],
                on_record=announcer.record,
                battery_id=battery_id,
            )
            with _signals_to(batch):
                results.append(batch.run())
        announcer.result(results[-1])
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
