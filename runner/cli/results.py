"""``--results``: print a summary of all stored episodes: a table for models, then a table for baselines."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from runner import plugins
from runner.cli.logging_setup import log_to_file
from runner.cli.report import (
    USAGE_COLUMNS,
    environment_cell,
    format_interval,
    format_number,
    format_success,
    outcomes_cell,
    report_damaged,
    report_recovered,
    usage_cells,
)
from runner.cli.run_session import RunSession
from runner.cli.terminal import print_json, print_stderr, print_table, write_result
from runner.envs.names import server_only_names, server_only_problem, unknown_environment
from runner.store import EpisodeStore, ResultRow, open_index_to_read, summarize_results


def show_results(session: RunSession) -> int:
    """Print the results of all episodes in the state directory; return the exit code.

    Raises:
        ConfigError: the environment of ``--env`` is unknown.
    """
    log_to_file(session.data_dir)
    if not (session.data_dir / "runs").is_dir():
        print_stderr(f"No episodes in {session.data_dir} yet; try: agentgym-runner --battery lightweight")
    store = EpisodeStore(session.data_dir)
    recovered = store.recover() if store.is_writable else []
    index = open_index_to_read(store)
    rows = summarize_results(index)
    damaged = [*store.damaged, *index.damaged]
    index.close()
    report_recovered(recovered)
    report_damaged(index.damaged)
    if session.options.env is not None:
        rows = _filter_env(rows, session.options.env, session)
    if session.options.json:
        reported = [{"path": str(file.path), "reason": file.reason} for file in damaged]
        document = {"data_dir": str(session.data_dir), "results": rows, "damaged": reported}
        return write_result(0, lambda: print_json(document))
    return write_result(0, lambda: print_results(rows, session.profile.metrics))


def _filter_env(rows: list[ResultRow], env: str, session: RunSession) -> list[ResultRow]:
    """Return the rows of one environment; its name may be in any case."""
    matching = [row for row in rows if row.env.lower() == env.lower()]
    if not matching:
        listed = [entry.name for _, entry in session.profile.tiered_entries()]
        stored = [row.env for row in rows]
        names = (*listed, *plugins.registered_names(plugins.ENVS), *server_only_names(), *stored)
        known = {name.lower(): name for name in names}
        if env.lower() not in known:
            raise unknown_environment(env, [*listed, *stored])
        problem = server_only_problem(env, session.profile)
        advice = f". {problem}" if problem else ""
        print_stderr(f"No episodes of {known[env.lower()]} in {session.data_dir} yet{advice}")
    return matching


def print_results(rows: Sequence[ResultRow], metrics: Sequence[str]) -> None:
    """Print a table for models, then a table for baselines, which has no column for the model.

    Args:
        rows: the results.
        metrics: names of the attributes of ``ResultRow`` that get a column.
    """
    columns = ("n", "errors", "95% interval", *metrics, "outcomes")
    models, baselines = [row for row in rows if not row.baseline], [row for row in rows if row.baseline]
    if models:
        cells = [(*_names(row), row.model or "-", *_numbers(row, metrics), *_usage(row)) for row in models]
        print_table("Models", ("environment", "agent", "model", *columns, *USAGE_COLUMNS), cells)
    if baselines:
        cells = [(*_names(row), *_numbers(row, metrics)) for row in baselines]
        print_table("Baselines (no model)", ("environment", "agent", *columns), cells)


def _names(row: ResultRow) -> tuple[str, ...]:
    return environment_cell(row.env, row.mode, row.data_label), row.agent


def _numbers(row: ResultRow, metrics: Sequence[str]) -> tuple[str, ...]:
    values = (_metric(row, metric) for metric in metrics)
    return (
        str(row.n),
        str(row.n_errors),
        format_interval(row.success_interval),
        *values,
        outcomes_cell(row.outcomes, row.n_unscored),
    )


def _usage(row: ResultRow) -> tuple[str, ...]:
    return usage_cells(row.tokens, row.latency_s, row.cost)


def _metric(row: ResultRow, metric: str) -> str:
    value = msgspec.structs.asdict(row).get(metric)
    if metric == "success_rate":
        return format_success(row.success_rate, row.n_rated, row.n)
    return format_number(value) if isinstance(value, int | float) else "-"
