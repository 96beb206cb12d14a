"""Games played by ALFWorld's own engine (extra ``alfworld``), which is imported when the first game starts."""

from __future__ import annotations

import importlib
import os
import sys
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import msgspec

from runner.envs.base import ALFWORLD_VARIABLE
from runner.errors import EnvironmentFault, catch_foreign

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
        """Return the commands from the current state to the goal, by ALFWorld's planner; empty if it finds no plan."""
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
