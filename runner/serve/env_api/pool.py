"""The open environment instances of one server, limited in number and in idle time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from runner.envs.base import EmbeddedEnvironment
from runner.errors import RunnerError
from runner.types import Action, Chat
from runner.util.clock import Clock


class PoolRejected(RunnerError):
    """A request that cannot be fulfilled now; the message is for the client."""

    published_error_type = "refused"


@dataclass(eq=False)
class PooledInstance:
    """An environment with its last observation; hold ``lock`` while using it, as environments are not thread-safe.

    Attributes:
        instance_id: its id, never reused.
        build: builds the environment on first use.
        last_used_at: time of the last request, in monotonic seconds.
        lock: serializes all use of the environment.
        initial_observation: first observation of the task; None before the first reset.
        observation: latest observation.
        task_number: task number as sent by the client.
        reward: reward of the last step.
        score: sum of the rewards since the last reset.
        done: whether the task has ended.
    """

    instance_id: int
    build: Callable[[], EmbeddedEnvironment]
    last_used_at: float
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    initial_observation: str | None = None
    observation: str = ""
    task_number: int = 0
    reward: float = 0.0
    score: float = 0.0
    done: bool = False

    @cached_property
    def environment(self) -> EmbeddedEnvironment:
        """The environment, built on first access."""
        return self.build()

    def reset(self, task_number: int, task_index: int) -> None:
        """Start the task ``task_index``; ``task_number`` is the client's name for it."""
        self.initial_observation = None
        self.task_number, self.reward, self.score, self.done = task_number, 0.0, 0.0, False
        self.initial_observation = self.observation = _text(self.environment.reset(task_index=task_index))

    def step(self, action: str) -> None:
        """Take one action."""
        chat, self.reward, self.done = self.environment.step(Action(text=action))
        self.observation = _text(chat)
        self.score += self.reward

    def cleanup(self) -> None:
        """Release the environment's resources, if it was built."""
        if "environment" in vars(self):
            self.environment.cleanup()


class InstancePool:
    """Open instances by id; use it on one event loop only.

    Args:
        build: builds an environment.
        limit: maximum number of open instances.
        idle_s: seconds without a request after which an instance is idle.
        clock: source of time.
    """

    def __init__(
        self, build: Callable[[], EmbeddedEnvironment], *, limit: int, idle_s: float, clock: Clock | None = None
    ) -> None:
        self.limit = limit
        self._build = build
        self._idle_s = idle_s
        self._clock = clock or Clock()
        self._instances: dict[int, PooledInstance] = {}
        """Least recently used first."""
        self._n_opened = 0

    def __len__(self) -> int:
        return len(self._instances)

    @property
    def instance_ids(self) -> list[int]:
        """The ids of the open instances, ascending."""
        return sorted(self._instances)

    def open(self) -> PooledInstance:
        """Add an instance.

        Raises:
            PoolRejected: the limit is reached.
        """
        if len(self._instances) >= self.limit:
            raise PoolRejected(
                f"This server has {self.limit} environments open, which is its limit; "
                "close one, or restart the server with a larger --max-open"
            )
        instance = PooledInstance(self._n_opened, self._build, self._clock.monotonic())
        self._n_opened += 1
        self._instances[instance.instance_id] = instance
        return instance

    def touch(self, instance_id: int) -> PooledInstance | None:
        """Return the instance with that id and restart its idle time; None if there is none."""
        instance = self._instances.pop(instance_id, None)
        if instance is not None:
            instance.last_used_at = self._clock.monotonic()
            self._instances[instance_id] = instance
        return instance

    def remove(self, instance: PooledInstance) -> None:
        """Remove an instance; its id becomes invalid."""
        self._instances.pop(instance.instance_id, None)

    def remove_idle(self) -> list[PooledInstance]:
        """Remove and return the instances that have been idle for ``idle_s`` seconds and are not in use."""
        idle = []
        latest = self._clock.monotonic() - self._idle_s
        for instance in self._instances.values():
            if instance.last_used_at > latest:
                break
            if not instance.lock.locked():
                idle.append(instance)
        for instance in idle:
            self.remove(instance)
        return idle


def _text(chat: Chat) -> str:
    return str(chat[0]["content"])
