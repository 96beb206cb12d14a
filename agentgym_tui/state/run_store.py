"""Store of the state that all screens show: nodes, environments, batches, episodes, endpoints and rewards.

A node may send tens of thousands of items per second. All items of one kind and episode that arrive together are
applied together.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, cast

from msgspec.structs import replace

from agentgym_tui.state.batches import ENDED, BatchRegistry, BatchRun, BatchTotals, sum_costs
from agentgym_tui.state.episode import Episode
from agentgym_tui.state.episodes import EpisodeItem, EpisodeRegistry
from agentgym_tui.state.nodes import SERVER_TRENDS, BusLink, NodeInfo, NodeRegistry, ProfileDifference, Trends
from agentgym_tui.state.normalize import MAX_CAUSE_CHARS, bounded, ulid_time
from agentgym_tui.state.servers import EndpointRegistry, EnvironmentRegistry
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
from runner.subscribe.messages import BusMessage, Notice, SubscriptionItem
from runner.types import BatchProgress, EpisodePaused, EpisodeResumed, Tokens, WorkerState
from runner.types.episode_events import EpisodeItemBase
from runner.types.machine import Machine

if TYPE_CHECKING:
    from agentgym_tui.state.episode_list import ReadProgress
    from runner.events.codec import LiveRow
    from runner.events.control import BatchState, NodeHealth, NodeList
    from runner.store.index_schema import EpisodeRow

MAX_EPISODES: Final = 400
MAX_EPISODE_BYTES: Final = 24 << 20  # approximate
LOST_AFTER_S: Final = 5.0  # of silence, after which a node counts as lost
PORTION_ITEMS: Final = 500  # live items after which a portion ends; any other message counts as one
MAX_NOTICES: Final = 200
RECENT_S: Final = 15.0  # for which a loss of messages counts as recent
SHOWN_S: Final = 60.0  # an older notice would look like news
Received: TypeAlias = "SubscriptionItem | LiveRow"  # ``LiveRow``: the joined content of live messages


class FeedNotice(NamedTuple):
    text: str
    at: float  # by the console's monotonic clock, in seconds
    n: int = 0  # lost messages; 0 for a notice that reports no loss


class NoticeList:
    """The newest notices about the subscription itself, the newest last; one text repeated is one notice.

    ``n_lost`` also counts the lost messages of notices that are no longer kept.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self.notices: deque[FeedNotice] = deque(maxlen=MAX_NOTICES)
        self.n_lost = 0
        self._now = now
        self._last_shown: tuple[FeedNotice | None, FeedNotice | None] = (None, None)

    @property
    def newest(self) -> FeedNotice | None:
        """None if it is older than ``SHOWN_S``."""
        return self.notices[-1] if self.notices and self.notices[-1].at >= self._now() - SHOWN_S else None

    @property
    def recent_loss(self) -> FeedNotice | None:
        """The newest notice about lost messages of the last ``RECENT_S``."""
        since = self._now() - RECENT_S
        return next((note for note in reversed(self.notices) if note.n and note.at >= since), None)

    @property
    def next_expiry_s(self) -> float:
        newest, loss = self._last_shown
        ends = [shown.at + limit for shown, limit in ((newest, SHOWN_S), (loss, RECENT_S)) if shown is not None]
        return min(ends, default=math.inf) - self._now()

    def tick(self) -> bool:
        """Return whether ``newest`` or ``recent_loss`` has become too old since the last call."""
        before, self._last_shown = self._last_shown, (self.newest, self.recent_loss)
        return self._last_shown != before

    def add(self, text: str, n: int = 0) -> None:
        text = text[:MAX_CAUSE_CHARS]
        self.n_lost += n
        if self.notices and self.notices[-1].text == text:
            n += self.notices.pop().n
        self.notices.append(FeedNotice(text, self._now(), n))
        self._last_shown = (self.newest, self.recent_loss)


