"""The fleet: each node of the bus as a row, and what is wrong with it; a node that is silent for too long is lost."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple

from agentgym_tui.presenters.cells import NO_VALUE, Cell, Field, Line, Listing, Tone, join_parts, match_cells
from agentgym_tui.presenters.live import health_label
from agentgym_tui.presenters.number_format import UNKNOWN, format_percent, format_time, pluralize
from agentgym_tui.safe_text import masked_line
from agentgym_tui.state.batches import ACTIVE, BatchRun
from agentgym_tui.state.nodes import Health, NodeInfo
from agentgym_tui.state.query import FilteredList
from agentgym_tui.state.run_store import RunStore
from runner.events.live import EnvHealth, ModelHealth
from runner.types.machine import GpuState

_OK: Final = ("up", "slow", "embedded")
_STATES: Final[dict[str, tuple[str, Tone]]] = {
    "lost": ("✗", "bad"),
    "running": ("▶", "accent"),
    "stopped": ("○", "dim"),
}


class FleetRow(NamedTuple):
    """A node, and the batches that it plays; its ``state`` is untrusted text."""

    node: NodeInfo
    state: str
    batches: Sequence[BatchRun]

    @property
    def gpus(self) -> Sequence[GpuState]:
        return self.node.machine.latest.gpu if self.node.machine is not None and self.node.is_present else ()

    @property
    def load(self) -> float | None:
        """Mean utilization of its GPUs, in percent."""
        loads = [gpu.util for gpu in self.gpus if gpu.util is not None]
        return sum(loads) / len(loads) if loads else None

    def health(self, kind: type[Health]) -> list[Health]:
        return [item for item in self.node.health.values() if isinstance(item, kind) and self.node.is_present]

    @property
    def problems(self) -> list[Cell]:
        """What fails comes before what is slow."""
        if self.node.lost:
            since = f" since {format_time(self.node.seen_at, '%m-%d %H:%M:%S')}" if self.node.seen_at else ""
            return [Cell(f"✗ silent{since}; its batches stay with it, and may go on", "bad")]
        found = [Cell(f"✗ {masked_line(self.node.storage)}", "bad")] if self.node.storage else []
        found += (Cell(f"✗ GPU {gpu.index} is lost", "bad") for gpu in self.gpus if gpu.lost is not None)
        for item in (*self.health(EnvHealth), *self.health(ModelHealth)):
            if (tone := _tone(item)) in ("bad", "warn"):
                name = masked_line(item.env if isinstance(item, EnvHealth) else item.endpoint, 60)
                cause = f": {masked_line(item.cause)}" if item.cause else ""
                found.append(
                    Cell(f"{'✗' if tone == 'bad' else '!'} {name} {health_label(item.status)[0][2:]}{cause}", tone)
                )
        return sorted(found, key=lambda cell: cell.tone != "bad")


def fleet_rows(store: RunStore) -> list[FleetRow]:
    """Return the lost nodes, then the others, by name; one whose status is not known yet is ``up``."""
    playing = defaultdict[str, list[BatchRun]](list)
    for batch in store.batches.values():
        if batch.status in ACTIVE:
            playing[batch.node].append(batch)
    nodes = sorted(store.nodes.values(), key=lambda node: (not node.lost, node.name))
    states = ["lost" if node.lost else store.node_status(node) or "up" for node in nodes]
    return [FleetRow(node, state, playing[node.name]) for node, state in zip(nodes, states, strict=True)]


# fmt: off
def fleet_listing() -> Listing[FleetRow]:
    return Listing(lambda row: row.node.name, lambda row: f"{row.node.name}\n{row.node.profile}", [
        Field("node", 10, lambda row: row.node.name, "text", "name of the node", most=40),
        Field("state", 9, lambda row: row.state, "text", "state of the node", name="status", most=22, cell=_state_cell),
        Field("runs", 10, lambda row: len(row.batches), "number", "number of batches that it plays", most=28,
              right=False, cell=_runs_cell),
        Field("waits", 5, lambda row: row.node.n_waiting, "number", "number of batches that wait"),
        Field("envs", 5, lambda row: _n_ok(row.health(EnvHealth)), right=True, cell=partial(_health_cell, EnvHealth)),
        Field("models", 6, lambda row: _n_ok(row.health(ModelHealth)), right=True,
              cell=partial(_health_cell, ModelHealth)),
        Field("problems", 0, lambda row: len(row.problems), "number", "number of its problems"),
        Field("GPU", 8, lambda row: row.load, "number", "mean utilization of its GPUs in percent", name="gpu", most=12,
              cell=_gpu_cell),
        Field("seen", 8, lambda row: row.node.seen_at and row.node.seen_at.timestamp(), rank=1, most=11,
              cell=_seen_cell),
        Field("version", 7, lambda row: row.node.version, "text", "its version of AgentGym Console", rank=3, most=16),
        Field("profile", None, lambda row: row.node.profile, "text", "id of its profile", rank=2, min_width=9, most=24),
    ])
# fmt: on


def _state_cell(row: FleetRow) -> Cell:
    if row.node.storage and row.node.is_present:
        return Cell("✗ storage", "bad")
    sign, tone = _STATES.get(row.state, ("●", "plain"))
    return Cell(f"{sign} {row.state}", tone)


def _runs_cell(row: FleetRow) -> Cell:
    if not row.batches:
        return NO_VALUE
    name = row.batches[0].env or UNKNOWN if len(row.batches) == 1 else pluralize(len(row.batches), "batch", "batches")
    is_paused = all(each.status == "paused" for each in row.batches)
    done = f"{sum(each.n_done for each in row.batches):,}/{sum(each.n_planned for each in row.batches):,}"
    tone: Tone = "dim" if row.node.lost else "warn" if is_paused else "accent"
    return Cell(f"{'‖' if is_paused else '▶'} {done} {name}", tone)


def _health_cell(kind: type[Health], row: FleetRow) -> Cell:
    if not (items := row.health(kind)):
        return NO_VALUE
    tones: set[Tone] = {_tone(item) for item in items}
    return Cell(f"{_n_ok(items)}/{len(items)}", "bad" if "bad" in tones else "warn" if "warn" in tones else "plain")


def _n_ok(items: Sequence[Health]) -> int:
    return sum(item.status in _OK for item in items)


def _tone(item: Health) -> Tone:
    """An environment that needs no server is no problem where it cannot be played."""
    if isinstance(item, EnvHealth) and item.transport != "http" and item.status == "down":
        return "dim"
    return "warn" if isinstance(item, ModelHealth) and item.rest_s is not None else health_label(item.status)[1]


def _gpu_cell(row: FleetRow) -> Cell:
    if n_lost := sum(gpu.lost is not None for gpu in row.gpus):
        return Cell(f"✗ {n_lost} lost", "bad")
    return Cell(f"{len(row.gpus)} · {format_percent(row.load)}") if row.gpus else NO_VALUE


def _seen_cell(row: FleetRow) -> Cell:
    if row.node.is_present:
        return Cell("now", "dim")
    shown = Cell(format_time(row.node.seen_at), "bad" if row.node.lost else "dim")
    return shown.or_shorter(lambda _: format_time(row.node.seen_at, "%H:%M:%S"))


def fleet_heading(rows: FilteredList[FleetRow], key: str, width: int) -> Line:
    n_lost = sum(row.node.lost for row in rows.all_rows)
    present = [row for row in rows.all_rows if not row.node.lost]
    n_wrong, n_playing = sum(bool(row.problems) for row in present), sum(len(row.batches) for row in present)
    n_waiting = sum(row.node.n_waiting for row in present)
    parts = [
        [Cell("Fleet", "head")],
        [Cell(pluralize(rows.n_rows, "node"))],
        match_cells(len(rows.shown), rows.query_text, key, width),
        [Cell(f"{n_lost} lost", "bad")] if n_lost else [],
        [Cell(f"{n_wrong} with problems", "warn")] if n_wrong else [],
        [Cell(f"{pluralize(n_playing, 'batch', 'batches')} running", "accent")] if n_playing else [],
        [Cell(f"{n_waiting:,} waiting")] if n_waiting else [],
    ]
    return join_parts(parts, width)


def node_detail(row: FleetRow, width: int) -> list[Line]:
    """Return what a narrow table has no room for, and the problems of the node."""
    gpus = Counter(masked_line(gpu.name or "GPU", 40) for gpu in row.gpus)
    parts = [
        [Cell(row.node.name, "head")],
        [Cell(f"profile {masked_line(row.node.profile or UNKNOWN)}")],
        [Cell(f"version {masked_line(row.node.version or UNKNOWN)}")],
        [Cell(", ".join(f"{n} x {name}" for name, n in gpus.items()))] if gpus else [],
    ]
    problems: list[Line] = [[problem] for problem in row.problems] or [[Cell("● nothing is wrong", "good")]]
    return [join_parts(parts, width), join_parts(problems, width)]
