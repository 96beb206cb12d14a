"""The schedule of a history: what the driver requests and which faults it injects, as a pure function of the seed."""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from ulid import ULID

from tests.history.records import FaultKind

ActionKind: TypeAlias = Literal["start", "repeat", "cancel", "pause", "resume", "resume_interrupted"]

SERVERS: Final = {"server_a": "Maze", "server_b": "TextCraft"}
"""Environment of each environment server."""
EMBEDDED: Final = "BabyAI"
"""Environment that is played in the node itself."""
MAX_CONCURRENCY: Final = 4
_FIRST_ID_MS: Final = 1_780_000_000_000
"""Time in the ids of all batches, so that they do not depend on when a schedule is made."""
MAX_STOP_S: Final = 20.0
CALM_EVERY_S: Final = 75.0
"""Seconds of faults between two calm spans."""
CALM_S: Final = 25.0
"""Seconds without faults, in which everything has to recover."""
_INDEX: Final = "index.sqlite index.sqlite-wal index.sqlite-shm"
LIVE: Final = "live"
DEAD: Final = "dead"
TERMINATED: Final = "term"
DELETIONS: Final = (
    f"{LIVE}: node.json",
    f"{LIVE}: nats/credential.json",
    f"{LIVE}: {_INDEX}",
    f"{DEAD}: {_INDEX}",
    f"{DEAD}: {_INDEX} text.sqlite text.sqlite-wal text.sqlite-shm",
    f"{DEAD}: index.sqlite-wal",
    f"{DEAD}: node.json nats/credential.json",
)
"""Files that are deleted while the node runs or is dead; the episode files restore them."""


@dataclass(frozen=True)
class Request:
    """A control request of the driver, sent ``at_s`` seconds after the beginning."""

    at_s: float
    kind: ActionKind
    args: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class PlannedFault:
    """A fault that begins ``at_s`` seconds after the beginning and lasts ``for_s`` seconds."""

    at_s: float
    kind: FaultKind
    target: str
    for_s: float
    detail: str = ""


@dataclass(frozen=True)
class Schedule:
    """Requests and faults of one history, each by time."""

    seed: int
    duration_s: float
    requests: tuple[Request, ...]
    faults: tuple[PlannedFault, ...]


def make_schedule(seed: int, duration_s: float) -> Schedule:
    """Return the schedule of a seed: the same seed and duration give the same schedule."""
    requests = tuple(sorted(_requests(random.Random(f"{seed} requests"), duration_s), key=lambda each: each.at_s))
    return Schedule(seed, duration_s, requests, tuple(_faults(random.Random(f"{seed} faults"), duration_s)))


def stays_interrupted(batch_id: str) -> bool:
    """Return whether the driver never resumes this batch, so that it is listed as interrupted at the end."""
    return hashlib.sha256(batch_id.encode()).digest()[0] < 20


def _requests(rng: random.Random, duration_s: float) -> list[Request]:
    requests: list[Request] = []
    at_s = 0.5
    while at_s < duration_s * 0.95:
        start = _start(rng, at_s)
        requests.append(start)
        requests += _follow_ups(rng, start)
        if rng.random() < 0.3:
            requests.append(Request(at_s + rng.uniform(0, 8), "resume_interrupted"))
        at_s += rng.uniform(0.5, 6.5)
    return requests


def _start(rng: random.Random, at_s: float) -> Request:
    envs = rng.sample([*SERVERS.values(), EMBEDDED], k=rng.choices((1, 2, 3), (7, 2, 1))[0])
    repeat = rng.choices((1, 2, 4, 8, 12), (3, 3, 3, 2, 1))[0]
    args = {
        "batch_id": str(ULID.from_bytes(_FIRST_ID_MS.to_bytes(6) + rng.randbytes(10))),
        "envs": envs,
        "agent": rng.choice(("oracle", "random")),
        "repeat": repeat,
        "attempts": rng.choices((1, 2), (4, 1))[0],
        "task_index": rng.randrange(20),
        "seed": rng.randrange(1000),
        "concurrency": rng.randint(3 if repeat > 4 else 1, MAX_CONCURRENCY),
        "max_rounds": rng.choice((3, 8, 15)),
        "max_duration_sec": rng.choice((1.0, 30.0, 30.0)),
    }
    return Request(at_s, "start", args)


def _follow_ups(rng: random.Random, start: Request) -> list[Request]:
    """Return the further requests about a batch."""
    target = {"batch_id": start.args["batch_id"]}
    chosen = rng.random()
    if chosen < 0.2:
        return [Request(start.at_s + rng.uniform(0.1, 20), "repeat", start.args)]
    if chosen < 0.35:
        return [Request(start.at_s + rng.uniform(0.1, 6), "cancel", target)]
    if chosen < 0.5:
        paused_at_s = start.at_s + rng.uniform(0.2, 4)
        return [Request(paused_at_s, "pause", target), Request(paused_at_s + rng.uniform(0.5, 4), "resume", target)]
    return []


def _faults(rng: random.Random, duration_s: float) -> list[PlannedFault]:
    """Return faults of all kinds, which overlap unless they have the same target, and calm spans in between."""
    max_stop_s = min(MAX_STOP_S, duration_s / 8)
    faults: list[PlannedFault] = []
    busy_until: dict[str, float] = {}
    bag: list[tuple[FaultKind, str]] = []
    at_s, calm_at_s = 2.0, CALM_EVERY_S
    while at_s < duration_s - max_stop_s:
        if at_s > calm_at_s:
            at_s = max([at_s, *busy_until.values()]) + CALM_S
            calm_at_s = at_s + CALM_EVERY_S
            continue
        if not bag:
            bag = rng.sample(_ALL_FAULTS, k=len(_ALL_FAULTS))
        kind, target = bag.pop()
        fault = _fault(rng, kind, target, at_s, max_stop_s)
        if busy_until.get(target, 0.0) < at_s:
            faults.append(fault)
            busy_until[target] = at_s + fault.for_s + 1.0
        at_s += rng.uniform(0.2, 4.0)
    return faults


_PROCESSES: Final = ("node", "own_broker", "foreign_broker", "console", *SERVERS)
_ALL_FAULTS: Final[list[tuple[FaultKind, str]]] = [
    *(("kill", target) for target in (*_PROCESSES, "node", "own_broker", "worker", "worker", "fork_server")),
    *(("stop", target) for target in (*_PROCESSES, "worker")),
    *(("partition", target) for target in ("foreign_broker", *SERVERS)),
    ("disk_full", "disk"),
    *(("clock", "clock") for _ in range(2)),
    *(("delete", "node") for _ in range(3)),
]


def _fault(rng: random.Random, kind: FaultKind, target: str, at_s: float, max_stop_s: float) -> PlannedFault:
    for_s, detail = rng.uniform(0.3, max_stop_s), ""
    if kind == "kill":
        for_s = rng.choice((0.0, rng.uniform(0.1, 2.0)))
        detail = TERMINATED if target == "node" and rng.random() < 0.25 else ""
    elif kind == "clock":
        for_s, detail = 0.0, str(rng.choice((-86_400, -3_600, -5, 0, 5, 3_600, 86_400, 400 * 86_400)))
    elif kind == "delete":
        for_s, detail = rng.uniform(0.1, 1.0), rng.choice(DELETIONS)
    return PlannedFault(at_s, kind, target, for_s, detail)