class RunStore:
    """State built from bus messages, replies of nodes and stored episodes.

    Widgets only read the store; the session and the app change it. Each change adds 1 to ``version`` and calls
    ``on_change`` once. ``env_registry.version``, ``n_ended`` (also of stored episodes) and ``Episode.version`` are the
    versions of parts, which a widget draws again when it has changed.

    Attributes:
        n_malformed: messages and live items that could not be decoded or have no valid episode id.
        n_stored: index rows received; None before the first.
        newest_stored: id of the newest of them; "" before the first.
        n_unlisted: batches with stored episodes that ``batches`` lacks.
        tags: by id of the episode; untrusted text. Each change replaces the mapping.
        marked_node: name of the node that the Machine screen shows first; "" for none.
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
        self._profile_currency = self.marked_episode = self.marked_node = ""
        self.tags: Mapping[str, Sequence[str]] = {}
        self.n_stored: int | None = None
        self.newest_stored = ""
        self.read_progress: ReadProgress | None = None
        self.version = self.n_ended = self.n_unlisted = self.n_items = self.n_malformed = self._n_queue_items = 0
        self.now, self.trends = now, Trends()
        self.on_change: Callable[[], None] | None = None
        self.on_queue_change: Callable[[], None] | None = None
        self._queue_notice: str | None = None
        self.notice_list, self._nodes = NoticeList(now), NodeRegistry(now, lost_after_s)
        self.env_registry, self.endpoint_registry = EnvironmentRegistry(), EndpointRegistry(now)
        self.batch_registry = BatchRegistry(now, self._nodes.nodes)
        self.episode_registry = EpisodeRegistry(
            max_episodes=max_episodes, max_bytes=max_bytes, currency=lambda: self._profile_currency
        )
        self.notices, self.nodes = self.notice_list.notices, self._nodes.nodes
        self.endpoints, self.failovers = self.endpoint_registry.endpoints, self.endpoint_registry.failovers
        self.envs, self.rewards = self.env_registry.envs, self.env_registry.rewards
        self.batches, self.episodes = self.batch_registry.batches, self.episode_registry.episodes

    @property
    def currency(self) -> str:
        """Currency of sums of costs: that of the profile, else that of the first episode that names one; "" without."""
        return self._profile_currency or self.episode_registry.first_currency

    @currency.setter
    def currency(self, currency: str) -> None:
        self._profile_currency = currency

    @property
    def all_nodes_lost(self) -> bool:
        return bool(self.nodes) and all(node.lost for node in self.nodes.values())

    def is_lost(self, batch: BatchRun) -> bool:
        """Where the node of a batch is not known, it is lost if all nodes are."""
        node = self.nodes.get(batch.node)
        return self.all_nodes_lost if node is None else node.lost

    def node_status(self, node: NodeInfo) -> str:
        """``running`` while its episodes run, as its status event may be late; of a starting node, what it has read."""
        is_playing = node.status in ("starting", "idle") and any(
            each.is_active and each.node == node.name for each in self.episode_registry.running.values()
        )
        if is_playing:
            return "running"
        return node.indexing if node.status == "starting" and node.indexing else node.status

    def running_episodes(self) -> list[Episode]:
        """Return the episodes without an outcome, including those of lost nodes, the newest last."""
        return sorted(self.episode_registry.running.values(), key=attrgetter("started_at"))

    def episodes_of(self, batch_id: str) -> Sequence[Episode]:
        return self.episode_registry.of_batch(batch_id, self.version)

    def usage_of(self, batch: BatchRun) -> tuple[Tokens, float | None]:
        """Add the known steps of running episodes to the node's totals of ended ones; None: no cost is known."""
        counted = [each for each in self.episodes_of(batch.batch_id) if each.running or batch.tokens is None]
        cost = sum_costs([batch.cost, *(each.cost for each in counted)])
        return sum((each.tokens for each in counted), batch.tokens or Tokens()), cost

    def run(self, run_id: str) -> list[BatchRun]:
        """Return the batches of a battery, or the batch with this id."""
        return [batch for batch in self.batches.values() if run_id in (batch.battery_id, batch.batch_id)]

    def newest_ended_run(self) -> str:
        """Return the id of the battery or batch that ended last; "" if none has, or its battery goes on."""
        batch = self.batch_registry.newest_ended()
        if batch is None or any(each.status not in ENDED for each in self.run(batch.battery_id or batch.batch_id)):
            return ""
        return batch.battery_id or batch.batch_id

    @property
    def holding_node(self) -> NodeInfo | None:
        """The node that has earlier events which its external broker does not get."""
        return next((node for node in self.nodes.values() if node.n_held and node.egress and not node.lost), None)

    def answer_wait_s(self, episode: Episode) -> float | None:
        """Return for how many seconds the endpoint of an awaited answer has sent nothing; None if that is not known."""
        answer = episode.streaming if episode.running and not episode.node_lost else None
        since = None if answer is None else answer.newest_at or answer.requested_at
        now = None if since is None else self._nodes.clock_of(episode.node)
        return None if now is None or since is None else max((now - since).total_seconds(), 0.0)

    @property
    def profile_defaults(self) -> Mapping[str, float | str | None]:
        """Values of the profile, by name of the field of a start request; empty if a node may have another profile."""
        profile, values = self._profile_defaults
        return values if all(node.profile in ("", profile) for node in self.nodes.values()) else {}

    def set_profile_defaults(self, profile: str, values: Mapping[str, float | str | None]) -> None:
        self._profile_defaults = profile, values

    @property
    def next_tick_s(self) -> float:
        """Seconds until ``tick`` may find a node lost or a shown notice too old; infinite without both."""
        return min(self._nodes.next_loss_s if self._bus_is_up else math.inf, self.notice_list.next_expiry_s)

    def apply_events(self, messages: Sequence[Received]) -> None:
        from runner.events.codec import DurableRow, LiveRow  # slow to import, and not needed for the first paint

        n_queue_items, changed = self._n_queue_items, False
        for message in messages:
            match message:
                case (LiveRow() as row) | BusMessage(decoded=LiveRow() as row):
                    changed = self._apply_live(row) or changed
                    continue
                case Notice():
                    self.notice_list.add(message.text, max(message.count, 0))
                case BusMessage(decoded=DurableRow(event=event)):
                    self._apply_durable(bounded(event), message)
                case _:
                    self.n_malformed += 1
            changed = True
        if changed:
            self._commit()
        if self._n_queue_items > n_queue_items and self.on_queue_change is not None:
            self.on_queue_change()

    def apply_list(self, listed: NodeList) -> None:
        """What the node's queue had lost becomes a notice once, although every reply repeats it."""
        bounded(listed)
        if listed.queue and listed.queue != self._queue_notice:
            self.notice_list.add(listed.queue)
        self._queue_notice = listed.queue
        self.batch_registry.apply_list(listed.batches)
        self.batch_registry.set_listed(listed.batches, is_all=True)
        present = next((node for node in self.nodes.values() if node.is_present), None)
        for node in self.nodes.values():
            node.n_waiting = (listed.n_waiting or 0) if node is present else 0
        self.agents, self.model_names = [*dict.fromkeys(listed.agents)], [*dict.fromkeys(listed.models)]
        for env in listed.envs:
            self.env_registry.get(env)
        self._commit()

    def apply_batches(self, batches: Sequence[BatchState]) -> None:
        """Add the batches that a node has started, in the order of their start."""
        self.batch_registry.apply_list([bounded(each) for each in reversed(batches)], is_new=True)
        self.batch_registry.set_listed(batches)
        self._commit()

    def apply_unlisted(self, batches: Sequence[BatchState]) -> None:
        """Add ended batches that the node does not list, the newest first."""
        self.batch_registry.add_older([bounded(each) for each in batches])
        self._commit()

    def set_n_unlisted(self, n: int) -> None:
        if n != self.n_unlisted:
            self.n_unlisted = n
            self._commit()

    def apply_totals(self, batch_ids: Sequence[str], totals: Sequence[BatchTotals]) -> None:
        self.batch_registry.apply_totals(batch_ids, totals)
        self._commit()

    def apply_health(self, health: NodeHealth) -> None:
        node = self._nodes.apply_health(bounded(health))
        self._on_boot(node.name, health.boot, sure=True)
        for item in health.items:
            self._apply_item(item, node.name, health.boot)
        self._commit()

    def apply_profile(self, entries: Iterable[tuple[str, str, str | None]]) -> None:
        self.env_registry.apply_profile(entries)
        self._commit()

    def apply_stored(self, rows: Sequence[EpisodeRow]) -> None:
        """Update the state from index rows, the newest first."""
        for row in rows:
            self.episode_registry.apply_stored(row)
        self.env_registry.add_ended(rows)
        self.n_stored = (self.n_stored or 0) + len(rows)
        self.newest_stored = max([self.newest_stored, *(row.episode_id for row in rows)])
        self.n_ended += 1  # also without rows: unreadable files may have been found
        self._commit()

    def merge_episode(self, episode: Episode) -> None:
        node = self.nodes.get(episode.node)
        self.episode_registry.merge_file(bounded(episode), node.boot if node else "")
        self._commit()

    def add_notice(self, text: str) -> None:
        self.notice_list.add(text)
        self._commit()

    def set_profile_difference(self, difference: ProfileDifference | None) -> None:
        if difference != self.profile_difference:
            self.profile_difference = difference
            self._commit()

    def apply_tags(self, tags: Mapping[str, Sequence[str]]) -> None:
        self.tags = tags
        self._commit()

    def set_link(self, link: BusLink) -> None:
        if link == self.link:
            return
        was_up, self.link = self._bus_is_up, link
        if was_up != self._bus_is_up:
            self._nodes.on_link(is_up=self._bus_is_up)
        self._commit()

    def mark_node_lost(self, node: str) -> None:
        if self._nodes.mark_lost(node):
            self._commit()

    def tick(self) -> None:
        """Mark silent nodes as lost, unless the bus is down; report a change where a shown notice became too old."""
        has_old_notice = self.notice_list.tick()
        if (self._bus_is_up and self._nodes.tick()) or has_old_notice:
            self._commit()

    @property
    def _bus_is_up(self) -> bool:
        # while the bus is down, a silent node is not a lost node
        return self.link.status in ("connected", "none")

    def _commit(self) -> None:
        """Update what depends on other objects, enforce the limits and call ``on_change``."""
        episodes = self.episode_registry
        for stopped in (node for node in self.nodes.values() if node.status == "stopped"):
            episodes.mark_interrupted(stopped.name, "")
        episodes.mark_lost({node.name for node in self.nodes.values() if node.lost})
        self.env_registry.add_ended(episodes.ended)
        for episode in episodes.ended:
            self.batch_registry.apply_episode_ended(episode)
        self.n_ended += len(episodes.ended)
        episodes.ended.clear()
        episodes.enforce_limits()
        self.env_registry.refresh(episodes.running.values())
        self.version += 1
        if self.on_change is not None:
            self.on_change()

    def _apply_live(self, row: LiveRow) -> bool:
        """Return whether anything that a screen shows may have changed."""
        batch = bounded(row.batch)
        self.n_items += len(batch.items)
        self.trends.sample_rate("items", self.n_items, self.now())
        self.n_malformed += len(row.raw)
        node, changed = self._nodes.on_heartbeat(batch.node, batch.dropped)
        changed = self._on_boot(node.name, batch.boot, sure=False) or changed
        boot = node.boot if node.boot == batch.boot else batch.boot
        for items in group_items(batch.items):
            if isinstance(items[0], EpisodeItemBase):
                episode_items = cast("Sequence[EpisodeItem]", items)
                is_valid = self.episode_registry.apply(episode_items, node.name, boot, self.endpoint_registry)
                self.n_malformed += 0 if is_valid else len(items)
            changed = self._apply_item(items[0], node.name, boot) or changed
        return changed or bool(row.raw)

    def _update_paused(self, batch_id: str) -> None:
        self.batch_registry.update_paused(batch_id, self.episode_registry.running.values())

    def _apply_item(self, item: LazyItem, node: str, boot: str) -> bool:
        match item:
            case TokenText() | LazySpan() | LazyTimestep():
                pass  # by far the most frequent
            case EpisodeStarted():
                self.batch_registry.apply_episode_started(item, node)
            case EpisodePaused() | EpisodeResumed():
                if (episode := self.episodes.get(item.episode_id)) is not None:
                    self._update_paused(episode.batch_id)
            case BatchProgress():
                self.batch_registry.apply_progress(item, boot, node)
                if item.workers is not None:
                    self.trends.add("workers", item.batch_id, item.workers.n)
                batch = self.batches.get(item.batch_id)
                if batch is not None and batch.status == "paused" and not item.paused:
                    self._update_paused(item.batch_id)
            case QueueChanged():
                self.batch_registry.apply_queue(item, node)
                self._nodes.get(node).n_waiting = item.n_waiting
                self._n_queue_items += 1
            case EnvHealth():
                self.trends.add("env latency", item.env, item.latency_s)
                is_new = self._nodes.get(node).note_health(item)
                return self.env_registry.apply_health(item) or is_new
            case ModelHealth():
                self.trends.add("model latency", item.endpoint, item.latency_s)
                changed = self.endpoint_registry.apply_health(item)
                self._nodes.get(node).endpoints |= {item.endpoint} & self.endpoints.keys()
                return self._nodes.get(node).note_health(item) or changed
            case ModelMetrics():
                for what in SERVER_TRENDS:
                    self.trends.add(what, item.endpoint, getattr(item, what))
                return self.endpoint_registry.apply_metrics(item)
            case Machine():
                return self._nodes.apply_machine(item, node)
            case Heartbeat():
                return self._nodes.apply_heartbeat(item, node)
            case WorkerState() | Host():
                return False  # progress items have the numbers of workers, ``Machine`` those of the host
        return True

    def _apply_durable(self, event: DurableEvent, message: BusMessage) -> None:
        match event:
            case EpisodeCompleted():
                at = ulid_time(event.episode_id) or message.time or datetime.now(UTC)
                self.n_malformed += not self.episode_registry.apply_completed(event, at)
            case BatchCompleted():
                self.batch_registry.apply_completed(event, message.time, message.sent_at)
            case FieldStatus(role="node" | None):
                if event.boot:
                    self._on_boot(event.node, event.boot, sure=False)
                self._nodes.on_status_event(event, message.time)

    def _on_boot(self, node_name: str, boot: str, *, sure: bool) -> bool:
        """Record the process that sent a message, and mark running episodes of earlier processes as interrupted.

        Live items of an earlier process may arrive late, so a process id that sorts before the known one is ignored,
        unless the process is ``sure`` to be the current one, as it has just replied. Process ids sort by start time.
        """
        node = self._nodes.get(node_name)
        if boot == node.boot or not (sure or boot > node.boot):
            return self.episode_registry.mark_interrupted(node.name, node.boot)
        if not node.boot:
            self.episode_registry.assign_boot(node.name, boot)
        for name in node.endpoints.difference(*(other.endpoints for other in self.nodes.values() if other is not node)):
            self.endpoints.pop(name, None)  # the new profile may not have it
        node.endpoints, node.health = set(), {}
        node.boot, node.status = boot, "" if node.status == "stopped" else node.status
        self.episode_registry.mark_interrupted(node.name, boot)
        return True


