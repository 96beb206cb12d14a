"""The fleet: each node of the bus as a row, and what is wrong with it; a node that is silent for too long is lost."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Final, NamedTuple, TypeAlias

from agentgym_tui.presenters.cells import (
    NO_VALUE,
    Cell,
    Field,
    Line,
    Listing,
    Tone,
    count_cell,
    environment_text,
    join_parts,
    match_cells,
)
from agentgym_tui.presenters.live import health_label
from agentgym_tui.presenters.number_format import UNKNOWN, format_percent, format_time, pluralize
from agentgym_tui.presenters.run_rows import STATES
from agentgym_tui.safe_text import masked_line
from agentgym_tui.state.batches import ACTIVE, BatchRun
from agentgym_tui.state.nodes import NodeInfo
from agentgym_tui.state.query import FilteredList
from agentgym_tui.state.run_store import RunStore
from runner.events.live import EnvHealth, ModelHealth
from runner.types.machine import GpuState

Health: TypeAlias = EnvHealth | ModelHealth
MAX_CAUSE: Final = 300
ENV_WIDTH: Final = 16
"""Columns of the environment of a batch that a node plays."""
_OK: Final = ("up", "slow", "embedded")
_STATES: Final[dict[str, tuple[str, Tone]]] = {
    "lost": ("✗ lost", "bad"),
    "stopped": ("○ stopped", "dim"),
    "stopping": ("○ stopping", "warn"),
    "starting": ("… starting", "warn"),
    "running": ("▶ running", "accent"),
    "idle": ("● idle", "good"),
    "up": ("● up", "good"),
}


class FleetRow(NamedTuple):
    """A node, and the batches that it plays; its ``state`` is untrusted text unless it is one of ``_STATES``."""

    node: NodeInfo
    state: str
    batches: Sequence[BatchRun]
    seen_at: datetime | None
    """By the node's own clock."""

    @property
    def gpus(self) -> Sequence[GpuState]:
        return self.node.machine.latest.gpu if self.node.machine is not None and self.node.is_present else ()

    @property
    def load(self) -> float | None:
        """Mean utilization of its GPUs, in percent."""
        loads = [gpu.util for gpu in self.gpus if gpu.util is not None]
        return sum(loads) / len(loads) if loads else None

    @property
    def health(self) -> list[Health]:
        return [*self.node.envs.values(), *self.node.endpoints.values()] if self.node.is_present else []

    @property
    def problems(self) -> list[Cell]:
        """What fails comes before what is slow."""
        node = self.node
        if node.lost:
            when = f" since {format_time(self.seen_at, '%m-%d %H:%M:%S')}" if self.seen_at else ""
            return [Cell(f"✗ silent{when}; its batches stay with it, and may go on", "bad")]
        found = [Cell(f"✗ {masked_line(node.storage, MAX_CAUSE)}", "bad")] if node.storage and node.is_present else []
        found += (Cell(f"✗ GPU {gpu.index} is lost", "bad") for gpu in self.gpus if gpu.lost is not None)
        found += (_problem(item, tone) for item in self.health if (tone := _tone(item)) in ("bad", "warn"))
        return sorted(found, key=lambda cell: cell.tone != "bad")


def fleet_rows(store: RunStore) -> list[FleetRow]:
    """Return a row for each node: first the lost ones, then the others, by name."""
    playing = defaultdict[str, list[BatchRun]](list)
    for batch in store.batches.values():
        if batch.status in ACTIVE:
            playing[batch.node].append(batch)
    nodes = sorted(store.nodes.values(), key=lambda node: (not node.lost, node.name))
    return [FleetRow(node, _state(store, node), playing[node.name], store.last_seen(node)) for node in nodes]


def _state(store: RunStore, node: NodeInfo) -> str:
    """Without a status event, as where it came before the history that the console reads, a node is ``up``."""
    return "lost" if node.lost else store.node_status(node) or "up"


# fmt: off
def fleet_listing() -> Listing[FleetRow]:
    return Listing(lambda row: row.node.name, lambda row: f"{row.node.name}\n{row.node.profile}", [
        Field("node", 10, lambda row: row.node.name, "text", "name of the node", most=40),
        Field("state", 9, lambda row: row.state, "text", "state of the node", name="status", most=22,
              values=tuple(_STATES), cell=_state_cell),
        Field("runs", 10, lambda row: len(row.batches), "number", "number of batches that it plays", most=28,
              right=False, cell=_runs_cell),
        Field("waits", 5, lambda row: row.node.n_waiting, "number", "number of batches that wait",
              cell=lambda row: count_cell(row.node.n_waiting)),
        Field("envs", 5, lambda row: _n_ok(row.node.envs.values()), right=True,
              cell=lambda row: _health_cell(row, row.node.envs.values())),
        Field("models", 6, lambda row: _n_ok(row.node.endpoints.values()), right=True,
              cell=lambda row: _health_cell(row, row.node.endpoints.values())),
        Field("problems", 0, lambda row: len(row.problems), "number", "number of its problems"),
        Field("GPU", 8, lambda row: row.load, "number", "mean utilization of its GPUs in percent", name="gpu",
              most=12, cell=_gpu_cell),
        Field("seen", 8, lambda row: None if row.node.is_present else row.seen_at, rank=1, most=11, cell=_seen_cell),
        Field("version", 7, lambda row: row.node.version, "text", "its version of AgentGym Console", rank=3, most=16),
        Field("profile", None, lambda row: row.node.profile, "text", "id of its profile", rank=2, min_width=9,
              most=24),
    ])
