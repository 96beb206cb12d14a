"""Registry of nodes: when each node was last seen, whether it is lost, and the load of its host."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from copy import copy
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

from agentgym_tui.state.data_model import NodeInfo
from agentgym_tui.state.machine import MachineInfo
from agentgym_tui.state.normalize import MAX_CAUSE_CHARS, as_aware, clamp_count, clip_name
from runner.events.durable import FieldStatus
from runner.events.live import Gpu, Heartbeat, Host
from runner.types.machine import Machine

if TYPE_CHECKING:
    from runner.events.control import NodeHealth

MAX_NODES: Final = 200
MAX_GPUS: Final = 16


VariableChange: TypeAlias = Literal["changed", "set", "missing"]
"""How a variable differs from the node's: another value, set only here, or set only there."""


class ProfileDifference(NamedTuple):
    """The running node has another profile than the console, or its profile or a variable has changed since its start.

    Attributes:
        boot: id of the node's process.
        digest: digest of the file that the node would load now.
        is_changed: whether it is the same file, which has changed.
        running: id and path of the profile that the node has loaded; untrusted text.
        wanted: id and path of the profile that it would load now; untrusted text.
        variables: the variables of its model endpoints that differ, by name; only for the same file.
    """

    boot: str
    digest: str
    is_changed: bool
    running: tuple[str, str]
    wanted: tuple[str, str]
    variables: tuple[tuple[str, VariableChange], ...] = ()

    @property
    def is_other(self) -> bool:
        """Whether the node has loaded another file."""
        return not self.is_changed and not self.variables


class NodeRegistry:
    """Nodes by name.

    Args:
        now: returns the time of the console's monotonic clock in seconds.
        lost_after_s: seconds of silence after which a node counts as lost.
    """

    def __init__(self, now: Callable[[], float], lost_after_s: float) -> None:
        self.nodes: dict[str, NodeInfo] = {}
        self._clocks: dict[str, tuple[datetime, float]] = {}
        self.now = now
        self._lost_after_s = lost_after_s

    def get(self, node_name: str) -> NodeInfo:
        """Return a node by its name, created where needed; at the limit, evict the node that was silent for longest."""
        node_name = clip_name(node_name)
        if (node := self.nodes.get(node_name)) is None:
            if len(self.nodes) >= MAX_NODES:
                evicted = min(self.nodes.values(), key=lambda known: known.last_seen_at).name
                del self.nodes[evicted]
                self._clocks.pop(evicted, None)
            node = self.nodes[node_name] = NodeInfo(node_name, last_seen_at=self.now())
        return node

    def on_heartbeat(self, node_name: str, dropped: int) -> tuple[NodeInfo, bool]:
        """Record that a live message of a node has arrived.

        Args:
            node_name: name of the node.
            dropped: number of live items that the current process of the node never sent.

        Returns:
            The node, and whether the node is new or its ``lost`` or ``dropped`` has changed.
        """
        known = node_name in self.nodes
        node = self.get(node_name)
        before = (node.lost, node.dropped)
        node.last_seen_at, node.lost, node.dropped = self.now(), False, clamp_count(dropped)
        return node, not known or before != (node.lost, node.dropped)

    def apply_health(self, health: NodeHealth) -> NodeInfo:
        """Update a node from its reply to a health request, and return the node."""
        node = self.get(health.node)
        node.last_seen_at, node.lost = self.now(), False
        node.profile, node.status, node.data_dir, node.indexing = (
            clip_name(health.profile),
            health.status,
            health.data_dir[:MAX_CAUSE_CHARS],
            clip_name(health.indexing or ""),
        )
        node.egress, node.n_held = (health.egress or "")[:MAX_CAUSE_CHARS], clamp_count(health.n_held)
        return node

    def apply_host(self, item: Host | Heartbeat, node_name: str) -> bool:
        """Store the load of a node's host or the problem of its disk; return whether a shown value has changed."""
        node = self.get(node_name)
        before = copy(node)
        if isinstance(item, Heartbeat):
            self._clocks[node.name] = as_aware(item.at), self.now()
            node.storage, node.indexing = (item.storage or "")[:MAX_CAUSE_CHARS], clip_name(item.indexing or "")
        else:
            node.cpu, node.ram = _percent(item.cpu), _percent(item.ram)
            node.gpus = [_gpu(gpu) for gpu in (item.gpu or ())[:MAX_GPUS]]
        return node != before

    def apply_machine(self, item: Machine, node_name: str) -> bool:
        """Add a sample of a node's machine, unless it is not newer than the last one; return whether it is newer."""
        node = self.get(node_name)
        if node.machine is None:
            node.machine = MachineInfo(item)
        elif as_aware(item.at) <= as_aware(node.machine.latest.at):
            return False
        else:
            node.machine.add(item)
        return True

    def clock_of(self, node_name: str) -> datetime | None:
        """Return the time of a node's own clock, as of its newest heartbeat; None before the first one."""
        if (known := self._clocks.get(clip_name(node_name))) is None:
            return None
        at, seen_s = known
        with contextlib.suppress(OverflowError):
            return at + timedelta(seconds=self.now() - seen_s)
        return None

    def on_status_event(self, event: FieldStatus) -> NodeInfo:
        """Update a node from its status event, and return the node; ignore an event of an earlier process."""
        node = self.get(event.node)
        if (event.boot or "") >= node.boot:
            node.status, node.profile = clip_name(event.status), clip_name(event.config)
        return node

    @property
    def next_loss_s(self) -> float:
        """Seconds until the first node counts as lost if no node sends a message in the meantime; else infinite."""
        known = (node.last_seen_at for node in self.nodes.values() if not node.lost and node.sends_heartbeats)
        return min(known, default=math.inf) + self._lost_after_s - self.now()

    def mark_lost(self, node_name: str) -> bool:
        """Mark a node as lost at once, without waiting for ``lost_after_s`` seconds of silence.

        Returns:
            False if the node is not known, already lost or stopped.
        """
        node = self.nodes.get(clip_name(node_name))
        if node is None or node.lost or node.status == "stopped":
            return False
        node.lost, node.last_seen_at = True, -math.inf
        return True

    def on_disconnect(self) -> None:
        """Mark recently lost nodes as not lost, because a broken bus connection may be the reason for their silence."""
        limit = self.now() - 2 * self._lost_after_s
        for node in self.nodes.values():
            node.lost = node.lost and node.last_seen_at < limit

    def on_reconnect(self) -> None:
        """Restart the measurement of silence for all nodes that are not lost."""
        for node in self.nodes.values():
            if not node.lost:
                node.last_seen_at = self.now()

    def tick(self) -> bool:
        """Mark nodes as lost that were silent for too long; return whether any node was marked."""
        limit = self.now() - self._lost_after_s
        lost = [node for node in self.nodes.values() if not node.lost and node.last_seen_at < limit]
        lost = [node for node in lost if node.sends_heartbeats]
        for node in lost:
            node.lost = True
        return bool(lost)


def _percent(value: float) -> float:
    return round(value) if math.isfinite(value) else value  # as precise as it is shown


def _gpu(gpu: Gpu) -> str:
    used, total = clamp_count(gpu.mem_used >> 20) / 1024, clamp_count(gpu.mem_total >> 20) / 1024
    return f"{gpu.name[:40]} {max(0.0, min(gpu.util, 100.0)):.0f}% {used:.1f}/{total:.1f} GiB"