def join_live(messages: Iterable[SubscriptionItem]) -> Iterator[Received]:
    """Yield the messages; live messages of one subject and one node process become one ``LiveRow``.

    A notice or any other message separates the live messages before it from those after it. Live messages on different
    subjects may change their order, as each kind of item has its own subject.
    """
    from runner.events.codec import LiveRow

    def is_live(message: SubscriptionItem) -> bool:
        return isinstance(message, BusMessage) and isinstance(message.decoded, LiveRow)

    for are_live, alike in groupby(messages, is_live):
        if not are_live:
            yield from alike
            continue
        by_sender = defaultdict[tuple[str, str, str], list[LiveRow]](list)
        for message in cast("Iterable[BusMessage]", alike):
            row = cast("LiveRow", message.decoded)
            by_sender[message.subject, row.batch.node, row.batch.boot].append(row)
        for rows in by_sender.values():
            batch = replace(rows[-1].batch, items=[item for row in rows for item in row.batch.items])
            yield LiveRow(batch=batch, raw=tuple(raw for row in rows for raw in row.raw))


def split_portions(messages: Iterable[Received]) -> Iterator[list[Received]]:
    """Yield the messages in their order, in portions that each take a few milliseconds to apply."""
    from runner.events.codec import LiveRow

    portion: list[Received] = []
    n_items = 0
    for message in messages:
        for part in _split_row(message) if isinstance(message, LiveRow) else (message,):
            portion.append(part)
            n_items += max(len(part.batch.items), 1) if isinstance(part, LiveRow) else 1
            if n_items >= PORTION_ITEMS:
                yield portion
                portion, n_items = [], 0
    if portion:
        yield portion


def _split_row(row: LiveRow) -> Iterator[LiveRow]:
    items = row.batch.items
    for first in range(0, max(len(items), 1), PORTION_ITEMS):
        batch = replace(row.batch, items=items[first : first + PORTION_ITEMS])
        yield replace(row, batch=batch, raw=() if first else row.raw)


def group_items(items: Iterable[LazyItem]) -> Iterator[Sequence[LazyItem]]:
    """Yield tokens, spans and timesteps of one episode between other items as a group, every other item as one.

    The items of each episode keep their order. A token item that reports a failed endpoint separates those of all.
    """
    for kind, alike in groupby(items, _joined_kind):
        if kind is None:
            yield from ([item] for item in alike)
            continue
        by_episode = defaultdict[str, list[LazyItem]](list)
        for item in cast("Iterable[TokenText | LazySpan | LazyTimestep]", alike):
            by_episode[item.episode_id].append(item)
        yield from by_episode.values()


def _joined_kind(item: LazyItem) -> type | None:
    is_joined = item.failure is None if isinstance(item, TokenText) else isinstance(item, LazySpan | LazyTimestep)
    return type(item) if is_joined else None
