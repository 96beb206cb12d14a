"""``--run`` and ``--battery``: run batches with live progress, store and publish them, and print a summary."""

from __future__ import annotations

import asyncio
import logging
import os
import shlex
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from functools import partial
from pathlib import Path

import msgspec

from runner.batch.batch import Batch
from runner.batch.observers import SelectiveObserver
from runner.batch.result import BatchResult
from runner.batch.spec import RUN_FILES, SLOT_FILES, BatchSpec, PlannedEpisode, ResolvedBatch, has_oracle, place_batch
from runner.batch.stopping import Waiting, budget_left, first_part, is_used_up, next_part, wait_while_busy
from runner.batch.workspace import Workspace
from runner.cli.reports import log_to_file, report_damaged, report_recovered
from runner.cli.run_output import (
    SkippedBatch,
    batch_label,
    batch_progress,
    print_summary,
    report_errors,
    report_models,
    report_refused,
)
from runner.cli.run_session import RunSession
from runner.cli.terminal import INTERRUPTED, SignalHandler, print_stderr, reserve_stdout, write_result
from runner.errors import ConfigError, catch_foreign, log_failure
from runner.events.subjects import DurableNames
from runner.inference.endpoints import NO_ENDPOINT
from runner.inference.profile_models import Models, NoModel, describe_endpoint, is_answering
from runner.machine.sampler import GpuMeter, MachineSampler
from runner.node.state_lock import is_node_alive
from runner.publish.notifier import Notifier
from runner.publish.outbox import DeadLetter, EventRecorder
from runner.results.statistics import wilson_interval
from runner.util.clock import new_ulid
from runner.util.files import world_writable_problem
from runner.util.resources import require_open_files

logger = logging.getLogger(__name__)

SERVER_INTERVAL_S = 2.0
"""Seconds between two readings of the model servers, as of a node."""
MAX_COMMANDS = 3
"""Maximum number of commands to print; one command plays consecutive tasks."""
_REPLACED_OPTIONS = ("--run", "--battery", "--task-index", "--repeat", "--tasks")
_MODEL_OPTIONS = ("--agent", "--model", "--endpoint", "--key-env")
_ADVICE = {
    "resources": "Free what ran out",
    "budget": "Give another budget if you like",
    "workers": "See the log for the cause, or give --workers 0",
}


def report_remaining(spec: BatchSpec, result: BatchResult, argv: Sequence[str]) -> None:
    left = remaining_episodes(spec, result)
    print_stderr(f"{spec.env}: interrupted: {result.interruption}")
    commands = commands_for(spec, left, argv)
    n_again = spec.attempts * len({planned.task_index for planned in left}) - len(left)
    again = f" (which plays {n_again} attempts again)" if n_again else ""
    left_of = f"{len(left)} of {spec.n_planned} episodes are left"
    advice = _ADVICE.get(result.interrupted_by or "", "Start the server again")
    print_stderr(f"{spec.env}: {left_of}. {advice}, then run{again}:")
    for command in commands[:MAX_COMMANDS]:
        print_stderr(f"  {command}")
    if (more := len(commands) - MAX_COMMANDS) > 0:
        print_stderr(f"  and {more} more; the episode files show which tasks were played")


def remaining_episodes(spec: BatchSpec, result: BatchResult) -> list[PlannedEpisode]:
    played = {(each.task_index, each.attempt) for each in result.episodes if not each.is_left}
    return [planned for planned in spec.plan() if (planned.task_index, planned.attempt) not in played]


def commands_for(spec: BatchSpec, left: Sequence[PlannedEpisode], argv: Sequence[str]) -> list[str]:
    options = ["agentgym-runner", *without_options(argv, _REPLACED_OPTIONS), "--run", spec.env]
    if spec.model is not None and (others := without_options(options, ("--model",))) != options:
        options = [*others, "--model", spec.model]
    if spec.tasks is not None:
        return [shlex.join([*options, "--tasks", ",".join(dict.fromkeys(str(each.task_index) for each in left))])]
    return [
        shlex.join([*options, "--task-index", str(first), "--repeat", str(n_tasks)])
        for first, n_tasks in _runs(sorted(planned.task_index for planned in left))
    ]


