"""``agentgym-runner preflight``: check whether a run would work, and print a hint for each problem."""

from __future__ import annotations

import argparse
import asyncio
import threading
from collections.abc import Sequence
from contextlib import closing
from functools import partial

import msgspec

from runner.batch.spec import DEFAULT_AGENT, MAX_CONCURRENCY, RUN_FILES, ResolvedBatch, place_batch, resolve_agent
from runner.bus.address import egress_reader
from runner.cli.arguments import Options, add_endpoint_options, add_state_options, at_least, subcommand_parser, workers
from runner.cli.run_session import RunSession
from runner.cli.terminal import print_stderr, print_table, print_text, reserve_stdout, write_result
from runner.config import Profile
from runner.config.profile import FALLBACK, GATEWAY
from runner.episode.loop import CLEANUP_TIMEOUT_S, EpisodeContext
from runner.errors import ConfigError
from runner.inference.profile_models import Models, run_in_thread
from runner.node.preflight import (
    MONITOR,
    PlannedRun,
    PreflightCheck,
    can_run,
    check_models,
    check_monitor,
    check_state_dir,
    check_workers,
    preflight,
    trial_checks,
    try_endpoints,
)
from runner.types import EpisodeHeader, Outcome, Trajectory
from runner.util.clock import Clock, new_ulid
from runner.util.display_text import one_line, pluralize

DEFAULT_MONITOR_PORT = 8222
"""Port on which brokers usually answer monitoring requests."""
STATE_LABELS = {"ok": "ok", "warn": "warn", "fail": "FAIL"}


def main_preflight(argv: Sequence[str]) -> int:
    """Run the checks and print their results; return 0, or 1 if a run would fail."""
    options = build_parser().parse_args(argv)
    reserve_stdout()
    given = {name: value for name, value in vars(options).items() if name in Options._fields}
    session = RunSession.open(Options(**given, repeat=MAX_CONCURRENCY))
    plan = PlannedRun(
        profile=session.profile,
        data_dir=session.data_dir,
        request=session.request(options.env or "", options.model),
        egress=egress_reader(session.profile),
    )
    agent, (_, model) = options.agent or DEFAULT_AGENT, resolve_agent(session.profile.agent, plan.request)
    if options.try_models and model is None:
        raise ConfigError(f"--try-models needs an agent with a model, and {agent} has none; choose another --agent")
    with closing(session.models()) as models:
        rows, tried = preflight(plan, models), {}
        if options.try_models and model is not None:
            max_s, currency = session.profile.episode.max_duration_sec, session.profile.agent.currency

            def announce(endpoint: str) -> None:
                print_stderr(f"trying {one_line(endpoint)} ...")

            trials = run_in_thread(lambda: try_endpoints(model, models, max_s, announce))
            rows += trial_checks(trials, currency)
            tried = {"trials": trials, "currency": currency}
    services = _services(session.profile, rows)
    document = {"ok": can_run(rows), "agent": agent, "model": model, "rows": rows, "services": services, **tried}
    show = partial(_print, session.profile.id, agent, model, rows, services)
    return write_result(0 if can_run(rows) else 1, show, document if options.json else None)


def _services(profile: Profile, rows: Sequence[PreflightCheck]) -> list[str]:
    """Return a line on each service of the field runner's page: the gateway, the broker's monitor and Ollama's models.

    They stand for ``curl localhost:3030/health``, ``curl localhost:8222/healthz`` and ``ollama list | grep qwen3``.
    """
    is_up = {row.name: row.state == "ok" for row in rows if row.what == "model"}
    fallback = profile.agent.local_fallback or ""
    monitor = next((row for row in rows if row.name == MONITOR), None)
    if monitor is None:
        port = profile.nats.monitor_port or DEFAULT_MONITOR_PORT
        monitor = run_in_thread(lambda: check_monitor(f"http://127.0.0.1:{port}"))
    lines = [f"NATS: {'OK' if monitor.state == 'ok' else 'unreachable'}"]
    if GATEWAY in is_up:
        lines.insert(0, f"TensorZero: {'OK' if is_up[GATEWAY] else 'DOWN'}")
    if FALLBACK in is_up:
        family = fallback.partition(":")[0]
        lines.append(f"Ollama: {fallback}" if is_up[FALLBACK] else f"Ollama {family} models not found")
    return lines


def _print(
    profile: str, agent: str, model: str | None, rows: Sequence[PreflightCheck], services: Sequence[str]
) -> None:
    played_by = agent if model is None else f"{agent}, model {model}"
    columns = ("", "state", "")
    lines = [line for row in rows for line in _lines(row)]
    print_table(f"Pre-flight for {played_by}, profile {profile}", columns, lines)
    print_text("\n".join(services))
    verdict = "would work" if can_run(rows) else "would fail: see the FAIL rows"
    other = "" if can_run(rows) or model is None else "; --agent oracle needs no model"
    print_text(f"A run {verdict}{other}.")
    if model is not None and all(row.what != "trial" for row in rows):
        print_text("agentgym-runner preflight --try-models asks each model two short questions, to see what it takes.")


