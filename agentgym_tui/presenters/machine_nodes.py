"""The sections of the machine screen about nodes: state, CPU, memory, GPUs, disk and network of each node's machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from agentgym_tui.presenters.cells import Cell
from agentgym_tui.presenters.machine_gpus import gpu_items
from agentgym_tui.presenters.machine_items import Item, MachineView, Problem, Section, is_sustained, problem_from_cause
from agentgym_tui.presenters.number_format import UNKNOWN, format_percent, format_size
from agentgym_tui.safe_text import masked_line
from agentgym_tui.state.nodes import NodeInfo
from runner.types.machine import Machine

MAX_NODES: Final = 10
"""Number of nodes that have a section; those with a problem come first."""

CPU_LIMIT: Final = 95.0
RAM_LIMIT: Final = 92.0
DISK_LIMIT: Final = 97.0
"""Loads in percent from which on they are a problem."""

_FREE_SPACE: Final = "free space on its disk: `agentgym-runner prune` removes old episodes; what waits then continues"


def node_sections(view: MachineView) -> list[Section]:
    """Return a section for each node; beyond ``MAX_NODES``, the last one counts the other nodes."""
    nodes = list(view.store.nodes.values())
    if view.problems_only:  # a fleet has many nodes, and Live asks with each redraw
        nodes = list(filter(_can_have_problem, nodes))
    if not nodes:
        return [Section("nodes", "Machine", [], "no node has been seen yet")]
    sections = [_node_section(view, node) for node in nodes]
    if len(sections) > MAX_NODES:
        sections.sort(key=lambda section: not any(item.problems for item in section.items))
        more = f"… and {len(sections) - MAX_NODES:,} more nodes"
        sections[MAX_NODES:] = [Section("more nodes", more, [])]
    return sections


def _can_have_problem(node: NodeInfo) -> bool:
    """Whether a line of the node may have a problem; False for most nodes of a fleet, at little cost."""
    if node.lost or node.storage:
        return True
    if node.machine is None:
        return False
    latest = node.machine.latest
    if latest.gpu or latest.gpu_cause is not None:
        return True
    loads = ((latest.cpu, CPU_LIMIT), (latest.ram, RAM_LIMIT), (_disk_load(latest), DISK_LIMIT))
    return any(load is not None and load >= limit for load, limit in loads)


def _node_section(view: MachineView, node: NodeInfo) -> Section:
    title = f"Machine of {node.name}"
    return Section(f"node {node.name}", title, list(_node_items(view, node)))


def _node_items(view: MachineView, node: NodeInfo) -> Iterator[Item]:
    yield _state_item(view, node)
    if not node.lost:
        yield _cpu_item(node)
        yield _memory_item(node)
        yield from gpu_items(node)
        yield _disk_item(node)
        yield from _network_items(node)


def _state_item(view: MachineView, node: NodeInfo) -> Item:
    key, name = f"state {node.name}", "node"
    if node.lost:
        own = not view.read_only and len(view.store.nodes) == 1
        step = view.press("node.start", "to start it again") if own else "start it on its machine"
        text = "it is silent or its process is gone; its files are complete, and its batches can be resumed"
        return Item(key, name, Cell("✗ lost", "bad"), problems=[Problem(text, step, "bad", is_on_live=True)])
    status = view.store.node_status(node) or "running"
    parts = [f"● {status}", *([node.profile] if node.profile else [])]
    return Item(key, name, Cell(" · ".join(parts), "good"))


def _cpu_item(node: NodeInfo) -> Item:
    machine = node.machine
    cpu = None if machine is None else machine.latest.cpu
    trend = () if machine is None else machine.history.get("cpu")
    problems = []
    if is_sustained(trend, cpu, CPU_LIMIT):
        text = f"the CPU is at {format_percent(cpu)}: episodes and servers wait for it"
        problems = [Problem(text, "play fewer episodes at once (`concurrency`, `workers`)")]
    of = "" if machine is None or machine.latest.n_cpus is None else f" of {machine.latest.n_cpus} CPUs"
    now = _marked(f"{format_percent(cpu)}{of}", problems)
    return Item(f"cpu {node.name}", "CPU", now, trend, 100.0, problems)


def _memory_item(node: NodeInfo) -> Item:
    machine = node.machine
    ram = None if machine is None else machine.latest.ram
    trend = () if machine is None else machine.history.get("ram")
    problems = []
    if is_sustained(trend, ram, RAM_LIMIT):
        text = f"the memory is {format_percent(ram)} full: the system may kill processes"
        problems = [Problem(text, "use fewer workers, or stop servers that no batch needs", "bad")]
    total = None if machine is None else machine.latest.ram_total
    of = "" if total is None else f" of {format_size(total)}"
    now = _marked(f"{format_percent(ram)}{of}", problems)
    return Item(f"ram {node.name}", "memory", now, trend, 100.0, problems)


def _marked(text: str, problems: Sequence[Problem]) -> Cell:
    return Cell(f"{problems[0].sign} {text}", problems[0].tone) if problems else Cell(text)


def _disk_item(node: NodeInfo) -> Item:
    free = total = None
    trend: Sequence[float | None] = ()
    if node.machine is not None:
        free, total = node.machine.latest.disk_free, node.machine.latest.disk_total
        trend = node.machine.history.get("disk_free")
    problems = []
    if node.storage:
        what = "episodes cannot be stored"
        problems = [problem_from_cause(what, node.storage, _FREE_SPACE, is_on_live=True)]
    elif free is not None and node.machine is not None and (_disk_load(node.machine.latest) or 0.0) >= DISK_LIMIT:
        text = f"its disk is nearly full: {format_size(free)} are free"
        problems = [Problem(text, _FREE_SPACE)]
    space = [f"{format_size(free)} free of {format_size(total)}"] if free is not None and total else []
    folder = [masked_line(node.data_dir, 120)] if node.data_dir else []
    now = _marked(" · ".join([*space, *folder]) or UNKNOWN, problems)
    return Item(f"disk {node.name}", "disk", now, trend, total, problems)


def _disk_load(machine: Machine) -> float | None:
    free, total = machine.disk_free, machine.disk_total
    return 100 * (1 - free / total) if free is not None and total else None


def _network_items(node: NodeInfo) -> Iterator[Item]:
    if node.machine is not None and (net := node.machine.latest.net) is not None:
        rates = (format_size(round(net.received_per_s)), format_size(round(net.sent_per_s)))
        now = "{}/s received · {}/s sent".format(*rates)
        yield Item(f"net {node.name}", "network", Cell(now), node.machine.history.get("received"))
