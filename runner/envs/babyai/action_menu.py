"""BabyAI's commands: those that the agent's view allows, their low-level steps, and their grammar as tools and texts.

The commands, their order, their numbers and all texts are those of AgentGym's
``agentenv-babyai/agentenv_babyai/environment.py``, as are the texts that reject other commands.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from runner.envs.babyai.observe import BOX, COLORS, DOOR, DOOR_STATES, PORTABLE, WALL, Thing, View
from runner.envs.babyai.path_search import DROP, FORWARD, LEFT, PICKUP, RIGHT, TOGGLE, Cell, PathSearch
from runner.envs.base import CommandPattern, Grammar, choice, command

CHECK = "check available actions"
NO_CHANGE = "No change in state."
UNKNOWN = "The action is not recognized. Please check valid actions."
BARRIER = "There is a barrier in front of you, you can't move forward."

_OBSTACLES = (WALL, *PORTABLE)
_OWN_CELL, _AHEAD = (0, 0), (1, 0)


class _Command(NamedTuple):
    """A command: walk up to ``target``, or onto it if ``enters``, then take the low-level steps ``finish``."""

    finish: tuple[int, ...] = ()
    target: Cell | None = None
    enters: bool = False


class ActionMenu:
    """The commands that one view of the agent allows, ``texts`` in the order in which the observation lists them."""

    def __init__(self, view: View) -> None:
        self._view = view
        obstacles = [cell for cell, kind in view.kinds.items() if kind in _OBSTACLES and cell != _OWN_CELL]
        self._search = PathSearch(obstacles, view.heading)
        self._commands: dict[str, _Command] = {}
        self._rejections: dict[str, str] = {"": NO_CHANGE}
        self._list_moves()
        self._list_pickups()
        self._list_doors()
        self._list_reachable("go to", view.things)
        self.texts = [*self._commands, CHECK]

    def __str__(self) -> str:
        return f"Available actions: {json.dumps(self.texts)}"

    def moves(self, text: str) -> list[int] | str:
        """Return the low-level steps of a command, in lower case and stripped, or the text that rejects it."""
        if (command := self._commands.get(text)) is None:
            return self._rejections.get(text, UNKNOWN)
        if command.target is None:
            return [*command.finish]
        path = self._search.path_to_enter if command.enters else self._search.path_to_face
        return [*path(command.target), *command.finish]

    def _list_moves(self) -> None:
        self._commands["turn left"] = _Command((LEFT,))
        self._commands["turn right"] = _Command((RIGHT,))
        if self._view.kinds[_AHEAD] in (WALL, BOX):
            self._rejections["move forward"] = BARRIER
        else:
            self._commands["move forward"] = _Command((FORWARD,))

    def _list_pickups(self) -> None:
        if not self._view.carrying:
            self._rejections["drop"] = "You cannot drop the object, as you are not carrying anything."
            self._list_reachable("pickup", [thing for thing in self._view.things if thing.kind in PORTABLE], PICKUP)
        elif self._view.kinds[_AHEAD] in _OBSTACLES:
            self._rejections["drop"] = "You cannot drop the object, as there is already an object in front of you."
        else:
            self._commands["drop"] = _Command((DROP,))

    def _list_doors(self) -> None:
        counts: dict[str, int] = {}
        for door in [thing for thing in self._view.things if thing.kind == DOOR]:
            counts[door.name] = door.number
            if door.state == "open":
                self._list_open_door(door)
            else:
                self._list_shut_door(door, counts)

    def _list_open_door(self, door: Thing) -> None:
        text = f"go through {door.name} {door.number}"
        if self._search.can_enter(door.cell):
            self._commands[text] = _Command(target=door.cell, enters=True)
        else:
            self._rejections[text] = _no_path(text)

    def _list_shut_door(self, door: Thing, counts: dict[str, int]) -> None:
        text = f"toggle and go through {door.name} {door.number}"
        if door.state == "closed":
            passing = f"go through {door.name} {door.number}"
            self._rejections[passing] = f"You cannot {passing}, as it is closed. You should toggle it first."
        elif reason := self._why_locked(door):
            self._rejections[text] = f"You cannot {text}, as {reason}."
            return
        if not self._search.can_face(door.cell):
            # AgentGym's text shows its counter of all doors instead of the door's number
            self._rejections[text] = _no_path(f"toggle and go through {door.name} {counts}")
            return
        self._commands[text] = _Command((TOGGLE, FORWARD), door.cell)
        if door.cell == _AHEAD:
            self._commands["toggle"] = _Command((TOGGLE,))

    def _why_locked(self, door: Thing) -> str:
        color, kind = self._view.carrying or ("", "")
        if kind != "key":
            return "you are not carrying a key"
        return "" if color == door.color else "the color of the key you are carrying does not match the color of door"

    def _list_reachable(self, verb: str, things: Sequence[Thing], *finish: int) -> None:
        # numbered among the reachable things of one name; the observation numbers all of them
        counts: Counter[str] = Counter()
        for thing in things:
            text = f"{verb} {thing.name} {counts[thing.name] + 1}"
            if self._search.can_face(thing.cell):
                counts[thing.name] += 1
                self._commands[text] = _Command(finish, thing.cell)
            else:
                self._rejections[text] = _no_path(text)


def _no_path(text: str) -> str:
    return f"You cannot {text}, as there is no path leading to it."


_COLOR = f"(?:{'|'.join(COLORS)})"
_DOOR = f"{_COLOR} (?:{'|'.join(DOOR_STATES)}) door"
_OBJECT = f"{_COLOR} (?:key|ball|box)"
_NUMBER = "[1-9][0-9]{0,8}", {"type": "integer", "description": "Its number in the observation, from 1."}
_in_any_case = partial(command, flags=re.IGNORECASE | re.ASCII | re.DOTALL)


def _on_target(verb: str, parameter: str, names: str, example: str, description: str) -> CommandPattern:
    target = names, {"type": "string", "description": f"Its name, e.g. {example}."}
    return _in_any_case(f"{verb} {{{parameter}}} {{number}}", description, {parameter: target, "number": _NUMBER})


GRAMMAR = Grammar(
    [
        _in_any_case(CHECK, "List the actions that are possible now.", accepted=".*check.*"),
        _in_any_case("turn {direction}", "Turn on the spot by 90 degrees.", {"direction": choice(("left", "right"))}),
        _in_any_case("move forward", "Move one step ahead."),
        _on_target("pickup", "object", _OBJECT, "red ball", "Walk to an object in view and pick it up."),
        _in_any_case("drop", "Put what you carry on the empty cell in front of you."),
        _in_any_case("toggle", "Open the door right in front of you; a locked one needs its key."),
        _on_target(
            "toggle and go through",
            "door",
            _DOOR,
            "red closed door",
            "Walk to a closed door in view, or a locked one whose key you carry, open it and step into the doorway.",
        ),
        _on_target("go through", "door", _DOOR, "red open door", "Walk into the doorway of an open door in view."),
        _on_target(
            "go to", "target", f"{_OBJECT}|{_DOOR}", "red ball", "Walk up to an object or door in view and face it."
        ),
    ],
    'one of the actions that the observation lists, e.g. "turn left", "move forward" or "pickup red ball 1"',
)
