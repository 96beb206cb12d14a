"""The GPUs of a node as items of the machine screen: load, memory, power, temperature, processes and problems."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from agentgym_tui.presenters.cells import Cell, Tone
from agentgym_tui.presenters.machine_items import Item, Problem, problem_from_cause
from agentgym_tui.presenters.number_format import UNKNOWN, format_gpu_memory, format_percent
from agentgym_tui.safe_text import masked_line
from agentgym_tui.state.nodes import MachineInfo, NodeInfo, memory_percent
from runner.types.machine import GpuInstance, GpuState

MEMORY_LIMIT: Final = 98.0
"""GPU memory in use, in percent, from which it is a problem; model servers reserve 90% and more from their start."""

MAX_PROCESSES: Final = 3
"""Processes of a GPU that are named; the others are counted."""

_NO_DRIVERS: Final = ("no NVIDIA driver", "no AMD driver")
"""Causes for which there is nothing to do on a machine without a GPU."""
_NOTES: Final = ("this machine has an AMD driver", "AMD's library")
"""Starts of causes that are no problem, because many processors have a GPU of AMD that plays no part here."""

_COOLING: Final = "check fans and air flow, or lower its power limit (`nvidia-smi -pl WATTS`)"
_THROTTLING: Final = {
    "power limit": "usual at full load; `nvidia-smi -pl WATTS` raises it where power supply and cooling allow that",
    "temperature": _COOLING,
    "temperature (hardware)": _COOLING,
    "hardware slowdown": "check its cooling, its power cables and the power supply",
    "power supply (power brake)": "check the power supply and its cables",
}
"""What to do about each reason for reduced clocks."""


def gpu_items(node: NodeInfo) -> Iterator[Item]:
    """Yield the lines of a node's GPUs, or one that gives the reason why there are none."""
    if (machine := node.machine) is not None and machine.latest.gpu:
        for place, gpu in enumerate(machine.latest.gpu):
            yield from _items_of(node, machine, place, gpu)
    elif machine is not None and (cause := machine.latest.gpu_cause) is not None:
        yield _unread(node, cause)
    else:
        yield _no_gpu(node, f"no GPU has been reported by {node.name}")


def _unread(node: NodeInfo, cause: str) -> Item:
    problems = [_driver_problem(part) for part in cause.split("; ") if part not in _NO_DRIVERS]
    if not problems:
        return _no_gpu(node, f"{cause} on {node.name}")
    is_note = all(problem.tone == "dim" for problem in problems)
    shown = Cell("no GPU is read", "dim") if is_note else Cell("! no GPU can be read", "warn")
    return Item(f"gpu {node.name}", "GPU", shown, problems=problems)


def _driver_problem(cause: str) -> Problem:
    text, _, step = cause.partition(": ")
    if not step or text.endswith("does not answer"):
        text, step = cause, "look for the driver in the kernel log: `dmesg`"
    tone: Tone = "dim" if text.startswith(_NOTES) else "warn"
    return Problem(masked_line(text), masked_line(step), tone)


def _no_gpu(node: NodeInfo, text: str) -> Item:
    return Item(f"gpu {node.name}", "GPU", Cell(text, "dim"))


def _items_of(node: NodeInfo, machine: MachineInfo, place: int, gpu: GpuState) -> Iterator[Item]:
    key, name, history = f"gpu {node.name} {place}", f"GPU {gpu.index}", machine.history
    if gpu.lost is not None:
        step = "look for its errors in the kernel log: `dmesg | grep -i xid`"
        lost = problem_from_cause("it cannot be read", gpu.lost, step)
        yield Item(key, name, Cell(f"✗ lost · {_model(gpu)}", "bad"), problems=[lost])
        return
    problems = list(_problems(gpu))
    parts = [format_percent(gpu.util), *_electric(gpu), _model(gpu)]
    tone: Tone = "warn" if any(problem.tone != "dim" for problem in problems) else "plain"
    sign = ["!"] if tone == "warn" else []
    shown = " ".join([*sign, " · ".join(parts)])
    yield Item(key, name, Cell(shown, tone), history.get(f"util:{place}"), 100.0, problems)
    if gpu.mem_total is not None or gpu.mem_used is not None:
        yield Item(f"{key} memory", "  memory", Cell(_memory(gpu)), history.get(f"mem:{place}"), 100.0)
    yield from (_instance_item(f"{key} instance {n}", instance) for n, instance in enumerate(gpu.instances))


def _instance_item(key: str, instance: GpuInstance) -> Item:
    problems = list(_memory_problems(instance))
    parts = [*(["!"] if problems else []), _memory(instance, instance.name or "")]
    now = Cell(" ".join(parts), "warn" if problems else "plain")
    return Item(key, f"  instance {instance.index}", now, problems=problems)


def _memory(gpu: GpuState | GpuInstance, *parts: str) -> str:
    used = f"{_size(gpu.mem_used)} of {_size(gpu.mem_total)}"
    return " · ".join([used, *filter(None, parts), *_processes(gpu)])


def _model(gpu: GpuState) -> str:
    name = gpu.name or UNKNOWN
    return f"{name}, divided into instances (MIG)" if gpu.mig else name


def _electric(gpu: GpuState) -> Iterator[str]:
    if gpu.power_w is not None:
        limit = "" if gpu.power_limit_w is None else f" of {gpu.power_limit_w:.0f}"
        yield f"{gpu.power_w:.0f}{limit} W"
    if gpu.temperature is not None:
        yield f"{gpu.temperature:.0f} °C"


def _processes(gpu: GpuState | GpuInstance) -> Iterator[str]:
    processes = gpu.processes or ()
    for process in processes[:MAX_PROCESSES]:
        name = process.name or "process"
        yield f"{name} ({process.pid!s}) {_size(process.mem_used)}"
    if len(processes) > MAX_PROCESSES:
        yield f"{len(processes) - MAX_PROCESSES} more"


def _problems(gpu: GpuState) -> Iterator[Problem]:
    for reason in gpu.throttled or ():
        text = f"its clocks are reduced: {reason}"
        step = _THROTTLING.get(reason, "see `nvidia-smi -q -d PERFORMANCE` on the node")
        yield Problem(text, step, "dim" if reason == "power limit" else "warn")
    yield from _memory_problems(gpu)


def _memory_problems(gpu: GpuState | GpuInstance) -> Iterator[Problem]:
    if (memory := memory_percent(gpu)) is not None and memory >= MEMORY_LIMIT:
        text = f"its memory is {format_percent(memory)} full: the next allocation may fail"
        yield Problem(text, "stop a process that uses it, or give the model server a smaller share")


def _size(number: int | None) -> str:
    return UNKNOWN if number is None else format_gpu_memory(number)
