"""Pictures of the environments of LMRL-Gym: the maze, and the tiles and keyboard of Wordle."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from runner.types import CellRow, CellRun, Cells, merge_runs

_WALL, _FREE, _WALKED, _AGENT, _GOAL = "██", "  ", "· ", "● ", "★ "
_RUNS = {
    _WALL: CellRun(_WALL, "dim"),
    _FREE: CellRun(_FREE),
    _WALKED: CellRun(_WALKED, "cyan"),
    _AGENT: CellRun(_AGENT, "yellow"),
    _GOAL: CellRun(_GOAL, "green"),
}
_MAZE_LEGEND = (
    _RUNS[_AGENT],
    CellRun("agent   "),
    _RUNS[_GOAL],
    CellRun("goal   "),
    _RUNS[_WALKED],
    CellRun("way walked"),
)
_KEYBOARD = ("qwertyuiop", "asdfghjkl", "zxcvbnm")
_TILE_LEGEND = (
    CellRun("[a]", "green", "solid"),
    CellRun(" in place  "),
    CellRun("(a)", "yellow", "solid"),
    CellRun(" elsewhere  "),
    CellRun(" - ", "dim"),
    CellRun(" not in the word"),
)
_RANK = {"b": 1, "y": 2, "g": 3}


def draw_maze(grid: tuple[str, ...], goal: tuple[int, int], walked: Sequence[tuple[int, int]]) -> Cells:
    """The current position is the last one of ``walked``."""
    marks: dict[int, dict[int, str]] = {}
    for row, column in walked:
        marks.setdefault(row, {})[column] = _WALKED
    for (row, column), mark in ((goal, _GOAL), (walked[-1], _AGENT)):
        marks.setdefault(row, {})[column] = mark
    rows = [_maze_row(line, tuple(marks[row].items()) if row in marks else ()) for row, line in enumerate(grid)]
    return Cells([*rows, (), _MAZE_LEGEND])


@lru_cache(512)
def _maze_row(line: str, marks: tuple[tuple[int, str], ...]) -> CellRow:
    # cached, because most rows are those of the previous picture
    cells = [_WALL if char == "#" else _FREE for char in line]
    for column, mark in marks:
        cells[column] = mark
    return merge_runs(_RUNS[cell] for cell in cells)


def draw_wordle(history: Sequence[tuple[str, str]], n_tries: int, max_guesses: int) -> Cells:
    """Return the picture; ``n_tries`` counts all guesses, ``history`` has the valid ones with their marks."""
    n_invalid = n_tries - len(history)
    tiles = [tuple(_tile(*pair) for pair in zip(*guess, strict=True)) for guess in history]
    blank = [(CellRun(" · " * 5, "dim"),)] * (max_guesses - n_tries)
    invalid = [(CellRun("invalid word".ljust(15), "red"),)] * n_invalid
    known = _best_marks(history)
    keys = [(CellRun("  " * number), *(_key(key, known) for key in row)) for number, row in enumerate(_KEYBOARD)]
    return Cells([*tiles, *invalid, *blank, (), *keys, (), _TILE_LEGEND])


def _tile(letter: str, mark: str) -> CellRun:
    if mark == "g":
        return CellRun(f"[{letter.upper()}]", "green", "solid")
    if mark == "y":
        return CellRun(f"({letter.upper()})", "yellow", "solid")
    return CellRun(f" {letter.upper()} ", "plain", "shade")


def _key(letter: str, known: dict[str, str]) -> CellRun:
    match known.get(letter):
        case "g":
            return CellRun(f"[{letter}] ", "green")
        case "y":
            return CellRun(f"({letter}) ", "yellow")
        case "b":
            return CellRun(" -  ", "dim")
    return CellRun(f" {letter}  ")


def _best_marks(history: Sequence[tuple[str, str]]) -> dict[str, str]:
    known: dict[str, str] = {}
    for guess, marks in history:
        for letter, mark in zip(guess, marks, strict=True):
            if _RANK[mark] > _RANK.get(known.get(letter, ""), 0):
                known[letter] = mark
    return known
