"""The checker finds each mutation of the product in a recorded history of a real node, and none in the product.

One history has several mutations at once; ``AGENTGYM_FAULTS=full`` records one history for each.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import pytest
from ulid import ULID

from tests.history import soak
from tests.history.checker import CHECKS, check
from tests.history.mutations import MUTATIONS
from tests.history.records import read_history
from tests.history.schedule import PlannedFault, Request, Schedule
from tests.history.soak import record_history
from tests.history.violation import Violation

pytestmark = [pytest.mark.long, pytest.mark.timeout(150)]
full = pytest.mark.skipif(os.environ.get("AGENTGYM_FAULTS") != "full", reason="run `make faults` for each mutation")

KILL: Final = PlannedFault(1.0, "kill", "node", 0.0)
FAULTS: Final[dict[str, tuple[PlannedFault, ...]]] = {
    "dropped_journal_line": (KILL,),
    "resume_plays_all_again": (KILL,),
    "lost_acknowledgement": (
        PlannedFault(0.5, "stop", "foreign_broker", 5.0),
        PlannedFault(5.0, "kill", "foreign_broker", 0.0),
    ),
    "deaf_node": (KILL,),
    "": (KILL,),
}
"""What a mutation needs beside batches to show."""
N_TASKS: Final = {
    "resume_plays_all_again": 40,
    "lost_acknowledgement": 20,
    "forgotten_cancellation": 20,
}
TOGETHER: Final = ("completed_too_early", "rounded_reward", "lost_event", "altered_event", "hidden_gap", "leaked_files")
"""Mutations that do not hide each other, one of each promise that needs neither a fault nor a long time."""
PAUSED: Final = {"early_end": (4.0, 7.0)}
"""Seconds from which and until which the batches are paused, so that a console shows episodes that do not go on."""


def schedule_for(name: str) -> Schedule:
    # mutations change the process of the node, so it plays the episodes
    args = {"agent": "oracle", "attempts": 1, "concurrency": 2, "max_rounds": 15, "workers": 0}
    ids = [str(ULID()), str(ULID())]
    pause_s, resume_s = PAUSED.get(name, (0.2, 0.0))
    start_s = pause_s - 0.2
    requests = [
        Request(start_s, "start", {"batch_id": ids[0], "envs": ["Maze"], "repeat": N_TASKS.get(name, 6), **args}),
        Request(start_s + 0.05, "start", {"batch_id": ids[1], "envs": ["TextCraft"], "repeat": 3, **args}),
    ]
    if name == "forgotten_cancellation":
        requests.append(Request(start_s + 0.8, "cancel", {"batch_id": ids[0]}))
    if resume_s:
        requests += [Request(pause_s, "pause", {"batch_id": ids[0]}), Request(resume_s, "resume", {"batch_id": ids[0]})]
    return Schedule(1, 6.0, tuple(requests), FAULTS.get(name, ()))


async def record(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Record a short history of a node with this mutation; "": of the product as it is."""
    monkeypatch.setattr(soak, "DELIVERY_TIMEOUT_S", 5.0)
    monkeypatch.setattr(soak, "SETTLE_TIMEOUT_S", 45.0)
    await record_history(folder, schedule_for(name), mutation=name or None)


def violations(folder: Path) -> list[Violation]:
    return check(read_history(sorted(folder.glob("*.jsonl"))))


def broken_promises(folder: Path) -> set[str]:
    return {violation.promise for violation in violations(folder)}


async def test_the_checker_finds_mutations_that_come_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await record(tmp_path, ",".join(TOGETHER), monkeypatch)
    assert {MUTATIONS[name][0] for name in TOGETHER} <= broken_promises(tmp_path)


@full
async def test_the_product_breaks_no_promise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await record(tmp_path, "", monkeypatch)
    assert [str(violation) for violation in violations(tmp_path)] == []


@full
@pytest.mark.parametrize("name", MUTATIONS)
async def test_the_checker_finds_a_mutation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    await record(tmp_path, name, monkeypatch)
    assert MUTATIONS[name][0] in broken_promises(tmp_path)


def test_every_promise_has_a_mutation() -> None:
    assert {promise for promise, _ in MUTATIONS.values()} == CHECKS.keys()
