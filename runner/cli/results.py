"""``--results``: what was played so far, models first and baselines apart."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from runner import plugins
from runner.cli.logs import log_to
from runner.cli.report import (
    USAGE_COLUMNS,
    environment_cell,
    interval,
    number,
    outcomes_cell,
    percent,
    tell_damaged,
    tell_recovered,
    usage_cells,
)
from runner.cli.session import Session
from runner.cli.terminal import delivered, err, print_json, print_table
from runner.errors import ConfigError
from runner.store import EpisodeStore, ResultRow, open_index, summarize_results


def show_results(session: Session) -> int:
    """Print what the episodes of the state directory come to; returns the exit code.

    Raises:
        ConfigError: when the environment to narrow to is none that is known here.
    """
    log_to(session.data_dir)
    if not (session.data_dir / "runs").is_dir():
        err(f"Nothing was played yet into {session.data_dir}; try: agentgym-runner --battery lightweight")
    store = EpisodeStore(session.data_dir)
    recovered = store.recover()
    index = open_index(store)
    rows = summarize_results(index)
    damaged = [*store.damaged, *index.damaged]
    index.close()
    tell_recovered(recovered)
    tell_damaged(index.damaged)
    if session.options.env is not None:
        rows = _narrowed(rows, session.options.env, session)
    if session.options.json:
        reported = [{"path": str(file.path), "reason": file.reason} for file in damaged]
        document = {"data_dir": str(session.data_dir), "results": rows, "damaged": reported}
        return delivered(0, lambda: print_json(document))
    return delivered(0, lambda: _print(rows, session.profile.metrics))


def _narrowed(rows: list[ResultRow], env: str, session: Session) -> list[ResultRow]:
    """The rows of one environment, named in any case."""
    narrowed = [row for row in rows if row.env.lower() == env.lower()]
    if not narrowed:
        listed = [entry.name for _, entry in session.profile.listed()]
        known = {name.lower(): name for name in (*listed, *plugins.registered_names(plugins.ENVS), *(row.env for row in rows))}
        if env.lower() not in known:
            raise ConfigError(f"There is no environment named {env!r}. {plugins.suggest_name(env, known.values())}")
        err(f"No episodes of {known[env.lower()]} were played yet into {session.data_dir}")
    return narrowed


def _print(rows: Sequence[ResultRow], metrics: Sequence[str]) -> None:
    """Models first; the baselines need no column for a model."""
    columns = ("n", "95% interval", *metrics, "outcomes")
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
    return str(row.n), interval(row.success_interval), *values, outcomes_cell(row.outcomes)


def _usage(row: ResultRow) -> tuple[str, ...]:
    return usage_cells(row.tokens, row.latency_s, row.cost)


def _metric(row: ResultRow, metric: str) -> str:
    value = msgspec.structs.asdict(row).get(metric)
    if metric == "success_rate":
        return percent(row.success_rate)
    return number(value) if isinstance(value, int | float) else "-"
