"""Picture of a TextCraft task: the tree of recipes of the goal, with what is held, and the inventory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from textwrap import wrap

from runner.envs.textcraft.recipes import RecipeTable, Task, display_name
from runner.types import CellRow, CellRun, Cells
from runner.types.cells import CellColor

_MAX_DEPTH = 8
_MAX_NODES = 48
_WIDTH = 76


def draw_tree(table: RecipeTable, task: Task, inventory: Mapping[str, int]) -> Cells:
    """The amounts are those of one crafting."""
    shown = _Tree(table, inventory)
    goal = shown.node(task.goal, 1, "", "")
    rows = [goal, *shown.below(task.goal, "", 0)]
    held = ", ".join(f"{count} {display_name(name)}" for name, count in inventory.items())
    lines = wrap(f"Held: {held or 'nothing'}", _WIDTH, max_lines=6, placeholder=" …")
    legend = (CellRun("✓", "green"), CellRun(" held  "), CellRun("◐", "yellow"), CellRun(" too few  · none", "dim"))
    return Cells([*rows, (), *((CellRun(line),) for line in lines), legend])


class _Tree:
    def __init__(self, table: RecipeTable, inventory: Mapping[str, int]) -> None:
        self._table = table
        self._inventory = inventory
        self._expanded: set[str] = set()
        self._n_nodes = 1

    def below(self, name: str, indent: str, depth: int) -> Iterator[CellRow]:
        """Yield the ingredients of the first recipe of an item, and theirs; each item is expanded once."""
        ways = self._table.ways(name)
        if not ways or name in self._expanded or depth >= _MAX_DEPTH:
            return
        self._expanded.add(name)
        last = len(ways[0].ingredients) - 1
        for number, (part, count) in enumerate(ways[0].ingredients):
            self._n_nodes += 1
            if self._n_nodes > _MAX_NODES:
                return
            note = "" if self._table.ways(part) else "  get"
            yield self.node(part, count, f"{indent}{'└─' if number == last else '├─'} ", note)
            yield from self.below(part, f"{indent}{'  ' if number == last else '│ '} ", depth + 1)

    def node(self, name: str, needed: int, indent: str, note: str) -> CellRow:
        accepts = self._table.accepts
        held = sum(count for item, count in self._inventory.items() if accepts(name, item))
        mark, color = _mark(held, needed)
        return (
            CellRun(indent, "dim"),
            CellRun(f"{mark} ", color),
            CellRun(f"{display_name(name)} ", color if color != "dim" else "plain"),
            CellRun(f"{held}/{needed}", "dim"),
            CellRun(note, "cyan"),
        )


def _mark(held: int, needed: int) -> tuple[str, CellColor]:
    if held >= needed:
        return "✓", "green"
    return ("◐", "yellow") if held else ("·", "dim")
