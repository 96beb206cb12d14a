"""The sections of the machine screen about nodes: state, CPU, memory, GPUs and disk of each node's machine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from agentgym_tui.presenters.cells import Cell, Tone
from agentgym_tui.presenters.machine_items import Item, MachineView, Problem, Section, is_sustained, problem_from_cause
from agentgym_tui.presenters.number_format import UNKNOWN, format_percent
from agentgym_tui.safe_text import SafeText, fill_in, join, masked_line, sanitize_line, trusted
from agentgym_tui.state.data_model import NodeInfo

MAX_NODES: Final = 10
"""Number of nodes that have a section; those with a problem come first."""

CPU_LIMIT: Final = 95.0
RAM_LIMIT: Final = 92.0
"""Loads in percent from which on they are a problem."""

_FREE_SPACE: Final = "free space on its disk: `agentgym-runner prune` removes old episodes; what waits then continues"


def node_sections(view: MachineView) -> list[Section]:
    """Return a section for each node; beyond ``MAX_NODES``, the last one counts the other nodes."""
    nodes = view.store.nodes.values()
    if not nodes:
        return [Section("nodes", trusted("Machine"), [], trusted("no node has been seen yet"))]
    sections = [_node_section(view, node) for node in nodes]
    if len(sections) > MAX_NODES:
        sections.sort(key=lambda section: not any(item.problems for item in section.items))
        more = trusted(f"… and {len(sections) - MAX_NODES:,} more nodes")
        sections[MAX_NODES:] = [Section("more nodes", more, [])]
    return sections


def _node_section(view: MachineView, node: NodeInfo) -> Section:
    title = join([trusted("Machine of "), sanitize_line(node.name, 64)])
    return Section(f"node {node.name}", title, list(_node_items(view, node)))


def _node_items(view: MachineView, node: NodeInfo) -> Iterator[Item]:
    yield _state_item(view, node)
    if not node.lost:
        yield _cpu_item(view, node)
        yield _memory_item(view, node)
        yield from _gpu_items(node)
        yield _disk_item(node)


def _state_item(view: MachineView, node: NodeInfo) -> Item:
    key, name = f"state {node.name}", trusted("node")
    if node.lost:
        own = not view.read_only and len(view.store.nodes) == 1
        step = view.press("node.start", "to start it again") if own else trusted("start it on its machine")
        text = trusted("it is silent or its process is gone; its files are complete, and its batches can be resumed")
        return Item(key, name, Cell(trusted("✗ lost"), "bad"), problems=[Problem(text, step, "bad", is_on_live=True)])
    status = sanitize_line(view.store.node_status(node), 20) or trusted("running")
    parts = [join([trusted("●"), status], " "), *([sanitize_line(node.profile, 60)] if node.profile else [])]
    return Item(key, name, Cell(join(parts, " · "), "good"))


def _cpu_item(view: MachineView, node: NodeInfo) -> Item:
    trend = view.store.trends.get("cpu", node.name)
    problems = []
    if is_sustained(trend, node.cpu, CPU_LIMIT):
        text = fill_in("the CPU is at {}: episodes and servers wait for it", format_percent(node.cpu))
        problems = [Problem(text, trusted("play fewer episodes at once (`concurrency`, `workers`)"))]
    return Item(f"cpu {node.name}", trusted("CPU"), _load(node.cpu, problems), trend, 100.0, problems)


def _memory_item(view: MachineView, node: NodeInfo) -> Item:
    trend = view.store.trends.get("ram", node.name)
    problems = []
    if is_sustained(trend, node.ram, RAM_LIMIT):
        text = fill_in("the memory is {} full: the system may kill processes", format_percent(node.ram))
        problems = [Problem(text, trusted("use fewer workers, or stop servers that no batch needs"), "bad")]
    return Item(f"ram {node.name}", trusted("memory"), _load(node.ram, problems), trend, 100.0, problems)


def _load(percent: float | None, problems: list[Problem]) -> Cell:
    tone: Tone = problems[0].tone if problems else "plain"
    shown = format_percent(percent)
    return (
        Cell(join([problems[0].sign, shown], " "), tone)
        if problems
        else Cell(shown, "dim" if percent is None else tone)
    )


def _gpu_items(node: NodeInfo) -> Iterator[Item]:
    for number, gpu in enumerate(node.gpus):
        yield Item(f"gpu {node.name} {number}", trusted(f"GPU {number}"), Cell(sanitize_line(gpu, 80)))
    if not node.gpus:
        text = join([trusted("no GPU can be read on "), sanitize_line(node.name, 64)])
        yield Item(f"gpu {node.name}", trusted("GPU"), Cell(text, "dim"))


def _disk_item(node: NodeInfo) -> Item:
    folder: SafeText = masked_line(node.data_dir, 120) or UNKNOWN
    problems = []
    if node.storage:
        what = trusted("episodes cannot be stored")
        problems = [problem_from_cause(what, node.storage, trusted(_FREE_SPACE), is_on_live=True)]
    now = Cell(join([trusted("✗"), folder], " "), "bad") if problems else Cell(folder)
    return Item(f"disk {node.name}", trusted("disk"), now, problems=problems)
