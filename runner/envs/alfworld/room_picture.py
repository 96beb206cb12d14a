"""Picture of a shipped room: its receptacles, what the player has seen in them, and what the player holds."""

from __future__ import annotations

from textwrap import wrap

from runner.envs.alfworld.engine import LocalGame, kind_of, listing_order
from runner.types import CellRow, CellRun, Cells

_WIDTH = 52
_STATES = ("clean", "hot", "cool", "sliced", "on")
_LEGEND = (CellRun("► you are here  ■ closed  □ open  ? not seen yet", "dim"),)


class RoomPainter:
    """Draws a room as the player knows it.

    Args:
        game: the running task.
    """

    def __init__(self, game: LocalGame) -> None:
        self._game = game
        self._visited: set[str] = set()

    def look(self) -> None:
        """Take into account what the player sees now; call it after each step."""
        game = self._game
        if game.place is not None and (game.place in game.opened or not game.scene.openable(game.place)):
            self._visited.add(game.place)

    def draw(self) -> Cells:
        """Return the picture."""
        game = self._game
        width = max(map(len, game.contents), default=0)
        rows = [row for place in game.contents for row in self._place_rows(place, width)]
        return Cells([*self._heading(), (), *rows, _LEGEND])

    def _heading(self) -> list[CellRow]:
        game = self._game
        held = CellRun("nothing", "dim") if game.held is None else CellRun(self._described(game.held), "green")
        return [
            (CellRun("Task: ", "dim"), CellRun(str(game.goal))),
            (CellRun("Held: ", "dim"), held),
            (CellRun("Seen: ", "dim"), CellRun(f"{len(self._visited)} of {len(game.contents)} receptacles")),
        ]

    def _place_rows(self, place: str, width: int) -> list[CellRow]:
        things = self._game.contents[place] if place in self._visited else None
        names = sorted(things or (), key=listing_order)
        text = "?" if things is None else ", ".join(map(self._described, names)) or "-"
        lines = wrap(text, _WIDTH, max_lines=3, placeholder=" …")
        first = (*self._place(place, width), CellRun(lines[0], "plain" if things else "dim"))
        return [first, *((CellRun(" " * (width + 4)), CellRun(line)) for line in lines[1:])]

    def _place(self, place: str, width: int) -> CellRow:
        """Return the name of a receptacle after marks for the player and for its door."""
        game = self._game
        door = " " if not game.scene.openable(place) else "□" if place in game.opened else "■"
        name = f"{place:<{width}} "
        if place == game.place:
            return CellRun(f"►{door} ", "yellow"), CellRun(name, "yellow", "shade")
        return CellRun(f" {door} ", "dim"), CellRun(name, "cyan" if kind_of(place) == game.goal.target else "plain")

    def _described(self, thing: str) -> str:
        states = [state for state in _STATES if state in self._game.states.get(thing, ())]
        return f"{thing} ({', '.join(states)})" if states else thing
