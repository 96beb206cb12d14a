"""``--results``: what was played so far, models first and baselines apart."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from runner.cli.report import environment_cell, interval, number, outcomes_cell, percent, tell_recovered
from runner.cli.session import Session
from runner.cli.terminal import console, err, print_json, safe
from runner.store import EpisodeStore, ResultRow, open_index, summarise


def show_results(session: Session) -> int:
    """Print what the episodes of the state directory come to; returns 0."""
    if not (session.data_dir / "runs").is_dir():
        err(f"Nothing was played yet into {session.data_dir}; try: agentgym-runner --battery lightweight")
    store = EpisodeStore(session.data_dir)
    recovered = store.recover()
    index = open_index(store)
    rows = summarise(index, env=session.options.env)
    damaged = [*store.damaged, *index.damaged]
    index.close()
    tell_recovered(recovered)
    for file in damaged:
        err(f"Left out {file.path}: {file.reason}")
    if session.options.json:
        reported = [{"path": str(file.path), "reason": file.reason} for file in damaged]
        print_json({"data_dir": str(session.data_dir), "results": rows, "damaged": reported})
        return 0
    metrics = session.profile.metrics
    _print_table("Models", [row for row in rows if not row.baseline], metrics)
    _print_table("Baselines (no model)", [row for row in rows if row.baseline], metrics)
    return 0


def _print_table(title: str, rows: Sequence[ResultRow], metrics: Sequence[str]) -> None:
    if not rows:
        return
    from rich.table import Table

    table = Table(title=title)
    for column in ("environment", "agent", "model", "n", "95% interval", *map(safe, metrics), "outcomes"):
        table.add_column(column, overflow="fold")
    for row in rows:
        environment = environment_cell(row.env, row.mode, row.data_label)
        cells = [environment, row.agent, row.model or "-", str(row.n), interval(row.success_interval)]
        cells += [_metric(row, metric) for metric in metrics]
        table.add_row(*map(safe, [*cells, outcomes_cell(row.outcomes)]))
    console().print(table)


def _metric(row: ResultRow, metric: str) -> str:
    """A metric of the profile; one we do not know is shown as such rather than refused."""
    value = msgspec.structs.asdict(row).get(metric)
    if metric == "success_rate":
        return percent(row.success_rate)
    return number(value) if isinstance(value, int | float) else "-"
