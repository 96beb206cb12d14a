"""Tables for people: as a table where it fits, else line by line, never folded within a word."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from runner.cli.terminal import console
from runner.util.text import mask, one_line

UNBOUNDED = 100_000
"""Columns to measure a table with that is to be as wide as it likes."""


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print rows whose first cell names them; every text may be of any origin."""
    from rich.table import Table

    names, cells = _safe(columns), [_safe(row) for row in rows]
    table = Table(*names, title=_safe([title])[0])
    for row in cells:
        table.add_row(*row)
    screen = console()
    if screen.measure(table, options=screen.options.update(max_width=UNBOUNDED)).maximum <= screen.width:
        screen.print(table)
        return
    width = max(map(len, names))
    for line in (_safe([title])[0], *_lines(names, cells, width)):
        screen.print(line, soft_wrap=True)


def _lines(names: Sequence[str], rows: Iterable[Sequence[str]], width: int) -> Iterable[str]:
    for first, *others in rows:
        yield first
        for name, cell in zip(names[1:], others, strict=True):
            yield f"  {name:<{width}}  {cell}"


def _safe(texts: Iterable[str]) -> list[str]:
    return [one_line(mask(text)) for text in texts]
