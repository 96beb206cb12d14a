"""The commands that are possible in a view, and the low-level steps each one stands for."""

from __future__ import annotations

import json
from collections import deque
from functools import cached_property
from typing import TypeAlias

from runner.envs.babyai.observe import BOX, DOOR, EMPTY, FLOOR, PORTABLE, WALL, Cell, Thing, View

LEFT, RIGHT, FORWARD, PICKUP, DROP, TOGGLE = range(6)
"""Minigrid's actions."""

Pose: TypeAlias = tuple[int, int, int]
"""A cell of the view and a heading: 0 ahead, then clockwise."""

CHECK = "check available actions"
NO_CHANGE = "No change in state."
UNKNOWN = "The action is not recognized. Please check valid actions."
BARRIER = "There is a barrier in front of you, you can't move forward."

_HEADINGS = ((1, 0), (0, 1), (-1, 0), (0, -1))
_PASSABLE = (EMPTY, FLOOR, DOOR)
_PRIMITIVES = {
    "turn left": [LEFT],
    "turn right": [RIGHT],
    "move forward": [FORWARD],
    "drop": [DROP],
    "toggle": [TOGGLE],
}
_ARRIVAL = {
    "pickup": [PICKUP],
    "go to": [],
    "go through": [FORWARD, FORWARD],
    "toggle and go through": [TOGGLE, FORWARD, FORWARD],
}
"""What a command does once the agent faces its target."""


class ActionMenu:
    """The commands that one view offers."""

    def __init__(self, view: View) -> None:
        """List the commands of ``view`` in the order in which an observation shows them."""
        self._view = view
        self._blocked = view.kinds[1, 0] in (WALL, BOX)
        self._targets = {f"{verb} {thing.label}": (verb, thing) for verb, thing in _offers(view)}
        self.texts = [*self._simple(), *self._targets, CHECK]

    def __str__(self) -> str:
        return f"Available actions: {json.dumps(self.texts)}"

    def moves(self, command: str) -> list[int] | str:
        """The low-level steps of a command (lower case, stripped), or why it cannot be done.

        ``drop`` and ``toggle`` work even where they are not listed: a key can lie in a box, which only a toggle opens.
        """
        if command == "move forward" and self._blocked:
            return BARRIER
        if command in _PRIMITIVES:
            return _PRIMITIVES[command]
        if command not in self._targets:
            return UNKNOWN if command else NO_CHANGE
        verb, thing = self._targets[command]
        path = self._path_to(thing.cell)
        if path is None:
            return f"You cannot {command}, as there is no path leading to it."
        return path + _ARRIVAL[verb]

    def _simple(self) -> list[str]:
        texts = ["turn left", "turn right"]
        if not self._blocked:
            texts.append("move forward")
        if self._view.carrying:
            texts.append("drop")
        if any(thing.cell == (1, 0) and _can_open(thing, self._view) for thing in self._view.things):
            texts.append("toggle")
        return texts

    def _path_to(self, target: Cell) -> list[int] | None:
        """The shortest way to face ``target`` from a neighbouring cell."""
        for pose in self._reached:
            if _ahead(pose) == target:
                return self._unroll(pose)
        return None

    def _unroll(self, pose: Pose) -> list[int]:
        path = []
        while (step := self._reached[pose]) is not None:
            pose, move = step
            path.append(move)
        return path[::-1]

    @cached_property
    def _reached(self) -> dict[Pose, tuple[Pose, int] | None]:
        """Every pose within the view in the order of its distance, with the step that led there."""
        start: Pose = (0, 0, 0)
        reached: dict[Pose, tuple[Pose, int] | None] = {start: None}
        queue = deque([start])
        while queue:
            pose = queue.popleft()
            for move, following in _neighbours(pose):
                if following not in reached and (move != FORWARD or self._passable(following)):
                    reached[following] = (pose, move)
                    queue.append(following)
        return reached

    def _passable(self, pose: Pose) -> bool:
        cell = pose[:2]
        return cell == (0, 0) or self._view.kinds.get(cell) in _PASSABLE


def _offers(view: View) -> list[tuple[str, Thing]]:
    """The commands about things: what can be picked up, then doors to pass, then everything to go to."""
    portable = [] if view.carrying else [("pickup", thing) for thing in view.things if thing.kind in PORTABLE]
    return portable + _doors(view) + [("go to", thing) for thing in view.things]


def _doors(view: View) -> list[tuple[str, Thing]]:
    offers = []
    for door in (thing for thing in view.things if thing.kind == DOOR):
        if door.state == "open":
            offers.append(("go through", door))
        elif _can_open(door, view):
            offers.append(("toggle and go through", door))
    return offers


def _can_open(thing: Thing, view: View) -> bool:
    return thing.state == "closed" or (thing.state == "locked" and view.carrying == (thing.color, "key"))


def _ahead(pose: Pose) -> Cell:
    forward, right = _HEADINGS[pose[2]]
    return pose[0] + forward, pose[1] + right


def _neighbours(pose: Pose) -> list[tuple[int, Pose]]:
    forward, right, heading = pose
    return [
        (FORWARD, (*_ahead(pose), heading)),
        (LEFT, (forward, right, (heading - 1) % 4)),
        (RIGHT, (forward, right, (heading + 1) % 4)),
    ]
