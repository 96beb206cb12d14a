"""CPU, memory, disk and network of the host, read with psutil."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from runner.machine.gpu_reader import read_value
from runner.types.machine import Network


class HostReader:
    """Reads the load of the host; rates are those since the previous reading.

    Args:
        data_dir: the state directory, whose free space is measured; None: only GPUs are of interest.
    """

    def __init__(self, data_dir: Path | None, now: Callable[[], float]) -> None:
        self._data_dir = data_dir
        self._now = now
        self._cpu: tuple[float, float] | None = None
        self._traffic: tuple[float, int, int] | None = None

    def read(self) -> dict[str, Any]:
        """Return the fields of a ``Machine`` item except those of its GPUs; what cannot be read is None."""
        if self._data_dir is None:
            return {}
        import psutil

        memory = read_value(psutil.virtual_memory)
        disk = read_value(lambda: psutil.disk_usage(str(self._data_dir)))
        return {
            "cpu": read_value(self._cpu_percent),
            "n_cpus": read_value(psutil.cpu_count),
            "ram": None if memory is None else memory.percent,
            "ram_total": None if memory is None else memory.total,
            "disk_free": None if disk is None else disk.free,
            "disk_total": None if disk is None else disk.total,
            "net": read_value(self._network),
        }

    def _cpu_percent(self) -> float | None:
        import psutil

        times = psutil.cpu_times()
        total = sum(times[:8])  # guest times are part of user times
        busy = total - times.idle - getattr(times, "iowait", 0.0)
        before, self._cpu = self._cpu, (busy, total)
        if before is None or total <= before[1]:
            return None
        return round(max(0.0, min(100 * (busy - before[0]) / (total - before[1]), 100.0)), 1)

    def _network(self) -> Network | None:
        import psutil

        counters = psutil.net_io_counters(pernic=True)
        used = [each for name, each in counters.items() if not name.startswith("lo")]
        current = self._now(), sum(each.bytes_sent for each in used), sum(each.bytes_recv for each in used)
        before, self._traffic = self._traffic, current
        if before is None or current[0] <= before[0]:
            return None
        sent, received = (max(0, current[n] - before[n]) / (current[0] - before[0]) for n in (1, 2))
        return Network(sent_per_s=round(sent), received_per_s=round(received))
