"""Picture of a shipped room: a map of its receptacles, what the player has seen in them, and what the player holds."""

from __future__ import annotations

from textwrap import wrap

from runner.envs.alfworld.engine import LocalGame, kind_of, listing_order
from runner.types import CellRow, CellRun, Cells, merge_runs

_WIDTH = 74
"""Columns of the picture, so that it fits a terminal of 80."""
_MARKS = 6
"""Columns of a receptacle beside its name."""
_STATES = ("clean", "hot", "cool", "sliced", "on")
_LEGEND = (CellRun("► you are here  ■ closed  □ open  ? not seen yet", "dim"),)


class RoomPainter:
    """Draws a room as the player knows it."""

    def __init__(self, game: LocalGame) -> None:
        self._game = game
        self._visited: set[str] = set()

    def look(self) -> None:
        """Call it after each step."""
        game = self._game
        if game.place is not None and (game.place in game.opened or not game.scene.openable(game.place)):
            self._visited.add(game.place)

    def draw(self) -> Cells:
        places = list(self._game.contents)
        width = max(map(len, places), default=0)
        n_columns = max(_WIDTH // (width + _MARKS), 1)
        n_rows = -(-len(places) // n_columns)
        rows = [
            merge_runs(run for each in places[row::n_rows] for run in self._place(each, width)) for row in range(n_rows)
        ]
        here = [each for each in places if each == self._game.place and each in self._visited]
        seen = [*here, *(each for each in places if each in self._visited and each not in here)]
        contents = [row for place in seen for row in self._contents(place, width)]
        return Cells([*self._heading(), (), *rows, _LEGEND, (), *contents])

    def _heading(self) -> list[CellRow]:
        game = self._game
        held = CellRun("nothing", "dim") if game.held is None else CellRun(self._described(game.held), "green")
        return [
            (CellRun("Task: ", "dim"), CellRun(str(game.goal))),
            (CellRun("Held: ", "dim"), held),
            (CellRun("Seen: ", "dim"), CellRun(f"{len(self._visited)} of {len(game.contents)} receptacles")),
        ]

    def _place(self, place: str, width: int) -> CellRow:
        game = self._game
        door = " " if not game.scene.openable(place) else "□" if place in game.opened else "■"
        unseen = " " if place in self._visited else "?"
        name = f"{place} {unseen}".ljust(width + _MARKS - 3)
        if place == game.place:
            return CellRun(f"►{door} ", "yellow"), CellRun(name, "yellow", "shade")
        if kind_of(place) == game.goal.target:
            return CellRun(f" {door} ", "dim"), CellRun(name, "cyan")
        return CellRun(f" {door} ", "dim"), CellRun(name, "plain" if place in self._visited else "dim")

    def _contents(self, place: str, width: int) -> list[CellRow]:
        names = sorted(self._game.contents[place], key=listing_order)
        text = ", ".join(map(self._described, names)) or "nothing"
        lines = wrap(text, _WIDTH - width - 1, max_lines=3, placeholder=" …")
        first = (CellRun(f"{place:<{width}} ", "dim"), CellRun(lines[0], "plain" if names else "dim"))
        return [first, *((CellRun(" " * (width + 1)), CellRun(line)) for line in lines[1:])]

    def _described(self, thing: str) -> str:
        states = [state for state in _STATES if state in self._game.states.get(thing, ())]
        return f"{thing} ({', '.join(states)})" if states else thing
