"""Start requests: the models and the adaptive repeats in them, and whether a repeated one is the same."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from runner.batch.adaptive import first_part
from runner.batch.spec import DEFAULT_AGENT, BatchSpec
from runner.events.control import StartArgs
from runner.node.control_requests import RequestRejected

MAX_BATCHES = 200
"""Maximum number of batches that one request starts."""
CHANGEABLE = ("concurrency", "workers", "budget")
"""Arguments that may differ when an interrupted batch is resumed."""


def split_models(args: StartArgs) -> list[StartArgs]:
    """Raises ``RequestRejected`` if the request is invalid."""
    if not args.envs:
        raise RequestRejected("bad_request", "envs is empty", "name at least one environment of the profile")
    if args.models and (args.model is not None or len(set(args.models)) < len(args.models)):
        raise RequestRejected("bad_request", "models names a model twice, or model is given, too", "name each once")
    if (n_batches := len(args.envs) * max(len(args.models), 1)) > MAX_BATCHES:
        raise RequestRejected(
            "bad_request",
            f"the request is for {n_batches} batches; one request starts at most {MAX_BATCHES}",
            "send several",
        )
    can_adapt = args.attempts == 1 and args.repeat > 1 and not args.tasks
    if args.until_width is not None and not (can_adapt and 0 < args.until_width <= 1):
        raise RequestRejected(
            "bad_request",
            "until_width is a width above 0 and at most 1, and needs one attempt and at least 2 consecutive tasks",
            "set repeat to the maximum number of tasks, and attempts to 1",
        )
    if not args.models:
        return [args]
    return [msgspec.structs.replace(args, model=model, models=[]) for model in args.models]


def with_parts(args: StartArgs, spec: BatchSpec) -> BatchSpec:
    """Either all of the batch, or the first part of adaptive repeats."""
    return spec if args.until_width is None else first_part(spec, args.until_width)


def with_changes(spec: BatchSpec, args: StartArgs) -> BatchSpec:
    changes = {name: value for name in CHANGEABLE if (value := getattr(args, name)) is not None}
    return msgspec.structs.replace(spec, **changes)


def check_same(args: StartArgs, specs: Sequence[BatchSpec], *, resumes: bool = False) -> None:
    """Reject a start request that differs from the known batch with its id; values it omits do not differ.

    If it ``resumes`` an interrupted batch, the arguments in ``CHANGEABLE`` may differ.
    """
    first = min(specs, key=lambda spec: spec.task_index)  # the first part of adaptive repeats has the whole budget
    models = {spec.model for spec in specs}
    if args.tasks:
        given = {env.lower(): tuple(tasks) for env, tasks in args.tasks.items()}
        if any(spec.tasks != given.get(spec.env.lower()) for spec in specs):
            raise _differs(args, ["tasks"])
        args = msgspec.structs.replace(args, repeat=first.repeat, task_index=first.task_index)
    existing = msgspec.structs.asdict(first) | {
        "envs": {spec.env.lower() for spec in specs},
        "agent": first.agent.lower(),
        "models": models,
        "max_rounds": first.limits.max_rounds,
        "max_duration_sec": first.limits.max_duration_s,
        "until_width": None if first.adaptive is None else first.adaptive.width,
        "repeat": first.repeat if first.adaptive is None else first.adaptive.repeat,
    }
    requested = msgspec.structs.asdict(args) | {
        "envs": {env.lower() for env in args.envs},
        "agent": (args.agent or DEFAULT_AGENT).lower(),
        "models": {*args.models} or None,
    }
    ignored = CHANGEABLE if resumes else ()
    ignored = (*ignored, "tasks")
    compared = {name: value for name, value in requested.items() if name in existing and name not in ignored}
    if different := [name for name, value in compared.items() if value not in (None, existing[name])]:
        raise _differs(args, different)


def _differs(args: StartArgs, names: Sequence[str]) -> RequestRejected:
    text = f"batch {args.batch_id} already exists and differs in {', '.join(names)}"
    return RequestRejected("refused", text, "use a new batch_id for a different request")
