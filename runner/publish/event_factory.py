"""Durable events of episodes, batches and process states.

Event ids are derived from the content, so that an event created twice has the same id.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from itertools import islice
from typing import Literal

from runner.batch.result import BatchResult
from runner.events import subjects
from runner.events.codec import encode
from runner.events.durable import BatchCompleted, DurableEvent, EpisodeCompleted, FieldStatus
from runner.events.subjects import DurableNames
from runner.publish.outbox import Outbox, OutboxEvent
from runner.store import EpisodeIndex, EpisodeRecord, EpisodeRow
from runner.types import Tokens
from runner.types.fields import NodeStatus

MAX_EVENTS_PER_TRANSACTION = 500
"""Maximum number of events per transaction; small enough that other writers of the outbox are not blocked for long."""


def episode_event(episode: EpisodeRecord | EpisodeRow, names: DurableNames) -> OutboxEvent:
    """Return the completion event of an episode, the same from its file's record and from its row in the index."""
    return _event(
        f"episode:{episode.episode_id}",
        subjects.EPISODE_COMPLETED,
        EpisodeCompleted(
            episode_id=episode.episode_id,
            env=episode.env,
            reward=episode.reward,
            rounds=episode.rounds,
            duration_s=episode.duration_s,
            success=episode.success,
            score=episode.reward,
            duration_sec=episode.duration_s,
            outcome=episode.outcome,
            agent=episode.agent,
            model=episode.model,
            task_index=episode.task_index,
            tokens=_tokens(episode),
            batch_id=episode.batch_id,
            node=episode.node,
            profile=episode.profile,
            cost=episode.cost,
            unscored=episode.unscored,
        ),
        names,
        time=episode.ended_at,
    )


def batch_event(result: BatchResult, names: DurableNames, *, node: str, time: datetime) -> OutboxEvent:
    """Return the completion event of a batch; call it only for a batch that will not be resumed."""
    return _event(
        f"batch:{result.batch_id}",
        subjects.BATCH_COMPLETED,
        BatchCompleted(
            batch_id=result.batch_id,
            env=result.env,
            n_episodes=result.n_episodes,
            mean_reward=result.mean_reward,
            success_rate=result.success_rate,
            status=result.status,
            agent=result.agent,
            model=result.model,
            node=node,
            battery_id=result.battery_id,
            tokens=result.tokens,
            cost=result.cost,
            latency_s=result.latency_s,
            n_rated=result.n_rated,
            n_errors=result.n_errors,
        ),
        names,
        time=time,
    )


def status_event(
    status: NodeStatus,
    names: DurableNames,
    *,
    n: int,
    role: Literal["node", "run"],
    node: str,
    profile: str,
    boot: str,
    pid: int,
    time: datetime,
) -> OutboxEvent:
    """Return the event for a status change of a process; ``n`` counts the process's status events from 0."""
    return _event(
        f"status:{boot}:{n}",
        subjects.FIELD_STATUS,
        FieldStatus(node=node, config=profile, status=status, role=role, boot=boot, pid=pid),
        names,
        time=time,
    )


def enqueue_missing(index: EpisodeIndex, outbox: Outbox, names: DurableNames) -> int:
    """Add the missing completion events of stored episodes, oldest first, and return their number.

    Call it at each start, after the index has been updated from the files: a process may have died between writing an
    episode and adding its event, and a broken outbox is recreated empty.

    Raises:
        StoreError: the index or the outbox cannot be used.
    """
    known = outbox.known_ids()
    ids = (episode_id for (episode_id,) in index.select("SELECT episode_id FROM episodes"))
    missing = {episode_id for episode_id in ids if f"episode:{episode_id}" not in known}
    if not missing:
        return 0
    rows = (row for row in reversed(index.recent(-1)) if row.episode_id in missing)
    return _add_all(outbox, (episode_event(row, names) for row in rows))


def _add_all(outbox: Outbox, events: Iterable[OutboxEvent]) -> int:
    added, remaining = 0, iter(events)
    while chunk := list(islice(remaining, MAX_EVENTS_PER_TRANSACTION)):
        added += outbox.add(*chunk)
    return added


def _event(event_id: str, kind: str, event: DurableEvent, names: DurableNames, *, time: datetime) -> OutboxEvent:
    return OutboxEvent(
        id=event_id, subject=names.subject_of(kind), type=kind, source=event.node, time=time, payload=encode(event)
    )


def _tokens(episode: EpisodeRecord | EpisodeRow) -> Tokens:
    if isinstance(episode, EpisodeRecord):
        return episode.tokens
    return Tokens(episode.tokens_prompt, episode.tokens_completion, episode.tokens_reasoning, episode.tokens_cached)
