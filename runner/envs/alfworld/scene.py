"""Immutable description of a task: room (``Scene``), goal (``Goal``), and kinds of objects, receptacles and tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
ObjectLayout: TypeAlias = Mapping[str, Sequence[str]]
"""Receptacle -> objects in or on it, by names such as ``drawer 2``; the numbers of a kind run from 1 without gaps."""

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
        thing: kind of object.
        target: kind of receptacle or lamp.
        phrase: index of the phrase in ``PHRASES``.
    """

    kind: GoalKind
    thing: str
    target: str
    phrase: Literal[0, 1]

    def __str__(self) -> str:
        """Return the goal as text, such as ``put a clean mug in shelf``."""
        return PHRASES[self.kind][self.phrase].format(thing=self.thing, target=self.target)


class Scene(msgspec.Struct, frozen=True):
    """A room at the start of a task.

    Attributes:
        things: kind of object -> traits of all objects of the kind.
        receptacles: kind of receptacle -> properties of all receptacles of the kind.
        placed: initial positions of all objects.
    """

    things: Mapping[str, frozenset[Trait]]
    receptacles: Mapping[str, ReceptacleKind]
    placed: ObjectLayout

    def has(self, name: str, trait: Trait) -> bool:
        """Return whether an object has a trait."""
        return trait in self.things[kind_of(name)]

    def openable(self, place: str) -> bool:
        """Return whether a receptacle can be opened and closed."""
        return self.receptacles[kind_of(place)].openable

    def accepts(self, place: str, name: str) -> bool:
        """Return whether a receptacle can hold an object."""
        return kind_of(name) in self.receptacles[kind_of(place)].holds


def kind_of(name: str) -> str:
    """Return the kind of an object or receptacle, e.g. ``drawer`` for ``drawer 2``."""
    return name.rpartition(" ")[0]


def listing_order(name: str) -> tuple[str, int]:
    """Return the sort key of a name in ALFWorld's lists: by kind, then by descending number."""
    kind, _, number = name.rpartition(" ")
    return f"{kind}_", -int(number)
