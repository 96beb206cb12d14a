"""Synthetic histories: what observers record of a node that keeps its promises, from a few random choices."""

from __future__ import annotations

import hashlib
import itertools
import json
import random
from dataclasses import dataclass, field
from typing import Any, Final

from tests.history.history import RATED, is_finished
from tests.history.records import (
    AnyRecord,
    Begin,
    Call,
    End,
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

SINKS: Final[list[Sink]] = ["own", "foreign"]
SERVERS: Final = {"a": "Maze", "b": "Wordle"}
CREATED: Final = "2026-01-01T00:00:00Z"


@dataclass
class SyntheticNode:
    """Plays batches by the rules and writes down what each observer would record."""

    rng: random.Random
    records: list[AnyRecord] = field(default_factory=list)
    now: float = 100.0

    def __post_init__(self) -> None:
        self._ids = itertools.count(1)
        self._seqs = {sink: itertools.count(1) for sink in SINKS}
        self._states: dict[str, dict[str, Any]] = {}
        self._boot = "BOOT0"
        self._statuses = itertools.count()
        self.add(Begin(seed=1, node="n1", sinks=SINKS, servers=dict(SERVERS), concurrency=2))
        self.add(Process(name="node", pid=1))
        self.add(Process(name="viewer", pid=3))
        self.announce_status()
        self._stop_servers()

    def _stop_servers(self) -> None:
        """Stop each server once, which explains the later errors."""
        for server in SERVERS:
            number = next(self._ids)
            self.add(Fault(number=number, kind="stop", target=server, phase="begin"))
            self.add(Fault(number=number, kind="stop", target=server, phase="end", effect="process 4"))
        self.now += 10.0

    def add(self, record: AnyRecord) -> None:
        self.now += 0.01
        record.at = self.now
        self.records.append(record)

    def call(self, op: str, reply: dict[str, Any] | None, **args: Any) -> None:  # noqa: ANN401
        self.add(Call(ended_at=self.now + 0.015, op=op, args=args, reply=reply))
        self.now += 0.01

    def list_batches(self) -> None:
        states = [dict(state) for state in reversed(self._states.values())]
        self.call("list", {"id": "list", "ok": True, "result": {"batches": states}})

    # --- batches

    def start(self, server: str, repeat: int, attempts: int) -> dict[str, Any]:
        batch_id, env = f"B{next(self._ids):025}", SERVERS[server]
        state = {"batch_id": batch_id, "env": env, "status": "queued", "n_done": 0, "n_planned": repeat * attempts}
        args = {"batch_id": batch_id, "envs": [env], "repeat": repeat, "attempts": attempts, "task_index": 3}
        self.call("start", {"id": "start", "ok": True, "result": [dict(state)]}, **args)
        if self.rng.random() < 0.3:  # a lost answer and a repeated request
            self.call("start", None, **args)
        self._states[batch_id] = state
        self.list_batches()
        return state

    def play(self, server: str, state: dict[str, Any], plan: list[tuple[int, int]]) -> None:
        """Play what is planned; an interruption leaves the rest to the end of ``plan``."""
        state["status"] = "running"
        while plan:
            outcome = self.rng.choices(
                ("success", "failure", "truncated", "error", "interrupted", "lost answer"), (6, 2, 1, 1, 1, 1)
            )[0]
            document = self.play_episode(server, state["batch_id"], *plan[0], outcome)
            if is_finished(document):
                del plan[0]
                state["n_done"] += 1
        state["status"] = "completed"
        self.end_batch(state)

    def play_episode(self, server: str, batch_id: str, task: int, attempt: int, outcome: str) -> dict[str, Any]:
        instance, episode_id = str(next(self._ids)), f"E{next(self._ids):025}"
        n_steps, first = self.rng.randint(2, 5), f"start of task {task}"
        self.add(Reset(server=server, instance=instance, task_index=task, observation=first))
        steps = [self._step(server, instance, k, outcome, k == n_steps - 1) for k in range(n_steps)]
        kept = steps[:-1] if outcome in ("interrupted", "lost answer") else steps
        document = {
            "episode_id": episode_id,
            "env_episode_id": f"{SERVERS[server]}-{task}@{instance}",
            "batch_id": batch_id,
            "node": "n1",
            "profile": "p1",
            "env": SERVERS[server],
            "transport": "http",
            "task_index": task,
            "attempt": attempt,
            "agent": "oracle",
            "model": None,
            "duration_s": n_steps * 0.25,
            "outcome": "error" if outcome == "lost answer" else outcome,
            "success": outcome == "success",
            "reward": sum(step.reward for step in kept),
            "rounds": len(kept),
            "tokens": {"prompt": 0, "completion": 0},
            "error": {"type": "environment_fault", "message": "gone"} if outcome in ("error", "lost answer") else None,
            "reset_observation": [{"role": "user", "content": first}],
            "timesteps": [_timestep(number, step) for number, step in enumerate(kept)],
        }
        if outcome == "interrupted":
            self.restart_node()
        self.store(document)
        return document

    def _step(self, server: str, instance: str, number: int, outcome: str, last: bool) -> Step:
        reward = 1.0 if last and outcome == "success" else 0.0
        step = Step(
            server=server,
            instance=instance,
            action=f"move {number}",
            observation=f"you moved {number}",
            reward=reward,
            done=last and outcome in ("success", "failure"),
        )
        self.add(step)
        return step

    def store(self, document: dict[str, Any]) -> None:
        """The file appears, both brokers get its event, and a console shows it."""
        episode_id = document["episode_id"]
        path = f"runs/{document['batch_id']}/{episode_id}.json"
        digest = hashlib.sha256(json.dumps(document).encode()).hexdigest()
        self.add(EpisodeFile(path=path, sha256=digest, document=document))
        names = ("episode_id", "env", "reward", "rounds", "duration_s", "success", "outcome", "agent", "model")
        payload = {name: document[name] for name in (*names, "task_index", "tokens", "batch_id", "node", "profile")}
        payload |= {"score": document["reward"], "duration_sec": document["duration_s"]}
        self.publish(f"episode:{episode_id}", "agentgym.episode.completed.v1", payload)
        for items in ([0, 1], [2]):
            numbered = [{"kind": "timestep", "episode_id": episode_id, "seq": seq} for seq in items]
            fields: dict[str, Any] = {"node": "n1", "boot": self._boot, "dropped": 0}
            self.add(Live(sink="own", subscription=0, channel="timestep", items=numbered, **fields))
        shown = {name: payload[name] for name in ("outcome", "reward", "rounds")}
        self.add(Shown(console="c1", what="episode", id=episode_id[-8:], fields=shown))
        self.add(Shown(console="viewer", what="episode", id=episode_id, fields=payload))

    def end_batch(self, state: dict[str, Any]) -> None:
        documents = [
            record.document
            for record in self.records
            if isinstance(record, EpisodeFile) and record.document and record.document["batch_id"] == state["batch_id"]
        ]
        rated = [document for document in documents if document["outcome"] in RATED]
        payload = {
            "batch_id": state["batch_id"],
            "status": state["status"],
            "n_episodes": sum(map(is_finished, documents)),
            "n_rated": len(rated),
            "n_errors": sum(document["outcome"] == "error" for document in documents),
            "mean_reward": sum(document["reward"] for document in rated) / len(rated) if rated else None,
            "success_rate": sum(document["success"] for document in rated) / len(rated) if rated else None,
        }
        self.publish(f"batch:{state['batch_id']}", "agentgym.eval.batch.completed.v1", payload)
        for console in ("c1", "viewer"):
            self.add(Shown(console=console, what="batch", id=state["batch_id"], fields={"status": state["status"]}))

    def publish(self, id_: str, kind: str, payload: dict[str, Any]) -> None:
        headers = {"ce-id": id_, "Nats-Msg-Id": id_, "ce-type": kind, "ce-source": "n1"}
        for sink in SINKS:
            seq = next(self._seqs[sink])
            message = Message(
                sink=sink,
                stream="AGENTGYM_EVENTS",
                created=CREATED,
                seq=seq,
                subject=kind,
                headers=dict(headers),
                payload=dict(payload),
            )
            self.add(message)

    def announce_status(self) -> None:
        for status in ("starting", "idle"):
            payload = {"node": "n1", "boot": self._boot, "status": status}
            self.publish(f"status:{self._boot}:{next(self._statuses)}", "agentgym.field.status.v1", payload)

    def restart_node(self) -> None:
        number = next(self._ids)
        self.now += 10.0
        self.add(Fault(number=number, kind="kill", target="node", phase="begin"))
        self.call("health", None)
        self._boot = f"BOOT{number}"
        self.add(Fault(number=number, kind="kill", target="node", phase="end"))
        self._statuses = itertools.count()
        self.announce_status()

    def finish(self) -> list[AnyRecord]:
        """Settle: the node answers for a while without faults, then everything is read."""
        for _ in range(12):
            self.now += 2.0
            self.call("health", {"id": "health", "ok": True, "result": {}})
            self.add(
                Probe(process="node", pid=2, rss_bytes=90 << 20, n_files=40, n_threads=12, n_children=1, idle=True)
            )
        self.list_batches()
        for sink in SINKS:
            last = next(self._seqs[sink]) - 1
            self.add(StreamRead(sink=sink, stream="AGENTGYM_EVENTS", created=CREATED, last_seq=last))
        self.add(Process(name="node", pid=2, exit_status=0))
        self.add(End())
        return self.records


def _timestep(number: int, step: Step) -> dict[str, Any]:
    return {
        "index": number,
        "action": {"text": step.action, "tool_calls": [], "valid": True},
        "observation": [{"role": "user", "content": step.observation}],
        "reward": step.reward,
        "done": step.done,
    }


def make_history(seed: int, n_batches: int = 4) -> list[AnyRecord]:
    """Return a history without violations: completed batches, one that was cancelled and one that is interrupted."""
    rng = random.Random(seed)
    node = SyntheticNode(rng)
    for number in range(n_batches):
        server, repeat, attempts = rng.choice(sorted(SERVERS)), rng.randint(1, 3), rng.randint(1, 2)
        state = node.start(server, repeat, attempts)
        plan = [(3 + task, attempt) for task in range(repeat) for attempt in range(attempts)]
        if number == 1:
            node.call("cancel", {"id": "cancel", "ok": True, "result": {}}, batch_id=state["batch_id"])
            state["status"] = "cancelled"
            node.end_batch(state)
        elif number == 2:
            node.play_episode(server, state["batch_id"], *plan[0], "interrupted")
            state["status"] = "interrupted"
        else:
            node.play(server, state, plan)
    node.restart_node()
    return node.finish()
