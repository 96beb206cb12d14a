"""Store of the state that all screens show: nodes, environments, batches, episodes, endpoints and rewards."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from agentgym_tui.state.batches import ENDED, BatchRegistry, BatchTotals, usage_with
from agentgym_tui.state.bus_reducer import BusReducer
from agentgym_tui.state.data_model import (
    BatchRun,
    BusLink,
    EnvironmentState,
    Episode,
    NodeInfo,
)
from agentgym_tui.state.endpoints import EndpointRegistry
from agentgym_tui.state.environments import EnvironmentRegistry
from agentgym_tui.state.episode_list import ReadProgress
from agentgym_tui.state.episodes import EpisodeRegistry
from agentgym_tui.state.live_batches import Received
from agentgym_tui.state.nodes import NodeRegistry, ProfileDifference
from agentgym_tui.state.normalize import clip_names
from agentgym_tui.state.notices import FeedNotice, NoticeList

if TYPE_CHECKING:
    from runner.events.control import BatchState, NodeHealth, NodeList
    from runner.store.index_schema import EpisodeRow
    from runner.types import Tokens

MAX_EPISODES: Final = 400
"""Largest number of episodes kept."""

MAX_EPISODE_BYTES: Final = 24 << 20
"""Approximate memory limit of all episodes, in bytes."""

LOST_AFTER_S: Final = 5.0
"""Seconds of silence after which a node counts as lost."""


class RunStore:
    """State built from bus messages, replies of nodes and stored episodes.

    Widgets only read the store; the session and the app change it. Each change adds 1 to ``version`` and calls
    ``on_change`` once. ``envs_version``, ``n_ended`` and ``Episode.version`` are the versions of parts: a widget draws
    its part again when the version of the part has changed.

    Args:
        now: returns the time of the console's monotonic clock in seconds.
        max_episodes: largest number of episodes kept.
        max_bytes: approximate memory limit of all episodes, in bytes.
        lost_after_s: seconds of silence after which a node counts as lost.

    Attributes:
        now: returns the time of the console's monotonic clock in seconds.
        on_queue_change: called when a node has reported a change of its queue.
        agents, model_names: agents that the node can run, and models of the profile.
        notices: notices about the subscription, the newest last.
        nodes: nodes by name.
        profile_difference: how the profile of the running node differs from the console's, if it does.
        endpoints: model endpoints by name, in the order in which agents try them.
        failovers: the newest changes from one endpoint to another and back, the newest last.
        batches: batches by id, the newest last.
        rewards: the newest reward points of each environment, sorted from the oldest to the newest.
        n_ended: counter that grows when an episode ends or is stored; a screen then reads its list again.
        read_progress: progress of reading files; None while no files are being read.
        n_stored: number of index rows received; None before the first rows.
        n_unlisted: number of batches with stored episodes that ``batches`` lacks.
        trends: recent values of what nodes report, and of the rate of live items.
        tags: tags of the tagged episodes, as untrusted text; each change replaces the mapping.
        marked_episode: id of the episode that the next one is compared with; "" without one.
    """

    def __init__(
        self,
        *,
        now: Callable[[], float] = time.monotonic,
        max_episodes: int = MAX_EPISODES,
        max_bytes: int = MAX_EPISODE_BYTES,
        lost_after_s: float = LOST_AFTER_S,
    ) -> None:
        self.link = BusLink()
        self.profile_difference: ProfileDifference | None = None
        self.agents, self.model_names = list[str](), list[str]()
        self._profile_defaults: tuple[str, Mapping[str, float | str | None]] = "", {}
        self._profile_currency = self.marked_episode = ""
        self.tags: Mapping[str, Sequence[str]] = {}
        self.n_stored: int | None = None
        self.read_progress: ReadProgress | None = None
        self.version = self.n_ended = self.n_unlisted = 0
        self.now = now
        self.on_change: Callable[[], None] | None = None
        self.on_queue_change: Callable[[], None] | None = None
        self._notices = NoticeList(now)
        self._queue_notice: str | None = None
        self._nodes = NodeRegistry(now, lost_after_s)
        self._envs = EnvironmentRegistry()
        self.endpoint_registry = EndpointRegistry(now)
        self._batches = BatchRegistry(now)
        self._episodes = EpisodeRegistry(
            max_episodes=max_episodes, max_bytes=max_bytes, currency=lambda: self._profile_currency
        )
        self._reducer = BusReducer(
            nodes=self._nodes,
            envs=self._envs,
            endpoints=self.endpoint_registry,
            batches=self._batches,
            episodes=self._episodes,
            notices=self._notices,
        )
        self.notices, self.nodes, self.trends = self._notices.notices, self._nodes.nodes, self._reducer.trends
        self.endpoints, self.failovers = self.endpoint_registry.endpoints, self.endpoint_registry.failovers
        self.batches, self.rewards = self._batches.batches, self._envs.rewards.by_env

    @property
    def currency(self) -> str:
        """Currency of sums of costs: that of the profile, else that of the first episode that names one; "" without."""
        return self._profile_currency or self._episodes.first_currency

    @currency.setter
    def currency(self, currency: str) -> None:
        self._profile_currency = currency

    @property
    def n_failovers(self) -> int:
        """Number of all failovers, including those no longer in ``failovers``."""
        return self.endpoint_registry.n_failovers

    @property
    def newest_notice(self) -> FeedNotice | None:
        """The newest notice; None if it is too old to be shown or there is no notice."""
        return self._notices.newest

    @property
    def recent_loss(self) -> FeedNotice | None:
        """The newest notice about lost messages; None if there is no recent notice."""
        return self._notices.recent_loss

    @property
    def envs(self) -> dict[str, EnvironmentState]:
        """Environments by name: those of the profile in its order, then all other known environments."""
        return self._envs.envs

    @property
    def envs_version(self) -> int:
        """Counter that grows with each change of ``envs``."""
        return self._envs.version

    @property
    def episodes(self) -> dict[str, Episode]:
        """Episodes by id, the newest last."""
        return self._episodes.episodes

    @property
    def n_items(self) -> int:
        """Number of live items received."""
        return self._reducer.n_items

    @property
    def n_malformed(self) -> int:
        """Number of messages and live items that could not be decoded or have no valid episode id."""
        return self._reducer.n_malformed

    @property
    def n_lost_messages(self) -> int:
        """Number of messages that left their stream unread, or were skipped because the console was too slow."""
        return self._notices.n_lost

    @property
    def n_missing(self) -> int:
        """Number of live items of all episodes that were sent and are not shown; see ``EpisodeRegistry.n_missing``."""
        return self._episodes.n_missing

    @property
    def all_nodes_lost(self) -> bool:
        """Whether all nodes are lost; False if no node is known."""
        return bool(self.nodes) and all(node.lost for node in self.nodes.values())

    def is_lost(self, batch: BatchRun) -> bool:
        """Return whether the node of a batch is lost; where the node is not known, whether all nodes are."""
        node = self.nodes.get(batch.node)
        return self.all_nodes_lost if node is None else node.lost

    def node_status(self, node: NodeInfo) -> str:
        """Return the status of a node: ``running`` while its episodes run, even if its status event is late or missed.

        Live items and status events are not ordered against each other. While a node starts: how many episodes it has
        read.
        """
        is_playing = node.status in ("starting", "idle") and any(
            each.is_active and each.node == node.name for each in self._episodes.running.values()
        )
        if is_playing:
            return "running"
        return node.indexing if node.status == "starting" and node.indexing else node.status

    def running_episodes(self) -> list[Episode]:
        """Return the episodes without an outcome, including those of lost nodes, sorted with the newest last."""
        return sorted(self._episodes.running.values(), key=attrgetter("started_at"))

    @property
    def n_waiting(self) -> int:
        """Number of batches that wait, including those that are not listed because they are too many."""
        return self._batches.n_waiting

    def active_batch(self) -> BatchRun | None:
        """Return the newest batch that is running or paused."""
        return self._batches.active()

    def interrupted_batch(self) -> BatchRun | None:
        """Return the newest batch if it was interrupted for a known reason."""
        return self._batches.interrupted()

    def episodes_of(self, batch_id: str) -> Sequence[Episode]:
        """Return the known episodes of a batch, the newest last."""
        return self._episodes.of_batch(batch_id, self.version)

    def usage_of(self, batch: BatchRun) -> tuple[Tokens, float | None]:
        """Return the tokens and the cost of a batch, including its running episodes; see ``usage_with``."""
        return usage_with(batch, self.episodes_of(batch.batch_id))

    def apply_events(self, messages: Sequence[Received]) -> None:
        """Update the state from bus messages in the given order."""
        n_queue_items = self._reducer.n_queue_items
        if sum(self._reducer.apply(message) for message in messages):
            self._commit()
        if self._reducer.n_queue_items > n_queue_items and self.on_queue_change is not None:
            self.on_queue_change()

    def apply_list(self, listed: NodeList) -> None:
        """Update the state from a node's reply to a list request: batches, agents, models and environments.

        What the node's queue had lost becomes a notice once, although every reply repeats it.
        """
        if listed.queue and listed.queue != self._queue_notice:
            self._notices.add(listed.queue, 0)
        self._queue_notice = listed.queue
        self._batches.apply_list(listed.batches)
        self._batches.set_n_waiting(next(iter(self.nodes), ""), listed.n_waiting)
        self.agents, self.model_names = clip_names(listed.agents), clip_names(listed.models)
        for env in clip_names(listed.envs):
            self._envs.get(env)
        self._commit()

    def apply_batches(self, batches: Sequence[BatchState]) -> None:
        """Update the state from a node's reply to a start request, whose batches are in the order of their start."""
        self._batches.apply_list(batches[::-1], is_new=True)
        self._commit()

    def apply_unlisted(self, batches: Sequence[BatchState]) -> None:
        """Add ended batches that the node does not list, the newest first."""
        self._batches.add_older(batches)
        self._commit()

    def set_n_unlisted(self, n: int) -> None:
        """Set the number of batches with stored episodes that ``batches`` lacks."""
        if n != self.n_unlisted:
            self.n_unlisted = n
            self._commit()

    def batches_without_totals(self) -> list[str]:
        """Return the ids of the batches that have ended while the console did not follow them."""
        return self._batches.without_totals()

    def apply_totals(self, batch_ids: Sequence[str], totals: Sequence[BatchTotals]) -> None:
        """Complete batches that have ended while the console did not follow them; ``batch_ids`` were summed."""
        self._batches.apply_totals(batch_ids, totals)
        self._commit()

    def run(self, run_id: str) -> list[BatchRun]:
        """Return the batches of a battery in their order, or the batch with this id."""
        return [batch for batch in self.batches.values() if run_id in (batch.battery_id, batch.batch_id)]

    def newest_ended_run(self) -> str:
        """Return the id of the battery or batch that ended last; "" if none has ended, or its battery goes on."""
        batch = self._batches.newest_ended()
        if batch is None or any(each.status not in ENDED for each in self.run(batch.battery_id or batch.batch_id)):
            return ""
        return batch.battery_id or batch.batch_id

    def apply_health(self, health: NodeHealth) -> None:
        """Update the state from a node's reply to a health request."""
        node = self._nodes.apply_health(health)
        self._reducer.on_boot(node.name, health.boot, sure=True)
        for item in health.items:
            self._reducer.apply_health_item(item, node.name)
        self._commit()

    @property
    def holding_node(self) -> NodeInfo | None:
        """The node that has earlier events which are not sent to its external broker; None if there is none."""
        return next((node for node in self.nodes.values() if node.n_held and node.egress and not node.lost), None)

    @property
    def profile_defaults(self) -> Mapping[str, float | str | None]:
        """Values of the profile, by name of the field of a start request; empty if a node may have another profile."""
        profile, values = self._profile_defaults
        return values if all(node.profile in ("", profile) for node in self.nodes.values()) else {}

    def set_profile_defaults(self, profile: str, values: Mapping[str, float | str | None]) -> None:
        """Set the values that the profile with the id ``profile`` supplies where a start request has none."""
        self._profile_defaults = profile, values

    def apply_profile(self, entries: Iterable[tuple[str, str, str | None]]) -> None:
        """Set the order, tiers and server memory of the environments from a profile.

        Args:
            entries: tier, environment name and memory of the environment's server, in the order of the profile.
        """
        self._envs.apply_profile(entries)
        self._commit()

    def apply_stored(self, rows: Sequence[EpisodeRow]) -> None:
        """Update the state from index rows of stored episodes; the newest episode is first in ``rows``."""
        for row in rows:
            self._episodes.apply_stored(row)
        self._envs.apply_stored(rows)
        self.n_stored = (self.n_stored or 0) + len(rows)
        self.n_ended += 1  # also without rows: unreadable files may have been found
        self._commit()

    def merge_episode(self, episode: Episode) -> None:
        """Merge an episode that was read from a journal or an episode file into the state."""
        node = self.nodes.get(episode.node)
        self._episodes.merge_file(episode, node.boot if node else "")
        self._commit()

    def add_notice(self, text: str) -> None:
        """Add a notice that does not come from the bus; ``text`` is untrusted."""
        self._notices.add(text, 0)
        self._commit()

    def set_profile_difference(self, difference: ProfileDifference | None) -> None:
        """Set how the profile of the running node differs from the console's."""
        if difference != self.profile_difference:
            self.profile_difference = difference
            self._commit()

    def apply_tags(self, tags: Mapping[str, Sequence[str]]) -> None:
        """Replace the tags of all episodes."""
        self.tags = tags
        self._commit()

    def set_link(self, link: BusLink) -> None:
        """Set the state of the connection to the bus."""
        if link == self.link:
            return
        was_up, self.link = self._bus_is_up, link
        if was_up and not self._bus_is_up:
            self._nodes.on_disconnect()
        elif self._bus_is_up and not was_up:
            self._nodes.on_reconnect()
        self._commit()

    def answer_wait_s(self, episode: Episode) -> float | None:
        """Return for how many seconds the endpoint of an awaited answer has sent nothing; None if that is not known."""
        answer = episode.streaming if episode.running and not episode.node_lost else None
        since = None if answer is None else answer.newest_at or answer.requested_at
        now = None if since is None else self._nodes.clock_of(episode.node)
        return None if now is None or since is None else max((now - since).total_seconds(), 0.0)

    @property
    def next_tick_s(self) -> float:
        """Seconds until ``tick`` may find a node lost or a shown notice too old; infinite without both."""
        return min(self._nodes.next_loss_s if self._bus_is_up else math.inf, self._notices.next_expiry_s)

    def mark_node_lost(self, node: str) -> None:
        """Mark a node as lost, unless it is unknown or stopped."""
        if self._nodes.mark_lost(node):
            self._commit()

    def tick(self) -> None:
        """Mark silent nodes as lost, unless the bus is down; report a change where a shown notice became too old."""
        has_old_notice = self._notices.tick()
        if (self._bus_is_up and self._nodes.tick()) or has_old_notice:
            self._commit()

    @property
    def _bus_is_up(self) -> bool:
        # while the bus is down, a silent node is not a lost node
        return self.link.status in ("connected", "none")

    def _commit(self) -> None:
        """Complete a change: update fields that depend on other objects, enforce the limits and call ``on_change``."""
        for stopped in (node for node in self.nodes.values() if node.status == "stopped"):
            self._episodes.mark_interrupted(stopped.name, "")
        self._episodes.mark_lost({node.name for node in self.nodes.values() if node.lost})
        for episode in (ended := self._episodes.ended):
            self._envs.apply_ended(episode)
            self._batches.apply_episode_ended(episode)
        self.n_ended += len(ended)
        ended.clear()
        self._episodes.enforce_limits()
        self._envs.refresh(self._episodes.running.values(), self._episodes.running_version)
        self.version += 1
        if self.on_change is not None:
            self.on_change()
