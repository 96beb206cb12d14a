"""Nodes and the bus: when each node was last seen, whether it is lost, the state and recent history of its machine."""

from __future__ import annotations

import contextlib
import math
from collections import deque
from collections.abc import Callable, Mapping
from copy import copy
from datetime import datetime, timedelta
from operator import attrgetter
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

import msgspec

from runner.events.durable import FieldStatus
from runner.events.live import EnvHealth, Heartbeat, ModelHealth
from runner.types.machine import GpuInstance, GpuState, Machine

if TYPE_CHECKING:
    from runner.events.control import NodeHealth

MAX_NODES: Final = 200
MAX_CHECKED: Final = 200  # environments and model endpoints of a node whose health is kept
N_SAMPLES: Final = 150  # samples of each value: five minutes
MAX_SERIES: Final = 500
RATE_INTERVAL_S: Final = 2.0  # shortest time between two samples of a rate: nodes send a heartbeat as often
# fields of ``ModelMetrics`` that have a trend
SERVER_TRENDS: Final = ("running", "waiting", "kv_cache", "prefix_hits", "tokens_per_s")
BusLinkStatus: TypeAlias = Literal["none", "starting", "connecting", "connected", "stalled", "disconnected", "failed"]
# another value than the node's, set only here, or set only there
VariableChange: TypeAlias = Literal["changed", "set", "missing"]
Health: TypeAlias = EnvHealth | ModelHealth


class BusLink(msgspec.Struct):
    """Connection to the bus; while the bus is down, ``cause`` explains why and how to fix it."""

    status: BusLinkStatus = "none"
    cause: str = ""
    address: str = ""


READING_FILES: Final = BusLink("none", "reading files")  # while a session reads the files of the command line


class ProfileDifference(NamedTuple):
    """The running node has another profile than the console, or its profile or a variable has changed since."""

    boot: str  # of the node's process
    digest: str  # of the file that the node would load now
    is_changed: bool  # the file is the same, but has changed
    running: tuple[str, str]  # id and path of the loaded profile; untrusted
    wanted: tuple[str, str]  # id and path of what it would load now; untrusted
    variables: tuple[tuple[str, VariableChange], ...] = ()  # that differ, for the same file

    @property
    def is_other(self) -> bool:
        return not self.is_changed and not self.variables


class Trends:
    """The newest values of series, which have a name and, if several things have it, the name of the thing."""

    def __init__(self) -> None:
        self._series: dict[tuple[str, str], deque[float | None]] = {}
        self._counted: dict[str, tuple[float, int]] = {}

    def add(self, what: str, name: str, value: float | None) -> None:
        """None stands for a value that is not known; at the limit, drop the series that has not grown for longest."""
        series = self._series.pop((what, name), None)
        if series is None:
            series = deque(maxlen=N_SAMPLES)
            if len(self._series) >= MAX_SERIES:
                del self._series[next(iter(self._series))]
        self._series[what, name] = series
        series.append(value)

    def drop(self, *whats: str) -> None:
        for what in whats:
            self._series.pop((what, ""), None)

    def sample_rate(self, what: str, total: int, now_s: float) -> None:
        """Add the rate per second of a growing number, unless the last sample is too new."""
        since_s, before = self._counted.setdefault(what, (now_s, total))
        if (passed_s := now_s - since_s) >= RATE_INTERVAL_S:
            self.add(what, "", (total - before) / passed_s)
            self._counted[what] = now_s, total

    def get(self, what: str, name: str = "") -> tuple[float | None, ...]:
        """Return the values of a series, the oldest first."""
        return tuple(self._series.get((what, name), ()))


class MachineInfo:
    """The samples of a machine.

    ``history`` has the series ``cpu``, ``ram``, ``disk_free``, ``sent`` and ``received``, and for each GPU ``util:N``,
    ``mem:N`` (percent), ``power:N`` and ``temperature:N`` with its place ``N`` in ``latest.gpu``.
    """

    def __init__(self, first: Machine) -> None:
        self.history = Trends()
        self.latest = first
        self.add(first)

    def add(self, sample: Machine) -> None:
        for place in range(len(sample.gpu), len(self.latest.gpu)):
            self.history.drop(*(f"{name}:{place}" for name in _GPU_SERIES))
        self.latest = sample
        for name in ("cpu", "ram", "disk_free"):
            self.history.add(name, "", getattr(sample, name))
        self.history.add("sent", "", sample.net.sent_per_s if sample.net else None)
        self.history.add("received", "", sample.net.received_per_s if sample.net else None)
        for place, gpu in enumerate(sample.gpu):
            for name, value in _GPU_SERIES.items():
                self.history.add(f"{name}:{place}", "", value(gpu))


def memory_percent(gpu: GpuState | GpuInstance) -> float | None:
    return 100 * min(gpu.mem_used / gpu.mem_total, 1.0) if gpu.mem_used is not None and gpu.mem_total else None


_GPU_SERIES: Final[Mapping[str, Callable[[GpuState], float | None]]] = {
    "util": attrgetter("util"),
    "mem": memory_percent,
    "power": attrgetter("power_w"),
    "temperature": attrgetter("temperature"),
}


