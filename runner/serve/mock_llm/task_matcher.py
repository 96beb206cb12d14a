"""Which task a text opens: the embedded environments' first observations, gathered as they are needed."""

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
"""How many tasks of an environment are looked through, from the first on."""
MAX_TASKS_SEARCHED_FAST = 4000
_FAST = frozenset({"TextCraft", "WebShop", "Wordle"})
_SLOW = frozenset({"BabyAI"})
"""Looked through last."""

MODES: tuple[Mode, ...] = get_args(Mode)


class TaskCandidate(NamedTuple):
    """A task in one of an environment's modes."""

    env: str
    mode: Mode
    task_index: int


class Opening(NamedTuple):
    """The first observation that a text holds, and an environment in which it is one."""

    env: str
    text: str


class TaskMatcher:
    """Knows the first observations of the environments that can plan for themselves; not safe for threads."""

    def __init__(self) -> None:
        """Know none yet."""
        self._known: dict[tuple[str, Mode], dict[str, list[int]]] = {}
        self.find = lru_cache(maxsize=256)(self._find)

    def _find(self, text: str) -> Opening | None:
        for mode in MODES:
            for env in environments():
                if held := [start for start in self._openings(env, mode) if start in text]:
                    return Opening(env, max(held, key=len))
        return None

    def candidates(self, opening: Opening) -> Iterator[TaskCandidate]:
        """The tasks that begin with it."""
        for mode in MODES:
            for task_index in self._openings(opening.env, mode).get(opening.text, ()):
                yield TaskCandidate(opening.env, mode, task_index)

    def _openings(self, env: str, mode: Mode) -> dict[str, list[int]]:
        """The tasks per first observation."""
        if (env, mode) not in self._known:
            openings: dict[str, list[int]] = {}
            twin = make_environment(env, mode)
            for task_index in range(min(twin.n_tasks, MAX_TASKS_SEARCHED_FAST if env in _FAST else MAX_TASKS_SEARCHED)):
                openings.setdefault(observation_text(twin.reset(task_index=task_index)), []).append(task_index)
            self._known[env, mode] = openings
        return self._known[env, mode]


def environments() -> list[str]:
    """The registered environments that run in this process and can plan for themselves, the slow ones last."""
    return sorted(filter(_can_plan, plugins.registered_names(plugins.ENVS)), key=lambda name: name in _SLOW)


def make_environment(env: str, mode: Mode) -> EmbeddedEnvironment:
    """A new instance of an environment.

    Raises:
        ConfigError: where there is none of that name that can plan for itself.
    """
    if not _can_plan(env):
        raise ConfigError(f"{env} has no oracle in this process")
    environment: EmbeddedEnvironment = plugins.load(plugins.ENVS, env)(mode=mode)
    return environment


def observation_text(chat: Chat) -> str:
    """An observation as a squeezed text."""
    return normalize_whitespace(" ".join(message["content"] or "" for message in chat))


def _can_plan(env: str) -> bool:
    with suppress(ConfigError):  # somebody else's, which does not import
        kind = plugins.load(plugins.ENVS, env)
        return isinstance(kind, type) and issubclass(kind, EmbeddedEnvironment) and hasattr(kind, "oracle")
    return False


def normalize_whitespace(text: str) -> str:
    """A text with single spaces, as agents and gateways change the space around what they pass on."""
    return " ".join(text.split())