def _runs(tasks: Sequence[int]) -> list[tuple[int, int]]:
    """Return the first task and the number of tasks of each run of consecutive tasks, e.g. 3, 4, 7: (3, 2), (7, 1)."""
    runs: list[tuple[int, int]] = []
    for task in tasks:
        first, n_tasks = runs[-1] if runs else (task, 0)
        if task == first + n_tasks:
            runs[-1:] = [(first, n_tasks + 1)]
        elif task > first + n_tasks:
            runs.append((task, 1))
    return runs


def without_options(argv: Sequence[str], options: Sequence[str]) -> list[str]:
    """Return arguments without these options and their values, given as ``--option VALUE`` or ``--option=VALUE``."""
    others: list[str] = []
    words = iter(argv)
    for word in words:
        if word in options:
            next(words, None)
        elif not word.startswith(tuple(f"{option}=" for option in options)):
            others.append(word)
    return others


def adaptive_parts(
    batch: ResolvedBatch, width: float | None, results: Sequence[BatchResult]
) -> Iterator[ResolvedBatch]:
    """Yield the parts of a batch, each with the tasks up to the next look, until the interval is narrow enough.

    ``batch`` has the maximum number of tasks, and one attempt for each. With ``width`` None it is the only part. The
    caller adds the result of each part to ``results`` before it requests the next one.
    """
    if width is None:
        yield batch
        return
    part: BatchSpec | None = first_part(batch.spec, width)
    while part is not None:
        n_played = len(results)
        yield msgspec.structs.replace(batch, spec=part)
        successes, n = sum(result.n_success for result in results), sum(result.n_rated for result in results)
        _report(part, successes, n)
        played = results[n_played:]
        cost, n_tokens = sum(each.cost or 0.0 for each in played), sum(each.tokens.total for each in played)
        budget = budget_left(part.budget, cost, n_tokens)
        following = next_part(part, successes, n, budget)
        if is_used_up(budget) and following is None and next_part(part, successes, n, None) is not None:
            print_stderr(f"{batch_label(part.env, part.model)}: stopped, because its budget is used up")
        part = following


def _report(part: BatchSpec, successes: int, n: int) -> None:
    low, high = wilson_interval(successes, n)
    rate = f"{successes / n:.1%}, {low:.1%} to {high:.1%}" if n else "no scored episode"
    first, n_max = (part.adaptive.task_index, part.adaptive.repeat) if part.adaptive else (part.task_index, part.repeat)
    n_played = part.task_index + part.repeat - first
    print_stderr(f"{batch_label(part.env, part.model)}: {rate}, after {n_played} of at most {n_max} episodes")


def run_batches(session: RunSession) -> int:
    """Run the batches that the command line describes; return the exit code."""
    require_open_files(RUN_FILES + SLOT_FILES, "A run")
    reserve_stdout()
    signals = SignalHandler()
    with signals.installed():
        batches = session.batches()
        models = session.models() if any(batch.setup.models is not None for batch in batches) else None
        if models is not None:
            require_model(session, batches, models)
        log_to_file(session.data_dir)
        if (problem := world_writable_problem(session.data_dir)) is not None:
            logger.warning("%s", problem)
        workspace = Workspace(session.data_dir, node=session.node, profile=session.profile.id)
        report_recovered(workspace.recovered)
        report_damaged(workspace.index.damaged)
        options = session.options
        battery_id = new_ulid() if options.battery or len(batches) > 1 or options.until_width is not None else None
        notifier = Notifier(session.profile, session.node, os.environ) if session.profile.notify.is_wanted else None
        refused: list[DeadLetter] = []
        with (
            closing(workspace),
            nullcontext() if models is None else closing(models),
            nullcontext() if notifier is None else closing(notifier),
            _reading_servers(models) if models and any(batch.spec.model for batch in batches) else nullcontext(),
            _event_recording(session, workspace, refused) as (recorder, observers),
        ):
            workspace.meter = GpuMeter(MachineSampler(None, workspace.clock), workspace.clock.monotonic)
            sequence = _BatchSequence(session, workspace, recorder, observers, signals, battery_id, models, notifier)
            results, skipped = sequence.run(batches)
        code = _exit_code(results, skipped, interrupted=signals.received)
        as_json, currency = session.options.json, session.profile.agent.currency
        code = write_result(
            code, lambda: print_summary(results, skipped, session.data_dir, as_json=as_json, currency=currency)
        )
        if not as_json:
            report_errors(results, session.data_dir)
        report_models(results)
        _report_interruptions(batches, results, session.options.argv)
        report_refused(refused, session.options)
        return code


