"""ALFWorld's tasks: in the rooms that ship with the runner, or the games on this machine, which its own engine plays.

The engine, from the extra ``alfworld``, is imported when the first game starts.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias, get_args

import msgspec

from runner.envs.alfworld.engine import Goal, GoalKind, LocalGame, ObjectLayout, ReceptacleKind, Scene, Trait
from runner.envs.base import ALFWORLD_MAPPINGS, ALFWORLD_VARIABLE, data_folder
from runner.errors import ConfigError, EnvironmentFault, catch_foreign
from runner.util.files import package_resource

_Any: TypeAlias = Any  # the packages have no types

_LOCK = threading.Lock()
_idle: list[_Any] = []
"""TextWorld environments of finished games, for later ones: each has a library of 33 MB that cannot be unloaded."""

_WORDING_UPDATES = (
    ('"put {o} in/on {r}"', '"move {o} to {r}"'),
    ("You put the {o.name} in/on the {r.name}.", "You move the {o.name} to the {r.name}."),
)
"""Phrases of the grammar of ALFWorld 0.3 and their replacements from 0.4.2."""


class GameFile(msgspec.Struct, frozen=True):
    """Content of a ``game.tw-pddl`` file: rules, room, and a text grammar whose expressions TextWorld evaluates."""

    pddl_domain: str
    grammar: str
    pddl_problem: str


class RealGame:
    """A running game with the interface of ``LocalGame``; raises ``EnvironmentFault`` if the engine cannot play it.

    A command takes 20 to 200 ms. Starting a game takes about a second; text that this process prints during that time
    is lost.
    """

    def __init__(self, game: GameFile, name: str) -> None:
        problems: list[BaseException] = []
        with _undisturbed(), catch_foreign(problems.append):
            self._start(game)
        if problems:
            reason = f"{type(problems[0]).__name__}: {problems[0]}"
            raise EnvironmentFault(f"ALFWorld's engine cannot play {name}: {reason}") from problems[0]

    def _start(self, game: GameFile) -> None:
        chain: _Any = importlib.import_module("alfworld.agents.environment.alfred_tw_env")
        pddl: _Any = importlib.import_module("textworld.envs").PddlEnv
        grammar = game.grammar
        for older, newer in _WORDING_UPDATES:
            grammar = grammar.replace(older, newer)
        inner = _idle.pop() if _idle else pddl()
        weakref.finalize(self, _idle.append, inner).atexit = False
        self._requested: _Any = inner.request_infos
        self._requested.won = self._requested.admissible_commands = True
        self._env: _Any = chain.AlfredInfos(chain.AlfredDemangler(inner))
        self._env.load({**msgspec.structs.asdict(game), "grammar": grammar})
        self._state: _Any = self._env.reset()
        self.opening = str(self._state.feedback).partition("\n\n")[2]

    @property
    def admissible(self) -> list[str]:
        return list(self._state.admissible_commands)

    @property
    def won(self) -> bool:
        return bool(self._state.won)

    def act(self, command: str) -> str:
        self._state, _, _ = self._env.step(command)
        return str(self._state.feedback)

    def plan(self) -> list[str]:
        self._requested.policy_commands = True
        self.act("")  # changes nothing, but collects the requested information
        self._requested.policy_commands = False
        return list(self._state.policy_commands)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Let one game start at a time, and restore the process-wide state that ALFWorld changes during the start."""
    with _LOCK:
        arguments, data = sys.argv, os.environ.get(ALFWORLD_VARIABLE)
        try:
            yield
        finally:
            sys.argv = arguments
            if data is None:
                os.environ.pop(ALFWORLD_VARIABLE, None)


Game: TypeAlias = LocalGame | RealGame

GAMES = "json_2.1.1"
_PACKAGES = ("alfworld", "textworld", "fast-downward-textworld")


class TaskFile(msgspec.Struct, frozen=True):
    """Content of the shipped file ``tasks.json``; each task is a pair of a room number and a goal."""

    source: str
    things: dict[str, frozenset[Trait]]
    receptacles: dict[str, ReceptacleKind]
    rooms: tuple[dict[str, tuple[str, ...]], ...]
    tasks: tuple[tuple[int, Goal], ...]