class NodeInfo(msgspec.Struct):
    name: str
    boot: str = ""  # of its current process; "" where it is not known
    profile: str = ""
    version: str = ""
    status: str = ""
    data_dir: str = ""
    last_seen_at: float = 0.0  # by the console's monotonic clock, in seconds
    lost: bool = False  # silent for too long, or its process is gone
    dropped: int = 0  # live items that its process never sent
    storage: str = ""  # why it cannot store anything, and what waits
    indexing: str = ""  # how far it has read its episodes at its start
    egress: str = ""  # address of its external broker
    n_held: int = 0  # events from before the broker's first use, which are not sent to it
    machine: MachineInfo | None = None
    n_waiting: int = 0  # batches in its queue, also those that it does not list
    endpoints: set[str] = set()  # whose health its current process has reported
    health: dict[tuple[str, str], Health] = {}  # by kind and name
    seen_at: datetime | None = None  # of its newest heartbeat by its own clock, or of its status event

    def note_health(self, item: Health) -> bool:
        """Return whether the status has changed."""
        key = ("env", item.env) if isinstance(item, EnvHealth) else ("model", item.endpoint)
        before = self.health.get(key)
        if before is not None or len(self.health) < MAX_CHECKED:
            self.health[key] = item
        return before is None or before.status != item.status

    @property
    def is_present(self) -> bool:
        """One of another kind, without ``boot``, reports nothing but its status."""
        return bool(self.boot) and self.status != "stopped" and not self.lost


class NodeRegistry:
    def __init__(self, now: Callable[[], float], lost_after_s: float) -> None:
        self.nodes: dict[str, NodeInfo] = {}
        self._clocks: dict[str, tuple[datetime, float]] = {}
        self.now = now
        self._lost_after_s = lost_after_s

    def get(self, node_name: str) -> NodeInfo:
        """Return a node, created where needed; at the limit, evict the one that was silent for longest."""
        if (node := self.nodes.get(node_name)) is None:
            if len(self.nodes) >= MAX_NODES:
                evicted = min(self.nodes.values(), key=lambda known: known.last_seen_at).name
                del self.nodes[evicted]
                self._clocks.pop(evicted, None)
            node = self.nodes[node_name] = NodeInfo(node_name, last_seen_at=self.now())
        return node

    def on_heartbeat(self, node_name: str, dropped: int) -> tuple[NodeInfo, bool]:
        """Record a live message; return its node, and whether what is shown has changed."""
        known = node_name in self.nodes
        node = self.get(node_name)
        before = (node.lost, node.dropped)
        node.last_seen_at, node.lost, node.dropped = self.now(), False, dropped
        return node, not known or before != (node.lost, node.dropped)

    def apply_health(self, health: NodeHealth) -> NodeInfo:
        node = self.get(health.node)
        node.last_seen_at, node.lost = self.now(), False
        node.profile, node.status, node.data_dir = health.profile, health.status, health.data_dir
        node.version = health.version
        node.indexing, node.egress, node.n_held = health.indexing or "", health.egress or "", health.n_held
        return node

    def apply_heartbeat(self, item: Heartbeat, node_name: str) -> bool:
        """Store a node's clock, and what it is; return whether a shown value has changed."""
        node = self.get(node_name)
        before = copy(node)
        self._clocks[node.name] = item.at, self.now()
        node.storage, node.indexing = item.storage or "", item.indexing or ""
        node.profile, node.version = item.profile or node.profile, item.version or node.version
        if node.status != "stopped":  # else the item is late
            node.status = item.status or node.status
        node.n_waiting = node.n_waiting if item.n_waiting is None else item.n_waiting
        changed, node.seen_at = node != before, item.at
        return changed

    def apply_machine(self, item: Machine, node_name: str) -> bool:
        """Return whether the sample is newer than the last one; an older one is ignored."""
        node = self.get(node_name)
        if node.machine is None:
            node.machine = MachineInfo(item)
        elif item.at <= node.machine.latest.at:
            return False
        else:
            node.machine.add(item)
        return True

    def clock_of(self, node_name: str) -> datetime | None:
        """Return the time of a node's own clock, as of its newest heartbeat."""
        if (known := self._clocks.get(node_name)) is None:
            return None
        at, seen_s = known
        with contextlib.suppress(OverflowError):
            return at + timedelta(seconds=self.now() - seen_s)
        return None

    def on_status_event(self, event: FieldStatus, at: datetime | None) -> None:
        """Ignore an event, stored ``at``, of an earlier or ended process."""
        node = self.get(event.node)
        node.seen_at = max(filter(None, (at, node.seen_at)), default=None)
        has_ended = node.status == "stopped" and node.boot and event.boot == node.boot
        if (event.boot or "") >= node.boot and not has_ended:
            node.status, node.profile = event.status, event.config

    @property
    def next_loss_s(self) -> float:
        """Seconds until the first node counts as lost if no node sends a message in the meantime."""
        known = (node.last_seen_at for node in self.nodes.values() if node.is_present)
        return min(known, default=math.inf) + self._lost_after_s - self.now()

    def mark_lost(self, node_name: str) -> bool:
        """Return False if it is not known, already lost or stopped."""
        node = self.nodes.get(node_name)
        if node is None or node.lost or node.status == "stopped":
            return False
        node.lost, node.last_seen_at = True, -math.inf
        return True

    def on_link(self, *, is_up: bool) -> None:
        """Restart the measurement of silence; a broken link may be why nodes that were lost recently were silent."""
        limit = self.now() - 2 * self._lost_after_s
        for node in self.nodes.values():
            node.lost = node.lost and (is_up or node.last_seen_at < limit)
            node.last_seen_at = self.now() if is_up and not node.lost else node.last_seen_at

    def tick(self) -> bool:
        """Mark nodes as lost that were silent for too long; return whether any was."""
        limit = self.now() - self._lost_after_s
        known = (node for node in self.nodes.values() if node.is_present)
        lost = [node for node in known if node.last_seen_at < limit]
        for node in lost:
            node.lost = True
        return bool(lost)
