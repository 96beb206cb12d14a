"""Corruptions of a history in which nothing is lost, but the node does its work badly."""

from __future__ import annotations

import random
from typing import Any

import msgspec
from hypothesis import assume

from tests.history.history import is_ok
from tests.history.records import Call, EpisodeFile, Fault, Live, Probe
from tests.unit.history.corruptions import Records, corruption, of_kind, pick_file, pick_message


@corruption("accepted")
def refused_start(records: Records, rng: random.Random) -> Records:
    start = next(call for call in of_kind(records, Call) if call.op == "start" and is_ok(call))
    reply = {"id": "start", "ok": False, "error": {"code": "refused", "message": "no"}}
    return [*records, Call(at=start.at, ended_at=start.ended_at, op="start", args=start.args, reply=reply)]


@corruption("accepted")
def batch_listed_twice(records: Records, rng: random.Random) -> Records:
    call, batches = _list_with_batches(records, rng)
    batches.append(dict(batches[0]))
    return [*records, call]


@corruption("accepted")
def progress_without_episodes(records: Records, rng: random.Random) -> Records:
    """A batch counts an episode more than it has stored."""
    call, batches = _list_with_batches(records, rng)
    batch = rng.choice(batches)
    stored = [each.document for each in of_kind(records, EpisodeFile) if each.document]
    n_stored = sum(document["batch_id"] == batch["batch_id"] for document in stored)
    batch["status"], batch["n_done"] = "running", n_stored + 1
    return [*records, call]


def _list_with_batches(records: Records, rng: random.Random) -> tuple[Call, list[dict[str, Any]]]:
    """Return a copy of an answer to ``list`` that has batches, and these."""
    calls = [call for call in of_kind(records, Call) if call.op == "list" and is_ok(call)]
    call = rng.choice([call for call in calls if (call.reply or {})["result"]["batches"]])
    copy = msgspec.json.decode(msgspec.json.encode(call), type=Call)
    assert copy.reply is not None
    return copy, copy.reply["result"]["batches"]


@corruption("finished")
def error_without_a_cause(records: Records, rng: random.Random) -> Records:
    document = pick_file(records, rng)
    document["outcome"], document["success"], document["error"] = "error", False, None
    return records


@corruption("finished")
def error_without_a_fault(records: Records, rng: random.Random) -> Records:
    documents = [each.document for each in of_kind(records, EpisodeFile) if each.document]
    assume(any(document["outcome"] == "error" for document in documents))
    return [record for record in records if not isinstance(record, Fault)]


@corruption("finished")
def cancelled_without_a_request(records: Records, rng: random.Random) -> Records:
    document = pick_file(records, rng)
    document["outcome"], document["success"] = "cancelled", False
    return records


@corruption("told")
def event_on_another_subject(records: Records, rng: random.Random) -> Records:
    pick_message(records, rng, "episode:").subject = "agentgym.eval.batch.completed.v1"
    return records


@corruption("live")
def end_that_was_not_received(records: Records, rng: random.Random) -> Records:
    episodes = {file.document["episode_id"] for file in of_kind(records, EpisodeFile) if file.document}
    received = [live for live in of_kind(records, Live) if live.items and live.items[0].get("episode_id") in episodes]
    rng.choice(received).items[0]["kind"] = "episode.started"
    return [record for record in records if not isinstance(record, Fault)]


@corruption("bounded")
def child_processes_left_behind(records: Records, rng: random.Random) -> Records:
    rng.choice([probe for probe in of_kind(records, Probe) if probe.process == "node"]).n_children = 9
    return records


@corruption("recovered")
def silence_long_after_the_last_fault(records: Records, rng: random.Random) -> Records:
    last = of_kind(records, Probe)[-1].at
    for call in of_kind(records, Call):
        if call.op == "health" and last - 21.5 < call.at < last:
            call.reply = None
    return records
