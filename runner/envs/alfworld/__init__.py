"""ALFWorld: household tasks in text, such as heating an object and putting it into a receptacle.

The commands are those of ALFWorld 0.4.2; texts are converted to the wording of AgentGym's server, which uses ALFWorld
0.3.3 and is defined in ``agentenv-alfworld/agentenv_alfworld/env_wrapper.py``.
"""

from __future__ import annotations

import json
import os
import re
from textwrap import wrap
from typing import Any, ClassVar

from runner.envs.alfworld.engine import APPLIANCES, NOTHING_HAPPENS, TREATMENTS, LocalGame, kind_of, listing_order
from runner.envs.alfworld.tasks import Game, RealGame, RequiredPackages, catalogue
from runner.envs.base import (
    CommandPattern,
    DataLabel,
    EmbeddedEnvironment,
    Grammar,
    StepText,
    alfworld_mappings,
    command,
    data_folder,
)
from runner.types import Action, CellRow, CellRun, Cells, Mode, OraclePlanner, merge_runs

MAX_STEPS = 50
_WIDTH = 74
"""Columns of the picture, so that it fits a terminal of 80."""
_MARKS = 6
"""Columns of a receptacle beside its name."""
_STATES = ("clean", "hot", "cool", "sliced", "on")
_LEGEND = (CellRun("► you are here  ■ closed  □ open  ? not seen yet", "dim"),)


