"""``--dry-run``: look at what a run needs, then play the first round of what would be played, storing nothing."""

from __future__ import annotations

import asyncio
from contextlib import closing
from typing import Literal, Self, TypeAlias

import msgspec

from runner.batch.spec import BatchSpec
from runner.cli.preflight import MARKS
from runner.cli.session import Session
from runner.cli.terminal import console, delivered, keep_output, print_json, safe
from runner.episode.runner import Runner
from runner.errors import ConfigError
from runner.inference.models import Models, run_in_thread
from runner.node.preflight import PreflightCheck, check_models, check_state_dir
from runner.types import Trajectory

State: TypeAlias = Literal["ok", "warn", "fail"]


class Check(msgspec.Struct, frozen=True):
    """One thing a run needs, and whether it is there; with the state ``warn`` it is not, and can be done without."""

    what: str
    ok: bool
    detail: str
    state: State

    @classmethod
    def of(cls, what: str, ok: bool, detail: str) -> Self:
        """What is either there or not."""
        return cls(what, ok, detail, "ok" if ok else "fail")


def preview(session: Session) -> int:
    """Print what would be played and whether it would work; returns 0 or 1."""
    keep_output()
    specs = session.specs()
    with closing(session.models()) as models:
        rows = [check_state_dir(session.data_dir), *run_in_thread(lambda: check_models(specs[0].model, models))]
        checks = list(map(_check, rows))
        if all(row.state != "fail" for row in rows[1:]):  # without a model no round can be played
            checks += [_check_batch(session, spec, models) for spec in specs]
    ok = all(check.ok for check in checks)
    code = 0 if ok else 1
    if session.options.json:
        return delivered(code, lambda: print_json({"ok": ok, "checks": checks}))
    return delivered(code, lambda: _print(checks))


def _print(checks: list[Check]) -> None:
    for check in checks:
        console().print(safe(f"{MARKS[check.state]:<4} {check.what}: {check.detail}"), soft_wrap=True)


def _check(row: PreflightCheck) -> Check:
    told = [row.detail, *([f"{row.cause}; {row.hint}"] if row.cause else [])]
    return Check(f"{row.what} {row.name}".strip(), row.state != "fail", ": ".join(filter(None, told)), row.state)


def _check_batch(session: Session, spec: BatchSpec, models: Models) -> Check:
    """Play the first round of the first task, storing nothing."""
    what = f"{spec.env} with {spec.agent}"
    try:
        placement = session.choose(spec)
    except ConfigError as exc:
        return Check.of(what, False, str(exc))
    runner = spec.build_runner(placement, models)
    first = spec.plan()[0]
    one_round = Runner(
        env_cfg=runner.env_cfg,
        agent_cfg=runner.agent_cfg,
        inference_mngr=runner.inference_mngr,
        tracing_level="off",
        limits=msgspec.structs.replace(spec.limits, max_rounds=1),
    )
    played = asyncio.run(one_round.play_episode({"task_index": first.task_index, "seed": first.seed}))
    if played.error_info is not None:
        return Check.of(what, False, f"{played.error_info.type}: {played.error_info.message}")
    return Check.of(what, True, f"{_promise(spec, played)}; {placement.note}")


def _promise(spec: BatchSpec, played: Trajectory) -> str:
    limits = f"at most {spec.limits.max_rounds} rounds and {spec.limits.max_duration_s:g} s each"
    return f"{spec.n_planned} episodes, {limits}; the first round took {played.duration_s:.2f} s"
