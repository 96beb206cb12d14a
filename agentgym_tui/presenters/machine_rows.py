"""Rows of the machine screen: sections of items, and below each item what is wrong with it and the next step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from agentgym_tui.presenters.cells import SEPARATOR, Cell, Column, Line, Tone, join_parts
from agentgym_tui.presenters.machine_items import Item, MachineView, Problem, Section, sparkline
from agentgym_tui.presenters.machine_models import model_section
from agentgym_tui.presenters.machine_nodes import node_sections
from agentgym_tui.presenters.machine_sections import (
    broker_section,
    environment_section,
    worker_section,
)
from agentgym_tui.presenters.number_format import pluralize
from agentgym_tui.presenters.text_width import cut, wrap_text

NAME_WIDTH: Final = 16
TREND_WIDTH: Final = 24
MACHINE_COLUMNS: Final = (
    Column("", NAME_WIDTH),
    Column("now", None, min_width=30),
    Column("trend", TREND_WIDTH, right=True, rank=1),
)

MAX_PROBLEM_ROWS: Final = 4
"""Maximum number of rows of the text of one problem, and of its next step."""

SHARED_SECTIONS: Final[Sequence[Callable[[MachineView], Section]]] = (
    model_section,
    environment_section,
    worker_section,
    broker_section,
)
"""Sections that all nodes share, in the order in which the screen lists them."""


class MachineRow(NamedTuple):
    """A row: its cells, its item if it has one, and whether a problem starts here."""

    key: str
    cells: Line
    item: Item | None = None
    is_problem: bool = False


class MachineRows:
    """Rows of ``MACHINE_COLUMNS``.

    Args:
        view: what the rows show.
        width: columns of the terminal that a row has.

    Attributes:
        sections: the sections from top to bottom.
    """

    def __init__(self, view: MachineView, width: int) -> None:
        self._view = view
        self.sections = machine_sections(view)
        self.rows = [row for section in self.sections for row in self._section_rows(section, width)][1:]

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.rows)

    def key(self, index: int) -> str:
        """Return the key of a row."""
        return self.rows[index].key

    def line(self, index: int, width: int) -> Line:
        """Return the cells of a row; a row of one cell spans all columns."""
        return self.rows[index].cells

    def item(self, index: int) -> Item | None:
        """Return the item of a row; None for headings and where there is no such row."""
        return self.rows[index].item if 0 <= index < len(self.rows) else None

    def next_problem(self, index: int, by: int) -> int | None:
        """Return the index of the problem ``by`` problems after (or before) a row, around the end; None without one."""
        places = [place for place, row in enumerate(self.rows) if row.is_problem]
        after = [place for place in places if place > index] if by > 0 else [place for place in places if place < index]
        return (after or places)[0 if by > 0 else -1] if places else None

    def _section_rows(self, section: Section, width: int) -> Iterator[MachineRow]:
        yield MachineRow(f"before {section.key}", [Cell("")])
        yield MachineRow(section.key, [Cell(section.title, "head")])
        empty = wrap_text(section.empty, max(width - 4, 20), MAX_PROBLEM_ROWS) if not section.items else []
        for place, row in enumerate(filter(None, empty)):
            yield MachineRow(f"empty {section.key} {place}", [Cell(f"  {row}", "dim")])
        for item in section.items:
            yield MachineRow(item.key, self._item_cells(item), item)
            for number, problem in enumerate(item.problems):
                yield from _problem_rows(item, problem, number, width)

    def _item_cells(self, item: Item) -> Line:
        name = item.name
        trend = sparkline(item.trend, TREND_WIDTH, item.full)
        return [Cell(f"  {name}"), item.now, Cell(trend, "accent")]


def _problem_rows(item: Item, problem: Problem, number: int, width: int) -> Iterator[MachineRow]:
    texts: Sequence[tuple[str, str, Tone]] = (
        (problem.sign, problem.text, problem.tone),
        ("→", problem.step, "dim" if problem.tone == "dim" else "accent"),
    )
    is_start = problem.tone != "dim"
    for part, (sign, text, tone) in enumerate(texts):
        for place, row in enumerate(wrap_text(text, max(width - 6, 20), MAX_PROBLEM_ROWS)):
            mark = " " if place else sign
            key = f"{item.key} {number}.{part}.{place}"
            yield MachineRow(key, [Cell(f"    {mark} {row}", tone)], item, is_start and not part and not place)


def machine_sections(view: MachineView) -> list[Section]:
    """Return all sections: those of the nodes, then those that all nodes share."""
    return [*node_sections(view), *(section(view) for section in SHARED_SECTIONS)]


def problems_of(sections: Sequence[Section]) -> list[tuple[Item, Problem]]:
    """Return all problems with their items: what fails comes before what is slow or at a limit. Notes are left out."""
    found = [(item, problem) for section in sections for item in section.items for problem in item.problems]
    return sorted((each for each in found if each[1].tone != "dim"), key=lambda each: each[1].tone != "bad")


def machine_heading(sections: Sequence[Section], width: int) -> Line:
    """Return the heading of the screen: how many problems there are, and the first of them."""
    title: list[Cell] = [Cell("Machine", "head"), SEPARATOR]
    if not (found := problems_of(sections)):
        return join_parts([[*title, Cell("● nothing is wrong", "good")]], width)
    count = f"{found[0][1].sign} {pluralize(len(found), 'problem')}"
    return join_parts([[*title, Cell(_with_first(count, found), found[0][1].tone)]], width)


def machine_summary(view: MachineView, width: int) -> Line:
    """Return the part of the status line of Live about the machine: the number of problems and the screen's key.

    It names the first problem that Live does not show elsewhere. It is empty where nothing is wrong.
    """
    found = problems_of(machine_sections(view._replace(problems_only=True)))
    if not found or width < 1:
        return []
    count, key = pluralize(len(found), "problem"), view.key("app.machine")
    text = f"{found[0][1].sign} {count} ({key})"
    shown = _with_first(text, [each for each in found if not each[1].is_on_live])
    return [Cell(cut(shown, width), found[0][1].tone)]


def _with_first(text: str, found: Sequence[tuple[Item, Problem]]) -> str:
    return f"{text}: {found[0][0].name}: {found[0][1].text}" if found else text
