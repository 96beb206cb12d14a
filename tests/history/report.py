"""Figures of a history: what was done to it, what it contains, and how fast the node recovered."""

from __future__ import annotations

import itertools
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from tests.history.promises.bounds import BOUNDS
from tests.history.records import AnyRecord, Begin, Call, End, EpisodeFile, Fault, Live, Message, Probe, Shown

MIB = 1 << 20
MIN_EPISODES = 20
_OUTAGE_TARGETS = ("node", "own_broker", "disk")


def report(records: Sequence[AnyRecord]) -> Iterator[str]:
    """Yield lines of figures."""
    begins = [record for record in records if isinstance(record, Fault) and record.phase == "begin"]
    yield from _extent(records)
    kinds = Counter(f"{fault.kind} {fault.target}" for fault in begins)
    yield f"faults: {len(begins)} ({', '.join(f'{n} {kind}' for kind, n in sorted(kinds.items()))})"
    yield f"faults without an effect: {', '.join(_without_effect(records)) or 'none'}"
    if recoveries := recovery_times(records):
        median, slowest = statistics.median(recoveries), max(recoveries)
        yield f"recoveries of the node: {len(recoveries)}, median {median:.2f} s, longest {slowest:.2f} s"
    yield from _peaks(records)


def _extent(records: Sequence[AnyRecord]) -> Iterator[str]:
    begin = next(record for record in records if isinstance(record, Begin))
    end = next((record.at for record in records if isinstance(record, End)), records[-1].at)
    starts = {call.args["batch_id"] for call in records if isinstance(call, Call) and call.op == "start"}
    calls = [record for record in records if isinstance(record, Call)]
    n_lost = sum(call.reply is None for call in calls)
    documents = [each.document for each in records if isinstance(each, EpisodeFile) and each.document is not None]
    outcomes = {document["episode_id"]: document["outcome"] for document in documents}
    events = {(each.sink, each.headers.get("ce-id")) for each in records if isinstance(each, Message)}
    shown = {record.id for record in records if isinstance(record, Shown) and record.what == "episode"}
    by_outcome = ", ".join(f"{n} {outcome}" for outcome, n in Counter(outcomes.values()).most_common())
    yield f"seed {begin.seed}: {end - begin.at:.0f} s, {len(starts)} requested batches, {len(calls)} requests"
    yield f"requests without an answer: {n_lost}"
    yield f"episodes: {len(outcomes)} ({by_outcome}); {len(shown)} of them seen in the console"
    yield f"events: {', '.join(f'{n} on {sink}' for sink, n in sorted(Counter(sink for sink, _ in events).items()))}"


def silent_observers(records: Sequence[AnyRecord]) -> list[str]:
    """Return the observers that saw nothing of a history with episodes, so that what they check was not checked."""
    if sum(isinstance(record, EpisodeFile) for record in records) < MIN_EPISODES:
        return []
    seen = {f"live items of {record.sink}" for record in records if isinstance(record, Live)}
    seen |= {f"episodes in the {record.console}" for record in records if isinstance(record, Shown)}
    seen |= {f"resources of {record.process}" for record in records if isinstance(record, Probe)}
    expected = {"live items of own", "live items of foreign", "episodes in the console", "episodes in the viewer"}
    return sorted((expected | {f"resources of {name}" for name in BOUNDS}) - seen)


def _without_effect(records: Sequence[AnyRecord]) -> list[str]:
    """Return the faults of which nothing was measured, such as the kill of a process that was dead already."""
    ends = [record for record in records if isinstance(record, Fault) and record.phase == "end"]
    counts = Counter(f"{fault.kind} {fault.target}" for fault in ends if not fault.effect)
    return [f"{n} {name}" for name, n in sorted(counts.items())]


def recovery_times(records: Sequence[AnyRecord]) -> list[float]:
    """Return for each outage the seconds from its end to the next answer of the node.

    An outage is a time with faults of the node, its broker or its disk; another fault before the answer extends it.
    """
    answers = sorted((call.at, call.ended_at) for call in records if isinstance(call, Call) and call.reply is not None)
    faults = sorted(
        (fault for fault in records if isinstance(fault, Fault) and fault.target in _OUTAGE_TARGETS),
        key=lambda fault: fault.at,
    )
    times: list[float] = []
    n_active = 0
    for fault, following in itertools.zip_longest(faults, faults[1:]):
        n_active += 1 if fault.phase == "begin" else -1
        answered_at = next((ended for at, ended in answers if at >= fault.at), None)
        if n_active == 0 and answered_at is not None and (following is None or following.at > answered_at):
            times.append(answered_at - fault.at)
    return times


def _peaks(records: Sequence[AnyRecord]) -> Iterator[str]:
    probes: dict[str, list[Probe]] = defaultdict(list)
    for record in records:
        if isinstance(record, Probe):
            probes[record.process].append(record)
    for name, each in sorted(probes.items()):
        rss = max(probe.rss_bytes for probe in each) / MIB
        n_files, n_threads = max(probe.n_files for probe in each), max(probe.n_threads for probe in each)
        yield f"peak of {name}: {rss:.0f} MiB, {n_files} open files, {n_threads} threads"
