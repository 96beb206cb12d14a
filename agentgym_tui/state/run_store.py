"""What the console knows: nodes, environments, batches, episodes and rewards, put together and bounded."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from agentgym_tui.state.batches import BatchRegistry
from agentgym_tui.state.coalesce import coalesce_batch
from agentgym_tui.state.endpoints import EndpointRegistry, Failover
from agentgym_tui.state.environments import EnvironmentRegistry
from agentgym_tui.state.episodes import EpisodeRegistry
from agentgym_tui.state.item_batches import (
    CHUNK_TYPES,
    AnswerChunk,
    DecodedBatch,
    EpisodeUpdate,
    FinishedAnswers,
    StepChunk,
    Update,
)
from agentgym_tui.state.limits import clamp_finite, clip_name, clip_names
from agentgym_tui.state.models import (
    BatchRun,
    BusLink,
    EndpointState,
    EnvironmentState,
    Episode,
    NodeInfo,
    ReadProgress,
)
from agentgym_tui.state.nodes import NodeRegistry, set_host_load
from agentgym_tui.state.notices import FeedNotice, NoticeList
from agentgym_tui.state.rewards import RewardPoint
from agentgym_tui.state.timestamps import ulid_prefix, ulid_time
from runner.events.decoded import DurableRow, ForeignRow, LiveRow
from runner.events.durable import BatchCompleted, DurableEvent, EpisodeCompleted, FieldStatus, ForeignEpisode
from runner.events.live import (
    BatchProgress,
    EnvHealth,
    EpisodePaused,
    EpisodeResumed,
    EpisodeStarted,
    Heartbeat,
    Host,
    ModelHealth,
    TokenText,
)
from runner.subscribe.messages import BusMessage, Notice, SubscriptionItem
from runner.types import Tokens

if TYPE_CHECKING:
    from runner.events.control import NodeHealth, NodeList
    from runner.store.index_schema import EpisodeRow

__all__ = ["LOST_AFTER_S", "FeedNotice", "RewardPoint", "RunStore"]

MAX_EPISODES: Final = 400
MAX_EPISODE_BYTES: Final = 36 << 20
LOST_AFTER_S: Final = 5.0
"""Seconds without a sign of a node after which it counts as lost."""

_LONG_AGO: Final = datetime(1970, 1, 1, tzinfo=UTC)


class RunStore:
    """Everything the screens show. Widgets read it, nobody but the session's feed and the app changes it.

    Each change raises ``version`` and calls ``on_change`` once.

    Args:
        now: the console's monotonic clock, seconds.
        max_episodes: those kept, the newest.
        max_bytes: about what their texts may take.

    Attributes:
        agents: those that can be started.
        model_names: those of the profile.
        n_items: live items that were taken.
        n_ended: raised whenever an episode ended or was stored, so that lists are read again.
        n_malformed: messages and items that did not decode.
        reading: how far files were read, None where none are being read.
        n_stored: rows of stored episodes that were taken so far; None before any were looked for.
    """

    def __init__(
        self,
        *,
        now: Callable[[], float] = time.monotonic,
        max_episodes: int = MAX_EPISODES,
        max_bytes: int = MAX_EPISODE_BYTES,
    ) -> None:
        """Start empty."""
        self.link = BusLink()
        self._notices = NoticeList(now)
        self.agents: list[str] = []
        self.model_names: list[str] = []
        self.n_items = 0
        self.n_ended = 0
        self.n_malformed = 0
        self.n_stored: int | None = None
        self.read_progress: ReadProgress | None = None
        self.version = 0
        self.on_change: Callable[[], None] | None = None
        self._now = now
        self._n_foreign = 0
        self._nodes = NodeRegistry(now, LOST_AFTER_S)
        self._envs = EnvironmentRegistry()
        self._endpoints = EndpointRegistry()
        self._batches = BatchRegistry()
        self._episodes = EpisodeRegistry(max_episodes=max_episodes, max_bytes=max_bytes)

    @property
    def notices(self) -> deque[FeedNotice]:
        """What happened to the following, the newest last."""
        return self._notices.notices

    @property
    def endpoints(self) -> dict[str, EndpointState]:
        """Endpoints by name, in the order they are asked."""
        return self._endpoints.endpoints

    @property
    def failovers(self) -> deque[Failover]:
        """From one endpoint to the next and back again, the newest last."""
        return self._endpoints.failovers

    @property
    def n_failovers(self) -> int:
        """How many of these there were so far."""
        return self._endpoints.n_failovers

    @property
    def newest_notice(self) -> FeedNotice | None:
        """The newest of these, unless it is old."""
        return self._notices.newest

    @property
    def recent_loss(self) -> FeedNotice | None:
        """What was told in the last seconds of messages that did not come."""
        return self._notices.recent_loss

    @property
    def nodes(self) -> dict[str, NodeInfo]:
        """By name."""
        return self._nodes.nodes

    @property
    def envs(self) -> dict[str, EnvironmentState]:
        """By name, in the order of the profile."""
        return self._envs.envs

    @property
    def batches(self) -> dict[str, BatchRun]:
        """By id, the newest last."""
        return self._batches.batches

    @property
    def episodes(self) -> dict[str, Episode]:
        """By id, the newest last."""
        return self._episodes.episodes

    @property
    def rewards(self) -> dict[str, deque[RewardPoint]]:
        """The newest points per environment, the oldest first."""
        return self._envs.rewards.by_env

    @property
    def n_missing(self) -> int:
        """Live items that are known to have been sent and did not come, of all episodes."""
        return self._episodes.n_missing

    @property
    def needs_tick(self) -> bool:
        """Whether ``tick`` may change anything, or something runs whose time passes."""
        return bool(self._episodes.running) or (self._bus_is_up and self._nodes.needs_tick) or self._notices.needs_tick

    @property
    def all_nodes_lost(self) -> bool:
        """Whether no node is left that could play."""
        return bool(self.nodes) and all(node.lost for node in self.nodes.values())

    def running_episodes(self) -> list[Episode]:
        """Episodes that are played, those of lost nodes included, the newest last."""
        return sorted(self._episodes.running.values(), key=attrgetter("started_at"))

    def active_batch(self) -> BatchRun | None:
        """The newest batch that is played, or paused."""
        return self._batches.active()

    def usage_of(self, batch: BatchRun) -> tuple[Tokens, float | None]:
        """Tokens and cost of a batch so far: what its node has added up, and the steps of what runs."""
        own = [each for each in self.episodes.values() if each.batch_id == batch.batch_id]
        counted = [each for each in own if each.running or batch.tokens is None]
        costs = [cost for cost in (batch.cost, *(each.cost for each in counted)) if cost is not None]
        tokens = sum((each.tokens for each in counted), batch.tokens or Tokens())
        return tokens, clamp_finite(sum(costs)) if costs else None

    def apply_events(self, seen: Sequence[SubscriptionItem | DecodedBatch]) -> None:
        """Take what came from the bus, in its order."""
        changed = [self._apply_event(each) for each in seen]
        if any(changed):
            self._commit()

    def apply_list(self, listed: NodeList) -> None:
        """Take a node's own list of batches, and of what may be started."""
        self._batches.apply_list(listed.batches)
        self.agents, self.model_names = clip_names(listed.agents), clip_names(listed.models)
        for env in clip_names(listed.envs):
            self._envs.get(env)
        self._commit()

    def apply_health(self, health: NodeHealth) -> None:
        """Take a node's own answer of how it is."""
        node = self._nodes.apply_health(health)
        self._on_boot(node.name, health.boot, sure=True)
        for item in health.items:
            self._apply_health_item(item, node.name)
        self._commit()

    def apply_profile(self, entries: Iterable[tuple[str, str, str | None]]) -> None:
        """Take the environments of a profile: tier, name, and memory their server takes."""
        self._envs.apply_profile(entries)
        self._commit()

    def apply_stored(self, rows: Sequence[EpisodeRow]) -> None:
        """Take the rows of an index, the newest first."""
        for row in rows:
            self._episodes.apply_stored(row)
        self._envs.apply_stored(rows)
        self.n_stored = (self.n_stored or 0) + len(rows)
        self.n_ended += 1  # also without rows: files that cannot be shown may have been found
        self._commit()

    def merge_episode(self, episode: Episode) -> None:
        """Take the steps of a journal or an episode file, where they are missing or were cut."""
        node = self.nodes.get(episode.node)
        self._episodes.merge_file(episode, node.boot if node else "")
        self._commit()

    def set_link(self, link: BusLink) -> None:
        """The way to the bus is another, or in another state."""
        if link == self.link:
            return
        heard, self.link = self._bus_is_up, link
        if heard and not self._bus_is_up:
            self._nodes.on_disconnect()
        elif self._bus_is_up and not heard:
            self._nodes.on_reconnect()
        self._commit()

    @property
    def next_loss_s(self) -> float:
        """Seconds until ``tick`` may find a node lost."""
        return self._nodes.next_loss_s if self._bus_is_up else math.inf

    def mark_node_lost(self, node: str) -> None:
        """A node is known to be gone."""
        if self._nodes.mark_lost(node):
            self._commit()

    def tick(self) -> None:
        """Time has passed: nodes that were not heard of are lost, unless nothing can be heard at all."""
        old_news = self._notices.tick()
        if (self._bus_is_up and self._nodes.tick()) or old_news:
            self._commit()

    @property
    def _bus_is_up(self) -> bool:
        """Whether a node's silence says anything about the node."""
        return self.link.status in ("connected", "none")

    def _apply_event(self, seen: SubscriptionItem | DecodedBatch) -> bool:
        if isinstance(seen, Notice):
            self._notices.add(seen.text, seen.count)
            return True
        if isinstance(seen, DecodedBatch):
            return self._apply_batch(seen)
        match seen.decoded:
            case LiveRow() as row:
                return self._apply_batch(coalesce_batch(row))
            case DurableRow() as row:
                self._apply_durable(row.event, seen)
            case ForeignRow() as row:
                self._apply_foreign(row.event, seen)
            case _:
                self.n_malformed += 1
        return True

    def _apply_batch(self, digest: DecodedBatch) -> bool:
        self.n_items += digest.n_items
        self.n_malformed += digest.n_malformed
        node, changed = self._nodes.on_heartbeat(digest.node, digest.dropped)
        changed = self._on_boot(node.name, digest.boot, sure=False) or changed
        boot = node.boot if node.boot == digest.boot else digest.boot
        for run in digest.updates:
            self._apply_update(run, node.name, boot)
        return changed or digest.n_malformed > 0 or not all(isinstance(run, Heartbeat) for run in digest.updates)

    def _apply_update(self, run: Update, node: str, boot: str) -> None:
        match run:
            case BatchProgress():
                self._batches.apply_progress(run, boot)
            case EnvHealth() | ModelHealth() | Host():
                self._apply_health_item(run, node)
            case Heartbeat():
                pass
            case _:
                self._apply_episode_update(run, node, boot)

    def _apply_episode_update(self, run: EpisodeUpdate, node: str, boot: str) -> None:
        known = self.episodes.get(run.episode_id)
        answer, newest = (known.streaming, known.last_step_index) if known is not None else (None, -1)
        if not self._episodes.apply(run, node, boot):
            self.n_malformed += len(run.seqs) if isinstance(run, CHUNK_TYPES) else 1
        if isinstance(run, EpisodeStarted):
            self._batches.apply_episode_started(run)
        if (episode := known or self.episodes.get(run.episode_id)) is None:
            return
        match run:
            case AnswerChunk() | FinishedAnswers() | TokenText():
                self._endpoints.apply_answer(run, answer, episode)
            case StepChunk():
                self._endpoints.apply_steps(episode.steps_after(newest), episode, run.until)
            case EpisodePaused() | EpisodeResumed():
                self._batches.update_paused(episode.batch_id, self._episodes.running.values())

    def _apply_health_item(self, item: EnvHealth | ModelHealth | Host, node: str) -> None:
        match item:
            case EnvHealth():
                self._envs.apply_health(item)
            case Host():
                set_host_load(self._nodes.get(node), item)
            case ModelHealth():
                self._endpoints.apply_health(item)

    def _apply_durable(self, event: DurableEvent, seen: BusMessage) -> None:
        match event:
            case EpisodeCompleted():
                at = ulid_time(event.episode_id) or seen.time or _LONG_AGO
                self.n_malformed += not self._episodes.apply_completed(event, at)
            case BatchCompleted():
                self._batches.apply_completed(event, seen.time)
            case FieldStatus(role="node"):
                self._on_boot(event.node, event.boot, sure=False)
                self._nodes.on_status_event(event)

    def _apply_foreign(self, event: ForeignEpisode, seen: BusMessage) -> None:
        """An episode without an id gets one of its place in the stream, which sorts by time as others do."""
        at = seen.time or datetime.now(UTC)
        self._n_foreign += 1
        place = f"{clip_name(seen.stream)}:{seen.sequence}" if seen.stream else f":{self._n_foreign}"
        self._episodes.apply_foreign(f"{ulid_prefix(at)}:{place}", event, at)

    def _on_boot(self, node_name: str, boot: str, *, sure: bool) -> bool:
        """A node was heard of from this process of it; what an earlier one played has been interrupted.

        Live items of an earlier process may come late, ids of processes sort by time. ``sure``: it answers right now.
        """
        node = self._nodes.get(node_name)
        boot = clip_name(boot)
        if boot == node.boot or not (sure or boot > node.boot):
            return self._episodes.mark_interrupted(node.name, node.boot)
        if not node.boot:
            self._episodes.assign_boot(node.name, boot)
        node.boot, node.status = boot, "" if node.status == "stopped" else node.status
        self._episodes.mark_interrupted(node.name, boot)
        return True

    def _commit(self) -> None:
        """Bring everything in order and within bounds, and say so."""
        for node in self.nodes.values():
            if node.status == "stopped":
                self._episodes.mark_interrupted(node.name, "")
        for episode in self._episodes.running.values():
            node_of = self.nodes.get(episode.node)
            episode.node_lost = node_of is not None and node_of.lost
        ended = self._episodes.ended
        for episode in ended:
            self._envs.apply_ended(episode)
            self._batches.apply_episode_ended(episode)
        self.n_ended += len(ended)
        ended.clear()
        self._episodes.enforce_limits()
        self._envs.refresh(self._episodes.running.values())
        self.version += 1
        if self.on_change is not None:
            self.on_change()