class LocalTasks:
    def __init__(self, source: TaskFile) -> None:
        self._source = source
        self.n_tasks = len(source.tasks)

    def task(self, task_index: int) -> tuple[Scene, Goal]:
        room, goal = self._source.tasks[task_index]
        placed: ObjectLayout = self._source.rooms[room]
        return Scene(self._source.things, self._source.receptacles, placed), goal

    def start(self, task_index: int) -> Game:
        return LocalGame(*self.task(task_index))

    def name(self, task_index: int) -> str:
        room, goal = self._source.tasks[task_index]
        return f"{goal.kind}-{goal.thing}-{goal.target}/room_{room}"


class RealTasks:
    def __init__(self, files: Sequence[Path]) -> None:
        self._files = files
        self.n_tasks = len(files)

    def start(self, task_index: int) -> Game:
        file = self._files[task_index]
        return RealGame(_read(file, GameFile), str(file))

    def name(self, task_index: int) -> str:
        trial = self._files[task_index].parent
        return f"{trial.parent.name}/{trial.name}"


Catalogue: TypeAlias = LocalTasks | RealTasks
"""A source of ALFWorld tasks, which are numbered from 0."""


class _SolvableFlag(msgspec.Struct, frozen=True):
    solvable: bool | None = None


class _MappedGame(msgspec.Struct, frozen=True):
    task_type: str
    task_id: str


@cache
def catalogue(data: str | None, mappings: Path | None = None) -> Catalogue:
    """Return the games in ALFWorld's data folder, or the shipped tasks; raises ``ConfigError`` if it has none to play.

    ``mappings`` is the folder with AgentGym's lists of games, whose order then numbers them; None: the order of the
    paths.
    """
    if data is None:
        return local_tasks()
    folder = Path(data).absolute()
    games = playable_games(folder) if mappings is None else _mapped_games(folder, mappings)
    if not games:
        raise ConfigError(f"{ALFWORLD_VARIABLE} is {data!r}, which has no {GAMES} with games")
    if importlib.util.find_spec("alfworld") is None:
        raise ConfigError(
            f"{ALFWORLD_VARIABLE} is set, but ALFWorld's engine is not installed. Install agentgym-console[alfworld], "
            f"or unset {ALFWORLD_VARIABLE} to play local scenes"
        )
    return RealTasks(games)


_DECODER = msgspec.json.Decoder(TaskFile)


@cache
def local_tasks() -> LocalTasks:
    text = package_resource("data", "alfworld", "tasks.json").read_bytes()
    return LocalTasks(_DECODER.decode(text))


def playable_games(data: Path) -> list[Path]:
    """By path; like ALFWorld itself, without sliced objects, movable receptacles and what is not marked as solvable."""
    kinds = get_args(GoalKind)
    files = sorted((data / GAMES).rglob("game.tw-pddl"))
    supported = (file for file in files if _folder(file).partition("-")[0] in kinds and "Sliced" not in _folder(file))
    return [file for file in supported if _read(file, _SolvableFlag).solvable]


def _mapped_games(data: Path, mappings: Path) -> list[Path]:
    """Return the games in the order of AgentGym's lists: those of its training, then those of its test.

    Source: ``agentenv-alfworld/agentenv_alfworld/env_wrapper.py``. A game that the data folder lacks keeps its number.
    """
    games = []
    for name, folder in zip(ALFWORLD_MAPPINGS, ("train", "valid_train"), strict=True):
        listed: list[_MappedGame] = _read(mappings / name, list[_MappedGame])
        games += [data / GAMES / folder / each.task_type / each.task_id / "game.tw-pddl" for each in listed]
    return games


def _folder(file: Path) -> str:
    # the folder that names the game's kind, such as look_at_obj_in_light-Mug-None-DeskLamp-308
    return file.parent.parent.name


def _read(file: Path, kind: type[Any]) -> Any:  # noqa: ANN401 - an instance of ``kind``
    try:
        return msgspec.json.decode(file.read_bytes(), type=kind)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        raise ConfigError(f"{file} cannot be read as a game of ALFWorld: {exc}") from exc


class RequiredPackages:
    """Class attribute with the names of the distributions that the configured data needs."""

    def __get__(self, instance: object, owner: type[Any]) -> tuple[str, ...]:
        return () if data_folder("alfworld") is None else _PACKAGES
