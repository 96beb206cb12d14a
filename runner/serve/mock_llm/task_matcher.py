"""Recognition of a task by its first observation, with an index of tasks that is built on demand."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from typing import NamedTuple, get_args

from runner import plugins
from runner.envs.base import EmbeddedEnvironment
from runner.errors import ConfigError
from runner.types import Chat, Mode

MAX_TASKS_SEARCHED = 200
"""Maximum number of tasks of an environment in the index, counted from its first task."""
MAX_TASKS_SEARCHED_FAST = 4000
"""Maximum number of tasks in the index for an environment whose reset is fast."""
_FAST = frozenset({"TextCraft", "WebShop", "Wordle"})
_SLOW = frozenset({"BabyAI"})
"""Environments whose reset is slow; they are searched last."""

MODES: tuple[Mode, ...] = get_args(Mode)


class TaskCandidate(NamedTuple):
    """A task of an environment in one mode."""

    env: str
    mode: Mode
    task_index: int


class Opening(NamedTuple):
    """The first observation of a task (``text``) and the environment it belongs to."""

    env: str
    text: str


class TaskMatcher:
    """Index of the first observations of all environments with an oracle; not thread-safe."""

    def __init__(self) -> None:
        """Create an empty index; ``find`` fills it."""
        self._index: dict[tuple[str, Mode], dict[str, list[int]]] = {}
        self.find = lru_cache(maxsize=256)(self._find)

    def _find(self, text: str) -> Opening | None:
        for mode in MODES:
            for env in environments():
                if matches := [opening for opening in self._openings(env, mode) if opening in text]:
                    return Opening(env, max(matches, key=len))
        return None

    def candidates(self, opening: Opening) -> Iterator[TaskCandidate]:
        """Yield the tasks whose first observation this is."""
        for mode in MODES:
            for task_index in self._openings(opening.env, mode).get(opening.text, ()):
                yield TaskCandidate(opening.env, mode, task_index)

    def _openings(self, env: str, mode: Mode) -> dict[str, list[int]]:
        """Return the task indices of an environment by their first observation."""
        if (env, mode) not in self._index:
            openings: dict[str, list[int]] = {}
            twin = make_environment(env, mode)
            for task_index in range(min(twin.n_tasks, MAX_TASKS_SEARCHED_FAST if env in _FAST else MAX_TASKS_SEARCHED)):
                openings.setdefault(observation_text(twin.reset(task_index=task_index)), []).append(task_index)
            self._index[env, mode] = openings
        return self._index[env, mode]


def environments() -> list[str]:
    """Return the names of the registered embedded environments with an oracle; slow environments come last."""
    return sorted(filter(_has_oracle, plugins.registered_names(plugins.ENVS)), key=lambda name: name in _SLOW)


def make_environment(env: str, mode: Mode) -> EmbeddedEnvironment:
    """Build an instance of an embedded environment with an oracle.

    Raises:
        ConfigError: no embedded environment of this name has an oracle.
    """
    if not _has_oracle(env):
        raise ConfigError(f"No embedded environment named {env} has an oracle")
    environment: EmbeddedEnvironment = plugins.load(plugins.ENVS, env)(mode=mode)
    return environment


def observation_text(chat: Chat) -> str:
    """Return the contents of an observation's messages as one text with single spaces."""
    return normalize_whitespace(" ".join(message["content"] or "" for message in chat))


def _has_oracle(env: str) -> bool:
    with suppress(ConfigError):  # a third-party environment that cannot be imported
        kind = plugins.load(plugins.ENVS, env)
        return isinstance(kind, type) and issubclass(kind, EmbeddedEnvironment) and hasattr(kind, "oracle")
    return False


def normalize_whitespace(text: str) -> str:
    """Replace each run of whitespace by a single space; agents and gateways change whitespace in messages."""
    return " ".join(text.split())
