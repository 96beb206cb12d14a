"""Updates the registries of nodes, environments, endpoints, batches and episodes from messages of a bus."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import cast

from agentgym_tui.state.batches import BatchRegistry
from agentgym_tui.state.endpoints import EndpointRegistry
from agentgym_tui.state.environments import EnvironmentRegistry
from agentgym_tui.state.episode_reducer import EpisodeItem
from agentgym_tui.state.episodes import EpisodeRegistry
from agentgym_tui.state.live_batches import Received, group_items
from agentgym_tui.state.machine import SERVER_TRENDS, Trends
from agentgym_tui.state.nodes import NodeRegistry
from agentgym_tui.state.normalize import clamp_count, clip_name, ulid_time
from agentgym_tui.state.notices import NoticeList
from runner.events.codec import DurableRow, LiveRow
from runner.events.durable import BatchCompleted, DurableEvent, EpisodeCompleted, FieldStatus
from runner.events.live import (
    EnvHealth,
    EpisodeStarted,
    Heartbeat,
    Host,
    LazyItem,
    LazySpan,
    LazyTimestep,
    ModelHealth,
    ModelMetrics,
    QueueChanged,
    TokenText,
)
from runner.subscribe.messages import BusMessage, Notice
from runner.types import BatchProgress, EpisodePaused, EpisodeResumed, WorkerState
from runner.types.episode_events import EpisodeItemBase
from runner.types.machine import Machine


class BusReducer:
    """Updates the registries that a message concerns.

    Args:
        nodes: registry of nodes.
        envs: registry of environments.
        endpoints: registry of model endpoints.
        batches: registry of batches.
        episodes: registry of episodes.
        notices: list of notices about the subscription.

    Attributes:
        n_items: number of live items received.
        n_malformed: number of messages and live items that could not be decoded or have no valid episode id.
        n_queue_items: number of items that reported a change of a node's queue.
        trends: recent values of what nodes report.
    """

    def __init__(
        self,
        *,
        nodes: NodeRegistry,
        envs: EnvironmentRegistry,
        endpoints: EndpointRegistry,
        batches: BatchRegistry,
        episodes: EpisodeRegistry,
        notices: NoticeList,
    ) -> None:
        self.n_items = self.n_malformed = self.n_queue_items = 0
        self._nodes = nodes
        self._envs = envs
        self._endpoints = endpoints
        self._batches = batches
        self._episodes = episodes
        self._notices = notices
        self.trends = Trends()

    def apply(self, message: Received) -> bool:
        """Update the registries from a message.

        Args:
            message: a message, a notice, or the joined content of live messages.

        Returns:
            Whether anything that a screen shows may have changed.
        """
        match message:
            case LiveRow():
                return self._apply_live(message)
            case BusMessage(decoded=LiveRow() as row):
                return self._apply_live(row)
            case Notice():
                self._notices.add(message.text, message.count)
            case BusMessage(decoded=DurableRow(event=event)):
                self._apply_durable(event, message)
            case _:
                self.n_malformed += 1
        return True

    def _apply_live(self, row: LiveRow) -> bool:
        batch = row.batch
        self.n_items += len(batch.items)
        self.trends.sample_rate("items", self.n_items, self._nodes.now())
        self.n_malformed += len(row.raw)
        node, changed = self._nodes.on_heartbeat(batch.node, batch.dropped)
        boot = clip_name(batch.boot)
        changed = self.on_boot(node.name, boot, sure=False) or changed
        boot = node.boot if node.boot == boot else boot
        for items in group_items(batch.items):
            changed = self._apply_group(items, node.name, boot) or changed
        return changed or bool(row.raw)

    def _apply_group(self, items: Sequence[LazyItem], node: str, boot: str) -> bool:
        """Update the registries from a group of items; return whether a shown value may have changed."""
        first = items[0]
        if isinstance(first, EpisodeItemBase):
            is_valid = self._episodes.apply(cast("Sequence[EpisodeItem]", items), node, boot, self._endpoints)
            self.n_malformed += 0 if is_valid else len(items)
        match first:
            case TokenText() | LazySpan() | LazyTimestep():
                pass  # by far the most frequent
            case EpisodeStarted():
                self._batches.apply_episode_started(first, node)
            case EpisodePaused() | EpisodeResumed():
                if (episode := self._episodes.episodes.get(first.episode_id)) is not None:
                    self._batches.update_paused(episode.batch_id, self._episodes.running.values())
            case BatchProgress():
                self._batches.apply_progress(first, boot, node)
                if first.workers is not None:
                    self.trends.add("workers", clip_name(first.batch_id), clamp_count(first.workers.n))
                batch = self._batches.batches.get(first.batch_id)
                if batch is not None and batch.status == "paused" and not first.paused:
                    self._batches.update_paused(first.batch_id, self._episodes.running.values())
            case QueueChanged():
                self._batches.apply_queue(first, node)
                self.n_queue_items += 1
            case WorkerState():
                return False  # progress items have the numbers of workers
            case EnvHealth() | ModelHealth() | ModelMetrics() | Host() | Machine() | Heartbeat():
                return self.apply_health_item(first, node)
        return True

    def apply_health_item(
        self, item: EnvHealth | ModelHealth | ModelMetrics | Host | Machine | Heartbeat, node: str
    ) -> bool:
        """Store what a node reported: the health of an environment or model endpoint, its machine or disk.

        Returns:
            Whether a shown value has changed.
        """
        match item:
            case EnvHealth():
                self.trends.add("env latency", clip_name(item.env), item.latency_s)
                return self._envs.apply_health(item)
            case ModelHealth():
                self.trends.add("model latency", clip_name(item.endpoint), item.latency_s)
                return self._endpoints.apply_health(item, clip_name(node))
            case Machine():
                return self._nodes.apply_machine(item, node)
            case ModelMetrics():
                for what in SERVER_TRENDS:
                    self.trends.add(what, clip_name(item.endpoint), getattr(item, what))
                return self._endpoints.apply_metrics(item)
            case Host():
                self.trends.add("cpu", clip_name(node), item.cpu)
                self.trends.add("ram", clip_name(node), item.ram)
                return self._nodes.apply_host(item, node)
            case _:
                return self._nodes.apply_host(item, node)

    def _apply_durable(self, event: DurableEvent, message: BusMessage) -> None:
        match event:
            case EpisodeCompleted():
                at = ulid_time(event.episode_id) or message.time or datetime.now(UTC)
                self.n_malformed += not self._episodes.apply_completed(event, at)
            case BatchCompleted():
                self._batches.apply_completed(event, message.time, message.sent_at)
            case FieldStatus(role="node" | None):
                if event.boot:
                    self.on_boot(event.node, event.boot, sure=False)
                self._nodes.on_status_event(event)

    def on_boot(self, node_name: str, boot: str, *, sure: bool) -> bool:
        """Record the current process of a node, and mark running episodes of its earlier processes as interrupted.

        Live items of an earlier process may arrive late, so a process id that sorts before the known one is ignored
        unless ``sure`` is set. Process ids sort by start time.

        Args:
            node_name: name of the node.
            boot: id of the process that sent a message.
            sure: whether the process has just replied to a request and is therefore the current one.

        Returns:
            Whether the process of the node changed or an episode was marked as interrupted.
        """
        node = self._nodes.get(node_name)
        boot = clip_name(boot)
        if boot == node.boot or not (sure or boot > node.boot):
            return self._episodes.mark_interrupted(node.name, node.boot)
        if not node.boot:
            self._episodes.assign_boot(node.name, boot)
        self._endpoints.forget_reports(node.name)
        node.boot, node.status = boot, "" if node.status == "stopped" else node.status
        self._episodes.mark_interrupted(node.name, boot)
        return True