def _report_interruptions(batches: list[ResolvedBatch], results: list[BatchResult], argv: Sequence[str]) -> None:
    specs = {(batch.spec.env, batch.spec.model): batch.spec for batch in batches}
    for result in results:
        if result.interruption is not None:
            parts = [each for each in results if (each.env, each.model) == (result.env, result.model)]
            episodes = [episode for each in parts for episode in each.episodes]
            whole = msgspec.structs.replace(result, episodes=episodes)
            report_remaining(specs[result.env, result.model], whole, argv)


def _exit_code(results: list[BatchResult], skipped: list[SkippedBatch], *, interrupted: bool) -> int:
    ended_early = any(result.status != "completed" for result in results)
    if (interrupted and ended_early) or any(result.interruption for result in results):
        return INTERRUPTED
    return 1 if ended_early or skipped or any(result.has_errors for result in results) else 0


@contextmanager
def _reading_servers(models: Models) -> Iterator[None]:
    """Read the metrics of the model servers meanwhile, whose means split the time of each answer.

    A thread of its own reads them, so that a slow server delays nothing.
    """
    stopped = threading.Event()

    async def read() -> None:
        while not stopped.is_set():
            await models.manager.read_servers()
            await asyncio.to_thread(stopped.wait, SERVER_INTERVAL_S)

    def serve() -> None:
        with catch_foreign(log_failure(logger, "reading the model servers; answers are not split by their metrics:")):
            asyncio.run(read())

    threading.Thread(target=serve, name="model servers", daemon=True).start()
    try:
        yield
    finally:
        stopped.set()


def _queued_ids(path: Path) -> set[str]:
    if not path.exists():
        return set()
    from runner.node.batch_queue import queued_ids  # imported late: only a node writes the file

    return queued_ids(path)


@contextmanager
def _event_recording(
    session: RunSession, workspace: Workspace, refused: list[DeadLetter]
) -> Iterator[tuple[EventRecorder, list[SelectiveObserver]]]:
    """Yield a recorder of events and the observers that deliver live items, if a node or an egress is available.

    At the end, ``refused`` gets the events that a broker has refused for good.
    """
    recorder = EventRecorder(workspace, DurableNames.of(session.profile.nats), role="run")
    recorder.record_missed_batches(partial(_queued_ids, workspace.data_dir / "queue.sqlite"))
    nats = session.profile.nats
    if nats.egress_url(os.environ) is None and not is_node_alive(workspace.data_dir):
        with _running_status(recorder):
            yield recorder, []
        return
    from runner.bus.address import egress_reader  # imported late: the bus room takes as long as the rest
    from runner.cli.event_thread import EventThread

    egress, tokens = egress_reader(session.profile), nats.live_tokens
    egress()  # raises ConfigError for a wrong login, before an episode is played
    with closing(EventThread(recorder, workspace, egress, tokens)) as event_thread, _running_status(recorder):
        yield recorder, event_thread.observers
    refused += event_thread.refused


@contextmanager
def _running_status(recorder: EventRecorder) -> Iterator[None]:
    recorder.record_status("running")
    try:
        yield
    finally:
        recorder.record_status("stopped")


