"""``--run`` and ``--battery``: play, show how it goes, and sum up."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
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
from runner.bus.address import egress_reader
from runner.cli.logs import log_to
from runner.cli.progress import progress_for
from runner.cli.report import print_summary, tell_answers, tell_damaged, tell_errors, tell_recovered
from runner.cli.session import Session
from runner.cli.signals import INTERRUPTED, Interrupts
from runner.cli.terminal import delivered, err, keep_output
from runner.envs.placement import Placement
from runner.errors import ConfigError
from runner.inference.models import NO_ENDPOINT, Models, NoModel, describe_endpoint, is_answering
from runner.node.batch_queue import queued_ids
from runner.node.state_lock import is_node_alive
from runner.publish.event_recorder import EventRecorder, durable_names
from runner.publish.recovery import record_missed_batches


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
        with closing(workspace), closing(models), _announced(session, workspace) as (recorder, observers):
            results = _Run(session, workspace, recorder, observers, interrupts, battery_id, models).play(specs)
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
def _announced(session: Session, workspace: Workspace) -> Iterator[tuple[EventRecorder, list[Observer]]]:
    """What becomes of the events: delivered where there is a bus to deliver to, else kept in the outbox."""
    recorder = EventRecorder(workspace, durable_names(session.profile.nats), role="run")
    egress = egress_reader(session.profile)
    with closing(recorder):
        record_missed_batches(workspace, recorder, partial(queued_ids, workspace.data_dir / "queue.sqlite"))
        if egress() is None and not is_node_alive(workspace.data_dir):
            with _running(recorder):
                yield recorder, []
            return
        from runner.cli.event_thread import Outlet

        with closing(Outlet(recorder, workspace, egress)) as outlet, _running(recorder):
            yield recorder, [outlet]


@contextmanager
def _running(recorder: EventRecorder) -> Iterator[None]:
    recorder.record_status("running")
    try:
        yield
    finally:
        recorder.record_status("stopped")


@dataclass(frozen=True)
class _Run:
    """Plays batches one after the other, as long as they can be stored."""

    session: Session
    workspace: Workspace
    recorder: EventRecorder
    observers: list[Observer]
    interrupts: Interrupts
    battery_id: str | None
    models: Models

    def play(self, specs: list[BatchSpec]) -> list[BatchResult]:
        results: list[BatchResult] = []
        refused: list[ConfigError] = []
        for spec in specs:
            try:
                placement = self.session.choose(spec)
            except ConfigError as exc:
                refused.append(exc)
                continue
            results.append(self._play(spec, placement))
            self.recorder.record_batch(results[-1])
            if results[-1].status != "completed":
                break
        if refused and not results:
            raise ConfigError("\n".join(map(str, refused)))
        for reason in refused:
            err(f"Left out: {reason}")
        return results

    def _play(self, spec: BatchSpec, placement: Placement) -> BatchResult:
        err(f"{spec.env}: {placement.note}")
        with progress_for(msgspec.structs.replace(spec, mode=placement.mode)) as progress:
            batch = Batch(
                spec,
                self.workspace,
                observers=[progress, *self.observers],
                on_record=self.recorder.record_episode,
                battery_id=self.battery_id,
                placement=placement,
                models=self.models,
            )
            with self.interrupts.ending(batch):
                return batch.run()


_CHOOSING = ("--agent", "--model")


def require_model(session: Session, specs: Sequence[BatchSpec], models: Models) -> None:
    """Look whether anybody answers, where the batches are to be played with a model.

    Raises:
        ConfigError: when nobody does, with each cause, and the command that plays without a model.
    """
    try:
        states = models.require(specs[0].model)
    except NoModel as exc:
        causes = [f"  {describe_endpoint(state)}: {state.cause}\n    {state.hint}" for state in exc.states]
        told = ["No model answers, so nothing was played.", *(causes or [f"  {NO_ENDPOINT}"])]
        command = without_model(session.options.argv, specs)
        raise ConfigError("\n".join([*told, f"Without a model: {command}"])) from exc
    for state in states:
        if not is_answering(state):
            err(f"{describe_endpoint(state)} does not answer, the next one has to: {state.cause}; {state.hint}")


def without_model(argv: Sequence[str], specs: Iterable[BatchSpec]) -> str:
    """The same command with an agent that asks no model: the oracle, where the environments have one."""
    agent = "oracle" if all(map(_has_oracle, specs)) else "random"
    kept: list[str] = []
    given = iter(argv)
    for word in given:
        if word in _CHOOSING:
            next(given, None)
        elif not word.startswith(tuple(f"{option}=" for option in _CHOOSING)):
            kept.append(word)
    return shlex.join(["agentgym-runner", *kept, "--agent", agent])


def _has_oracle(spec: BatchSpec) -> bool:
    try:
        msgspec.structs.replace(spec, agent="oracle", model=None).validated()
    except ConfigError:
        return False
    return True