class RoomPainter:
    """Draws a room as the player knows it."""

    def __init__(self, game: LocalGame) -> None:
        self._game = game
        self._visited: set[str] = set()

    def look(self) -> None:
        """Call it after each step."""
        game = self._game
        if game.place is not None and (game.place in game.opened or not game.scene.openable(game.place)):
            self._visited.add(game.place)

    def draw(self) -> Cells:
        places = list(self._game.contents)
        width = max(map(len, places), default=0)
        n_columns = max(_WIDTH // (width + _MARKS), 1)
        n_rows = -(-len(places) // n_columns)
        rows = [
            merge_runs(run for each in places[row::n_rows] for run in self._place(each, width)) for row in range(n_rows)
        ]
        here = [each for each in places if each == self._game.place and each in self._visited]
        seen = [*here, *(each for each in places if each in self._visited and each not in here)]
        contents = [row for place in seen for row in self._contents(place, width)]
        return Cells([*self._heading(), (), *rows, _LEGEND, (), *contents])

    def _heading(self) -> list[CellRow]:
        game = self._game
        held = CellRun("nothing", "dim") if game.held is None else CellRun(self._described(game.held), "green")
        return [
            (CellRun("Task: ", "dim"), CellRun(str(game.goal))),
            (CellRun("Held: ", "dim"), held),
            (CellRun("Seen: ", "dim"), CellRun(f"{len(self._visited)} of {len(game.contents)} receptacles")),
        ]

    def _place(self, place: str, width: int) -> CellRow:
        game = self._game
        door = " " if not game.scene.openable(place) else "□" if place in game.opened else "■"
        unseen = " " if place in self._visited else "?"
        name = f"{place} {unseen}".ljust(width + _MARKS - 3)
        if place == game.place:
            return CellRun(f"►{door} ", "yellow"), CellRun(name, "yellow", "shade")
        if kind_of(place) == game.goal.target:
            return CellRun(f" {door} ", "dim"), CellRun(name, "cyan")
        return CellRun(f" {door} ", "dim"), CellRun(name, "plain" if place in self._visited else "dim")

    def _contents(self, place: str, width: int) -> list[CellRow]:
        names = sorted(self._game.contents[place], key=listing_order)
        text = ", ".join(map(self._described, names)) or "nothing"
        lines = wrap(text, _WIDTH - width - 1, max_lines=3, placeholder=" …")
        first = (CellRun(f"{place:<{width}} ", "dim"), CellRun(lines[0], "plain" if names else "dim"))
        return [first, *((CellRun(" " * (width + 1)), CellRun(line)) for line in lines[1:])]

    def _described(self, thing: str) -> str:
        states = [state for state in _STATES if state in self._game.states.get(thing, ())]
        return f"{thing} ({', '.join(states)})" if states else thing


_NAME = "[a-z]{1,40} [0-9]{1,4}"


def _name(example: str) -> tuple[str, dict[str, Any]]:
    described = f'A name with its number, as in "{example}".'
    return _NAME, {"type": "string", "pattern": f"^{_NAME}$", "description": described}


_THING, _PLACE = {"object": _name("mug 1")}, {"receptacle": _name("cabinet 2")}
_BOTH = _THING | _PLACE


def _commands(put: str, accepted: str) -> list[CommandPattern]:
    return [
        command("go to {receptacle}", "Go to a receptacle and see what is there.", _PLACE),
        command("open {receptacle}", "Open the receptacle you are at and see what is in it.", _PLACE),
        command("close {receptacle}", "Close the receptacle you are at.", _PLACE),
        command("take {object} from {receptacle}", "Pick up an object; you can carry only one.", _BOTH),
        command(
            put,
            "Put what you carry in or on the receptacle you are at; it has to be open.",
            _BOTH,
            name="put",
            accepted=accepted,
        ),
        command("heat {object} with {receptacle}", "Heat what you carry with the microwave you are at.", _BOTH),
        command("cool {object} with {receptacle}", "Cool what you carry with the fridge you are at.", _BOTH),
        command("clean {object} with {receptacle}", "Clean what you carry with the sinkbasin you are at.", _BOTH),
        command(
            "slice {object} with {blade}",
            "Slice an object with the knife you carry.",
            _THING | {"blade": _name("knife 1")},
        ),
        command("use {object}", "Turn on a lamp.", {"object": _name("desklamp 1")}),
        command(
            "examine {thing}",
            "Look closely at the receptacle you are at or the object you carry.",
            {"thing": _name("mug 1")},
        ),
        command("look", "See where you are."),
        command("inventory", "See what you carry."),
    ]


_EXPECTED = (
    "one of the available actions, such as go to <receptacle>, open <receptacle>, take <object> from <receptacle>, "
    "{put}, heat <object> with <receptacle>, use <object>, look or inventory"
)
_HELP = command("help", "See what can be done.")

STRICT = Grammar(
    [*_commands("move {object} to {receptacle}", "(?:put|move) {object} (?:in/on|in|on|to) {receptacle}"), _HELP],
    _EXPECTED.format(put="move <object> to <receptacle>"),
)
COMPAT = Grammar(
    _commands("put {object} in/on {receptacle}", "put {object} in/on {receptacle}"),
    _EXPECTED.format(put="put <object> in/on <receptacle>"),
)


def as_agentgym_text(text: str) -> str:
    """Convert to AgentGym's wording: ``put`` instead of ``move``, no "You arrive at …" and no empty lines."""
    text = re.sub(rf"\AYou arrive at {_NAME}\. ", "", text)
    text = re.sub(rf"\AYou move the ({_NAME}) to the ({_NAME})\.\Z", r"You put the \1 in/on the \2.", text)
    return text.replace("\n\n", "\n")


def as_agentgym_commands(commands: list[str]) -> list[str]:
    """Convert admissible commands to those of AgentGym's server, sorted: ``put`` instead of ``move``, no ``help``."""
    moved = (re.sub(rf"\Amove ({_NAME}) to ", r"put \1 in/on ", each) for each in commands if each != "help")
    return sorted(moved)


class _AgentGymPlanner:
    def __init__(self, planner: OraclePlanner) -> None:
        self._planner = planner

    def next_action(self) -> str:
        return as_agentgym_commands([self._planner.next_action()])[0]


class ALFWorld(EmbeddedEnvironment):
    """Household tasks in a room: find objects, heat, cool, clean or light them, put them somewhere.

    Reaching the goal gives 1 and ends the episode; 50 steps end it without a reward. Each observation ends with the
    list of admissible actions; any other action returns ``Nothing happens.``. The rules and texts are those of ALFWorld
    0.4.2. The shipped rooms are invented (see ``data/alfworld/LICENSE``), so results are not ALFWorld scores. If the
    environment variable ``ALFWORLD_DATA`` is set, the tasks are ALFWorld's own games, played by ALFWorld's own engine,
    which the extra ``alfworld`` installs.

    ``compat`` uses the wording of AgentGym's server (``agentenv-alfworld/agentenv_alfworld/env_wrapper.py``), whose
    ALFWorld is 0.3.3: ``put … in/on …`` instead of ``move … to …``, no ``help``, no "You arrive at …" and no empty
    lines. It accepts no other wording; ``strict`` accepts both. ``compat`` numbers the games as AgentGym's server,
    where a checkout or the data folder has its lists (see ``alfworld_mappings``).
    """

    name: ClassVar[str] = "ALFWorld"
    data_label = DataLabel("alfworld")
    packages = RequiredPackages()

    def __init__(self, *, mode: Mode = "strict") -> None:
        super().__init__(mode=mode)
        self.grammar = STRICT if mode == "strict" else COMPAT
        mappings = alfworld_mappings(os.environ) if mode == "compat" else None
        self._catalogue = catalogue(data_folder(self.name), mappings)
        self.n_tasks = self._catalogue.n_tasks
        self.observation = ""
        """Latest observation without the list of admissible actions."""
        self._steps = 0
        self._game: Game
        self._painter: RoomPainter | None = None

    @property
    def task_type(self) -> str:
        """Made of its kind and its room or game; AgentGym's server returns it as ``task_type``."""
        return self._catalogue.name(self.task_index)

    def admissible_actions(self) -> list[str]:
        return self._game.admissible if self.mode == "strict" else as_agentgym_commands(self._game.admissible)

    def oracle(self, seed: int | None) -> OraclePlanner:
        planner = LocalOracle(self._game) if isinstance(self._game, LocalGame) else RealOracle(self._game)
        return planner if self.mode == "strict" else _AgentGymPlanner(planner)

    def render_cells(self) -> Cells | None:
        return self._painter.draw() if self._painter is not None else None

    def _reset(self, task_index: int) -> str:
        self._game = self._catalogue.start(task_index)
        self._steps = 0
        self._painter = RoomPainter(self._game) if isinstance(self._game, LocalGame) else None
        return self._observe(self._game.opening)

    def _step(self, text: str) -> StepText:
        self._steps += 1
        observation, won = self._observe(self._execute(text)), self._game.won
        self.truncated = self._steps >= MAX_STEPS and not won
        if self._painter is not None:
            self._painter.look()
        return observation, float(won), won or self.truncated

    def _execute(self, text: str) -> str:
        parsed = self.parse(text)
        command = STRICT.render(parsed.tool_calls[0]) if isinstance(parsed, Action) else parsed
        return self._game.act(command) if isinstance(command, str) else NOTHING_HAPPENS

    def _observe(self, text: str) -> str:
        self.observation = text if self.mode == "strict" else as_agentgym_text(text)
        return f"{self.observation}\nAvailable actions: {json.dumps(self.admissible_actions())}"


class LocalOracle:
    """Planner for a shipped room; each command follows from the current state, not from a stored plan."""

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
        place = next(each for each in self._game.contents if kind_of(each) == APPLIANCES[treatment].receptacle)
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

    def _go_to(self, place: str) -> str:
        return "" if self._game.place == place else f"go to {place}"

    def _reach(self, place: str) -> str:
        return self._go_to(place) or ("" if self._game.is_accessible(place) else f"open {place}")


class RealOracle:
    """Returns the commands of ALFWorld's own planner; a new plan is made if the next command is not admissible."""

    def __init__(self, game: RealGame) -> None:
        self._game = game
        self._plan: list[str] = []

    def next_action(self) -> str:
        if not self._plan or self._plan[0] not in self._game.admissible:
            self._plan = self._game.plan()
        return self._plan.pop(0) if self._plan else "look"
