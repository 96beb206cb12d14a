"""Reports failovers and the ends of batches, by a toast, the bell or a desktop message."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from textual.app import App

from agentgym_tui.commands import keymap_of
from agentgym_tui.config import Notify
from agentgym_tui.presenters.episode_facts import failover_text
from agentgym_tui.presenters.number_format import format_count, pluralize
from agentgym_tui.presenters.run_rows import ended_run_text
from agentgym_tui.safe_text import masked_line, sanitize_message
from agentgym_tui.services import announce
from agentgym_tui.state.batches import ACTIVE, UNFINISHED
from agentgym_tui.state.normalize import as_aware
from agentgym_tui.textual_compat import driver_of

if TYPE_CHECKING:
    from agentgym_tui.state.batches import BatchRun
    from agentgym_tui.state.episode import Episode
    from agentgym_tui.state.run_store import RunStore

OSC_9: Final = "\x1b]9;AgentGym: a batch has ended\x07"
OSC_777: Final = "\x1b]777;notify;AgentGym;a batch has ended\x07"
"""Desktop messages; their text is fixed, so that they never contain untrusted text."""

MAX_AGE: Final = timedelta(minutes=1)
"""Batch ends and failovers of a greater age are not reported; the age is console clock minus stream clock."""

JUST_ENDED: Final = timedelta(seconds=10)
"""Batches that ended within this time are reported even if no check has seen them run."""

MAX_REASON_CHARS: Final = 1_000
MAX_LINES: Final = 3
"""Largest number of batches named in a toast; those of many nodes may end together."""


class EndedBatch(NamedTuple):
    batch: BatchRun
    is_last: bool  # whether no other batch of its battery is unfinished
    limits: str = ""


class Notifier:
    """Reports the failovers, and the batches that were active at the previous check and have ended since then.

    A batch that cannot start is queued at one check, and interrupted for a reason at the next. A short one starts and
    ends between two checks.
    """

    def __init__(self) -> None:
        self._active_ids, self._queued_ids, self._reported_ids = set[str](), set[str](), set[str]()
        self._n_failovers = 0

    def check(self, app: App[Any], store: RunStore, now: datetime, notify: Notify) -> None:
        """Show what has happened since the last check, as the settings ``notify`` want it."""
        n_failovers = store.endpoint_registry.n_failovers
        is_new, self._n_failovers = n_failovers > self._n_failovers, n_failovers
        newest = store.failovers[-1] if is_new and store.failovers else None
        if notify.toast and newest is not None and now - newest.at < MAX_AGE:
            announce(app, failover_text(newest), failed=bool(newest.failed))
        notify_batch_ends(app, list(self.ended(store, now)), notify, store)

    def ended(self, store: RunStore, now: datetime) -> Iterator[EndedBatch]:
        """Yield the batches that ended since the last call, except those that ended more than ``MAX_AGE`` ago."""
        batches = store.batches
        active_ids = {id for id, batch in batches.items() if batch.status in ACTIVE}
        failed_ids = {id for id in self._queued_ids & batches.keys() if batches[id].interruption}
        completed = [(id, batch.published_at) for id, batch in batches.items() if batch.status == "completed"]
        short_ids = {id for id, at in completed if at is not None and now - as_aware(at) < JUST_ENDED}
        ended_ids = (self._active_ids | failed_ids | (short_ids - self._reported_ids)) - active_ids
        self._reported_ids = (self._reported_ids | ended_ids) & batches.keys()
        self._active_ids = active_ids
        self._queued_ids = {id for id, batch in batches.items() if batch.status == "queued"}
        unfinished = {batch.battery_id for batch in batches.values() if batch.status in UNFINISHED and batch.battery_id}
        for batch in (batch for id, batch in batches.items() if id in ended_ids and batch.status != "queued"):
            ended_at = batch.published_at or batch.ended_at
            if ended_at is None or now - as_aware(ended_at) <= MAX_AGE:
                limits = limits_text(store.episodes_of(batch.batch_id))
                yield EndedBatch(batch, batch.battery_id not in unfinished, limits)


def notify_batch_ends(app: App[Any], batches: list[EndedBatch], notify: Notify, store: RunStore) -> None:
    """Show one toast for the ended batches; ring the bell and send a desktop message only at the end of a battery.

    The toast names the key that shows the summary of a run that has ended.
    """
    last = next((each.batch for each in reversed(batches) if each.is_last), None)
    if notify.toast and batches:
        texts = [ended_text(each.batch, each.limits) for each in batches[:MAX_LINES]]
        more = [f"and {n_more:,} more"] if (n_more := len(batches) - len(texts)) else []
        run = [] if last is None else store.run(last.battery_id or last.batch_id)
        summary = [ended_run_text(run, keymap_of(app).key("run.summary"))] if run else []
        announce(app, "\n".join([*summary, *texts, *more] if len(run) > 1 else [*texts, *more, *summary]))
    if notify.bell and last is not None:
        app.bell()
    if notify.desktop and last is not None and (driver := driver_of(app)) is not None:
        driver.write(desktop_sequence(os.environ))


def limits_text(episodes: Sequence[Episode]) -> str:
    """Return how many episodes of a batch a limit stopped, and which limit; "" if there are none."""
    rounds = [episode.rounds for episode in episodes if episode.outcome == "truncated"]
    n_timeouts = sum(episode.outcome == "timeout" for episode in episodes)
    limit = f"the limit of {pluralize(rounds[0], 'round')}" if len(set(rounds)) == 1 else "their limits"
    stopped = f"{format_count(len(rounds))} stopped at {limit}" if rounds else ""
    return ", ".join(filter(None, (stopped, pluralize(n_timeouts, "timeout") if n_timeouts else "")))


def ended_text(batch: BatchRun, limits: str = "") -> str:
    """Return the environment, final status and counts of an ended batch, ``limits``, and why it was interrupted."""
    was_interrupted = batch.status == "interrupted"
    n_left = max(batch.n_planned - batch.n_done, 0) if was_interrupted else 0
    parts = (
        f"{masked_line(batch.env or '?', 60)} {masked_line(batch.status, 20)}",
        f"success {format_count(batch.n_success)} of {format_count(batch.n_rated)}" if batch.n_rated else "",
        pluralize(batch.n_errors, "error") if batch.n_errors else "",
        limits,
        f"{format_count(n_left)} left to resume" if n_left else "",
    )
    reason = sanitize_message(batch.interruption or "", MAX_REASON_CHARS) if was_interrupted else ""
    return ", ".join(filter(None, parts)) + (f": {reason}" if reason else "")


def desktop_sequence(environ: Mapping[str, str]) -> str:
    supports_777 = environ.get("TERM", "").startswith("rxvt") or "VTE_VERSION" in environ
    return OSC_777 if supports_777 else OSC_9