class _BatchSequence(msgspec.Struct, frozen=True):
    """Runs batches one after another.

    A batch that does not complete is the last one, unless only its own server was gone or its own budget used up.
    """

    session: RunSession
    workspace: Workspace
    recorder: EventRecorder
    observers: list[SelectiveObserver]
    signals: SignalHandler
    battery_id: str | None
    models: Models | None
    notifier: Notifier | None

    def run(self, batches: list[ResolvedBatch]) -> tuple[list[BatchResult], list[SkippedBatch]]:
        results: list[BatchResult] = []
        skipped: list[SkippedBatch] = []
        for batch in batches:
            try:
                played = self._run_parts(batch)
            except ConfigError as exc:
                skipped.append(SkippedBatch(env=batch.spec.env, reason=str(exc)))
                continue
            results += played
            if played[-1].status != "completed" and played[-1].interrupted_by not in ("server", "budget"):
                break
        if skipped and not results:
            raise ConfigError("\n".join(each.reason for each in skipped))
        for each in skipped:
            print_stderr(f"Skipped: {each.reason}")
        if self.battery_id is not None and all(result.status != "interrupted" for result in results):
            self.recorder.record_batteries({self.battery_id: sum(result.n_episodes for result in results)})
        return results, skipped

    def _run_parts(self, batch: ResolvedBatch) -> list[BatchResult]:
        """Run a batch, in several parts with ``--until-width``; return the results of those that were played.

        Raises:
            ConfigError: the first part cannot be played.
        """
        played: list[BatchResult] = []
        kind: tuple[str, str, str] | None = None
        for part in adaptive_parts(batch, self.session.options.until_width, played):
            try:
                placed = wait_while_busy(partial(place_batch, part, RUN_FILES), partial(self._go_on, part))
                placed.placement.require_kind(kind)
                kind = placed.placement.kind
            except ConfigError as exc:
                if not played:
                    raise
                print_stderr(f"{part.spec.env}: stopped: {exc}")
                break
            played.append(self._run_batch(placed))
            self.recorder.record_batch(played[-1])
            if self.notifier is not None:
                self.notifier.notify(played[-1])
            if played[-1].status != "completed":
                break
        return played

    def _go_on(self, part: ResolvedBatch, waiting: Waiting) -> bool:
        if waiting.left_s >= part.wait_s:  # first
            print_stderr(f"{part.spec.env}: waiting for its server, {waiting.left_s:g} s left ({waiting.server})")
        return not self.signals.received

    def _run_batch(self, placed: ResolvedBatch) -> BatchResult:
        for note in filter(None, (placed.placement.note, placed.warning)):
            print_stderr(f"{placed.spec.env}: {note}")
        with batch_progress(placed.spec) as progress:
            batch = Batch(
                placed,
                self.workspace,
                observers=[progress, *self.observers],
                battery_id=self.battery_id,
                models=self.models,
            )
            with self.signals.forwarding_to(batch):
                return batch.run()


def require_model(session: RunSession, batches: Sequence[ResolvedBatch], models: Models) -> None:
    """Check that an endpoint of each model answers, if the agent uses a model."""
    try:
        states = [state for name in {batch.spec.model: None for batch in batches} for state in models.require(name)]
    except NoModel as exc:
        causes = [f"  {describe_endpoint(state)}: {state.cause}\n    {state.hint}" for state in exc.states]
        lines = ["No model responds; no episode was run.", *(causes or [f"  {NO_ENDPOINT}"])]
        command = command_without_model(session.options.argv, batches)
        raise ConfigError("\n".join([*lines, f"Without a model: {command}"])) from exc
    for state in states:
        if not is_answering(state):
            reason = f"{state.cause}; {state.hint}"
            print_stderr(f"{describe_endpoint(state)} not responding; using the next endpoint: {reason}")


def command_without_model(argv: Sequence[str], batches: Iterable[ResolvedBatch]) -> str:
    """Return the command with another agent: ``oracle`` if all environments have an oracle, else ``random``."""
    agent = "oracle" if all(has_oracle(batch.env) for batch in batches) else "random"
    return shlex.join(["agentgym-runner", *without_options(argv, _MODEL_OPTIONS), "--agent", agent])
