"""Build ``data/alfworld/tasks.json``: 40 invented rooms with 240 tasks.

    python scripts/build_alfworld_data.py

The script reads no input. Choices are made by digests of names and numbers instead of a random generator, so the
output is identical with every Python version. The license notice of the tasks is ``data/alfworld/LICENSE``.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar

TARGET = Path(__file__).resolve().parent.parent / "data" / "alfworld" / "tasks.json"
SOURCE = "invented by scripts/build_alfworld_data.py"
N_TASKS = 240

Placed: TypeAlias = dict[str, list[str]]
Goal: TypeAlias = tuple[str, str, str, int]
"""Task type, kind of object, kind of receptacle or lamp, and index of the phrase (0 or 1)."""
_T = TypeVar("_T")


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


FRUIT = _words("apple potato tomato")
FOOD = (*FRUIT, *_words("bread egg lettuce"))
CUPS = _words("cup mug")
DISHES = (*CUPS, *_words("bowl plate"))
POTS = _words("pan pot")
CUTLERY = _words("butterknife fork knife ladle spatula spoon")
CONDIMENTS = _words("peppershaker saltshaker")
BOTTLES = _words("glassbottle winebottle")
CLEANING = _words("cloth dishsponge soapbar soapbottle spraybottle")
PAPER = _words("tissuebox toiletpaper")
DESK_THINGS = _words("book cd cellphone creditcard keychain pen pencil")
SMALL = (*DESK_THINGS, *_words("remotecontrol watch"))
SHOWN = _words("alarmclock box candle statue vase")
SOFT = _words("laptop newspaper pillow")
LAMPS = _words("desklamp")

THINGS: Mapping[str, Sequence[str]] = {
    "heatable": (*FRUIT, *CUPS, "bread", "egg", "plate"),
    "coolable": (*FOOD, *DISHES, *POTS, "winebottle"),
    "cleanable": (*FRUIT, *DISHES, *POTS, *CUTLERY, *_words("egg lettuce kettle cloth dishsponge soapbar")),
    "sliceable": FOOD,
    "blade": _words("butterknife knife"),
    "container": (*DISHES, *POTS, "box"),
    "toggleable": LAMPS,
}
"""Trait -> kinds of objects that have the trait."""

_TABLE = (*DISHES, *CONDIMENTS, *BOTTLES, *PAPER, *SMALL, *SHOWN, *LAMPS, "laptop", "newspaper")
_WORKTOP = (*_TABLE, *FOOD, *POTS, *CUTLERY, *CLEANING, "kettle", "handtowel")
RECEPTACLES: Mapping[str, Sequence[str]] = {
    "armchair": (*SOFT, "book", "cellphone", "remotecontrol"),
    "bathtubbasin": _words("cloth dishsponge soapbar handtowel"),
    "bed": (*SOFT, "book", "cellphone"),
    "cabinet": (*DISHES, *POTS, *CONDIMENTS, *BOTTLES, *CLEANING, *PAPER, *_words("kettle ladle candle vase")),
    "coffeemachine": _words("mug"),
    "coffeetable": _TABLE,
    "countertop": _WORKTOP,
    "desk": _TABLE,
    "diningtable": _WORKTOP,
    "drawer": (*CUTLERY, *CONDIMENTS, *CLEANING, *PAPER, *SMALL, "candle", "newspaper"),
    "dresser": _TABLE,
    "fridge": (*FOOD, *DISHES, *POTS, *BOTTLES),
    "garbagecan": (*FOOD, *PAPER, *_words("cd cloth dishsponge newspaper pen pencil soapbar soapbottle")),
    "handtowelholder": _words("handtowel"),
    "laundryhamper": _words("cloth"),
    "microwave": (*FRUIT, *DISHES, "bread", "egg"),
    "safe": _words("cd cellphone creditcard keychain statue watch"),
    "shelf": (*DISHES, *CONDIMENTS, *BOTTLES, *CLEANING, *PAPER, *SMALL, *SHOWN, *LAMPS),
    "sidetable": (*_TABLE, "cloth", "soapbar"),
    "sinkbasin": (*FRUIT, *DISHES, *POTS, *CUTLERY, *_words("egg lettuce kettle cloth dishsponge soapbar")),
    "sofa": (*SOFT, "book", "cellphone", "creditcard", "keychain", "remotecontrol"),
    "stoveburner": (*POTS, "kettle"),
    "toaster": (),
    "toilet": (*CLEANING, *PAPER, "candle", "newspaper"),
    "toiletpaperhanger": _words("toiletpaper"),
}
"""Kind of receptacle -> kinds of objects that it can hold."""

OPENABLE = _words("cabinet drawer fridge microwave safe")


class Plan(NamedTuple):
    """Plan of one type of room: number of rooms, and minimum and maximum of each kind of receptacle and object."""

    n_rooms: int
    receptacles: str
    things: str


PLANS: Mapping[str, Plan] = {
    "kitchen": Plan(
        16,
        "cabinet 4 8, coffeemachine 1 1, countertop 1 3, diningtable 0 1, drawer 2 5, fridge 1 1, garbagecan 1 1, "
        "microwave 1 1, shelf 0 3, sinkbasin 1 1, stoveburner 2 4, toaster 1 1",
        "apple 1 2, bowl 1 2, bread 1 2, butterknife 1 1, cup 1 3, dishsponge 1 2, egg 1 2, fork 1 2, glassbottle 0 2, "
        "kettle 0 1, knife 1 2, ladle 0 1, lettuce 1 2, mug 1 3, pan 1 2, peppershaker 1 2, plate 1 3, pot 1 2, "
        "potato 1 3, saltshaker 1 2, soapbottle 1 2, spatula 1 2, spoon 1 2, tomato 1 3, winebottle 0 1",
    ),
    "living room": Plan(
        8,
        "armchair 1 2, cabinet 0 3, coffeetable 1 1, drawer 2 4, dresser 0 1, garbagecan 1 1, safe 0 1, shelf 1 4, "
        "sidetable 1 2, sofa 1 1",
        "book 1 2, box 1 2, candle 0 2, cellphone 0 1, creditcard 1 3, desklamp 1 1, keychain 1 3, laptop 1 2, "
        "newspaper 1 2, pillow 1 3, remotecontrol 1 3, statue 1 2, tissuebox 1 2, vase 1 3, watch 1 2",
    ),
    "bedroom": Plan(
        10,
        "armchair 0 1, bed 1 1, desk 1 2, drawer 3 6, dresser 0 1, garbagecan 1 1, laundryhamper 1 1, safe 0 1, "
        "shelf 2 5, sidetable 1 2",
        "alarmclock 1 2, book 1 3, bowl 0 1, cd 1 3, cellphone 1 3, cloth 1 2, creditcard 1 2, desklamp 1 1, "
        "keychain 1 2, laptop 1 2, mug 1 1, pen 1 3, pencil 1 3, pillow 1 2, vase 0 1, watch 0 1",
    ),
    "bathroom": Plan(
        6,
        "bathtubbasin 1 1, cabinet 2 4, countertop 1 1, drawer 0 3, garbagecan 1 1, handtowelholder 1 2, shelf 0 2, "
        "sinkbasin 1 2, toilet 1 1, toiletpaperhanger 1 1",
        "candle 1 2, cloth 1 3, dishsponge 0 2, handtowel 1 2, soapbar 1 3, soapbottle 1 3, spraybottle 1 2, "
        "tissuebox 0 1, toiletpaper 1 3",
    ),
}
TREATED = {
    "pick_clean_then_place_in_recep": ("sinkbasin", "cleanable"),
    "pick_heat_then_place_in_recep": ("microwave", "heatable"),
    "pick_cool_then_place_in_recep": ("fridge", "coolable"),
}
"""Task type -> required appliance and trait."""

KINDS = ("pick_and_place_simple", "look_at_obj_in_light", *TREATED, "pick_two_obj_and_place")


def derive() -> dict[str, Any]:
    """Return the traits of objects, the contents of receptacles, the rooms, and the tasks in order."""
    kinds = dict.fromkeys(sorted({*_WORKTOP, *SOFT, *CLEANING, "handtowel"}))
    traits = {
        kind: [*(trait for trait, having in THINGS.items() if kind in having), *_pickupable(kind)] for kind in kinds
    }
    receptacles = {kind: [kind in OPENABLE, sorted(held)] for kind, held in RECEPTACLES.items()}
    rooms = [_room(plan, f"{name} {number}") for name, plan in PLANS.items() for number in range(plan.n_rooms)]
    return {"source": SOURCE, "things": traits, "receptacles": receptacles, "rooms": rooms, "tasks": _tasks(rooms)}


def render(data: Mapping[str, Any]) -> str:
    """Return the content of the data file: JSON with one line per kind, room and task."""
    kinds = (
        f'"{part}": {{\n{_lines(f"{json.dumps(kind)}: {json.dumps(value)}" for kind, value in data[part].items())}\n}}'
        for part in ("things", "receptacles")
    )
    lists = (f'"{part}": [\n{_lines(map(json.dumps, data[part]))}\n]' for part in ("rooms", "tasks"))
    return "{\n" + ",\n".join([f'"source": {json.dumps(data["source"])}', *kinds, *lists]) + "\n}\n"


def _lines(entries: Iterable[str]) -> str:
    return ",\n".join(entries)


def _pickupable(kind: str) -> list[str]:
    return [] if kind in LAMPS else ["pickupable"]


def _room(plan: Plan, about: str) -> Placed:
    placed: Placed = {place: [] for place in _furnished(plan.receptacles, about)}
    for name in _furnished(plan.things, about):
        places = [place for place in placed if _kind(name) in RECEPTACLES[_kind(place)]]
        placed[_pick(places, about, name)].append(name)
    return placed


def _furnished(listed: str, about: str) -> Iterator[str]:
    # names such as "cabinet 2", each kind numbered from 1
    for entry in listed.split(", "):
        kind, least, most = entry.split()
        for number in range(int(least) + _number(about, kind) % (int(most) - int(least) + 1)):
            yield f"{kind} {number + 1}"


def _tasks(rooms: Sequence[Placed]) -> list[tuple[int, Goal]]:
    # cycles through the task types, and for each type through the rooms that allow it; no task occurs twice
    left = {
        kind: [(number, goals) for number, room in enumerate(rooms) if (goals := list(_goals(kind, room)))]
        for kind in KINDS
    }
    return [_next_task(KINDS[index % len(KINDS)], index, left[KINDS[index % len(KINDS)]]) for index in range(N_TASKS)]


def _next_task(kind: str, index: int, left: list[tuple[int, list[tuple[str, str]]]]) -> tuple[int, Goal]:
    """Remove and return a goal of one of the first rooms in ``left``; the room moves to the end of the list."""
    at = min(range(min(len(left), 8)), key=lambda place: _digest(kind, str(index), str(left[place][0])))
    number, goals = left.pop(at)
    thing, target = goals.pop(_number(kind, str(index), "goal") % len(goals))
    if goals:
        left.append((number, goals))
    return number, (kind, thing, target, _number(kind, str(index), "phrase") % 2)


def _goals(kind: str, room: Placed) -> Iterator[tuple[str, str]]:
    """Yield the possible goals ``(object, target)`` of a room; no target already holds an object of the kind."""
    appliance, trait = TREATED.get(kind, ("", ""))
    places = dict.fromkeys(map(_kind, room))
    found = Counter(_kind(name) for names in room.values() for name in names)
    things = [thing for thing in found if thing not in LAMPS and thing in THINGS.get(trait, found)]
    if kind == "look_at_obj_in_light":
        yield from ((thing, lamp) for thing in things for lamp in LAMPS if lamp in found)
    elif not appliance or appliance in places:
        needed = 2 if kind == "pick_two_obj_and_place" else 1
        for thing in things:
            there = {_kind(place) for place, names in room.items() if thing in map(_kind, names)}
            targets = (place for place in places if thing in RECEPTACLES[place] and place not in {*there, appliance})
            yield from ((thing, target) for target in targets if found[thing] >= needed)


def _kind(name: str) -> str:
    return name.rpartition(" ")[0]


def _digest(*about: str) -> bytes:
    return hashlib.sha256("\0".join(about).encode()).digest()


def _number(*about: str) -> int:
    return int.from_bytes(_digest(*about)[:8], "big")


def _pick(values: Sequence[_T], *about: str) -> _T:
    return values[_number(*about) % len(values)]


def main() -> None:
    """Write the data file."""
    parser = argparse.ArgumentParser(description="Invent ALFWorld's rooms and tasks.")
    parser.add_argument("--output", type=Path, default=TARGET)
    parser.parse_args().output.write_text(render(derive()), "utf-8")


if __name__ == "__main__":
    main()
