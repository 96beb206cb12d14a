"""The machine of a node as lines: GPUs, CPU, memory, disk and network with their trend, and what is wrong in words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from agentgym_tui.presenters.cells import Cell, Line, Tone, join_parts
from agentgym_tui.presenters.number_format import UNKNOWN, format_percent, format_size
from agentgym_tui.presenters.reward_plot import column_chart
from agentgym_tui.presenters.text_width import fit
from agentgym_tui.safe_text import SafeText, fill_in, join, sanitize_line, trusted
from agentgym_tui.state.data_model import NodeInfo
from agentgym_tui.state.machine import MachineInfo, memory_percent
from runner.types.machine import GpuState

LABEL_WIDTH: Final = 9
VALUE_WIDTH: Final = 30
TREND_WIDTH: Final = 60
FULL_PERCENT: Final = 95.0
"""Memory or disk in use, in percent, from which it is shown as a problem."""


def gpu_problem(node: NodeInfo) -> SafeText:
    """Return why no GPU of a node is shown, with the name of the node; empty if one is shown, or none is known yet."""
    if node.machine is None or node.machine.latest.gpu or node.machine.latest.gpu_cause is None:
        return trusted("")
    cause = sanitize_line(node.machine.latest.gpu_cause, 200)
    return fill_in("no GPU on node {}: {}", sanitize_line(node.name, 40), cause)


def machine_lines(node: NodeInfo, width: int) -> list[Line]:
    """Return the lines for the machine of a node."""
    if (info := node.machine) is None:
        name = sanitize_line(node.name, 40)
        return [[Cell(fill_in("no sample of the machine of node {} yet", name), "dim")]]
    lines = list(_gpu_lines(info, width))
    if problem := gpu_problem(node):
        lines.append([Cell(problem, "dim")])
    return [*lines, *_host_lines(info, width)]


def _host_lines(info: MachineInfo, width: int) -> Iterator[Line]:
    machine, history = info.latest, info.history
    cpus = "" if machine.n_cpus is None else f" of {machine.n_cpus} CPUs"
    yield _row("CPU", fill_in("{}{}", format_percent(machine.cpu), trusted(cpus)), history.get("cpu"), width)
    memory = fill_in("{} of {}", format_percent(machine.ram), _size(machine.ram_total))
    yield _row("memory", memory, history.get("ram"), width, tone=_fullness(machine.ram))
    if (machine.ram or 0) >= FULL_PERCENT:
        yield _hint("memory is nearly full: play fewer episodes at once")
    disk = fill_in("{} free of {}", _size(machine.disk_free), _size(machine.disk_total))
    used = _used_percent(machine.disk_free, machine.disk_total)
    yield _row("disk", disk, (), width, tone=_fullness(used))
    if (used or 0) >= FULL_PERCENT:
        yield _hint("the disk is nearly full: delete files, or archive old episodes with `agentgym-runner prune`")
    if machine.net is not None:
        rates = (format_size(round(machine.net.received_per_s)), format_size(round(machine.net.sent_per_s)))
        received = history.get("received")
        yield _row("network", fill_in("↓ {}/s ↑ {}/s", *rates), received, width, high=_highest(received))


def _gpu_lines(info: MachineInfo, width: int) -> Iterator[Line]:
    for place, gpu in enumerate(info.latest.gpu):
        name = sanitize_line(gpu.name or "", 80) or UNKNOWN
        yield join_parts([[Cell(trusted(f"GPU {gpu.index} "), "head"), Cell(name, "head")], *_gpu_parts(gpu)], width)
        if gpu.lost is not None:
            yield [Cell(join([trusted("  ✗ "), sanitize_line(gpu.lost, 200)]), "bad")]
            continue
        if gpu.throttled:
            yield _hint("clocks reduced", ": ", *gpu.throttled)
        yield _row("  load", format_percent(gpu.util), info.history.get(f"util:{place}"), width)
        memory = fill_in("{} of {}", _size(gpu.mem_used), _size(gpu.mem_total))
        tone = _fullness(memory_percent(gpu))
        yield _row("  memory", memory, info.history.get(f"mem:{place}"), width, tone=tone)
        for process in (gpu.processes or ())[:4]:
            shown = (sanitize_line(process.name or "process", 40), _size(process.mem_used))
            yield [Cell(fill_in("  {} {} {}", trusted(str(process.pid)), *shown), "dim")]


def _gpu_parts(gpu: GpuState) -> Iterator[Line]:
    if gpu.power_w is not None:
        limit = "" if gpu.power_limit_w is None else f" of {gpu.power_limit_w:.0f}"
        yield [Cell(trusted(f"{gpu.power_w:.0f}{limit} W"))]
    if gpu.temperature is not None:
        yield [Cell(trusted(f"{gpu.temperature:.0f} °C"))]
    if gpu.mig:
        yield [Cell(trusted("MIG: divided into instances"), "dim")]


def _row(
    label: str,
    value: SafeText,
    values: tuple[float | None, ...],
    width: int,
    *,
    tone: Tone = "plain",
    high: float = 100.0,
) -> Line:
    trend_width = max(0, min(TREND_WIDTH, width - LABEL_WIDTH - VALUE_WIDTH - 2))
    shown = [value or 0.0 for value in values]
    trend = column_chart(shown, trend_width, 1, 0.0, high)[0] if shown and trend_width else ""
    return [
        Cell(trusted(fit(trusted(label), LABEL_WIDTH) + " "), "dim"),
        Cell(trusted(fit(value, VALUE_WIDTH) + " "), tone),
        Cell(trusted(trend), "accent"),
    ]


def _hint(text: str, separator: str = "", *details: str) -> Line:
    shown = join([sanitize_line(each, 40) for each in details[:4]], ", ")
    return [Cell(join([trusted(f"  ⚠ {text}{separator}"), shown]), "warn")]


def _size(number: int | None) -> SafeText:
    return UNKNOWN if number is None else format_size(number)


def _used_percent(free: int | None, total: int | None) -> float | None:
    return None if free is None or not total else 100 * (1 - free / total)


def _fullness(percent: float | None) -> Tone:
    return "warn" if percent is not None and percent >= FULL_PERCENT else "plain"


def _highest(values: tuple[float | None, ...]) -> float:
    return max(1.0, *(value or 0.0 for value in values)) if values else 1.0
