"""``--dry-run``: check what a run needs, then reset the first task of each batch, without a model or a stored file."""

from __future__ import annotations

import asyncio
import threading
from contextlib import closing
from functools import partial
from typing import Literal, Self, TypeAlias

import msgspec

from runner.batch.resolve import ResolvedBatch, place_batch
from runner.batch.slots import RUN_FILES
from runner.batch.spec import BatchSpec
from runner.cli.preflight import STATE_LABELS
from runner.cli.run_session import RunSession
from runner.cli.terminal import print_json, print_text, reserve_stdout, write_result
from runner.episode.loop import EpisodeContext
from runner.episode.teardown import CLEANUP_TIMEOUT_S
from runner.errors import ConfigError
from runner.inference.profile_models import Models, run_in_thread
from runner.node.preflight import PreflightCheck, check_models, check_state_dir, check_workers
from runner.types import EpisodeHeader, Outcome, Trajectory
from runner.util.clock import Clock, new_ulid
from runner.util.display_text import pluralize

State: TypeAlias = Literal["ok", "warn", "fail"]


class DryRunRow(msgspec.Struct, frozen=True):
    """Result of one check; ``warn`` is the state for a problem that does not prevent the run."""

    what: str
    ok: bool
    detail: str
    state: State

    @classmethod
    def of(cls, what: str, ok: bool, detail: str) -> Self:
        return cls(what, ok, detail, "ok" if ok else "fail")


def dry_run(session: RunSession) -> int:
    """Return 0 if all checks pass, else 1."""
    reserve_stdout()
    batches = session.batches()
    spec = batches[0].spec
    with closing(session.models()) as models:
        names = list(dict.fromkeys(batch.spec.model for batch in batches))
        model_checks = [check for name in names for check in run_in_thread(partial(check_models, name, models))]
        workers = check_workers(spec, session.profile)
        rows = list(map(_to_row, [check_state_dir(session.data_dir), *workers, *model_checks]))
        if all(check.state != "fail" for check in model_checks):  # without a model no step can run
            rows += [_check_batch(batch, models) for batch in batches]
    ok = all(row.ok for row in rows)
    code = 0 if ok else 1
    if session.options.json:
        return write_result(code, lambda: print_json({"ok": ok, "checks": rows}))
    return write_result(code, lambda: _print(rows))


def _print(rows: list[DryRunRow]) -> None:
    for row in rows:
        print_text(f"{STATE_LABELS[row.state]:<4} {row.what}: {row.detail}")


def _to_row(check: PreflightCheck) -> DryRunRow:
    details = [check.detail, *([f"{check.cause}; {check.hint}"] if check.cause else [])]
    name = f"{check.what} {check.name}".strip()
    return DryRunRow(name, check.state != "fail", ": ".join(filter(None, details)), check.state)


def _check_batch(batch: ResolvedBatch, models: Models) -> DryRunRow:
    """Reset the first task of a batch and cancel the episode before its first step, so no model gets a request."""
    spec = batch.spec
    what = f"{spec.env} with {spec.agent}"
    try:
        placed = place_batch(batch, RUN_FILES)
    except ConfigError as exc:
        return DryRunRow.of(what, False, str(exc))
    setup = msgspec.structs.replace(placed.setup, tracing="off")
    first = spec.plan()[0]
    manager = None if setup.models is None else models.manager
    context = EpisodeContext(
        EpisodeHeader(
            episode_id=new_ulid(),
            batch_id=new_ulid(),
            env=spec.env,
            task_index=first.task_index,
            started_at=Clock().now(),
        )
    )
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
        return DryRunRow.of(what, False, f"the reset of task {first.task_index} did not end {limit}")
    if (error := played[0].error_info) is not None:
        return DryRunRow.of(what, False, f"{error.type}: {error.message}")
    return DryRunRow.of(what, True, f"{_plan_text(spec, played[0])}; {placed.placement.note}")


def _plan_text(spec: BatchSpec, trajectory: Trajectory) -> str:
    limits = f"at most {spec.limits.max_rounds} rounds and {spec.limits.max_duration_s:g} s each"
    reset = f"task {spec.task_index} was reset in {trajectory.duration_s:.2f} s"
    unprompted = "" if spec.model is None else "; no model was prompted"
    return f"{pluralize(spec.n_planned, 'episode')}, {limits}; {reset}{unprompted}"
