"""Planners: one that knows the rules and where everything is, and ALFWorld's own."""

from __future__ import annotations

from typing import Protocol

from runner.envs.alfworld.engine import LocalGame
from runner.envs.alfworld.real import RealGame
from runner.envs.alfworld.scene import APPLIANCES, TREATMENTS, kind_of, listing_order
from runner.envs.alfworld.tasks import Game


class Planner(Protocol):
    """Names the next action of a task."""

    def next_action(self) -> str:
        """The next command."""


def make_planner(game: Game) -> Planner:
    """The planner for a running game."""
    return LocalOracle(game) if isinstance(game, LocalGame) else RealOracle(game)


class LocalOracle:
    """Finds the thing, treats it and puts it where it belongs, each step chosen by how things are now."""

    def __init__(self, game: LocalGame) -> None:
        """Watch ``game``, which the episode steps."""
        self._game = game
        self._goal = game.goal

    def next_action(self) -> str:
        """The next command."""
        held = self._game.held
        if held is None:
            return self._fetch()
        if kind_of(held) != self._goal.thing:
            return self._put(held, self._place_for(held))
        if self._goal.kind == "look_at_obj_in_light":
            return self._light()
        return self._put(held, self._target()) if self._game.is_ready(held) else self._treat(held)

    def _fetch(self) -> str:
        """Take the thing that is asked for, one that needs no treatment if there is one."""
        wanted = [
            (not self._game.is_ready(name), place != self._game.place, listing_order(name), name, place)
            for place, names in self._game.contents.items()
            for name in names
            if kind_of(name) == self._goal.thing and place != self._kept_at()
        ]
        *_, name, place = min(wanted)
        return self._reached(place) or f"take {name} from {place}"

    def _light(self) -> str:
        lamp, place = min(
            (name, place)
            for place, names in self._game.contents.items()
            for name in names
            if kind_of(name) == self._goal.target
        )
        return self._gone(place) or f"use {lamp}"

    def _treat(self, held: str) -> str:
        treatment = TREATMENTS[self._goal.kind]
        place = self._first(APPLIANCES[treatment].receptacle)
        return self._gone(place) or f"{treatment} {held} with {place}"

    def _put(self, held: str, place: str) -> str:
        return self._reached(place) or f"move {held} to {place}"

    def _target(self) -> str:
        """The receptacle to put things in: one that has some already, for where two are asked for."""
        places = [place for place in self._game.contents if kind_of(place) == self._goal.target]
        return max(places, key=lambda place: sum(map(self._game.is_ready, self._game.contents[place])))

    def _kept_at(self) -> str | None:
        """Where things stay, as one of the two is there already."""
        return self._target() if self._goal.kind == "pick_two_obj_and_place" else None

    def _place_for(self, held: str) -> str:
        """Where something can be put that is in the way: here, if possible."""
        here = self._game.place
        places = ([here] if here else []) + list(self._game.contents)
        return next(place for place in places if self._game.scene.accepts(place, held))

    def _first(self, kind: str) -> str:
        return next(place for place in self._game.contents if kind_of(place) == kind)

    def _gone(self, place: str) -> str:
        return "" if self._game.place == place else f"go to {place}"

    def _reached(self, place: str) -> str:
        """What it takes to reach into a receptacle; empty where nothing does."""
        return self._gone(place) or ("" if self._game.is_accessible(place) else f"open {place}")


class RealOracle:
    """Follows the plan of ALFWorld's own planner, and asks for another one where it cannot be followed."""

    def __init__(self, game: RealGame) -> None:
        """Watch ``game``, which the episode steps."""
        self._game = game
        self._plan: list[str] = []

    def next_action(self) -> str:
        """The next command of the plan, or ``look`` where there is none."""
        if not self._plan or self._plan[0] not in self._game.admissible:
            self._plan = self._game.plan()
        return self._plan.pop(0) if self._plan else "look"
