"""``--results --matrix``, and the conditions ``--fail-below`` and ``--baseline`` that a script can rely on."""

from __future__ import annotations

from collections.abc import Sequence

from runner.cli.report import environment_cell, format_number, format_success
from runner.cli.terminal import print_stderr, print_table
from runner.results.comparison import Comparison, PairedTask
from runner.results.summary import ResultRow
from runner.results.task_matrix import Attempt, TaskGroup, TaskMatrix
from runner.types import Outcome
from runner.util.display_text import pluralize

NOT_MET = 3
"""Exit code if a condition is not met."""
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
        env = environment_cell(matrix.env, matrix.mode, matrix.data_label, matrix.shape, matrix.limits)
        name = f"{_player(matrix.agent, matrix.model)} in {env}"
        rows = [_task_cells(task) for task in matrix.tasks]
        print_table(f"Tasks of {name} ({_LEGEND})", ("task", "attempts", "success", "reward", "note"), rows)
        cells = [(str(e.k), str(e.n_tasks), f"{e.pass_at_k:.1%}", f"{e.pass_hat_k:.1%}") for e in matrix.estimates]
        if cells:
            print_table(f"{name} by number of attempts", ("k", "tasks", "pass@k", "pass^k"), cells)


def print_comparison(comparison: Comparison, baseline: str) -> None:
    rows = [_pair_cells("lost", pair) for pair in comparison.lost] + [_pair_cells("won", p) for p in comparison.won]
    if rows:
        print_table(f"Against {baseline}", ("", "environment", "task", "success", "baseline"), rows)
    print_stderr(
        f"Against {baseline}: {pluralize(comparison.n_paired, 'common task')}, "
        f"{len(comparison.won)} won, {len(comparison.lost)} lost, {comparison.n_tied} tied, "
        f"{comparison.n_unpaired} without a partner; success {_rate(comparison.success_rate)}, "
        f"baseline {_rate(comparison.baseline_rate)}; p = {comparison.p_value:.3g} (sign test)"
        + (f"; {comparison.shape_note}" if comparison.shape_note else "")
        + (f"; a fallback answered: {', '.join(comparison.mixed)}" if comparison.mixed else "")
    )


def check_gates(rows: Sequence[ResultRow], fail_below: float | None, comparison: Comparison | None) -> int:
    """Print each condition that is not met; return 0 or ``NOT_MET``.

    A success rate that does not exist, because no episode is rated, does not meet ``fail_below``; nor does a
    comparison without common tasks.
    """
    problems = [] if fail_below is None else _below(rows, fail_below)
    if comparison is not None and comparison.n_paired == 0:
        problems.append("no task is in both the selection and the baseline; check their environments and task indexes")
    elif comparison is not None and comparison.is_worse:
        lost, won = len(comparison.lost), len(comparison.won)
        problems.append(
            f"{pluralize(lost, 'task')} lost and {won} won against the baseline, p = {comparison.p_value:.3g}"
        )
    for problem in problems:
        print_stderr(f"Not met: {problem}")
    return NOT_MET if problems else 0


def _below(rows: Sequence[ResultRow], bound: float) -> list[str]:
    if not rows:
        return [f"no episode is selected, so no success rate reaches {bound:.1%}"]
    return [
        f"{_player(row.agent, row.model)} in "
        f"{environment_cell(row.env, row.mode, row.data_label, row.shape, row.limits)}: "
        f"success rate {format_success(row.success_rate, row.n_rated, row.n)}"
        f" is below {bound:.1%}"
        for row in rows
        if row.success_rate is None or row.success_rate < bound
    ]


def _task_cells(task: TaskGroup) -> tuple[str, ...]:
    marks = " ".join(map(_mark, task.attempts[:MAX_COLUMNS]))
    more = len(task.attempts) - MAX_COLUMNS
    rated = task.rated
    notes = ["zero variance"] * task.zero_variance + ["all truncated"] * task.all_truncated
    return (
        str(task.task_index),
        marks + (f" and {more} more" if more > 0 else ""),
        f"{task.n_success}/{len(rated)}",
        format_number(task.mean_reward),
        ", ".join(notes),
    )


def _mark(attempt: Attempt) -> str:
    unscored = not attempt.rated and attempt.outcome in (Outcome.SUCCESS, Outcome.FAILURE)
    return "u" if unscored else _MARKS[attempt.outcome]


def _pair_cells(result: str, pair: PairedTask) -> tuple[str, ...]:
    task = pair.task
    env = environment_cell(task.env, task.mode, task.data_label)
    return result, env, str(task.task_index), f"{pair.rate:.0%}", f"{pair.baseline_rate:.0%}"


def _player(agent: str, model: str | None) -> str:
    return agent if model is None else f"{agent} {model}"


def _rate(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:.1%}"
