"""``--run`` and ``--battery``: play, show how it goes, and sum up."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial

import msgspec
from ulid import ULID

from runner.batch.batch import Batch
from runner.batch.observers import Observer
from runner.batch.result import BatchResult
from runner.batch.spec import BatchSpec
from runner.batch.state_dir import Workspace
from runner.bus.egress import egress_of
from runner.cli.logs import log_to
from runner.cli.model_check import require_model, tell_answers
from runner.cli.progress import progress_for
from runner.cli.report import print_summary, tell_damaged, tell_errors, tell_recovered
from runner.cli.session import Session
from runner.cli.signals import INTERRUPTED, Interrupts
from runner.cli.terminal import delivered, err, keep_output
from runner.envs.placement import Choice
from runner.errors import ConfigError
from runner.inference.models import Models
from runner.node.batch_queue import queued_ids
from runner.node.state_lock import node_lives
from runner.publish.event_recorder import Announcer, durable_names
from runner.publish.recovery import announce_complete


def play(session: Session) -> int:
    """Play what was asked for; returns the exit code."""
    keep_output()
    interrupts = Interrupts()
    with interrupts.caught():
        specs = session.specs()
        models = session.models()
        require_model(session, specs, models)
        log_to(session.data_dir)
        workspace = Workspace(session.data_dir, node=session.node, profile=session.profile.id)
        tell_recovered(workspace.recovered)
        tell_damaged(workspace.index.damaged)
        battery_id = str(ULID()) if session.options.battery else None
        with closing(workspace), closing(models), _announced(session, workspace) as (announcer, observers):
            results = _Run(session, workspace, announcer, observers, interrupts, battery_id, models).play(specs)
        code = _exit_code(results, interrupted=interrupts.any)
        as_json = session.options.json
        code = delivered(code, lambda: print_summary(results, session.data_dir, as_json=as_json))
        if not as_json:
            tell_errors(results, session.data_dir)
        tell_answers(results)
        return code


def _exit_code(results: list[BatchResult], *, interrupted: bool) -> int:
    ended_early = any(result.status != "completed" for result in results)
    if interrupted and ended_early:
        return INTERRUPTED
    return 1 if ended_early or any(result.has_errors for result in results) else 0


@contextmanager
def _announced(session: Session, workspace: Workspace) -> Iterator[tuple[Announcer, list[Observer]]]:
    """What becomes of the events: delivered where there is a bus to deliver to, else kept in the outbox."""
    announcer = Announcer(workspace, durable_names(session.profile.nats), role="run")
    egress = egress_of(session.profile)
    with closing(announcer):
        announce_complete(workspace, announcer, partial(queued_ids, workspace.data_dir / "queue.sqlite"))
        if egress() is None and not node_lives(workspace.data_dir):
            with _running(announcer):
                yield announcer, []
            return
        from runner.cli.event_thread import Outlet

        with closing(Outlet(announcer, workspace, egress)) as outlet, _running(announcer):
            yield announcer, [outlet]


@contextmanager
def _running(announcer: Announcer) -> Iterator[None]:
    announcer.status("running")
    try:
        yield
    finally:
        announcer.status("stopped")


@dataclass(frozen=True)
class _Run:
    """Plays batches one after the other, as long as they can be stored."""

    session: Session
    workspace: Workspace
    announcer: Announcer
    observers: list[Observer]
    interrupts: Interrupts
    battery_id: str | None
    models: Models

    def play(self, specs: list[BatchSpec]) -> list[BatchResult]:
        results: list[BatchResult] = []
        refused: list[ConfigError] = []
        for spec in specs:
            try:
                choice = self.session.choose(spec)
            except ConfigError as exc:
                refused.append(exc)
                continue
            results.append(self._play(spec, choice))
            self.announcer.result(results[-1])
            if results[-1].status != "completed":
                break
        if refused and not results:
            raise ConfigError("\n".join(map(str, refused)))
        for reason in refused:
            err(f"Left out: {reason}")
        return results

    def _play(self, spec: BatchSpec, choice: Choice) -> BatchResult:
        err(f"{spec.env}: {choice.note}")
        with progress_for(msgspec.structs.replace(spec, mode=choice.mode)) as progress:
            batch = Batch(
                spec,
                self.workspace,
                observers=[progress, *self.observers],
                on_record=self.announcer.record,
                battery_id=self.battery_id,
                choice=choice,
                models=self.models,
            )
            with self.interrupts.ending(batch):
                return batch.run()
