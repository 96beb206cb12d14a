"""``--results``: print a summary of all stored episodes: a table of models, then of baselines."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

import msgspec

from runner import plugins
from runner.cli.arguments import Options
from runner.cli.reports import (
    USAGE_COLUMNS,
    damaged_json,
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
from runner.cli.terminal import print_stderr, print_table, write_result
from runner.config import AgentSettings
from runner.envs.names import server_only_names, server_only_problem, unknown_environment
from runner.errors import ConfigError
from runner.results.comparison import Comparison, PairedTask, compare, mixed_episodes
from runner.results.summary import ResultRow, Score, Selection, summarize_results
from runner.results.task_matrix import Attempt, TaskGroup, TaskMatrix, task_matrices
from runner.store import EpisodeIndex, EpisodeStore, open_index_to_read
from runner.types import Outcome
from runner.types.time_shares import percent_text
from runner.util.display_text import pluralize
from runner.util.files import require_named_folder

NOT_MET = 3
MAX_COLUMNS = 16
"""Maximum number of attempts of a task in a printed matrix; JSON has all."""
_MARKS = {
    Outcome.SUCCESS: "+",
    Outcome.FAILURE: "-",
    Outcome.TRUNCATED: "t",
    Outcome.TIMEOUT: "T",
    Outcome.CANCELLED: "c",
    Outcome.ERROR: "E",
    Outcome.INTERRUPTED: "i",
}
_LEGEND = "+ success, - failure, t round limit, T time limit, E error, c cancelled, i interrupted, u unscored"


def print_matrices(matrices: Sequence[TaskMatrix]) -> None:
    for matrix in matrices:
        name = f"{_player(matrix.agent, matrix.model)} in {_environment(matrix)}"
        rows = [_task_cells(task) for task in matrix.tasks]
        print_table(f"Tasks of {name} ({_LEGEND})", ("task", "attempts", "success", "reward", "note"), rows)
        cells = [
            (str(e.k), str(e.n_tasks), percent_text(e.pass_at_k, 1), percent_text(e.pass_hat_k, 1))
            for e in matrix.estimates
        ]
        if cells:
            print_table(f"{name} by number of attempts", ("k", "tasks", "pass@k", "pass^k"), cells)


def print_comparison(comparison: Comparison, other: str) -> None:
    rows = [_pair_cells("lost", pair) for pair in comparison.lost] + [_pair_cells("won", p) for p in comparison.won]
    if rows:
        print_table(f"Against {other}", ("", "environment", "task", "success", "against"), rows)
    print_stderr(
        f"Against {other}: {pluralize(comparison.n_paired, 'common task')}, "
        f"{len(comparison.won)} won, {len(comparison.lost)} lost, {comparison.n_tied} tied, "
        f"{comparison.n_unpaired} without a partner; success {format_success(comparison.success_rate, 1, 1)}, "
        f"against {format_success(comparison.baseline_rate, 1, 1)}; p = {comparison.p_value:.3g} (sign test)"
        + (f"; {comparison.shape_note}" if comparison.shape_note else "")
        + (f"; a fallback answered: {', '.join(comparison.mixed)}" if comparison.mixed else "")
    )


def check_gates(
    rows: Sequence[ResultRow], fail_below: float | None, comparison: Comparison | None, other: str | None
) -> int:
    """Print each condition that is not met; return 0 or ``NOT_MET``.

    A success rate that does not exist, because no episode is rated, does not meet ``fail_below``; nor does a
    comparison without common tasks.
    """
    problems: list[str] = []
    if fail_below is not None:
        wanted = percent_text(fail_below, 1)
        problems = [
            f"{_player(row.agent, row.model)} in {_environment(row)}: "
            f"success rate {format_success(row.success_rate, row.n_rated, row.n)} is below {wanted}"
            for row in rows
            if row.success_rate is None or row.success_rate < fail_below
        ]
        problems += [] if rows else [f"no episode is selected, so no success rate reaches {wanted}"]
    if comparison is not None and comparison.n_paired == 0:
        problems.append("no task is in both selections; check their environments and task indexes")
    elif comparison is not None and comparison.is_worse:
        counts = f"{pluralize(len(comparison.lost), 'task')} lost and {len(comparison.won)} won"
        problems.append(f"{counts} against {other}, p = {comparison.p_value:.3g}")
    for problem in problems:
        print_stderr(f"Not met: {problem}")
    return NOT_MET if problems else 0


def _task_cells(task: TaskGroup) -> tuple[str, ...]:
    marks = " ".join(map(_mark, task.attempts[:MAX_COLUMNS]))
    more = len(task.attempts) - MAX_COLUMNS
    notes = ["zero variance"] * task.zero_variance + ["all truncated"] * task.all_truncated
    return (
        str(task.task_index),
        marks + (f" and {more} more" if more > 0 else ""),
        f"{task.n_success}/{len(task.rated)}",
        format_number(task.mean_reward),
        ", ".join(notes),
    )


def _mark(attempt: Attempt) -> str:
    unscored = not attempt.rated and attempt.outcome in (Outcome.SUCCESS, Outcome.FAILURE)
    return "u" if unscored else _MARKS[attempt.outcome]


def _pair_cells(result: str, pair: PairedTask) -> tuple[str, ...]:
    task = pair.task
    env = environment_cell(task.env, task.mode, task.data_label)
    return result, env, str(task.task_index), percent_text(pair.rate), percent_text(pair.baseline_rate)


def _player(agent: str, model: str | None) -> str:
    return agent if model is None else f"{agent} {model}"


def cost_currency(settings: AgentSettings, index: EpisodeIndex) -> str:
    """The currency of the profile if that has prices, else that of the newest episode with a cost, if known."""
    newest = "SELECT currency FROM episodes WHERE cost IS NOT NULL ORDER BY episode_id DESC LIMIT 1"
    rows = [] if settings.price else index.select(newest)
    return rows[0][0] or settings.currency if rows else settings.currency


def show_results(session: RunSession) -> int:
    options = session.options
    require_named_folder(options.data_dir, session.data_dir)
    log_to_file(session.data_dir)
    if not (session.data_dir / "runs").is_dir():
        print_stderr(f"No episodes in {session.data_dir} yet; try: agentgym-runner --battery lightweight")
    store = EpisodeStore(session.data_dir)
    report_recovered(store.recover() if store.is_writable else [])
    with closing(open_index_to_read(store)) as index:
        damaged = [*store.damaged, *index.damaged]
        skipped = report_damaged(index.damaged)  # the recovery has logged its own
        selection = _selection(session, index)
        rows = summarize_results(index, selection, score=options.score)
        matrices = task_matrices(index, selection, score=options.score) if options.matrix else None
        comparison = _comparison(options, index, selection)
        currency = cost_currency(session.profile.agent, index)
    gate = check_gates(rows, options.fail_below, comparison, options.against) or skipped
    document: dict[str, object] = {"data_dir": str(session.data_dir), "results": rows, "currency": currency}
    document["score"] = options.score
    document["damaged"] = damaged_json(damaged)
    document |= {"matrices": matrices} if matrices is not None else {}
    document |= {"comparison": comparison} if comparison is not None else {}

    def show() -> None:
        print_results(rows, session.profile.metrics, currency, score=options.score)
        print_matrices(matrices or [])
        if comparison is not None and options.against is not None:
            print_comparison(comparison, options.against)

    return write_result(gate, show, document if options.json else None)


def _selection(session: RunSession, index: EpisodeIndex) -> Selection:
    options = session.options
    for option, batch in (("--batch", options.batch), ("--against", options.against)):
        if batch is not None and not summarize_results(index, Selection(batch=batch)):
            raise ConfigError(
                f"{option} {batch}: no batch or battery with this id has an episode in {session.data_dir}; "
                "the folders in runs/ have the ids of the batches"
            )
    selection = Selection(env=options.env, agent=options.agent, model=options.model, batch=options.batch)
    if options.env is not None and not summarize_results(index, Selection(env=options.env)):
        _check_env(options.env, session, [row.env for row in summarize_results(index)])
    if options.against is not None and options.batch is None:
        return msgspec.structs.replace(selection, excluded_batch=options.against)
    return selection


def _comparison(options: Options, index: EpisodeIndex, selection: Selection) -> Comparison | None:
    """Return the comparison with ``--against``: the models that were requested, if one of each answered alone."""
    if options.against is None:
        return None
    sides = selection, Selection(env=selection.env, batch=options.against)
    mixed = mixed_episodes(index, *sides)
    if mixed and not options.allow_mixed:
        counts = ", ".join(f"{pluralize(n, 'episode')} by {models}" for models, n in mixed.items())
        raise ConfigError(
            f"the comparison with {options.against} is not one of two models, because a fallback answered: {counts}; "
            "play them again, or compare them all the same with --allow-mixed"
        )
    found = compare(*(task_matrices(index, side, by="model", score=options.score) for side in sides))
    return msgspec.structs.replace(found, mixed=mixed)


def _check_env(env: str, session: RunSession, stored: list[str]) -> None:
    """Report that no episode of an environment is stored; its name may be in any case."""
    listed = [entry.name for _, entry in session.profile.tiered_entries()]
    names = (*listed, *plugins.registered_names(plugins.ENVS), *server_only_names(), *stored)
    known = {name.lower(): name for name in names}
    if env.lower() not in known:
        raise unknown_environment(env, [*listed, *stored])
    problem = server_only_problem(env, session.profile)
    advice = f". {problem}" if problem else ""
    print_stderr(f"No episodes of {known[env.lower()]} in {session.data_dir} yet{advice}")


def print_results(
    rows: Sequence[ResultRow], metrics: Sequence[str], currency: str = "", *, score: Score = "reward"
) -> None:
    """Print a table of models, then of baselines, and one of time and GPUs; ``metrics`` have a column each."""
    counted = ", AgentGym's score and success" if score == "agentgym" else ""
    columns = ("n", "errors", "95% interval", *metrics, "outcomes")
    rows = sorted(rows, key=lambda row: row.baseline)
    cells = [
        (*_names(row), *_numbers(row, metrics), *usage_cells(row.tokens, row.latency_s, row.cost, currency))
        for row in rows
    ]
    if cells:
        print_table(f"Results{counted}", ("environment", "agent", "model", *columns, *USAGE_COLUMNS), cells)
    measured = {"time": [row.time_text or "-" for row in rows], "GPU per episode": list(map(_gpu_cell, rows))}
    known = {title: texts for title, texts in measured.items() if set(texts) != {"-"}}
    if rows and known:
        cells = [(*name, *texts) for name, *texts in zip(map(_names, rows), *known.values(), strict=True)]
        print_table("Time and GPUs", ("environment", "agent", "model", *known), cells)


def _gpu_cell(row: ResultRow) -> str:
    amounts = ((row.energy_j, "J"), (row.gpu_s, "GPU s"))
    known = [f"{format_number(amount)} {unit}" for amount, unit in amounts if amount is not None]
    return f"{'about ' if row.energy_shared else ''}{', '.join(known)}" if known else "-"


def _environment(row: ResultRow | TaskMatrix) -> str:
    return environment_cell(row.env, row.mode, row.data_label, row.shape, row.limits)


def _names(row: ResultRow) -> tuple[str, str, str]:
    return _environment(row), row.agent, "baseline" if row.baseline else row.model or "-"


def _numbers(row: ResultRow, metrics: Sequence[str]) -> tuple[str, ...]:
    counts = str(row.n), str(row.n_errors), format_interval(row.success_interval)
    return *counts, *(_metric(row, metric) for metric in metrics), outcomes_cell(row.outcomes, row.n_unscored)


def _metric(row: ResultRow, metric: str) -> str:
    value = msgspec.structs.asdict(row).get(metric)
    if metric == "success_rate":
        return format_success(row.success_rate, row.n_rated, row.n)
    return format_number(value) if isinstance(value, int | float) else "-"
