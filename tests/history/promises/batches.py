"""Accepted means played or listed; resumed means no task twice."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from tests.history.history import MAX_LISTED, Batch, History, StoredEpisode, is_finished, is_ok, listed
from tests.history.records import Call
from tests.history.violation import Violation

DISK_GRACE_S = 10.0
"""Seconds after a full disk in which a start may still be refused."""
SCAN_GRACE_S = 3.0
"""Seconds after which the observer has seen a new file."""
STOP_GRACE_S = 1.0
"""Seconds between the record of a fault of the node and its effect on an answer."""
CANCEL_S = 5.0
"""Seconds after the answer to a cancellation in which an episode may still begin."""


def check_accepted(history: History) -> Iterator[Violation]:
    """Every batch answered with ``ok`` is played, was cancelled on request, or is listed with the right numbers."""
    yield from _check_lists(history)
    yield from _check_refusals(history)
    assert history.last_list is not None
    states = {state["batch_id"]: state for state in listed(history.last_list)}
    for batch in history.batches.values():
        if (state := states.get(batch.batch_id)) is not None:
            yield from _check_final_state(history, batch, state)
            yield from _check_cancellation(history, batch, state["status"])


def _check_refusals(history: History) -> Iterator[Violation]:
    """Every start that was answered was accepted, unless the queue could not be written or the node was stopping."""
    for call in history.calls:
        if call.op != "start" or call.args.get("resume") or call.reply is None or is_ok(call):
            continue
        is_stopping = call.reply["error"]["code"] == "stopping"
        target, grace_s = ("node", STOP_GRACE_S) if is_stopping else ("disk", DISK_GRACE_S)
        if not history.faults_between(call.at - grace_s, call.ended_at + STOP_GRACE_S, target):
            text = f"the start of batch {call.args['batch_id']} was refused although its queue could be written"
            yield Violation("accepted", text, (call,))


def _check_progress(history: History, call: Call, seen: dict[str, list[float]]) -> Iterator[Violation]:
    """An answer to ``list`` has each batch once, and counts no episode that is not stored."""
    ids = [state["batch_id"] for state in listed(call)]
    if len(set(ids)) < len(ids):
        yield Violation("accepted", "an answer to list has a batch twice", (call,))
    for state in listed(call):
        n_stored = sum(at <= call.ended_at + SCAN_GRACE_S for at in seen[state["batch_id"]])
        if state["status"] in ("running", "paused") and state["n_done"] > n_stored:
            text = f"batch {state['batch_id']} is listed with {state['n_done']} episodes when {n_stored} were stored"
            yield Violation("accepted", text, (call,))
            return


def _check_lists(history: History) -> Iterator[Violation]:
    """No answer to ``list`` lacks a batch that was accepted before it, and an ended batch stays ended."""
    batches = list(history.batches.values())
    ended: dict[str, tuple[str, Call]] = {}
    lost: set[str] = set()
    seen: dict[str, list[float]] = defaultdict(list)
    for episode_id, document in history.documents.items():
        seen[document["batch_id"]].append(history.file_of[episode_id].seen_at)
    for call in history.lists:
        yield from _check_progress(history, call, seen)
        states = {state["batch_id"]: state for state in listed(call)}
        known = [batch for batch in batches if batch.accepted.ended_at <= call.at]
        for batch in known if len(states) < MAX_LISTED else []:
            if batch.batch_id not in states and batch.batch_id not in lost:
                lost.add(batch.batch_id)
                text = f"batch {batch.batch_id} was accepted, and a later answer to list does not have it"
                yield Violation("accepted", text, (batch.accepted, call))
        for batch_id, state in states.items():
            if state["status"] == "interrupted":
                yield from _check_cancelled(history, batch_id, call)
            before, evidence = ended.get(batch_id, (state["status"], call))
            if before != state["status"] and evidence.ended_at <= call.at:
                text = f"batch {batch_id} was {before} and is {state['status']} later"
                yield Violation("accepted", text, (evidence, call))
                del ended[batch_id]
            elif state["status"] in ("completed", "cancelled"):
                ended.setdefault(batch_id, (before, call))


def _check_cancelled(history: History, batch_id: str, call: Call) -> Iterator[Violation]:
    """A batch whose cancellation was answered with ``ok`` is never listed as one that can be resumed."""
    cancellation = history.cancellation(batch_id)
    if cancellation is None or call.at < cancellation.ended_at:
        return
    if not history.faults_between(cancellation.at, call.ended_at):
        text = f"batch {batch_id} was cancelled and is listed as interrupted later"
        yield Violation("accepted", text, (cancellation, call))


def _check_final_state(history: History, batch: Batch, state: dict[str, Any]) -> Iterator[Violation]:
    assert history.last_list is not None
    evidence = (batch.accepted, history.last_list)
    documents = history.by_batch[batch.batch_id]
    status, n_done = state["status"], state["n_done"]
    if state["n_planned"] != batch.n_planned:
        text = f"batch {batch.batch_id} was accepted with {batch.n_planned} episodes and is listed with "
        yield Violation("accepted", f"{text}{state['n_planned']}", evidence)
    n_finished = sum(is_finished(document) for document in documents)
    match status:
        case "completed":
            if missing := _unplayed(history, batch, documents):
                text = f"batch {batch.batch_id} is completed without {len(missing)} of {batch.n_planned} episodes"
                yield Violation("accepted", f"{text}, first task {missing[0][0]} attempt {missing[0][1]}", evidence)
            if n_done != batch.n_planned:
                text = f"completed batch {batch.batch_id} is listed with {n_done} of {batch.n_planned} episodes"
                yield Violation("accepted", text, evidence)
        case "cancelled" if not history.is_cancelled(batch.batch_id):
            yield Violation("accepted", f"batch {batch.batch_id} is cancelled and no request cancelled it", evidence)
        case "interrupted":
            if n_done != n_finished:
                text = f"interrupted batch {batch.batch_id} is listed with {n_done} episodes; {n_finished} are finished"
                yield Violation("accepted", text, evidence)
            if not history.faults_between(batch.accepted.at, history.end.at):
                yield Violation("accepted", f"batch {batch.batch_id} is interrupted without any fault", evidence)
        case "queued" | "running" | "paused":
            text = f"batch {batch.batch_id} is still {status} at the end, with {n_done} of {batch.n_planned} episodes"
            yield Violation("accepted", text, evidence)


def _check_cancellation(history: History, batch: Batch, status: str) -> Iterator[Violation]:
    """After the answer to its cancellation, a batch is not resumed, and plays no further episode."""
    if (cancel := history.cancellation(batch.batch_id)) is None:
        return
    if status not in ("cancelled", "completed"):
        yield Violation("accepted", f"batch {batch.batch_id} was cancelled and is listed as {status}", (cancel,))
    for document in history.by_batch[batch.batch_id]:
        stored = history.file_of[document["episode_id"]]
        if _begins_after(history, stored, cancel.ended_at + CANCEL_S):
            text = f"an episode of batch {batch.batch_id} began after the batch had been cancelled"
            yield Violation("accepted", text, (cancel, stored.versions[0]))


def _unplayed(history: History, batch: Batch, documents: list[dict[str, Any]]) -> list[tuple[int, int]]:
    """Return the planned tasks and attempts without a finished episode, or one that a request cancelled."""
    played = {
        (document["task_index"], document["attempt"])
        for document in documents
        if is_finished(document)
        or (document["outcome"] == "cancelled" and document["episode_id"] in history.cancelled_episodes)
    }
    return [
        (task, attempt) for task in batch.tasks for attempt in range(batch.attempts) if (task, attempt) not in played
    ]


def check_resumed(history: History) -> Iterator[Violation]:
    """No attempt at a task is played twice or again after its end, and none is played that was not planned."""
    by_plan: dict[tuple[str, int, int], list[StoredEpisode]] = defaultdict(list)
    for stored in history.stored:
        if (document := stored.document) is None:
            continue
        batch = history.batches.get(document["batch_id"])
        if batch is not None and not batch.plans(document["task_index"], document["attempt"]):
            text = f"episode {document['episode_id']} plays task {document['task_index']} attempt {document['attempt']}"
            yield Violation("resumed", f"{text}, which its batch did not plan", (stored.versions[-1], batch.accepted))
        by_plan[document["batch_id"], document["task_index"], document["attempt"]].append(stored)
    for (batch_id, task, attempt), episodes in by_plan.items():
        finished = [stored for stored in episodes if is_finished(stored.document or {"outcome": "interrupted"})]
        name = f"task {task} attempt {attempt} of batch {batch_id}"
        evidence = tuple(stored.versions[0] for stored in episodes)
        if len(finished) > 1:
            yield Violation("resumed", f"{name} was played to an end {len(finished)} times", evidence)
        elif finished and any(_begins_after(history, stored, finished[0].seen_at) for stored in episodes):
            yield Violation("resumed", f"{name} was started again after its end", evidence)


def _begins_after(history: History, stored: StoredEpisode, at: float) -> bool:
    """Whether an episode was played whose first request reached its server after a time.

    A worker that was stopped when its batch was cancelled still resets the episode that it had been given, and ends it.
    """
    document = stored.document or {}
    if document.get("outcome") == "cancelled" and not document.get("rounds"):
        return False
    instance = instance_of(document)
    return bool(history.games.get(instance)) and history.games[instance][0].reset.at > at


def instance_of(document: dict[str, Any]) -> str:
    """Return the instance on the server that played an episode; "" if it was played elsewhere or not reset."""
    env_episode_id = document.get("env_episode_id") or ""
    return env_episode_id.rpartition("@")[2] if document.get("transport") == "http" and "@" in env_episode_id else ""
