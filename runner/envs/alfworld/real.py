"""Games of ALFWorld's own engine, which the extra ``alfworld`` installs; it is imported when the first one starts."""

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

from runner.errors import EnvironmentFault, catch_foreign

DATA_VARIABLE = "ALFWORLD_DATA"
"""The folder with ALFWorld's ``json_2.1.1``, as ``alfworld-download`` leaves it; ALFWorld reads it too."""

_Any: TypeAlias = Any  # the packages have no types

_LOCK = threading.Lock()
_idle: list[_Any] = []
"""Environments that no game uses now. Each holds a library of 33 MB, and to unload one would end the process."""

_OLDER_WORDS = (
    ('"put {o} in/on {r}"', '"move {o} to {r}"'),
    ("You put the {o.name} in/on the {r.name}.", "You move the {o.name} to the {r.name}."),
)
"""Lines of the grammar of ALFWorld 0.3, and those of 0.4.2 in their place."""


class GameFile(msgspec.Struct, frozen=True):
    """A ``game.tw-pddl``: the rules, their texts and the room. The texts hold expressions that TextWorld evaluates."""

    pddl_domain: str
    grammar: str
    pddl_problem: str


class RealGame:
    """A game like a ``LocalGame``, but played by ALFWorld, at 20 to 200 ms a command.

    While one starts, which takes about a second, what this process prints is lost.

    Args:
        game: its file.
        name: what to call it in errors.

    Raises:
        EnvironmentFault: where the engine is not installed or cannot play that file.
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
        for older, newer in _OLDER_WORDS:
            grammar = grammar.replace(older, newer)
        inner = _idle.pop() if _idle else pddl()
        weakref.finalize(self, _idle.append, inner).atexit = False
        self._asked: _Any = inner.request_infos
        self._asked.won = self._asked.admissible_commands = True
        self._env: _Any = chain.AlfredInfos(chain.AlfredDemangler(inner))
        self._env.load({**msgspec.structs.asdict(game), "grammar": grammar})
        self._state: _Any = self._env.reset()
        self.opening = str(self._state.feedback).partition("\n\n")[2]

    @property
    def admissible(self) -> list[str]:
        """The commands that do something now, sorted."""
        return list(self._state.admissible_commands)

    @property
    def won(self) -> bool:
        """Whether the task is done now."""
        return bool(self._state.won)

    def act(self, command: str) -> str:
        """Carry out a command and say what happens; one that is not admissible changes nothing."""
        self._state, _, _ = self._env.step(command)
        return str(self._state.feedback)

    def plan(self) -> list[str]:
        """The commands that ALFWorld's planner would give from here on; none where it finds no way."""
        self._asked.policy_commands = True
        self.act("")  # nothing happens, but what was asked for is gathered
        self._asked.policy_commands = False
        return list(self._state.policy_commands)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """One start at a time, as it works with globals of its own; those of the process are put back."""
    with _LOCK:
        arguments, data = sys.argv, os.environ.get(DATA_VARIABLE)
        try:
            yield
        finally:
            sys.argv = arguments
            if data is None:
                os.environ.pop(DATA_VARIABLE, None)
