"""Arguments of the control operation ``start``."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

from runner.types import Budget, Workers

_Choice: TypeAlias = Annotated[str | None, Meta(description="null: use the profile's value")]


class StartArgs(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Start one batch per environment and model; repeating a request with the same ``batch_id`` has no effect.

    With one batch, ``batch_id`` is its id. With several, or with ``until_width``, it is the ``battery_id``, and the id
    of each batch is derived from it.
    """

    batch_id: Annotated[str, Meta(description="a new ULID, chosen by the client")]
    envs: Annotated[list[str], Meta(description="environments of the node's profile")]
    agent: _Choice = None
    model: _Choice = None
    models: Annotated[
        list[str],
        Meta(
            description="several models in place of `model`: each plays the same tasks, and all batches of one model "
            "come before those of the next one",
            max_length=200,
        ),
    ] = msgspec.field(default_factory=list)
    repeat: Annotated[int, Meta(description="number of tasks; at most 1000000 episodes in one batch")] = 1
    attempts: Annotated[int, Meta(description="number of episodes per task")] = 1
    task_index: Annotated[int, Meta(description="the first task, from 0 to 2^62 - 1")] = 0
    tasks: Annotated[
        dict[str, list[int]],
        Meta(description="the tasks by environment, in their order, in place of `repeat` and `task_index`; {}: those"),
    ] = msgspec.field(default_factory=dict)
    seed: Annotated[int, Meta(description="seed of the agent's random numbers, below 2^62 in size")] = 0
    concurrency: Annotated[int | None, Meta(description="from 1 to 256; null: use the profile's value")] = None
    workers: Annotated[
        Workers | None,
        Meta(
            description="from 0 to 256 processes that play the episodes on the node's machine (0: the node's own), or "
            "`ray`; null: use the profile's value"
        ),
    ] = None
    max_rounds: Annotated[
        int | None,
        Meta(description="from 1 to the profile's value, or with `allow_longer` to 1000000; null: that value"),
    ] = None
    max_duration_sec: Annotated[
        float | None,
        Meta(
            description="above 0 and at most the profile's value, or with `allow_longer` 1000000000; null: that value"
        ),
    ] = None
    allow_longer: Annotated[
        bool, Meta(description="whether `max_rounds` and `max_duration_sec` may exceed the profile's hard limits")
    ] = False
    budget: Annotated[
        Budget | None,
        Meta(
            description="interrupts a batch after as much `cost`, as many `tokens`, or as many `errors_in_a_row` (each "
            "optional), since its start or resume; each batch of a battery has its own; null: no limit"
        ),
    ] = None
    until_width: Annotated[
        float | None,
        Meta(
            description="adaptive repeats: play batches of 32, 32, 64, 128, … tasks, at most `repeat` tasks with one "
            "attempt, until the 95% interval of the success rate is at most as wide, above 0 and at most 1; null: all"
        ),
    ] = None
    resume: Annotated[
        bool,
        Meta(
            description="run the unfinished episodes of an interrupted batch, and those with the error `resources`; "
            "`concurrency`, `workers` and `budget` may then differ from those of the batch"
        ),
    ] = False
