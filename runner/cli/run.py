"""``--run`` and ``--battery``: run batches with live progress, store and publish them, and print a summary."""

from __future__ import annotations

import asyncio
import logging
import os
import shlex
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from itertools import chain, groupby, repeat
from pathlib import Path

import msgspec

from runner.batch.observers import BatchItem, EpisodeStored, SelectiveObserver
from runner.batch.result import BatchResult, ModelsTotals
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
from runner.batch.stopping import LOG_INTERVAL_S, first_part
from runner.batch.workspace import Workspace
from runner.cli.arguments import Options
from runner.cli.reports import (
    USAGE_COLUMNS,
    environment_cell,
    format_interval,
    format_number,
    format_success,
    log_to_file,
    outcomes_cell,
    report_damaged,
    report_recovered,
    usage_cells,
)
from runner.cli.run_session import RunSession
from runner.cli.terminal import (
    INTERRUPTED,
    SignalHandler,
    print_stderr,
    print_table,
    reserve_stdout,
    stderr_console,
    write_result,
)
from runner.errors import ConfigError, catch_foreign, log_failure
from runner.events.subjects import DurableNames
from runner.inference.endpoints import NO_ENDPOINT
from runner.inference.profile_models import Models, NoModel, describe_endpoint, is_answering
from runner.machine.sampler import GpuMeter, MachineSampler
from runner.node.batch_queue import QueuedBatch, queued_ids
from runner.node.session import BatchSession, Look, watch_servers
from runner.node.state_lock import is_node_alive
from runner.publish.notifier import Notifier
from runner.publish.outbox import DeadLetter, EndedBattery, EventRecorder
from runner.results.statistics import wilson_interval
from runner.store import EpisodeRecord
from runner.types import BatchProgress, Outcome, WorkerCounts, WorkerInfo
from runner.types.time_shares import percent_text
from runner.util.clock import new_ulid
from runner.util.display_text import one_line, pluralize
from runner.util.files import world_writable_problem
from runner.util.resources import require_open_files

logger = logging.getLogger(__name__)

SERVER_INTERVAL_S = 2.0
"""Seconds between two readings of the model servers, as of a node."""
MAX_COMMANDS = 3
"""Maximum number of commands to print; one command plays consecutive tasks."""
MAX_ERRORS = 5
"""Maximum number of errors to print per batch; the episode files contain all errors."""
WIDE = 100
"""Columns of a terminal from which on the bar names the number of workers while all is well."""
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
    numbered = enumerate(dict.fromkeys(tasks))
    runs = [[task for _, task in run] for _, run in groupby(numbered, key=lambda pair: pair[1] - pair[0])]
    return [(run[0], len(run)) for run in runs]


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
            observers.append(event_thread.observer)
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
        while specs:
            spec = specs.pop(0)
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
        if self.results and specs:
            print_stderr(f"Not begun: {', '.join(batch_label(spec.env, spec.model) for spec in specs)}")
        if battery_id is not None and all(result.status != "interrupted" for result in self.results):
            n_cancelled = sum(result.status == "cancelled" for result in self.results) + len(specs)
            ended = EndedBattery(sum(result.n_episodes for result in self.results), n_cancelled)
            self.recorder.record_batteries({battery_id: ended})

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
        spec, bounds = ended.spec, wilson_interval(look.n_success, look.n)
        rate = (
            f"{percent_text(look.n_success / look.n, 1)}, {format_interval(bounds)}" if look.n else "no scored episode"
        )
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


@contextmanager
def batch_progress(spec: BatchSpec) -> Iterator[SelectiveObserver]:
    title = " · ".join(filter(None, [spec.env, spec.agent, spec.model, "compat" if spec.mode == "compat" else ""]))
    if sys.stderr.isatty() and stderr_console().is_terminal:
        with _bar(title, spec.n_planned) as observer:
            yield observer
    else:
        yield SelectiveObserver(_Lines(title).show, lambda kind: kind in (BatchProgress, EpisodeStored))


