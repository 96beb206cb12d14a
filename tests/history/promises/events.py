"""Stored means told on every sink, once per id; told means stored; shown means told."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

from tests.history.history import MAX_LISTED, RATED, History, is_finished, listed
from tests.history.records import Message, Process, Shown
from tests.history.violation import Violation

EPISODE, BATCH = "agentgym.episode.completed.v1", "agentgym.eval.batch.completed.v1"
SAME_FIELDS: Final = (
    "episode_id",
    "env",
    "reward",
    "rounds",
    "duration_s",
    "success",
    "outcome",
    "agent",
    "model",
    "task_index",
    "tokens",
    "batch_id",
    "node",
    "profile",
)
STATUS_ID: Final = re.compile(r"status:[^:]+:[0-9]+")
VIEWER: Final = "viewer"
"""Name of a console that runs from the beginning to the end of the history."""
FULL_DISK_S = 60.0
"""Maximum seconds after a full disk in which a console may show the end of an episode that has no file."""
DUPLICATE_WINDOW_S = 590.0
"""Seconds for which a stream drops a repeated event, less the time until the message is read."""
SHOWN_PRECISION = 0.006
"""Largest difference between a shown number and the one of the event: consoles show two decimals."""


def check_stored(history: History) -> Iterator[Violation]:
    """Every episode on the disk and every ended batch has its event on every sink; no id is there twice."""
    due = {f"episode:{episode_id}": history.file_of[episode_id].versions[-1] for episode_id in history.documents}
    assert history.last_list is not None
    for state in listed(history.last_list):
        if state["status"] in ("completed", "cancelled"):
            due[f"batch:{state['batch_id']}"] = history.last_list  # type: ignore[assignment]
    for sink, messages in history.messages.items():
        for id_, record in due.items():
            if id_ not in messages:
                yield Violation("stored", f"{id_} was never delivered to the {sink} broker", (record,))
        for id_, copies in messages.items():
            if len(copies) > 1 and not _was_forgotten(history, copies):
                yield Violation("stored", f"{id_} is {len(copies)} times in the {sink} stream", tuple(copies))


def check_status_events(history: History) -> Iterator[Violation]:
    """The numbered status events of a process have no gap, and a sink lacks none that another one has.

    They are kept in the index alone, without waiting for the disk, so a full disk or a deleted index may lose some.
    """
    started = {process.pid: process.at for process in history.all(Process) if process.exit_status is None}
    copies = {
        id_: found for sink in history.messages.values() for id_, found in sink.items() if STATUS_ID.fullmatch(id_)
    }
    sent_by = {id_: started.get(found[0].payload.get("pid", 0), history.begin.at) for id_, found in copies.items()}
    order = sorted(copies, key=lambda id_: (sent_by[id_], int(id_.rpartition(":")[2])))
    for sink, messages in history.messages.items():
        for index, id_ in enumerate(order):
            _, boot, number = id_.split(":")
            due = {id_, f"status:{boot}:{max(0, int(number) - 1)}"}
            later = [messages[other][0].at for other in order[index:] if other in messages]
            if (missing := due - messages.keys()) and not _may_be_lost(history, sent_by[id_], later):
                text = f"{min(missing)} was never delivered to the {sink} broker, and {id_} was delivered"
                yield Violation("stored", text, tuple(messages.get(id_, [])))


def _may_be_lost(history: History, since: float, delivered_at: list[float]) -> bool:
    """Whether the disk was full or the index deleted from the start of a process until a later event was delivered."""
    faults = history.faults_between(since, min(delivered_at, default=history.end.at))
    return any(fault.target == "disk" or "index" in fault.detail for fault in faults)


def _was_forgotten(history: History, copies: list[Message]) -> bool:
    """Whether the index was deleted more than the duplicate window after an event was sent."""
    first, last = min(copy.at for copy in copies), max(copy.at for copy in copies)
    deleted = history.faults_between(first, last, kind="delete")
    return last - first > DUPLICATE_WINDOW_S and any("index" in fault.detail for fault in deleted)


def check_told(history: History) -> Iterator[Violation]:
    """Every delivered event has a stored episode or an ended batch behind it, with equal fields."""
    assert history.last_list is not None
    statuses = {state["batch_id"]: state["status"] for state in listed(history.last_list)}
    for messages in history.messages.values():
        for message in (copies[0] for copies in messages.values()):
            yield from _check_headers(history, message)
            match message.headers.get("ce-type"):
                case "agentgym.episode.completed.v1":
                    yield from _check_episode(history, message)
                case "agentgym.eval.batch.completed.v1":
                    yield from _check_batch(history, message, statuses)


def _check_headers(history: History, message: Message) -> Iterator[Violation]:
    headers, payload = message.headers, message.payload
    ids = {EPISODE: f"episode:{payload.get('episode_id')}", BATCH: f"batch:{payload.get('batch_id')}"}
    expected = ids.get(headers.get("ce-type", ""), headers.get("ce-id"))
    if not headers.get("ce-id") == headers.get("Nats-Msg-Id") == expected:
        given = f"ce-id {headers.get('ce-id')!r} and Nats-Msg-Id {headers.get('Nats-Msg-Id')!r}"
        yield Violation(
            "told", f"message {message.seq} on {message.sink} has {given} instead of {expected}", (message,)
        )
    if message.subject != headers.get("ce-type"):
        text = f"message {message.seq} on {message.sink} is a {headers.get('ce-type')} on {message.subject}"
        yield Violation("told", text, (message,))
    if headers.get("ce-source") != history.begin.node:
        yield Violation("told", f"message {message.seq} on {message.sink} is not from {history.begin.node}", (message,))


def _check_episode(history: History, message: Message) -> Iterator[Violation]:
    payload = message.payload
    episode_id = payload.get("episode_id", "")
    if (document := history.documents.get(episode_id)) is None:
        yield Violation("told", f"episode {episode_id} was announced and is not on the disk", (message,))
        return
    expected = {name: document[name] for name in SAME_FIELDS}
    expected |= {"score": document["reward"], "duration_sec": document["duration_s"]}
    if different := _differing(expected, payload):
        text = f"the event of episode {episode_id} differs from the file in {', '.join(different)}"
        yield Violation("told", text, (message, history.file_of[episode_id].versions[-1]))


def _check_batch(history: History, message: Message, statuses: dict[str, str]) -> Iterator[Violation]:
    payload = message.payload
    batch_id = payload.get("batch_id", "")
    if batch_id not in statuses and len(statuses) >= MAX_LISTED:
        return
    status, announced = statuses.get(batch_id, "unknown"), payload["status"]
    assert history.last_list is not None
    # A batch that was interrupted first and cancelled then has the status ``interrupted``: it has unfinished episodes.
    if status != ("completed" if announced == "completed" else "cancelled"):
        text = f"batch {batch_id} was announced as {announced} and is listed as {status}"
        yield Violation("told", text, (message, history.last_list))
        return
    different = _differing(_batch_numbers(history, batch_id, announced), payload)
    if different:
        files = tuple(history.file_of[document["episode_id"]].versions[-1] for document in history.by_batch[batch_id])
        text = f"the event of batch {batch_id} differs from its files in {', '.join(different)}"
        yield Violation("told", text, (message, *files[:5]))


def _batch_numbers(history: History, batch_id: str, announced: str) -> dict[str, Any]:
    documents = history.by_batch[batch_id]
    rated = [document for document in documents if document["outcome"] in RATED]
    n = len(rated)
    numbers: dict[str, Any] = {
        "n_rated": n,
        "mean_reward": sum(document["reward"] for document in rated) / n if n else None,
        "success_rate": sum(document["success"] for document in rated) / n if n else None,
    }
    if announced == "completed":
        cancelled = {d["episode_id"] for d in documents if d["outcome"] == "cancelled"} & history.cancelled_episodes
        numbers["n_episodes"] = sum(map(is_finished, documents)) + len(cancelled)
        numbers["n_errors"] = sum(document["outcome"] == "error" and is_finished(document) for document in documents)
    return numbers


def check_shown(history: History) -> Iterator[Violation]:
    """What a console showed as ended was announced with the same values, and its counts are those of the batch."""
    events = {id_: copies[0] for messages in history.messages.values() for id_, copies in messages.items()}
    for shown in history.all(Shown):
        yield from (_check_shown_episode if shown.what == "episode" else _check_shown_batch)(history, shown, events)


def check_viewer(history: History) -> Iterator[Violation]:
    """A viewer that subscribed at the beginning and was never ended shows every event of the own broker once."""
    starts = [process for process in history.all(Process) if process.name == VIEWER and process.exit_status is None]
    if len(starts) != 1:
        return
    shown = Counter(f"{shown.what}:{shown.id}" for shown in history.all(Shown) if shown.console == VIEWER)
    for id_, copies in history.messages["own"].items():
        if not id_.startswith("status:") and shown[id_] != 1:
            yield Violation("shown", f"{VIEWER} showed {id_} {shown[id_]} times instead of once", (copies[0],))


def _check_shown_episode(history: History, shown: Shown, events: dict[str, Message]) -> Iterator[Violation]:
    if (found := _find(events, "episode:", shown.id)) is None:
        unrecorded = history.faults_between(shown.at - FULL_DISK_S, shown.at, kind="disk_full")
        if unrecorded and shown.fields.get("outcome") == "interrupted":
            return  # its journal had no room, and its node died
        yield Violation("shown", f"{shown.console} showed the end of episode {shown.id}, which no event has", (shown,))
    elif different := _differing(shown.fields, found.payload, precision=SHOWN_PRECISION):
        text = f"{shown.console} showed episode {shown.id} with other values of {', '.join(different)} than its event"
        yield Violation("shown", text, (shown, found))


def _check_shown_batch(history: History, shown: Shown, events: dict[str, Message]) -> Iterator[Violation]:
    fields = shown.fields
    if (status := fields.get("status")) in ("completed", "cancelled"):
        found = _find(events, "batch:", shown.id)
        announced = {n: v for n, v in fields.items() if n in ("status", "n_episodes", "success_rate", "mean_reward")}
        if found is None:
            yield Violation("shown", f"{shown.console} showed batch {shown.id} as {status}; no event has it", (shown,))
        elif different := _differing(announced, found.payload, precision=SHOWN_PRECISION):
            text = f"{shown.console} showed batch {shown.id} with other values of {', '.join(different)} than its event"
            yield Violation("shown", text, (shown, found))
    batch = next((batch for id_, batch in history.batches.items() if id_.endswith(shown.id)), None)
    if batch is None:
        return
    if fields.get("n_planned", batch.n_planned) != batch.n_planned or fields.get("n_done", 0) > batch.n_planned:
        text = (
            f"{shown.console} showed {fields.get('n_done')} of {fields.get('n_planned')} episodes of batch {shown.id}"
        )
        yield Violation("shown", f"{text}, which has {batch.n_planned}", (shown, batch.accepted))


def _find(events: dict[str, Message], prefix: str, shown_id: str) -> Message | None:
    """Return the event with this id, or one whose id ends with it, because a console may show only the end."""
    exact = events.get(prefix + shown_id)
    return exact or next((m for id_, m in events.items() if id_.startswith(prefix) and id_.endswith(shown_id)), None)


def _differing(expected: dict[str, Any], given: dict[str, Any], *, precision: float = 1e-9) -> list[str]:
    """Return ``name value (expected)`` for each expected field with another value."""
    return [
        f"{name} {given.get(name)!r} ({value!r})"
        for name, value in expected.items()
        if not _equal(value, given.get(name), precision)
    ]


def _equal(a: object, b: object, precision: float) -> bool:
    numbers = [value for value in (a, b) if isinstance(value, int | float) and not isinstance(value, bool)]
    if len(numbers) == 2:
        return math.isclose(numbers[0], numbers[1], rel_tol=1e-9, abs_tol=precision)
    return a == b