def _lines(row: PreflightCheck) -> list[tuple[str, ...]]:
    latency = "" if row.latency_s is None else f", {row.latency_s * 1000:.0f} ms"
    below = [("", "", text) for text in (row.cause, row.hint and f"-> {row.hint}") if text]
    return [(f"{row.what} {row.name}".strip(), STATE_LABELS[row.state], row.detail + latency), *below]


def build_parser() -> argparse.ArgumentParser:
    parser = subcommand_parser(
        "preflight",
        "Check models, environments, workers, buses and the state directory without running an episode "
        "or writing anything; only --try-models prompts models. Exit code 1: a run with that agent would fail.",
    )
    parser.add_argument("--agent", help="agent of the run (default react)")
    parser.add_argument("--model", metavar="NAME", help="model of the run (default: from the profile)")
    add_endpoint_options(parser)
    parser.add_argument("--env", metavar="ENV", help="check only this environment, and fail if it is not available")
    parser.add_argument(
        "--try-models",
        action="store_true",
        help="also play two short turns with a tool on each model endpoint, and show what it takes; this uses tokens",
    )
    parser.add_argument("--concurrency", type=at_least(1), metavar="N", help="episodes at a time of the run")
    parser.add_argument("--workers", type=workers, metavar="N|ray", help="workers of the run, as for --run")
    add_state_options(parser, json="print the result as JSON on standard output")
    return parser


def dry_run(session: RunSession) -> int:
    """Return 0 if all checks pass, else 1."""
    reserve_stdout()
    batches = session.batches()
    spec = batches[0].spec
    with closing(session.models()) as models:
        names = list(dict.fromkeys(batch.spec.model for batch in batches))
        model_checks = [check for name in names for check in run_in_thread(partial(check_models, name, models))]
        checks = [check_state_dir(session.data_dir), *check_workers(spec, session.profile), *model_checks]
        if can_run(model_checks):  # without a model no step can run
            checks += [_check_batch(batch, models) for batch in batches]
    problems = [check.cause and "; ".join(filter(None, [check.cause, check.hint])) for check in checks]
    rows = [
        (f"{check.what} {check.name}".strip(), check.state, ": ".join(filter(None, [check.detail, problem])))
        for check, problem in zip(checks, problems, strict=True)
    ]
    ok, lines = can_run(checks), [f"{STATE_LABELS[state]:<4} {what}: {text}" for what, state, text in rows]
    documents = [{"what": what, "ok": state != "fail", "detail": text, "state": state} for what, state, text in rows]
    document = {"ok": ok, "checks": documents} if session.options.json else None
    return write_result(0 if ok else 1, lambda: print_text("\n".join(lines)), document)


def _check_batch(batch: ResolvedBatch, models: Models) -> PreflightCheck:
    """Reset the first task of a batch and cancel the episode before its first step, so no model gets a request."""
    spec = batch.spec
    check = PreflightCheck(what=f"{spec.env} with {spec.agent}")
    failed = partial(msgspec.structs.replace, check, state="fail")
    try:
        placed = place_batch(batch, RUN_FILES)
    except ConfigError as exc:
        return failed(detail=str(exc))
    setup = msgspec.structs.replace(placed.setup, tracing="off")
    first, now = spec.plan()[0], Clock().now()
    manager = None if setup.models is None else models.manager
    context = EpisodeContext(EpisodeHeader(episode_id=new_ulid(), batch_id=new_ulid(), env=spec.env, started_at=now))
    context.control.cancel()
    reset_kwargs = {"task_index": first.task_index, "seed": first.seed}
    played: list[Trajectory] = []

    def play() -> None:
        played.append(asyncio.run(setup.build_factory(manager).play_episode(reset_kwargs, context=context)))

    thread = threading.Thread(target=play, daemon=True)  # a reset may block for ever
    thread.start()
    thread.join(spec.limits.max_duration_s + CLEANUP_TIMEOUT_S)
    if not played or played[0].outcome is Outcome.TIMEOUT:
        limit = f"within {spec.limits.max_duration_s:g} s"
        return failed(detail=f"the reset of task {first.task_index} did not end {limit}")
    if (error := played[0].error_info) is not None:
        return failed(detail=f"{error.type}: {error.message}")
    limits = f"at most {spec.limits.max_rounds} rounds and {spec.limits.max_duration_s:g} s each"
    reset = f"task {spec.task_index} was reset in {played[0].duration_s:.2f} s"
    unprompted = "" if spec.model is None else "; no model was prompted"
    text = f"{pluralize(spec.n_planned, 'episode')}, {limits}; {reset}{unprompted}; {placed.placement.note}"
    return msgspec.structs.replace(check, detail=text)
