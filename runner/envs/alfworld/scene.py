"""A room with its things, and what is to be done there; nothing in here changes while it is played."""

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
"""The six tasks by ALFRED's names."""

Treatment: TypeAlias = Literal["clean", "heat", "cool"]
ObjectLayout: TypeAlias = Mapping[str, Sequence[str]]
"""Per receptacle what is in or on it, by names such as ``drawer 2``; each kind is numbered from 1 without gaps."""

PHRASES: Mapping[GoalKind, tuple[str, str]] = {
    "pick_and_place_simple": ("put a {thing} in {target}", "put some {thing} on {target}"),
    "look_at_obj_in_light": ("look at {thing} under the {target}", "examine the {thing} with the {target}"),
    "pick_clean_then_place_in_recep": ("put a clean {thing} in {target}", "clean some {thing} and put it in {target}"),
    "pick_heat_then_place_in_recep": ("put a hot {thing} in {target}", "heat some {thing} and put it in {target}"),
    "pick_cool_then_place_in_recep": ("put a cool {thing} in {target}", "cool some {thing} and put it in {target}"),
    "pick_two_obj_and_place": ("put two {thing} in {target}", "find two {thing} and put them in {target}"),
}
"""How ALFWorld says each task."""

TREATMENTS: Mapping[GoalKind, Treatment] = {
    "pick_clean_then_place_in_recep": "clean",
    "pick_heat_then_place_in_recep": "heat",
    "pick_cool_then_place_in_recep": "cool",
}


class Appliance(msgspec.Struct, frozen=True):
    """What a treatment takes: the kind of receptacle and the trait of the thing; and the state that it leaves."""

    receptacle: str
    trait: Trait
    state: str


APPLIANCES: Mapping[Treatment, Appliance] = {
    "clean": Appliance("sinkbasin", "cleanable", "clean"),
    "heat": Appliance("microwave", "heatable", "hot"),
    "cool": Appliance("fridge", "coolable", "cool"),
}


class ReceptacleKind(msgspec.Struct, frozen=True, array_like=True):
    """Whether it has a door or lid, and which kinds of things can be put there."""

    openable: bool
    holds: frozenset[str]


class Goal(msgspec.Struct, frozen=True, array_like=True):
    """A task; ``target`` is the kind of receptacle, or of lamp to look by. ``phrase`` says it in one of two ways."""

    kind: GoalKind
    thing: str
    target: str
    phrase: Literal[0, 1]

    def __str__(self) -> str:
        """As it is told, such as ``put a clean mug in shelf``."""
        return PHRASES[self.kind][self.phrase].format(thing=self.thing, target=self.target)


class Scene(msgspec.Struct, frozen=True):
    """A room at the start of a task.

    Attributes:
        things: the traits of each kind of thing.
        receptacles: what each kind of receptacle is like.
        placed: where everything is.
    """

    things: Mapping[str, frozenset[Trait]]
    receptacles: Mapping[str, ReceptacleKind]
    placed: ObjectLayout

    def has(self, name: str, trait: Trait) -> bool:
        """Whether a thing has a trait."""
        return trait in self.things[kind_of(name)]

    def openable(self, place: str) -> bool:
        """Whether a receptacle can be opened and closed."""
        return self.receptacles[kind_of(place)].openable

    def accepts(self, place: str, name: str) -> bool:
        """Whether a thing can be put into or onto a receptacle."""
        return kind_of(name) in self.receptacles[kind_of(place)].holds


def kind_of(name: str) -> str:
    """The kind of a thing or receptacle, ``drawer`` of ``drawer 2``."""
    return name.rpartition(" ")[0]


def listing_order(name: str) -> tuple[str, int]:
    """The key that sorts names as ALFWorld lists them: by kind, the highest number first."""
    kind, _, number = name.rpartition(" ")
    return f"{kind}_", -int(number)
