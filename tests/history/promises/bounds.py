"""Bounded memory, descriptors and threads; bounded time to recover; no live item twice and no hidden gap."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from tests.history.history import History, listed
from tests.history.records import Call, EpisodeFile, Live, Probe, Process, Reset, Sink, Step
from tests.history.violation import Violation

MIB: Final = 1 << 20


@dataclass(frozen=True)
class Bounds:
    """Largest values of a process at any time.

    Attributes:
        n_children: number of child processes.
        files_per_episode: further open files for each episode that plays at the same time.
        threads_per_episode: further threads for each of them.
    """

    rss_bytes: int
    n_files: int
    n_threads: int
    n_children: int = 0
    files_per_episode: int = 0
    threads_per_episode: int = 0


BOUNDS: Final = {
    "node": Bounds(400 * MIB, 96, 48, 4, files_per_episode=8, threads_per_episode=2),
    "own_broker": Bounds(200 * MIB, 96, 64),
    "console": Bounds(400 * MIB, 96, 48, 4),
    "viewer": Bounds(200 * MIB, 64, 32, 1),
}
IDLE: Final = {"node": Bounds(300 * MIB, 64, 24, 2)}
"""Largest values of a process that has nothing to do; the children of a node are its broker and its fork server."""
GROWTH: Final = Bounds(96 * MIB, 12, 8)
"""Largest growth of one process from one idle moment to a later one."""
N_IDLE = 3
"""Number of idle probes at the beginning and at the end of a process that are compared."""
RECOVERY_S = 20.0
"""Seconds after the end of the last fault in which the node answers and a running batch goes on."""
NODE: Final = ("node", "worker", "fork_server", "own_broker", "disk")
"""Targets of faults that concern the node itself."""
BROKER_GRACE_S = 3.0
"""Seconds around the fault of a broker in which live items that were already sent may be lost."""


def check_bounded(history: History) -> Iterator[Violation]:
    """No process exceeds its bounds, or is larger at an idle moment than at an earlier one by more than ``GROWTH``."""
    probes: dict[tuple[str, int], list[Probe]] = defaultdict(list)
    for probe in history.all(Probe):
        if probe.process in BOUNDS:
            probes[probe.process, probe.pid].append(probe)
    for (name, pid), of_process in probes.items():
        yield from _check_peaks(history, name, of_process, BOUNDS[name])
        idle = [probe for probe in of_process if probe.idle]
        if idle and name in IDLE:
            yield from _check_peaks(history, f"idle {name}", [idle[-1]], IDLE[name])
        if len(idle) >= 2 * N_IDLE:
            yield from _check_growth(f"{name} (process {pid})", idle)


def _check_peaks(history: History, name: str, probes: list[Probe], bounds: Bounds) -> Iterator[Violation]:
    n = history.begin.concurrency
    limits: list[tuple[str, Callable[[Probe], int], int]] = [
        ("bytes of memory", lambda probe: probe.rss_bytes, bounds.rss_bytes),
        ("open files", lambda probe: probe.n_files, bounds.n_files + n * bounds.files_per_episode),
        ("threads", lambda probe: probe.n_threads, bounds.n_threads + n * bounds.threads_per_episode),
        ("child processes", lambda probe: probe.n_children, bounds.n_children),
    ]
    for what, measure, limit in limits:
        worst = max(probes, key=measure)
        if measure(worst) > limit:
            yield Violation("bounded", f"{name} has {measure(worst)} {what}; the bound is {limit}", (worst,))


def _check_growth(name: str, idle: list[Probe]) -> Iterator[Violation]:
    measures: list[tuple[str, Callable[[Probe], int], int]] = [
        ("bytes of memory", lambda probe: probe.rss_bytes, GROWTH.rss_bytes),
        ("open files", lambda probe: probe.n_files, GROWTH.n_files),
        ("threads", lambda probe: probe.n_threads, GROWTH.n_threads),
    ]
    for what, measure, limit in measures:
        before, after = max(idle[:N_IDLE], key=measure), min(idle[-N_IDLE:], key=measure)
        if (growth := measure(after) - measure(before)) > limit:
            text = f"{name} has {growth} {what} more than at an earlier idle moment; the bound is {limit}"
            yield Violation("bounded", text, (before, after))


def check_recovered(history: History) -> Iterator[Violation]:
    """After the last fault, the node answers, batches go on and events arrive; no process ends by itself."""
    for process in history.all(Process):
        if process.exit_status is not None and not process.expected:
            text = f"{process.name} (process {process.pid}) ended by itself with status {process.exit_status}"
            yield Violation("recovered", text, (process,))
    for start, end in history.calm(*NODE):
        if end - start >= RECOVERY_S:
            yield from _check_answers(history, start, end)
    for name, env in history.begin.servers.items():
        for start, end in history.calm(*NODE, name):
            if end - start >= RECOVERY_S:
                yield from _check_progress(history, start, env)
    for sink in history.begin.sinks:
        yield from _check_delivery(history, sink)


def _check_answers(history: History, start: float, end: float) -> Iterator[Violation]:
    """No silence of the node in a time without faults is longer than the time to recover."""
    calls = [call for call in history.calls if start <= call.at and call.ended_at <= end]
    answered = [call.ended_at for call in calls if call.reply is not None]
    for before, after in itertools.pairwise([start, *sorted(answered), end]):
        unanswered = [call for call in calls if call.reply is None and before <= call.at and call.ended_at <= after]
        if after - before > RECOVERY_S and unanswered:
            text = f"{len(unanswered)} requests in {after - before:.0f} s without a fault of the node were not answered"
            yield Violation("recovered", text, tuple(unanswered[:3]))


def _check_progress(history: History, start: float, env: str) -> Iterator[Violation]:
    """A batch that runs at the beginning and at the end of the time to recover made a step in between."""
    end = start + RECOVERY_S
    lists = [call for call in history.lists if start <= call.at and call.ended_at <= end]
    if len(lists) < 2 or lists[-1].at < end - RECOVERY_S / 4:
        return
    for batch_id in _running(lists[0], env) & _running(lists[-1], env):
        records = (record for record in history.records if start <= record.at <= end)
        if not any(_is_progress(history, record, batch_id, env) for record in records):
            text = f"batch {batch_id} made no step in the {RECOVERY_S:g} s after the last fault of {env} and the node"
            yield Violation("recovered", text, (lists[0], lists[-1]))


def _check_delivery(history: History, sink: Sink) -> Iterator[Violation]:
    """A stored episode is announced as soon as the node and the broker had enough time without a fault."""
    needed = (*NODE, "foreign_broker") if sink == "foreign" else NODE
    calm = [(start, end) for start, end in history.calm(*needed) if end - start >= RECOVERY_S]
    for episode_id, stored in history.file_of.items():
        copies = history.messages[sink].get(f"episode:{episode_id}")
        begins = (max(start, stored.seen_at) for start, end in calm if max(start, stored.seen_at) + RECOVERY_S <= end)
        begin = min(begins, default=None)
        if copies and begin is not None and copies[0].at > begin + RECOVERY_S:
            text = f"episode {episode_id} reached the {sink} broker {copies[0].at - begin:.0f} s after it could"
            yield Violation("recovered", text, (stored.versions[0], copies[0]))


def _running(call: Call, env: str) -> set[str]:
    return {state["batch_id"] for state in listed(call) if state["status"] == "running" and state["env"] == env}


def _is_progress(history: History, record: object, batch_id: str, env: str) -> bool:
    match record:
        case Reset() | Step():
            return history.begin.servers.get(record.server) == env
        case EpisodeFile(document=dict() as document):
            return bool(document["batch_id"] == batch_id)
    return False


def check_live(history: History) -> Iterator[Violation]:
    """A subscriber gets each item of an episode once and in order, and only as many are missing as were announced."""
    by_source: dict[tuple[str, str], list[Live]] = defaultdict(list)
    for live in history.all(Live):
        by_source[live.sink, live.boot].append(live)
    for (sink, boot), messages in by_source.items():
        yield from _check_order(sink, boot, messages)
        yield from _check_ends(history, sink, boot, messages)
        for _, of_one in itertools.groupby(messages, lambda live: live.subscription):
            yield from _check_gaps(history, sink, boot, list(of_one))


def _items(messages: list[Live]) -> Iterator[tuple[Live, str, int]]:
    for message in messages:
        for item in message.items:
            if "seq" in item and "episode_id" in item:
                yield message, item["episode_id"], item["seq"]


def _check_order(sink: str, boot: str, messages: list[Live]) -> Iterator[Violation]:
    latest: dict[tuple[str, str], int] = defaultdict(lambda: -1)
    for message, episode_id, seq in _items(messages):
        key = (message.channel, episode_id)
        if seq <= latest[key]:
            text = f"item {seq} of episode {episode_id} came after item {latest[key]} from {sink}, boot {boot}"
            yield Violation("live", text, (message,))
            return
        latest[key] = seq


def _check_ends(history: History, sink: str, boot: str, messages: list[Live]) -> Iterator[Violation]:
    """An episode whose start was received is followed to its end, unless a fault came in between."""
    started: dict[str, float] = {}
    ended: set[str] = set()
    for message in messages if not max(message.dropped for message in messages) else []:
        for item in message.items:
            if item.get("kind") == "episode.started":
                started[item["episode_id"]] = message.at
            elif item.get("kind") == "episode.ended":
                ended.add(item["episode_id"])
    for episode_id in started.keys() & history.file_of.keys() - ended:
        stored, begin = history.file_of[episode_id], started[episode_id]
        end = stored.seen_at + BROKER_GRACE_S
        if end < history.end.at and not history.faults_between(begin - BROKER_GRACE_S, end):
            text = f"{sink} got the start of episode {episode_id} from boot {boot}, and never its end"
            yield Violation("live", text, (stored.versions[0],))


def _check_gaps(history: History, sink: str, boot: str, messages: list[Live]) -> Iterator[Violation]:
    """Compare the gaps with the announced number; a broker that was hit by a fault may have lost items."""
    seen: dict[str, dict[int, float]] = defaultdict(dict)
    for message, episode_id, seq in _items(messages):
        seen[episode_id][seq] = message.at
    n_missing, example = 0, ""
    for episode_id, times in seen.items():
        numbers = sorted(times)
        for before, after in itertools.pairwise(numbers):
            lost = after - before - 1
            span = sorted((times[before], times[after]))
            if lost and not history.faults_between(span[0] - BROKER_GRACE_S, span[1] + BROKER_GRACE_S):
                n_missing += lost
                example = example or f"{before + 1} of episode {episode_id}"
    n_dropped = max((message.dropped for message in messages), default=0)
    if n_missing > n_dropped:
        text = f"{n_missing} live items of boot {boot} are missing from {sink}, first {example}"
        yield Violation("live", f"{text}; the node announced {n_dropped} as dropped", (messages[-1],))
