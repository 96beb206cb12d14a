"""Engine for the shipped rooms, with the rules of ALFWorld 0.4.2; every object is in or on a receptacle."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Literal, TypeAlias

import msgspec

Trait: TypeAlias = Literal[
    "pickupable", "heatable", "coolable", "cleanable", "sliceable", "toggleable", "blade", "container"
]
GoalKind: TypeAlias = Literal[
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
]
"""ALFRED's names of the six task types."""

Treatment: TypeAlias = Literal["clean", "heat", "cool"]
Move: TypeAlias = Callable[[], str]
ObjectLayout: TypeAlias = Mapping[str, Sequence[str]]
"""Receptacle -> objects in or on it, by names such as ``drawer 2``; the numbers of a kind run from 1 without gaps."""

NOTHING_HAPPENS = "Nothing happens."
HELP = (
    "You can look around, check your inventory, go to a receptacle, open or close it, take an object from it, move an "
    "object to it, examine it or what you carry, use a lamp, clean, heat or cool what you carry with the right "
    "appliance, and slice something with the knife you carry."
)

PHRASES: Mapping[GoalKind, tuple[str, str]] = {
    "pick_and_place_simple": ("put a {thing} in {target}", "put some {thing} on {target}"),
    "look_at_obj_in_light": ("look at {thing} under the {target}", "examine the {thing} with the {target}"),
    "pick_clean_then_place_in_recep": ("put a clean {thing} in {target}", "clean some {thing} and put it in {target}"),
    "pick_heat_then_place_in_recep": ("put a hot {thing} in {target}", "heat some {thing} and put it in {target}"),
    "pick_cool_then_place_in_recep": ("put a cool {thing} in {target}", "cool some {thing} and put it in {target}"),
    "pick_two_obj_and_place": ("put two {thing} in {target}", "find two {thing} and put them in {target}"),
}
"""ALFWorld's two phrases for each task type."""

TREATMENTS: Mapping[GoalKind, Treatment] = {
    "pick_clean_then_place_in_recep": "clean",
    "pick_heat_then_place_in_recep": "heat",
    "pick_cool_then_place_in_recep": "cool",
}


class Appliance(msgspec.Struct, frozen=True):
    """A treatment's kind of receptacle, the trait that an object needs for it, and the state that the object gets."""

    receptacle: str
    trait: Trait
    state: str


APPLIANCES: Mapping[Treatment, Appliance] = {
    "clean": Appliance("sinkbasin", "cleanable", "clean"),
    "heat": Appliance("microwave", "heatable", "hot"),
    "cool": Appliance("fridge", "coolable", "cool"),
}


class ReceptacleKind(msgspec.Struct, frozen=True, array_like=True):
    """Properties of a kind of receptacle: whether it can be opened, and the kinds of objects that it can hold."""

    openable: bool
    holds: frozenset[str]


class Goal(msgspec.Struct, frozen=True, array_like=True):
    """Goal of a task.

    Attributes:
        target: kind of receptacle or lamp.
        phrase: index of the phrase in ``PHRASES``.
    """

    kind: GoalKind
    thing: str
    target: str
    phrase: Literal[0, 1]

    def __str__(self) -> str:
        return PHRASES[self.kind][self.phrase].format(thing=self.thing, target=self.target)


class Scene(msgspec.Struct, frozen=True):
    """A room at the start of a task.

    Attributes:
        things: kind of object -> traits of all objects of the kind.
        receptacles: kind of receptacle -> properties of all receptacles of the kind.
    """

    things: Mapping[str, frozenset[Trait]]
    receptacles: Mapping[str, ReceptacleKind]
    placed: ObjectLayout

    def has(self, name: str, trait: Trait) -> bool:
        return trait in self.things[kind_of(name)]

    def openable(self, place: str) -> bool:
        return self.receptacles[kind_of(place)].openable

    def accepts(self, place: str, name: str) -> bool:
        return kind_of(name) in self.receptacles[kind_of(place)].holds


def kind_of(name: str) -> str:
    return name.rpartition(" ")[0]


def listing_order(name: str) -> tuple[str, int]:
    """Return the sort key of a name in ALFWorld's lists: by kind, then by descending number."""
    kind, _, number = name.rpartition(" ")
    return f"{kind}_", -int(number)


