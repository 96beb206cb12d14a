"""Commands that the agent's view allows, and the low-level steps of each command.

The commands are those of AgentGym's ``agentenv-babyai/agentenv_babyai/environment.py``.
"""

from __future__ import annotations

import json
from collections import deque
from functools import cached_property
from typing import TypeAlias

from runner.envs.babyai.observe import BOX, DOOR, EMPTY, FLOOR, PORTABLE, WALL, Cell, Thing, View

LEFT, RIGHT, FORWARD, PICKUP, DROP, TOGGLE = range(6)
"""Minigrid's actions."""

Pose: TypeAlias = tuple[int, int, int]
"""Steps ahead, steps to the right, and heading, relative to the agent; heading 0 is ahead, 1 to 3 follow clockwise."""

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
"""Verb of a command -> low-level steps to take once the agent faces the command's target."""


class ActionMenu:
    """The commands that one view of the agent allows."""

    def __init__(self, view: View) -> None:
        """List the commands that ``view`` allows, in the order in which the observation lists them."""
        self._view = view
        self._blocked = view.kinds[1, 0] in (WALL, BOX)
        self._targets = {f"{verb} {thing.label}": (verb, thing) for verb, thing in _target_commands(view)}
        self.texts = [*self._simple_commands(), *self._targets, CHECK]

    def __str__(self) -> str:
        return f"Available actions: {json.dumps(self.texts)}"

    def moves(self, command: str) -> list[int] | str:
        """Return the low-level steps of a command, or the text that rejects the command.

        The command must be in lower case and without surrounding white space. ``drop`` and ``toggle`` work even if they
        are not listed: a key can be in a box, which only ``toggle`` opens.
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

    def _simple_commands(self) -> list[str]:
        texts = ["turn left", "turn right"]
        if not self._blocked:
            texts.append("move forward")
        if self._view.carrying:
            texts.append("drop")
        if any(thing.cell == (1, 0) and _can_open(thing, self._view) for thing in self._view.things):
            texts.append("toggle")
        return texts

    def _path_to(self, target: Cell) -> list[int] | None:
        for pose in self._predecessors:
            if _ahead(pose) == target:
                return self._trace_path(pose)
        return None

    def _trace_path(self, pose: Pose) -> list[int]:
        path = []
        while (step := self._predecessors[pose]) is not None:
            pose, move = step
            path.append(move)
        return path[::-1]

    @cached_property
    def _predecessors(self) -> dict[Pose, tuple[Pose, int] | None]:
        """Reachable pose -> previous pose on a shortest path and the step between them; None for the start pose."""
        start: Pose = (0, 0, 0)
        predecessors: dict[Pose, tuple[Pose, int] | None] = {start: None}
        queue = deque([start])
        while queue:
            pose = queue.popleft()
            for move, neighbor in _neighbors(pose):
                if neighbor not in predecessors and (move != FORWARD or self._passable(neighbor)):
                    predecessors[neighbor] = (pose, move)
                    queue.append(neighbor)
        return predecessors

    def _passable(self, pose: Pose) -> bool:
        cell = pose[:2]
        return cell == (0, 0) or self._view.kinds.get(cell) in _PASSABLE


def _target_commands(view: View) -> list[tuple[str, Thing]]:
    portable = [] if view.carrying else [("pickup", thing) for thing in view.things if thing.kind in PORTABLE]
    return portable + _door_commands(view) + [("go to", thing) for thing in view.things]


def _door_commands(view: View) -> list[tuple[str, Thing]]:
    commands = []
    for door in (thing for thing in view.things if thing.kind == DOOR):
        if door.state == "open":
            commands.append(("go through", door))
        elif _can_open(door, view):
            commands.append(("toggle and go through", door))
    return commands


def _can_open(thing: Thing, view: View) -> bool:
    return thing.state == "closed" or (thing.state == "locked" and view.carrying == (thing.color, "key"))


def _ahead(pose: Pose) -> Cell:
    forward, right = _HEADINGS[pose[2]]
    return pose[0] + forward, pose[1] + right


def _neighbors(pose: Pose) -> list[tuple[int, Pose]]:
    forward, right, heading = pose
    return [
        (FORWARD, (*_ahead(pose), heading)),
        (LEFT, (forward, right, (heading - 1) % 4)),
        (RIGHT, (forward, right, (heading + 1) % 4)),
    ]
