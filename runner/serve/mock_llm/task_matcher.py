"""Which task a text opens: the embedded environments' first observations, gathered as they are needed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from typing import NamedTuple, get_args

from runner import plugins as registry
from runner.envs.base import EmbeddedEnvironment
from runner.errors import ConfigError
from runner.serve.mock_llm.conversation import squeezed
from runner.types import Chat, Mode

SEARCHED = 200
"""How many tasks of an environment are looked through, from the first on."""
SEARCHED_WHERE_FAST = 4000
_FAST = frozenset({"TextCraft", "WebShop", "Wordle"})
_SLOW = frozenset({"BabyAI"})
"""Looked through last."""

MODES: tuple[Mode, ...] = get_args(Mode)


class Seat(NamedTuple):
    """A task in one of an environment's modes."""

    env: str
    mode: Mode
    task_index: int


class Opening(NamedTuple):
    """The first observation that a text holds, and an environment in which it is one."""

    env: str
    text: str


class Tasks:
    """Knows the first observations of the environments that can plan for themselves; not safe for threads."""

    def __init__(self) -> None:
        """Know none yet."""
        self._known: dict[tuple[str, Mode], dict[str, list[int]]] = {}
        self.find = lru_cache(maxsize=256)(self._find)

    def _find(self, text: str) -> Opening | None:
        """The opening that ``text``, squeezed, holds; in strict mode rather than in compat, the longest if several."""
        for mode in MODES:
            for env in environments():
                if held := [start for start in self._starts(env, mode) if start in text]:
                    return Opening(env, max(held, key=len))
        return None

    def seats(self, opening: Opening) -> Iterator[Seat]:
        """The tasks that begin with it."""
        for mode in MODES:
            for task_index in self._starts(opening.env, mode).get(opening.text, ()):
                yield Seat(opening.env, mode, task_index)

    def _starts(self, env: str, mode: Mode) -> dict[str, list[int]]:
        """The tasks per first observation."""
        if (env, mode) not in self._known:
            starts: dict[str, list[int]] = {}
            twin = make(env, mode)
            for task_index in range(min(twin.n_tasks, SEARCHED_WHERE_FAST if env in _FAST else SEARCHED)):
                starts.setdefault(observed(twin.reset(task_index=task_index)), []).append(task_index)
            self._known[env, mode] = starts
        return self._known[env, mode]


def environments() -> list[str]:
    """The registered environments that run in this process and can plan for themselves, the slow ones last."""
    return sorted(filter(_can_plan, registry.names(registry.ENVS)), key=lambda name: name in _SLOW)


def make(env: str, mode: Mode) -> EmbeddedEnvironment:
    """A new instance of an environment.

    Raises:
        ConfigError: where there is none of that name that can plan for itself.
    """
    if not _can_plan(env):
        raise ConfigError(f"{env} has no oracle in this process")
    made: EmbeddedEnvironment = registry.load(registry.ENVS, env)(mode=mode)
    return made


def observed(chat: Chat) -> str:
    """An observation as a squeezed text."""
    return squeezed(" ".join(message["content"] or "" for message in chat))


def _can_plan(env: str) -> bool:
    with suppress(ConfigError):  # somebody else's, which does not import
        kind = registry.load(registry.ENVS, env)
        return isinstance(kind, type) and issubclass(kind, EmbeddedEnvironment) and hasattr(kind, "oracle")
    return False
