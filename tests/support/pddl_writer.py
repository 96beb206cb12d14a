"""Conversion of a room and a goal to a PDDL problem for ALFWorld's own engine (domain file ``alfred.pddl``)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from runner.envs.alfworld.engine import Goal, GoalKind, Scene, kind_of

_PREDICATES = {
    "pickupable": "pickupable",
    "heatable": "heatable",
    "coolable": "coolable",
    "cleanable": "cleanable",
    "sliceable": "sliceable",
    "toggleable": "toggleable",
    "container": "isReceptacleObject",
}
_CONSTANTS = {"rtype": ("microwave", "fridge", "sinkbasin"), "otype": ("knife", "butterknife")}
"""PDDL type -> kinds that ALFWorld's domain file mentions. A problem must declare them even if its room has none."""

_PLACED = "(inReceptacle ?o ?r) (objectType ?o {thing}Type) (receptacleType ?r {target}Type)"
_GOALS: Mapping[GoalKind, str] = {
    "pick_and_place_simple": f"(exists (?r - receptacle ?o - object) (and {_PLACED}))",
    "pick_clean_then_place_in_recep": f"(exists (?r - receptacle ?o - object) (and (isClean ?o) {_PLACED}))",
    "pick_heat_then_place_in_recep": f"(exists (?r - receptacle ?o - object) (and (isHot ?o) {_PLACED}))",
    "pick_cool_then_place_in_recep": f"(exists (?r - receptacle ?o - object) (and (isCool ?o) {_PLACED}))",
    "pick_two_obj_and_place": (
        f"(exists (?r - receptacle ?o - object ?other - object) (and {_PLACED} (not (= ?o ?other)) "
        "(inReceptacle ?other ?r) (objectType ?other {thing}Type)))"
    ),
    "look_at_obj_in_light": (
        "(exists (?o - object ?r - receptacle ?a - agent ?l - location) (and (objectType ?o {target}Type) "
        "(toggleable ?o) (isToggled ?o) (inReceptacle ?o ?r) (receptacleAtLocation ?r ?l) (atLocation ?a ?l))) "
        "(exists (?o - object ?a - agent) (and (objectType ?o {thing}Type) (holds ?a ?o)))"
    ),
}
"""Task type -> goal condition, as in ALFWorld's games."""


def pddl_problem(scene: Scene, goal: Goal) -> str:
    """Return the PDDL problem of a room and a goal; the player and each receptacle have a location of their own."""
    goal_condition = _GOALS[goal.kind].format(thing=goal.thing, target=goal.target)
    facts = "\n".join(_facts(scene))
    return (
        f"(define (problem room) (:domain alfred)\n(:objects\n{_declared(scene)}\n)\n"
        f"(:init\n(= (total-cost) 0)\n(atLocation agent1 {_location(0)})\n{facts}\n)\n"
        f"(:goal (and {goal_condition}))\n(:metric minimize (total-cost)))\n"
    )


def pddl_id(name: str) -> str:
    """Return the PDDL id from which ALFWorld derives ``name``; ALFWorld numbers the sorted ids in reverse order."""
    kind, _, number = name.rpartition(" ")
    rest = f"_bar__plus_{1000 - int(number):03}"
    return f"{kind.removesuffix('basin')}{rest}_bar_{kind}" if kind.endswith("basin") else f"{kind}{rest}"


def _location(number: int) -> str:
    return f"loc_bar_{number}"


def _declared(scene: Scene) -> str:
    things = [name for names in scene.placed.values() for name in names]
    declared = {
        "agent": ["agent1"],
        "location": map(_location, range(len(scene.placed) + 1)),
        "receptacle": map(pddl_id, scene.placed),
        "object": map(pddl_id, things),
        "rtype": _types({*scene.receptacles, *_CONSTANTS["rtype"]}),
        "otype": _types({*scene.things, *_CONSTANTS["otype"]}),
    }
    return "\n".join(f"{' '.join(names)} - {kind}" for kind, names in declared.items())


def _types(kinds: Iterable[str]) -> Iterator[str]:
    return (f"{kind}Type" for kind in sorted(kinds))


def _facts(scene: Scene) -> Iterator[str]:
    for kind in sorted({kind_of(place) for place in scene.placed}):
        yield from (f"(canContain {kind}Type {held}Type)" for held in sorted(scene.receptacles[kind].holds))
    for number, (place, names) in enumerate(scene.placed.items(), start=1):
        yield f"(receptacleType {pddl_id(place)} {kind_of(place)}Type)"
        yield f"(receptacleAtLocation {pddl_id(place)} {_location(number)})"
        if scene.openable(place):
            yield f"(openable {pddl_id(place)})"
        for name in names:
            yield f"(inReceptacle {pddl_id(name)} {pddl_id(place)})"
            yield f"(objectAtLocation {pddl_id(name)} {_location(number)})"
            yield from _traits(scene, name)


def _traits(scene: Scene, name: str) -> Iterator[str]:
    yield f"(objectType {pddl_id(name)} {kind_of(name)}Type)"
    yield from (
        f"({_PREDICATES[trait]} {pddl_id(name)})"
        for trait in sorted(scene.things[kind_of(name)])
        if trait in _PREDICATES
    )
