"""``agentgym-runner preflight``: whether a run would work, and what to do where it would not."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import closing

from runner.batch.spec import resolve_model
from runner.bus.address import egress_reader
from runner.cli.arguments import Options
from runner.cli.session import Session
from runner.cli.terminal import console, delivered, keep_output, print_json, print_table, safe
from runner.node.preflight import PlannedRun, PreflightCheck, can_run, preflight

MARKS = {"ok": "ok", "warn": "warn", "fail": "FAIL"}


def main_preflight(argv: Sequence[str]) -> int:
    """Look and print; returns 0, or 1 where a run would fail.

    Raises:
        ConfigError: for a profile, an agent or an environment that cannot be used.
    """
    given = _parser().parse_args(argv)
    keep_output()
    session = Session.open(
        Options(config=given.config, data_dir=given.data_dir, agent=given.agent, model=given.model, json=given.json)
    )
    model = resolve_model(session.agent, session.profile.agent, given.model)
    plan = PlannedRun(
        profile=session.profile,
        data_dir=session.data_dir,
        agent=session.agent,
        model=model,
        env=given.env,
        egress=egress_reader(session.profile),
    )
    with closing(session.models()) as models:
        rows = preflight(plan, models)
    code = 0 if can_run(rows) else 1
    document = {"ok": can_run(rows), "agent": plan.agent, "model": model, "rows": rows}
    return delivered(code, (lambda: print_json(document)) if given.json else (lambda: _print(plan, rows)))


def _print(plan: PlannedRun, rows: Sequence[PreflightCheck]) -> None:
    who = plan.agent if plan.model is None else f"{plan.agent}, model {plan.model}"
    columns = ("", "state", "")
    lines = [line for row in rows for line in _lines(row)]
    print_table(f"Pre-flight for {who}, profile {plan.profile.id}", columns, lines)
    verdict = "would work" if can_run(rows) else "would fail: see what says FAIL"
    other = "" if can_run(rows) or plan.model is None else "; --agent oracle asks no model"
    console().print(safe(f"A run {verdict}{other}."), soft_wrap=True)


def _lines(row: PreflightCheck) -> list[tuple[str, ...]]:
    latency = "" if row.latency_s is None else f", {row.latency_s * 1000:.0f} ms"
    below = [("", "", text) for text in (row.cause, row.hint and f"-> {row.hint}") if text]
    return [(f"{row.what} {row.name}".strip(), MARKS[row.state], row.detail + latency), *below]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="agentgym-runner preflight",
        description="Show whether models, environments, buses and the state directory are well. Nothing is played, "
        "no model is made to answer, and nothing is written. Exit code 1: a run with that agent would fail.",
        allow_abbrev=False,
    )
    parser.add_argument("--agent", help="who would play (default react)")
    parser.add_argument("--model", metavar="NAME", help="the model that would be asked (default: the profile's)")
    parser.add_argument("--env", metavar="ENV", help="only this environment, which then has to be well")
    parser.add_argument("--config", metavar="NAME|PATH", help="the profile (default field-runner-4090)")
    parser.add_argument("--data-dir", metavar="DIR", help="the state directory (default ./data)")
    parser.add_argument("--json", action="store_true", help="print the result as JSON on standard output")
    return parser