# fmt: on


def _state_cell(row: FleetRow) -> Cell:
    if row.node.storage and row.node.is_present:
        return Cell("✗ storage", "bad")
    return Cell(*_STATES.get(row.state, (row.state, "plain")))


def _runs_cell(row: FleetRow) -> Cell:
    if not row.batches:
        return NO_VALUE
    n_done, n_planned = sum(each.n_done for each in row.batches), sum(each.n_planned for each in row.batches)
    first = environment_text(row.batches[0].env, ENV_WIDTH)
    name = first if len(row.batches) == 1 else pluralize(len(row.batches), "batch", "batches")
    status = "paused" if all(each.status == "paused" for each in row.batches) else "running"
    sign, tone = STATES[status][0][0], STATES[status][1]
    return Cell(f"{sign} {n_done:,}/{n_planned:,} {name}", "dim" if row.node.lost else tone)


def _health_cell(row: FleetRow, items: Collection[Health]) -> Cell:
    if not items or not row.node.is_present:
        return NO_VALUE
    tones = [_tone(item) for item in items]
    tone: Tone = next((each for each in tones if each == "bad"), "warn" if "warn" in tones else "plain")
    return Cell(f"{_n_ok(items)}/{len(items)}", tone)


def _n_ok(items: Collection[Health]) -> int:
    return sum(item.status in _OK for item in items)


def _tone(item: Health) -> Tone:
    """An environment that needs no server is no problem where it cannot be played."""
    if isinstance(item, EnvHealth) and item.transport != "http" and item.status == "down":
        return "dim"
    return "warn" if isinstance(item, ModelHealth) and item.rest_s is not None else health_label(item.status)[1]


def _problem(item: Health, tone: Tone) -> Cell:
    name = item.env if isinstance(item, EnvHealth) else item.endpoint
    cause = f": {masked_line(item.cause, MAX_CAUSE)}" if item.cause else ""
    return Cell(
        f"{'✗' if tone == 'bad' else '!'} {masked_line(name, 60)} {health_label(item.status)[0][2:]}{cause}", tone
    )


def _gpu_cell(row: FleetRow) -> Cell:
    if not row.gpus:
        return NO_VALUE
    n_lost = sum(gpu.lost is not None for gpu in row.gpus)
    return Cell(f"✗ {n_lost} lost", "bad") if n_lost else Cell(f"{len(row.gpus)} · {format_percent(row.load)}")


def _seen_cell(row: FleetRow) -> Cell:
    if row.node.is_present:
        return Cell("now", "dim")
    is_today = row.seen_at is not None and row.seen_at.astimezone().date() == datetime.now().astimezone().date()
    shown = Cell(format_time(row.seen_at, "%H:%M:%S" if is_today else "%m-%d %H:%M"), "bad" if row.node.lost else "dim")
    return shown.or_shorter(lambda _: format_time(row.seen_at, "%m-%d"))


def fleet_heading(rows: FilteredList[FleetRow], key: str, width: int) -> Line:
    states = Counter(row.state for row in rows.all_rows)
    n_wrong = sum(bool(row.problems) and not row.node.lost for row in rows.all_rows)
    n_playing = sum(len(row.batches) for row in rows.all_rows if not row.node.lost)
    n_waiting = sum(row.node.n_waiting for row in rows.all_rows if row.node.is_present)
    parts: list[Line] = [[Cell("Fleet", "head")], [Cell(pluralize(rows.n_rows, "node"))]]
    parts.append(match_cells(len(rows.shown), rows.query_text, key, width))
    parts += [[Cell(f"{states['lost']} lost", "bad")]] if states["lost"] else []
    parts += [[Cell(f"{n_wrong} with problems", "warn")]] if n_wrong else []
    parts += [[Cell(f"{pluralize(n_playing, 'batch', 'batches')} running", "accent")]] if n_playing else []
    parts += [[Cell(f"{n_waiting:,} waiting")]] if n_waiting else []
    return join_parts(parts, width)


def node_detail(row: FleetRow | None, width: int) -> list[Line]:
    """Return what a narrow table has no room for, and the problems of the node."""
    if row is None:
        return []
    node = row.node
    gpus = Counter(masked_line(gpu.name or "GPU", 40) for gpu in row.gpus)
    parts: list[Line] = [
        [Cell(node.name, "head")],
        [Cell(f"profile {masked_line(node.profile or UNKNOWN)}")],
        [Cell(f"version {masked_line(node.version or UNKNOWN)}")],
        [Cell(", ".join(f"{n} x {name}" for name, n in gpus.items()))] if gpus else [],
        [Cell(f"process {node.boot}", "dim")] if node.boot else [],
    ]
    problems: list[Line] = [[problem] for problem in row.problems] or [[Cell("● nothing is wrong", "good")]]
    return [join_parts(parts, width), join_parts(problems, width)]
