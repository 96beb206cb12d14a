"""The open environments of one server: who has which, how many there may be, and which were forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from runner.envs.base import EmbeddedEnvironment
from runner.errors import RunnerError
from runner.types import Action, Chat
from runner.util.clock import Clock


class Refused(RunnerError):
    """A request that cannot be carried out now; the text is for the client."""


@dataclass(eq=False)
class Instance:
    """One environment and what it showed last; to be used by one thread at a time, which ``lock`` sees to.

    Attributes:
        number: its id, which is never given out again.
        make: builds the environment, when it is first needed.
        used_at: when a client last asked for it, in monotonic seconds.
        opening: the first observation of the task; None before the first reset.
        observation: the last one.
        given: the task as the client named it.
        reward: of the last step.
        score: the sum of the rewards since the last reset.
    """

    number: int
    make: Callable[[], EmbeddedEnvironment]
    used_at: float
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    opening: str | None = None
    observation: str = ""
    given: int = 0
    reward: float = 0.0
    score: float = 0.0
    done: bool = False

    @cached_property
    def environment(self) -> EmbeddedEnvironment:
        """The environment itself."""
        return self.make()

    def reset(self, given: int, task_index: int) -> None:
        """Start a task."""
        self.opening = None
        self.given, self.reward, self.score, self.done = given, 0.0, 0.0, False
        self.opening = self.observation = _text(self.environment.reset(task_index=task_index))

    def step(self, action: str) -> None:
        """Take one action."""
        chat, self.reward, self.done = self.environment.step(Action(text=action))
        self.observation = _text(chat)
        self.score += self.reward

    def cleanup(self) -> None:
        """Give back what the environment holds."""
        if "environment" in vars(self):
            self.environment.cleanup()


class Pool:
    """The instances by their ids; to be used on one event loop.

    Args:
        make: builds an environment.
        limit: how many can be open.
        idle_s: seconds without a request after which one is taken back.
        clock: where the time comes from.
    """

    def __init__(
        self, make: Callable[[], EmbeddedEnvironment], *, limit: int, idle_s: float, clock: Clock | None = None
    ) -> None:
        self.limit = limit
        self._make = make
        self._idle_s = idle_s
        self._clock = clock or Clock()
        self._instances: dict[int, Instance] = {}
        """In the order of their last use."""
        self._n_opened = 0

    def __len__(self) -> int:
        return len(self._instances)

    @property
    def numbers(self) -> list[int]:
        """The ids of what is open."""
        return sorted(self._instances)

    def open(self) -> Instance:
        """A new instance.

        Raises:
            Refused: where there are as many as there may be.
        """
        if len(self._instances) >= self.limit:
            raise Refused(
                f"This server has {self.limit} environments open, which is its limit; "
                "close one, or start the server with a larger --max-open"
            )
        instance = Instance(self._n_opened, self._make, self._clock.monotonic())
        self._n_opened += 1
        self._instances[instance.number] = instance
        return instance

    def use(self, number: int) -> Instance | None:
        """The instance of that id, which is no longer forgotten; None where there is none."""
        instance = self._instances.pop(number, None)
        if instance is not None:
            instance.used_at = self._clock.monotonic()
            self._instances[number] = instance
        return instance

    def remove(self, instance: Instance) -> None:
        """Take an instance out; its id is not valid any more."""
        self._instances.pop(instance.number, None)

    def take_forgotten(self) -> list[Instance]:
        """Take out what nobody has asked for in a long time and nobody is using."""
        forgotten = []
        latest = self._clock.monotonic() - self._idle_s
        for instance in self._instances.values():
            if instance.used_at > latest:
                break
            if not instance.lock.locked():
                forgotten.append(instance)
        for instance in forgotten:
            self.remove(instance)
        return forgotten


def _text(chat: Chat) -> str:
    return str(chat[0]["content"])
