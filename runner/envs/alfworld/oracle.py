"""Oracles of ALFWorld: ``LocalOracle`` for the shipped rooms, ``RealOracle`` for ALFWorld's own games."""

from __future__ import annotations

from runner.envs.alfworld.engine import APPLIANCES, TREATMENTS, LocalGame, kind_of, listing_order
from runner.envs.alfworld.original_engine import RealGame
from runner.envs.alfworld.tasks import Game
from runner.types import OraclePlanner


def make_planner(game: Game) -> OraclePlanner:
    return LocalOracle(game) if isinstance(game, LocalGame) else RealOracle(game)


class LocalOracle:
    """Planner for a shipped room: fetches the object, treats it and puts it into the target.

    Each command is derived from the game's current state, not from a stored plan.
    """

    def __init__(self, game: LocalGame) -> None:
        self._game = game
        self._goal = game.goal

    def next_action(self) -> str:
        held = self._game.held
        if held is None:
            return self._fetch()
        if kind_of(held) != self._goal.thing:
            return self._put(held, self._receptacle_for(held))
        if self._goal.kind == "look_at_obj_in_light":
            return self._light()
        return self._put(held, self._target()) if self._game.is_ready(held) else self._treat(held)

    def _fetch(self) -> str:
        candidates = [
            (not self._game.is_ready(name), place != self._game.place, listing_order(name), name, place)
            for place, names in self._game.contents.items()
            for name in names
            if kind_of(name) == self._goal.thing and place != self._completed_place()
        ]
        *_, name, place = min(candidates)
        return self._reach(place) or f"take {name} from {place}"

    def _light(self) -> str:
        lamp, place = min(
            (name, place)
            for place, names in self._game.contents.items()
            for name in names
            if kind_of(name) == self._goal.target
        )
        return self._go_to(place) or f"use {lamp}"

    def _treat(self, held: str) -> str:
        treatment = TREATMENTS[self._goal.kind]
        place = self._first(APPLIANCES[treatment].receptacle)
        return self._go_to(place) or f"{treatment} {held} with {place}"

    def _put(self, held: str, place: str) -> str:
        return self._reach(place) or f"move {held} to {place}"

    def _target(self) -> str:
        # prefers the receptacle with the most finished objects, for goals that need two in the same one
        places = [place for place in self._game.contents if kind_of(place) == self._goal.target]
        return max(places, key=lambda place: sum(map(self._game.is_ready, self._game.contents[place])))

    def _completed_place(self) -> str | None:
        # objects stay in the target receptacle if the goal needs two there
        return self._target() if self._goal.kind == "pick_two_obj_and_place" else None

    def _receptacle_for(self, held: str) -> str:
        # for an object that the goal does not need; prefers the current receptacle
        here = self._game.place
        places = ([here] if here else []) + list(self._game.contents)
        return next(place for place in places if self._game.scene.accepts(place, held))

    def _first(self, kind: str) -> str:
        return next(place for place in self._game.contents if kind_of(place) == kind)

    def _go_to(self, place: str) -> str:
        return "" if self._game.place == place else f"go to {place}"

    def _reach(self, place: str) -> str:
        return self._go_to(place) or ("" if self._game.is_accessible(place) else f"open {place}")


class RealOracle:
    """Planner for one of ALFWorld's own games: returns the commands of ALFWorld's own planner.

    If the next command of a plan is not admissible, a new plan is made.
    """

    def __init__(self, game: RealGame) -> None:
        self._game = game
        self._plan: list[str] = []

    def next_action(self) -> str:
        """Return the next command of the plan, or ``look`` if ALFWorld's planner finds no plan."""
        if not self._plan or self._plan[0] not in self._game.admissible:
            self._plan = self._game.plan()
        return self._plan.pop(0) if self._plan else "look"