class LocalGame:
    """A running task in a shipped room, with the commands and texts of ALFWorld 0.4.2."""

    def __init__(self, scene: Scene, goal: Goal) -> None:
        self.scene = scene
        self.goal = goal
        self.contents = {place: set(scene.placed[place]) for place in sorted(scene.placed, key=listing_order)}
        """Receptacle -> objects in or on it."""
        self.place: str | None = None
        """Receptacle where the player stands; None before the first ``go to``."""
        self.held: str | None = None
        self.opened: set[str] = set()
        self.states: dict[str, set[str]] = defaultdict(set)
        """Object -> its states: clean, hot, cool, sliced, on."""
        self._moves = self._admissible_moves()

    @property
    def opening(self) -> str:
        room = _describe_room(_list_names(self.scene.placed))
        return f"{room}\n\nYour task is to: {self.goal}."

    @property
    def admissible(self) -> list[str]:
        return sorted(self._moves)

    @property
    def won(self) -> bool:
        goal = self.goal
        if goal.kind == "look_at_obj_in_light":
            return self.held is not None and kind_of(self.held) == goal.thing and self._is_lit()
        needed = 2 if goal.kind == "pick_two_obj_and_place" else 1
        targets = (place for place in self.contents if kind_of(place) == goal.target)
        return any(sum(map(self.is_ready, self.contents[place])) >= needed for place in targets)

    def act(self, command: str) -> str:
        """Execute a command and return the observation; an inadmissible command changes nothing."""
        move = self._moves.get(command.strip())
        if move is None:
            return NOTHING_HAPPENS
        observation = move()
        self._moves = self._admissible_moves()
        return observation

    def is_ready(self, name: str) -> bool:
        treatment = TREATMENTS.get(self.goal.kind)
        treated = treatment is None or APPLIANCES[treatment].state in self.states[name]
        return treated and kind_of(name) == self.goal.thing

    def is_accessible(self, place: str) -> bool:
        return place in self.opened or not self.scene.openable(place)

    def _is_lit(self) -> bool:
        here = self.contents[self.place] if self.place else ()
        return any(kind_of(name) == self.goal.target and "on" in self.states[name] for name in here)

    def _admissible_moves(self) -> dict[str, Move]:
        moves: dict[str, Move] = {"look": self._look, "inventory": self._inventory, "help": lambda: HELP}
        moves |= {f"go to {place}": partial(self._go, place) for place in self.contents if place != self.place}
        if self.held is not None:
            moves[f"examine {self.held}"] = partial(self._describe_object, self.held)
        if self.place is not None:
            moves |= self._moves_at(self.place)
        return moves

    def _moves_at(self, place: str) -> Iterator[tuple[str, Move]]:
        yield f"examine {place}", partial(self._describe_receptacle, place)
        if place in self.opened:
            yield f"close {place}", partial(self._close, place)
        elif self.scene.openable(place):
            yield f"open {place}", partial(self._open, place)
        for name in self.contents[place]:
            if self.scene.has(name, "toggleable"):
                yield f"use {name}", partial(self._use, name)
            if self.held is None and self.is_accessible(place) and self.scene.has(name, "pickupable"):
                yield f"take {name} from {place}", partial(self._take, name, place)
        if self.held is not None:
            yield from self._moves_with(self.held, place)

    def _moves_with(self, held: str, place: str) -> Iterator[tuple[str, Move]]:
        # as in ALFWorld, appliances and sliced objects may be in a closed receptacle
        if self.is_accessible(place) and self.scene.accepts(place, held):
            yield f"move {held} to {place}", partial(self._put, held, place)
        for treatment, appliance in APPLIANCES.items():
            if kind_of(place) == appliance.receptacle and self.scene.has(held, appliance.trait):
                yield f"{treatment} {held} with {place}", partial(self._treat, treatment, held, place)
        if self.scene.has(held, "blade"):
            for name in self.contents[place]:
                if self.scene.has(name, "sliceable"):
                    yield f"slice {name} with {held}", partial(self._slice, name, held)

    def _look(self) -> str:
        if self.place is None:
            return _describe_room(_list_names([]))  # as in ALFWorld, only the opening lists the receptacles
        return f"You are facing the {self.place}. Next to it, you see nothing."

    def _inventory(self) -> str:
        return f"You are carrying: a {self.held}." if self.held else "You are not carrying anything."

    def _go(self, place: str) -> str:
        self.place = place
        return f"You arrive at {place}. {self._describe_receptacle(place)}"

    def _open(self, place: str) -> str:
        self.opened.add(place)
        return f"You open the {place}. {self._describe_receptacle(place)}"

    def _close(self, place: str) -> str:
        self.opened.remove(place)
        return f"You close the {place}."

    def _take(self, name: str, place: str) -> str:
        self.contents[place].remove(name)
        self.held = name
        return f"You pick up the {name} from the {place}."

    def _put(self, name: str, place: str) -> str:
        self.contents[place].add(name)
        self.held = None
        return f"You move the {name} to the {place}."

    def _treat(self, treatment: Treatment, name: str, place: str) -> str:
        if treatment != "clean":
            self.states[name] -= {"hot", "cool"}
        self.states[name].add(APPLIANCES[treatment].state)
        return f"You {treatment} the {name} using the {place}."

    def _use(self, name: str) -> str:
        self.states[name].add("on")  # permanently: ALFWorld's lamps cannot be turned off
        return f"You turn on the {name}."

    def _slice(self, name: str, blade: str) -> str:
        self.states[name].add("sliced")
        return f"You sliced the {name} with the {blade}."

    def _describe_receptacle(self, place: str) -> str:
        if not self.is_accessible(place):
            return f"The {place} is closed."
        inside = f"The {place} is open. In it" if self.scene.openable(place) else f"On the {place}"
        return f"{inside}, you see {_list_names(self.contents[place])}."

    def _describe_object(self, name: str) -> str:
        if self.scene.has(name, "container"):
            return f"This is a normal {name}. In it, you see nothing."
        words = _adjectives(self.states[name])
        return f"This is a {words} {name}." if words else f"There's nothing special about {name}."


def _adjectives(states: Iterable[str]) -> str:
    unique = set(states)
    if unique == {"cool"}:
        return "cold"
    treated = " and ".join(state for state in ("hot", "cool", "clean") if state in unique)
    return " ".join(filter(None, [treated, "sliced" if "sliced" in unique else ""]))


def _describe_room(contents: str) -> str:
    return f"You are in the middle of a room. Looking quickly around you, you see {contents}."


def _list_names(names: Iterable[str]) -> str:
    *most, last = [f"a {name}" for name in sorted(names, key=listing_order)] or ["nothing"]
    return f"{', '.join(most)}, and {last}" if most else last
