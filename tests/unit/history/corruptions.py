"""Corruptions of a valid history: each breaks one promise, and skips the example if it has nothing to corrupt."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Final, TypeAlias, TypeVar

import msgspec
from hypothesis import assume

from tests.history.history import is_finished, is_ok
from tests.history.records import (
    AnyRecord,
    Call,
    EpisodeFile,
    Fault,
    Live,
    Message,
    Probe,
    Process,
    Reset,
    Shown,
    Sink,
    Step,
    StreamRead,
)
from tests.history.violation import Promise

Records: TypeAlias = list[AnyRecord]
Corruption: TypeAlias = Callable[[Records, random.Random], Records]
_R = TypeVar("_R", bound=AnyRecord)
CORRUPTIONS: Final[dict[str, tuple[Promise, Corruption]]] = {}


def corruption(promise: Promise) -> Callable[[Corruption], Corruption]:
    """Register a corruption that breaks ``promise``."""

    def register(function: Corruption) -> Corruption:
        CORRUPTIONS[function.__name__] = promise, function
        return function

    return register


def of_kind(records: Records, kind: type[_R]) -> list[_R]:
    return [record for record in records if isinstance(record, kind)]


def pick_file(records: Records, rng: random.Random, *, finished: bool = True) -> dict[str, Any]:
    documents = [record.document for record in of_kind(records, EpisodeFile) if record.document]
    suitable = [document for document in documents if is_finished(document) is finished]
    assume(suitable)
    return rng.choice(suitable)


def pick_message(records: Records, rng: random.Random, prefix: str) -> Message:
    return rng.choice([each for each in of_kind(records, Message) if each.headers["ce-id"].startswith(prefix)])


def last_states(records: Records, status: str) -> list[dict[str, Any]]:
    reply = [call for call in of_kind(records, Call) if call.op == "list"][-1].reply
    assert reply is not None
    return [state for state in reply["result"]["batches"] if state["status"] == status]


def replace_message(records: Records, sink: Sink, change: Callable[[list[Message]], list[Message]]) -> Records:
    """Change the messages of a stream and number them again, as a broker would have."""
    changed = change([each for each in of_kind(records, Message) if each.sink == sink])
    for seq, message in enumerate(changed, 1):
        message.seq = seq
    for read in of_kind(records, StreamRead):
        if read.sink == sink:
            read.last_seq = len(changed)
    return [each for each in records if not (isinstance(each, Message) and each.sink == sink)] + list(changed)


# --- accepted


@corruption("accepted")
def forgotten_batch(records: Records, rng: random.Random) -> Records:
    """The last answer to list lacks a batch."""
    reply = [call for call in of_kind(records, Call) if call.op == "list"][-1].reply
    assert reply is not None
    batches = reply["result"]["batches"]
    del batches[rng.randrange(len(batches))]
    return records


@corruption("accepted")
def completed_batch_becomes_interrupted(records: Records, rng: random.Random) -> Records:
    state = rng.choice(last_states(records, "completed"))
    end = of_kind(records, StreamRead)[0].at
    later = [call for call in of_kind(records, Call) if call.op == "list"][-1]
    copy = msgspec.json.decode(msgspec.json.encode(later), type=Call)
    copy.at, copy.ended_at = end, end + 0.01
    assert copy.reply is not None
    next(each for each in copy.reply["result"]["batches"] if each["batch_id"] == state["batch_id"])["status"] = (
        "interrupted"
    )
    return [*records, copy]


@corruption("accepted")
def completed_batch_lacks_an_episode(records: Records, rng: random.Random) -> Records:
    batch_id = rng.choice(last_states(records, "completed"))["batch_id"]
    files = [
        each
        for each in of_kind(records, EpisodeFile)
        if each.document and each.document["batch_id"] == batch_id and is_finished(each.document)
    ]
    return _without(records, rng.choice(files))


def _without(records: Records, lost: AnyRecord) -> Records:
    return [each for each in records if each is not lost]


@corruption("accepted")
def wrong_number_of_an_interrupted_batch(records: Records, rng: random.Random) -> Records:
    assume(states := last_states(records, "interrupted"))
    rng.choice(states)["n_done"] += 1
    return records


@corruption("accepted")
def cancelled_without_a_request(records: Records, rng: random.Random) -> Records:
    assume(last_states(records, "cancelled"))
    return [each for each in records if not (isinstance(each, Call) and each.op == "cancel")]


@corruption("accepted")
def forgotten_cancellation(records: Records, rng: random.Random) -> Records:
    assume(states := last_states(records, "cancelled"))
    for state in states:
        state["status"] = "interrupted"
    return records


@corruption("accepted")
def batch_hangs(records: Records, rng: random.Random) -> Records:
    rng.choice(last_states(records, "completed"))["status"] = rng.choice(["running", "queued"])
    return records


# --- finished


@corruption("finished")
def lost_file(records: Records, rng: random.Random) -> Records:
    return _without(records, rng.choice(of_kind(records, EpisodeFile)))


@corruption("finished")
def rewritten_file(records: Records, rng: random.Random) -> Records:
    file = rng.choice(of_kind(records, EpisodeFile))
    return [*records, EpisodeFile(at=file.at + 0.001, path=file.path, sha256="0" * 64, document=file.document)]


@corruption("finished")
def unreadable_file(records: Records, rng: random.Random) -> Records:
    rng.choice(of_kind(records, EpisodeFile)).document = None
    return records


@corruption("finished")
def removed_file(records: Records, rng: random.Random) -> Records:
    file = rng.choice(of_kind(records, EpisodeFile))
    return [*records, EpisodeFile(at=file.at + 0.001, path=file.path, sha256=None, document=None)]


@corruption("finished")
def altered_step(records: Records, rng: random.Random) -> Records:
    document = pick_file(records, rng)
    step = rng.choice(document["timesteps"])
    match rng.choice(["observation", "action", "done"]):
        case "observation":
            step["observation"][0]["content"] += "!"
        case "action":
            step["action"]["text"] = "move elsewhere"
        case "done":
            step["done"] = not step["done"]
    return records


@corruption("finished")
def altered_reward(records: Records, rng: random.Random) -> Records:
    document = pick_file(records, rng)
    rng.choice(document["timesteps"])["reward"] += 0.5
    document["reward"] += 0.5
    return records


@corruption("finished")
def altered_outcome(records: Records, rng: random.Random) -> Records:
    document = pick_file(records, rng)
    assume(document["outcome"] != "error")
    document["outcome"] = "failure" if document["outcome"] == "success" else "success"
    document["success"] = document["outcome"] == "success"
    return records


@corruption("finished")
def lost_journal_line(records: Records, rng: random.Random) -> Records:
    document = pick_file(records, rng, finished=False)
    del document["timesteps"][rng.randrange(len(document["timesteps"]))]
    for number, step in enumerate(document["timesteps"]):
        step["index"] = number
    document["rounds"] -= 1
    document["reward"] = sum(step["reward"] for step in document["timesteps"])
    return records


@corruption("finished")
def game_that_no_server_played(records: Records, rng: random.Random) -> Records:
    document = pick_file(records, rng)
    instance = document["env_episode_id"].rpartition("@")[2]
    return [each for each in records if not (isinstance(each, Reset | Step) and each.instance == instance)]


# --- stored


@corruption("stored")
def undelivered_event(records: Records, rng: random.Random) -> Records:
    lost = rng.choice(of_kind(records, Message))
    return replace_message(records, lost.sink, lambda messages: [each for each in messages if each is not lost])


@corruption("stored")
def event_delivered_twice(records: Records, rng: random.Random) -> Records:
    message = rng.choice(of_kind(records, Message))
    copy = msgspec.json.decode(msgspec.json.encode(message), type=Message)
    return replace_message(records, message.sink, lambda messages: [*messages, copy])


@corruption("stored")
def gap_in_the_status_events(records: Records, rng: random.Random) -> Records:
    lost = rng.choice([each for each in of_kind(records, Message) if each.headers["ce-id"].endswith(":0")])
    return replace_message(records, lost.sink, lambda messages: [each for each in messages if each is not lost])


# --- told


@corruption("told")
def altered_episode_event(records: Records, rng: random.Random) -> Records:
    payload = pick_message(records, rng, "episode:").payload
    name = rng.choice(sorted(payload.keys() - {"episode_id"}))
    value = payload[name]
    payload[name] = not value if isinstance(value, bool) else value + 1 if isinstance(value, int | float) else "other"
    return records


@corruption("told")
def altered_batch_event(records: Records, rng: random.Random) -> Records:
    payload = pick_message(records, rng, "batch:").payload
    if payload["status"] != "completed":
        payload["n_rated"] += 1
        return records
    name = rng.choice(["n_episodes", "n_rated", "n_errors", "mean_reward", "success_rate", "status"])
    payload[name] = "cancelled" if name == "status" else (payload[name] or 0) + 1
    return records


@corruption("told")
def event_without_episode(records: Records, rng: random.Random) -> Records:
    message = pick_message(records, rng, "episode:")
    copy = msgspec.json.decode(msgspec.json.encode(message), type=Message)
    copy.payload["episode_id"] = "E" * 26
    copy.headers |= {"ce-id": f"episode:{'E' * 26}", "Nats-Msg-Id": f"episode:{'E' * 26}"}
    return replace_message(records, message.sink, lambda messages: [*messages, copy])


@corruption("told")
def event_with_a_foreign_id(records: Records, rng: random.Random) -> Records:
    message = rng.choice(of_kind(records, Message))
    message.headers[rng.choice(["ce-id", "Nats-Msg-Id"])] += "x"
    return records


# --- shown


@corruption("shown")
def unannounced_end_is_shown(records: Records, rng: random.Random) -> Records:
    shown = rng.choice(of_kind(records, Shown))
    shown.id = "E" * 26
    shown.fields = {"status": "completed"} if shown.what == "batch" else shown.fields
    return records


@corruption("shown")
def event_that_a_viewer_missed(records: Records, rng: random.Random) -> Records:
    return _without(records, rng.choice([each for each in of_kind(records, Shown) if each.console == "viewer"]))


@corruption("shown")
def event_that_a_viewer_showed_twice(records: Records, rng: random.Random) -> Records:
    shown = rng.choice([each for each in of_kind(records, Shown) if each.console == "viewer"])
    return [*records, msgspec.json.decode(msgspec.json.encode(shown), type=Shown)]


@corruption("shown")
def another_outcome_is_shown(records: Records, rng: random.Random) -> Records:
    shown = rng.choice([each for each in of_kind(records, Shown) if each.what == "episode"])
    name = rng.choice(["outcome", "reward", "rounds"])
    shown.fields[name] = "other" if name == "outcome" else shown.fields[name] + 1
    return records


# --- resumed


@corruption("resumed")
def task_played_twice(records: Records, rng: random.Random) -> Records:
    """A second game of the same attempt, with a file of its own."""
    document = pick_file(records, rng)
    file = next(each for each in of_kind(records, EpisodeFile) if each.document is document)
    copy = msgspec.json.decode(msgspec.json.encode(file), type=EpisodeFile)
    assert copy.document is not None
    copy.path, copy.at = copy.path.replace("/E", "/F"), copy.at + 0.001
    copy.document |= {"episode_id": "F" + document["episode_id"][1:], "env_episode_id": None, "timesteps": []}
    copy.document |= {"rounds": 0, "reward": 0.0, "reset_observation": []}
    return [*records, copy]


@corruption("resumed")
def finished_task_started_again(records: Records, rng: random.Random) -> Records:
    """After the end of a task, an interrupted episode of the same attempt begins."""
    document = pick_file(records, rng)
    node_end = of_kind(records, StreamRead)[0].at
    copy = msgspec.json.decode(msgspec.json.encode(document))
    copy |= {"episode_id": "F" * 26, "outcome": "interrupted", "timesteps": [], "rounds": 0, "reward": 0.0}
    copy["env_episode_id"] = document["env_episode_id"].rpartition("@")[0] + "@again"
    server = next(each.server for each in of_kind(records, Reset))
    reset = Reset(
        at=node_end,
        server=server,
        instance="again",
        task_index=document["task_index"],
        observation=document["reset_observation"][0]["content"],
    )
    return [*records, reset, EpisodeFile(at=node_end + 0.001, path="runs/x.json", sha256="1", document=copy)]


@corruption("resumed")
def unplanned_task(records: Records, rng: random.Random) -> Records:
    document = pick_file(records, rng)
    document[rng.choice(["task_index", "attempt"])] = 99
    return records


# --- live, bounded, recovered


@corruption("live")
def repeated_live_item(records: Records, rng: random.Random) -> Records:
    live = rng.choice(of_kind(records, Live))
    live.items.append(dict(live.items[-1]))
    return records


@corruption("live")
def hidden_gap(records: Records, rng: random.Random) -> Records:
    """Items in the middle of an episode are missing in calm time."""
    calm = of_kind(records, Probe)[-1].at
    episodes = [each for each in of_kind(records, Live) if len(each.items) == 2]
    live = msgspec.json.decode(msgspec.json.encode(rng.choice(episodes)), type=Live)
    live.at, live.boot = calm, "CALM"
    live.items = [{"kind": "timestep", "episode_id": "G" * 26, "seq": seq} for seq in (0, rng.randint(2, 9))]
    return [*records, live]


@corruption("bounded")
def leak(records: Records, rng: random.Random) -> Records:
    name, step = rng.choice([("n_files", 3), ("n_threads", 3), ("rss_bytes", 20 << 20)])
    for number, probe in enumerate(of_kind(records, Probe)):
        setattr(probe, name, getattr(probe, name) + number * step)
    return records


@corruption("bounded")
def too_many_open_files(records: Records, rng: random.Random) -> Records:
    rng.choice(of_kind(records, Probe)).n_files = 1000
    return records


@corruption("recovered")
def no_answer_after_the_last_fault(records: Records, rng: random.Random) -> Records:
    start = of_kind(records, Probe)[0].at - 3
    for call in of_kind(records, Call):
        if call.op == "health" and call.at > start:
            call.reply = None
    return records


@corruption("recovered")
def late_event(records: Records, rng: random.Random) -> Records:
    pick_message(records, rng, "episode:").at = of_kind(records, StreamRead)[0].at
    return records


@corruption("recovered")
def node_dies_by_itself(records: Records, rng: random.Random) -> Records:
    of_kind(records, Process)[-1].expected = False
    return records


# --- nothing is lost, but the node does its work badly


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
def episode_cancelled_without_a_request(records: Records, rng: random.Random) -> Records:
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