@contextmanager
def _bar(title: str, total: int) -> Iterator[SelectiveObserver]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.table import Column

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(table_column=Column(no_wrap=True, min_width=2 * len(str(total)) + 1)),
        TextColumn("{task.fields[state]}", table_column=Column(no_wrap=True, overflow="ellipsis")),
        TimeRemainingColumn(table_column=Column(no_wrap=True, min_width=len("0:00:00"))),
    )
    with Progress(*columns, console=stderr_console()) as progress:
        task = progress.add_task(title, total=total, state="")

        def show(item: BatchItem) -> None:
            if isinstance(item, BatchProgress):
                state = _waiting_text(item) or _playing_text(item)
                progress.update(task, completed=item.n_done, state=state)

        yield SelectiveObserver(show, lambda kind: kind is BatchProgress)


class _Lines:
    """Prints ended episodes, lost workers, the end of the batch, and waits for the server, every ``LOG_INTERVAL_S``."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._n_lost = 0
        self._is_waiting = False

    def show(self, item: BatchItem) -> None:
        match item:
            case EpisodeStored(record=record):
                text = f"task {record.task_index} {_end_text(record)}, reward {record.reward or 0.0:g}"
                self._print(f"{text}, {record.duration_s:.2f} s{_place_text(record.worker)}")
            case BatchProgress():
                is_waiting = item.waiting_s is not None
                if is_waiting and (not self._is_waiting or (item.waiting_s or 0.0) % LOG_INTERVAL_S == 0):
                    self._print(f"{_waiting_text(item)} ({one_line(item.waiting_for or '')})")
                elif self._is_waiting and not is_waiting and not item.interrupted:
                    self._print("the server replies again")
                self._is_waiting = is_waiting
                counts = item.workers or WorkerCounts()
                if counts.lost > self._n_lost:
                    self._print(f"a worker process was lost: {counts.text}")
                self._n_lost = counts.lost
                if item.n_done == item.n_planned:
                    self._print(f"{item.n_done}/{item.n_planned} episodes, {_score_text(item)}")

    def _print(self, text: str) -> None:
        print_stderr(f"{self._title}: {text}")


def _end_text(record: EpisodeRecord) -> str:
    rounds, last = pluralize(record.rounds, "round"), record.timesteps[-1:]
    match record.outcome:
        case Outcome.TRUNCATED if last and last[0].done:
            return f"stopped by the environment after {rounds}"
        case Outcome.TRUNCATED:
            return f"stopped at the limit of {rounds}"
        case Outcome.FAILURE if last and not last[0].done and not last[0].valid:
            return f"failure after too many invalid actions in {rounds}"
        case Outcome.ERROR if record.error is not None:
            return f"error {one_line(record.error.type, 60)} in {rounds}"
    return f"{record.outcome} in {rounds}"


def _place_text(worker: WorkerInfo | None) -> str:
    if worker is None or worker.kind == "local":
        return ""
    return f", {worker.id}" if worker.kind == "process" else f", Ray worker {worker.id[:8]} on {worker.host}"


def _score_text(progress: BatchProgress) -> str:
    reward = "-" if progress.mean_reward is None else f"{progress.mean_reward:.3f}"
    rate = f"{percent_text(progress.n_success / progress.n_rated)} of {progress.n_rated}" if progress.n_rated else "-"
    errors = f", {pluralize(progress.errors, 'error')}" if progress.errors else ""
    return f"success {rate}, mean reward {reward}{errors}"


def _waiting_text(progress: BatchProgress) -> str:
    if progress.waiting_s is None:
        return ""
    return f"waiting for the server, {progress.waiting_s:g} s left"


def _playing_text(progress: BatchProgress) -> str:
    """Return score and workers; a narrow terminal has room only for starting and lost ones, and cuts the end."""
    score, counts = _score_text(progress), progress.workers
    if counts is not None and (counts.lost or counts.starting):
        return f"{counts.text}, {score}"
    return score if counts is None or stderr_console().width < WIDE else f"{score}, {counts.text}"


def print_summary(results: list[BatchResult], data_dir: Path, *, currency: str = "") -> None:
    rows = [(result, part) for result in results for part in result.by_models]
    columns = ["environment", "episodes", "errors", "success", "95% interval", "reward", "rounds", "outcomes"]
    cells = [_row(result, part, data_dir) for result, part in rows]
    if any(part.answers for _, part in rows):
        columns += USAGE_COLUMNS
        usage = (usage_cells(part.tokens, part.latency_s, part.cost, currency) for _, part in rows)
        cells = [[*row, *more] for row, more in zip(cells, usage, strict=True)]
    title, models = results[0].agent, [part.model or "-" for _, part in rows]
    if len(set(models)) > 1:
        columns, cells = ["model", *columns], [[model, *row] for model, row in zip(models, cells, strict=True)]
    else:
        title += " (baseline, no model)" if results[0].baseline else f" {models[0]}"
    if n_cancelled := sum(result.status == "cancelled" for result in results):
        title += f", {n_cancelled} of {len(results)} batches cancelled" if len(results) > 1 else ", cancelled"
    print_table(f"Results of {title}", columns, cells)


def _row(result: BatchResult, part: ModelsTotals, data_dir: Path) -> list[str]:
    stored = {path.stem for path in (data_dir / "runs" / result.batch_id).glob("*.json")}
    n_not_stored = sum(each.episode_id not in stored for each in result.episodes if each.models == part.model)
    counted = ((shape, f" in {count}" if count < part.n_episodes else "") for shape, count in part.shapes.items())
    shapes = " · ".join(map("".join, counted))
    return [
        environment_cell(result.env, result.mode, result.data_label, shapes, result.limits),
        f"{part.n_episodes}/{result.n_planned}",
        str(part.n_errors),
        format_success(part.success_rate, part.n_rated, part.n_episodes),
        format_interval(part.success_interval),
        format_number(part.mean_reward),
        format_number(part.mean_rounds),
        outcomes_cell(part.outcomes | ({"not stored": n_not_stored} if n_not_stored else {}), part.n_unscored),
    ]


def report_errors(results: list[BatchResult], data_dir: Path) -> None:
    for result in results:
        label = batch_label(result.env, result.model if len(results) > 1 else None)
        errors = [f"task {episode.task_index}: {episode.error}" for episode in result.episodes if episode.error]
        errors += result.problems
        if result.status == "cancelled":
            print_stderr(f"{label}: cancelled after {result.n_episodes} of {pluralize(result.n_planned, 'episode')}")
        for line in errors[:MAX_ERRORS]:
            print_stderr(f"{label}: {line}")
        if (more := len(errors) - MAX_ERRORS) > 0:
            print_stderr(f"{label}: {pluralize(more, 'more error')}, see the episode files")
        print_stderr(f"{label}: episodes in {data_dir / 'runs' / result.batch_id}")


def batch_label(env: str, model: str | None) -> str:
    """Return the name of a batch in a line of a run: its environment, and its model if several batches are played."""
    return env if model is None else f"{env} {model}"


def report_models(results: Iterable[BatchResult]) -> None:
    """Print who answered, for each batch in which not only the requested model did."""
    for result in results:
        if len(result.models) > 1:
            counts = ", ".join(f"{count} by {model}" for model, count in result.answers.items())
            print_stderr(f"{result.env}: answers came from more than one model: {counts}")
        elif result.models and result.models != [result.model]:
            print_stderr(f"{result.env}: {result.models[0]} answered in place of {result.model}")


def report_refused(letters: Sequence[DeadLetter], options: Options) -> None:
    if not letters:
        return
    (reason, _), *others = Counter(letter.reason for letter in letters).most_common()
    more = f" (and {pluralize(len(others), 'other reason')})" if others else ""
    command = ["agentgym-runner", "outbox", "--retry", "all"]
    for name, value in (("--config", options.config), ("--data-dir", options.data_dir)):
        command += [name, value] if value else []
    n = len({letter.id for letter in letters})
    print_stderr(
        f"{pluralize(n, 'event')} of this run became dead letters: {reason}{more}. "
        f"Each new connection to that broker tries them again; a connected node, after: {shlex.join(command)}"
    )
