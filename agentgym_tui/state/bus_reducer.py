"""Updates the registries of nodes, environments, endpoints, batches and episodes from messages of a bus."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from agentgym_tui.state.batches import BatchRegistry
from agentgym_tui.state.coalesce import coalesce_batch
from agentgym_tui.state.endpoints import EndpointRegistry
from agentgym_tui.state.environments import EnvironmentRegistry
from agentgym_tui.state.episodes import EpisodeRegistry
from agentgym_tui.state.merged_items import (
    CHUNK_TYPES,
    AnswerChunk,
    DecodedBatch,
    EpisodeUpdate,
    FinishedAnswers,
    StepChunk,
    Update,
)
from agentgym_tui.state.nodes import NodeRegistry
from agentgym_tui.state.normalize import clip_name, ulid_prefix, ulid_time
from agentgym_tui.state.notices import NoticeList
from runner.events.codec import DurableRow, ForeignRow, LiveRow
from runner.events.durable import BatchCompleted, DurableEvent, EpisodeCompleted, FieldStatus, ForeignEpisode
from runner.events.live import EnvHealth, EpisodeStarted, Heartbeat, Host, ModelHealth, TokenText
from runner.subscribe.messages import BusMessage, Notice, SubscriptionItem
from runner.types import BatchProgress, EpisodePaused, EpisodeResumed, WorkerState

_LONG_AGO: Final = datetime(1970, 1, 1, tzinfo=UTC)


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
        self.n_items = self.n_malformed = 0
        self._nodes = nodes
        self._envs = envs
        self._endpoints = endpoints
        self._batches = batches
        self._episodes = episodes
        self._notices = notices
        self._n_foreign = 0

    def apply(self, message: SubscriptionItem | DecodedBatch) -> bool:
        """Update the registries from a message.

        Args:
            message: a message, a notice, or a live message that is already decoded and coalesced.

        Returns:
            Whether anything that a screen shows may have changed.
        """
        if isinstance(message, Notice):
            self._notices.add(message.text, message.count)
            return True
        if isinstance(message, DecodedBatch):
            return self._apply_batch(message)
        match message.decoded:
            case LiveRow() as row:
                return self._apply_batch(coalesce_batch(row))
            case DurableRow() as row:
                self._apply_durable(row.event, message)
            case ForeignRow() as row:
                self._apply_foreign(row.event, message)
            case _:
                self.n_malformed += 1
        return True

    def _apply_batch(self, batch: DecodedBatch) -> bool:
        self.n_items += batch.n_items
        self.n_malformed += batch.n_malformed
        node, changed = self._nodes.on_heartbeat(batch.node, batch.dropped)
        boot = clip_name(batch.boot)
        changed = self.on_boot(node.name, boot, sure=False) or changed
        boot = node.boot if node.boot == boot else boot
        for update in batch.updates:
            changed = self._apply_update(update, node.name, boot) or changed
        return changed or batch.n_malformed > 0

    def _apply_update(self, update: Update, node: str, boot: str) -> bool:
        """Update the registries from an item of a live message; return whether a shown value may have changed."""
        if isinstance(update, CHUNK_TYPES):  # by far the most frequent
            self._apply_episode_update(update, node, boot)
            return True
        match update:
            case BatchProgress():
                self._batches.apply_progress(update, boot)
            case WorkerState():
                return False  # progress items have the numbers of workers
            case EnvHealth() | ModelHealth() | Host() | Heartbeat():
                return self.apply_health_item(update, node)
            case _:
                self._apply_episode_update(update, node, boot)
        return True

    def _apply_episode_update(self, update: EpisodeUpdate, node: str, boot: str) -> None:
        known = self._episodes.episodes.get(update.episode_id)
        answer, last_index = (known.streaming, known.last_step_index) if known is not None else (None, -1)
        if not self._episodes.apply(update, node, boot):
            self.n_malformed += len(update.seqs) if isinstance(update, CHUNK_TYPES) else 1
        if isinstance(update, EpisodeStarted):
            self._batches.apply_episode_started(update)
        if (episode := known or self._episodes.episodes.get(update.episode_id)) is None:
            return
        match update:
            case AnswerChunk() | FinishedAnswers() | TokenText():
                self._endpoints.apply_answer(update, answer, episode)
            case StepChunk():
                self._endpoints.apply_steps(episode.steps_after(last_index), episode, update.until)
            case EpisodePaused() | EpisodeResumed():
                self._batches.update_paused(episode.batch_id, self._episodes.running.values())

    def apply_health_item(self, item: EnvHealth | ModelHealth | Host | Heartbeat, node: str) -> bool:
        """Store what a node reported: the health of an environment or model endpoint, its host's load, or its disk.

        Returns:
            Whether a shown value has changed.
        """
        match item:
            case EnvHealth():
                return self._envs.apply_health(item)
            case ModelHealth():
                return self._endpoints.apply_health(item)
            case _:
                return self._nodes.apply_host(item, node)

    def _apply_durable(self, event: DurableEvent, message: BusMessage) -> None:
        match event:
            case EpisodeCompleted():
                at = ulid_time(event.episode_id) or message.time or _LONG_AGO
                self.n_malformed += not self._episodes.apply_completed(event, at)
            case BatchCompleted():
                self._batches.apply_completed(event, message.time)
            case FieldStatus(role="node"):
                self.on_boot(event.node, event.boot, sure=False)
                self._nodes.on_status_event(event)

    def _apply_foreign(self, event: ForeignEpisode, message: BusMessage) -> None:
        # the episode has no id: one made of its time and position sorts by time
        at = message.time or datetime.now(UTC)
        self._n_foreign += 1
        position = f"{clip_name(message.stream)}:{message.sequence}" if message.stream else f":{self._n_foreign}"
        self._episodes.apply_foreign(f"{ulid_prefix(at)}:{position}", event, at)

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
        node.boot, node.status = boot, "" if node.status == "stopped" else node.status
        self._episodes.mark_interrupted(node.name, boot)
        return True
