"""Nodes, when they were last seen, and the load of their hosts."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from agentgym_tui.state.data_model import NodeInfo
from agentgym_tui.state.normalize import MAX_CAUSE_CHARS, clamp_count, clip_name
from runner.events.durable import FieldStatus
from runner.events.live import Gpu, Host

if TYPE_CHECKING:
    from runner.events.control import NodeHealth

MAX_NODES: Final = 200
MAX_GPUS: Final = 16


class NodeRegistry:
    """Nodes by name.

    Args:
        now: the console's monotonic clock, in seconds.
        lost_after_s: seconds of silence after which a node counts as lost.
    """

    def __init__(self, now: Callable[[], float], lost_after_s: float) -> None:
        self.nodes: dict[str, NodeInfo] = {}
        self._now = now
        self._lost_after_s = lost_after_s

    @property
    def needs_tick(self) -> bool:
        """Whether a node may still be lost."""
        return any(not node.lost and node.status != "stopped" for node in self.nodes.values())

    def get(self, node_name: str) -> NodeInfo:
        """Return the node of this name, created where needed; the node silent for longest is evicted."""
        node_name = clip_name(node_name)
        if (node := self.nodes.get(node_name)) is None:
            if len(self.nodes) >= MAX_NODES:
                del self.nodes[min(self.nodes.values(), key=lambda known: known.last_seen_at).name]
            node = self.nodes[node_name] = NodeInfo(node_name, last_seen_at=self._now())
        return node

    def on_heartbeat(self, node_name: str, dropped: int) -> tuple[NodeInfo, bool]:
        """Record a live message of a node; return the node, and whether the message changed it."""
        known = node_name in self.nodes
        node = self.get(node_name)
        before = (node.lost, node.dropped)
        node.last_seen_at, node.lost, node.dropped = self._now(), False, clamp_count(dropped)
        return node, not known or before != (node.lost, node.dropped)

    def apply_health(self, health: NodeHealth) -> NodeInfo:
        """Apply a node's health reply."""
        node = self.get(health.node)
        node.last_seen_at, node.lost = self._now(), False
        node.profile, node.status, node.data_dir = (
            clip_name(health.profile),
            health.status,
            health.data_dir[:MAX_CAUSE_CHARS],
        )
        return node

    def on_status_event(self, event: FieldStatus) -> NodeInfo:
        """Apply a status event; events of earlier processes of the node are ignored."""
        node = self.get(event.node)
        if event.boot >= node.boot:
            node.status, node.profile = event.status, clip_name(event.config)
        return node

    @property
    def next_loss_s(self) -> float:
        """Seconds until a node is lost if none sends anything until then."""
        known = (node.last_seen_at for node in self.nodes.values() if not node.lost and node.status != "stopped")
        return min(known, default=self._now()) + self._lost_after_s - self._now()

    def mark_lost(self, node_name: str) -> bool:
        """Mark a node as lost before its silence shows it; return whether that is new."""
        node = self.nodes.get(clip_name(node_name))
        if node is None or node.lost or node.status == "stopped":
            return False
        node.lost, node.last_seen_at = True, -math.inf
        return True

    def on_disconnect(self) -> None:
        """Clear recent losses: without a bus the silence of a node means nothing."""
        limit = self._now() - 2 * self._lost_after_s
        for node in self.nodes.values():
            node.lost = node.lost and node.last_seen_at < limit

    def on_reconnect(self) -> None:
        """Count the silence of nodes from now on."""
        for node in self.nodes.values():
            if not node.lost:
                node.last_seen_at = self._now()

    def tick(self) -> bool:
        """Mark silent nodes as lost; return whether there is a new one."""
        limit = self._now() - self._lost_after_s
        lost = [node for node in self.nodes.values() if not node.lost and node.last_seen_at < limit]
        lost = [node for node in lost if node.status != "stopped"]
        for node in lost:
            node.lost = True
        return bool(lost)


def set_host_load(node: NodeInfo, item: Host) -> None:
    """Apply the load of a node's host."""
    node.cpu, node.ram = item.cpu, item.ram
    node.gpus = [_gpu(gpu) for gpu in (item.gpu or ())[:MAX_GPUS]]


def _gpu(gpu: Gpu) -> str:
    used, total = clamp_count(gpu.mem_used >> 20) / 1024, clamp_count(gpu.mem_total >> 20) / 1024
    return f"{gpu.name[:40]} {max(0.0, min(gpu.util, 100.0)):.0f}% {used:.1f}/{total:.1f} GiB"
