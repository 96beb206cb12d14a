"""``--run`` and ``--battery``: run batches with live progress, store and publish them, and print a summary."""

from __future__ import annotations

import asyncio
import logging
import os
import shlex
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from itertools import chain, repeat

import msgspec

from runner.batch.observers import BatchItem, SelectiveObserver
from runner.batch.result import BatchResult
from runner.batch.spec import (
    RUN_FILES,
    SLOT_FILES,
    BatchSpec,
    PlannedEpisode,
    ResolvedBatch,
    has_oracle,
    place_batch,
    resolve_spec,
)
from runner.batch.stopping import first_part
from runner.batch.workspace import Workspace
from runner.cli.reports import log_to_file, report_damaged, report_recovered
from runner.cli.run_output import (
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
from runner.node.batch_queue import QueuedBatch, queued_ids
from runner.node.session import BatchSession, Look, watch_servers
from runner.node.state_lock import is_node_alive
from runner.publish.notifier import Notifier
from runner.publish.outbox import DeadLetter, EventRecorder
from runner.results.statistics import wilson_interval
from runner.types import BatchProgress
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


def run_batches(session: RunSession) -> int:
    """Run the batches that the command line describes; return the exit code."""
    require_open_files(RUN_FILES + SLOT_FILES, "A run")
    reserve_stdout()
    signals = SignalHandler()
    with signals.installed(), ExitStack() as stack:
        batches = session.batches()
        models = session.models() if any(batch.setup.models is not None for batch in batches) else None
        if models is not None:
            require_model(session, batches, models)
        log_to_file(session.data_dir)
        if (problem := world_writable_problem(session.data_dir)) is not None:
            logger.warning("%s", problem)
        workspace = Workspace(session.data_dir, node=session.node, profile=session.profile.id)
        stack.enter_context(closing(workspace))
        report_recovered(workspace.recovered)
        report_damaged(workspace.index.damaged)
        workspace.meter = GpuMeter(MachineSampler(None, workspace.clock), workspace.clock.monotonic)
        if models is not None:
            stack.enter_context(closing(models))
        notifier = stack.enter_context(closing(Notifier(session.profile, session.node, os.environ)))
        if models is not None and any(batch.spec.model for batch in batches):
            stack.enter_context(_reading_servers(models))
        refused: list[DeadLetter] = []
        recorder, observers = stack.enter_context(_event_recording(session, workspace, refused))
        run = _Run(workspace, models, session, recorder, observers, signals, notifier)
        run.play(batches)
        stack.close()
        return _report(session, batches, run, refused, interrupted=signals.received)


def _report(
    session: RunSession, batches: list[ResolvedBatch], run: _Run, refused: Sequence[DeadLetter], *, interrupted: bool
) -> int:
    """Print what the batches have shown; return the exit code."""
    results, data_dir, currency = run.results, session.data_dir, session.profile.agent.currency
    ended_early = run.skipped or any(result.status != "completed" for result in results)
    if (interrupted and ended_early) or any(result.interruption for result in results):
        code = INTERRUPTED
    else:
        code = 1 if ended_early or any(result.has_errors for result in results) else 0
    document = {"data_dir": str(data_dir), "batches": results, "skipped": run.skipped, "currency": currency}
    show = partial(print_summary, results, data_dir, currency=currency)
    code = write_result(code, show, document if session.options.json else None)
    if not session.options.json:
        report_errors(results, data_dir)
    report_models(results)
    specs = {(batch.spec.env, batch.spec.model): batch.spec for batch in batches}
    for result in results:
        if result.interruption is not None:
            parts = [each for each in results if (each.env, each.model) == (result.env, result.model)]
            episodes = [episode for each in parts for episode in each.episodes]
            whole = msgspec.structs.replace(result, episodes=episodes)
            report_remaining(specs[result.env, result.model], whole, session.options.argv)
    report_refused(refused, session.options)
    return code


@contextmanager
def _reading_servers(models: Models) -> Iterator[None]:
    """Read the metrics of the model servers meanwhile, on a thread of its own, so that a slow server delays nothing."""
    ended, waits_s = threading.Event(), chain([0.0], repeat(SERVER_INTERVAL_S))
    on_failure = log_failure(logger, "reading the model servers; answers are not split by their metrics:")

    async def is_due() -> bool:
        return not await asyncio.to_thread(ended.wait, next(waits_s))

    def serve() -> None:
        with catch_foreign(on_failure):
            asyncio.run(watch_servers(models, is_due, lambda loads: None, on_failure))

    threading.Thread(target=serve, name="model servers", daemon=True).start()
    try:
        yield
    finally:
        ended.set()


@contextmanager
def _event_recording(
    session: RunSession, workspace: Workspace, refused: list[DeadLetter]
) -> Iterator[tuple[EventRecorder, list[SelectiveObserver]]]:
    """Yield a recorder of events and the observers that deliver live items, if a node or an egress is available.

    At the end, ``refused`` gets the events that a broker has refused for good.
    """
    nats = session.profile.nats
    with ExitStack() as stack:
        recorder = stack.enter_context(closing(EventRecorder(workspace, DurableNames.of(nats), role="run")))
        recorder.record_missed_batches(partial(queued_ids, workspace.data_dir))
        observers: list[SelectiveObserver] = []
        if nats.egress_url(os.environ) is not None or is_node_alive(workspace.data_dir):
            from runner.bus.address import egress_reader  # imported late: the bus room takes as long as the rest
            from runner.cli.event_thread import EventThread

            egress = egress_reader(session.profile)
            egress()  # raises ConfigError for a wrong login, before an episode is played
            event_thread = EventThread(recorder, workspace, egress, nats.live_tokens, refused)
            stack.callback(event_thread.close)
            observers = event_thread.observers
        recorder.finish_reading()
        recorder.record_status("running")
        stack.callback(recorder.record_status, "stopped")
        yield recorder, observers


class SkippedBatch(msgspec.Struct, frozen=True, kw_only=True):
    """For example because its environment server was down."""

    env: str
    reason: str


class _Run(msgspec.Struct):
    """Plays the batches of the command one after another, as a node does, without a queue and control requests.

    A batch that does not complete is the last one, unless only its own server was gone or its own budget used up.
    """

    workspace: Workspace
    models: Models | None
    session: RunSession
    recorder: EventRecorder
    observers: Sequence[SelectiveObserver]
    signals: SignalHandler
    notifier: Notifier
    results: list[BatchResult] = []
    skipped: list[SkippedBatch] = []
    storage: None = None
    _batch: BatchSession | None = None
    _has_waited: bool = False

    def play(self, batches: Sequence[ResolvedBatch]) -> None:
        """Raises ``ConfigError`` if none of the batches can be played."""
        options = self.session.options
        specs = [batch.spec for batch in batches]
        if options.until_width is not None:
            specs = [first_part(spec, options.until_width) for spec in specs]
        battery_id = new_ulid() if options.battery or len(specs) > 1 or options.until_width is not None else None
        for spec in specs:
            played = self._play(BatchSession(self, QueuedBatch(batch_id=new_ulid(), battery_id=battery_id, spec=spec)))
            self.results += played
            if played and played[-1].status != "completed" and played[-1].interrupted_by not in ("server", "budget"):
                break
            if not played and self.signals.received:  # while it waited for its server
                break
        if self.skipped and not self.results:
            raise ConfigError("\n".join(each.reason for each in self.skipped))
        for each in self.skipped:
            print_stderr(f"Skipped: {each.reason}")
        if battery_id is not None and all(result.status != "interrupted" for result in self.results):
            self.recorder.record_batteries({battery_id: sum(result.n_episodes for result in self.results)})

    def _play(self, batch: BatchSession) -> list[BatchResult]:
        """Return the results of a batch, or of the parts of ``--until-width`` that were played."""
        played: list[BatchResult] = []
        self._batch, self._has_waited = batch, False
        try:
            for result in batch.play():
                played.append(result)
                self.recorder.record_batch(result)
                self.notifier.notify(result)
        except ConfigError as exc:
            if played:
                print_stderr(f"{batch.queued.spec.env}: stopped: {exc}")
            else:
                self.skipped.append(SkippedBatch(env=batch.queued.spec.env, reason=str(exc)))
        return played

    def place(self, spec: BatchSpec) -> ResolvedBatch:
        return place_batch(resolve_spec(self.session.profile, spec), RUN_FILES)

    def show(self, queued: QueuedBatch, item: BatchItem) -> None:
        """Print the start of a wait for a server, which a signal ends."""
        if isinstance(item, BatchProgress) and item.waiting_s is not None and not self._has_waited:
            self._has_waited = True
            left = f"{item.waiting_s:g} s left ({item.waiting_for})"
            print_stderr(f"{queued.spec.env}: waiting for its server, {left}")
        if self.signals.received and self._batch is not None:
            self._batch.command("cancel")

    @contextmanager
    def playing(self, queued: QueuedBatch, placed: ResolvedBatch) -> Iterator[Sequence[SelectiveObserver]]:
        for note in filter(None, (placed.placement.note, placed.warning)):
            print_stderr(f"{placed.spec.env}: {note}")
        assert self._batch is not None
        with batch_progress(placed.spec) as progress, self.signals.forwarding_to(self._batch):
            yield [progress, *self.observers]

    def on_look(self, ended: QueuedBatch, look: Look) -> bool:
        spec, (low, high) = ended.spec, wilson_interval(look.n_success, look.n)
        rate = f"{look.n_success / look.n:.1%}, {low:.1%} to {high:.1%}" if look.n else "no scored episode"
        first, n_max = (spec.adaptive.task_index, spec.adaptive.repeat) if spec.adaptive else (spec.task_index, 0)
        n_played = spec.task_index + spec.repeat - first
        label = batch_label(spec.env, spec.model)
        print_stderr(f"{label}: {rate}, after {n_played} of at most {n_max} episodes")
        if look.is_spent:
            print_stderr(f"{label}: stopped, because its budget is used up")
        return look.following is not None


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
