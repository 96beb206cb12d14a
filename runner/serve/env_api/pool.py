"""The open environment instances of one server, with limits for their number and idle time, and requests on them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from functools import cached_property
from typing import TypeAlias

import msgspec
from starlette.responses import Response

from runner.envs.base import EmbeddedEnvironment
from runner.episode.world import pack_cells
from runner.errors import RunnerError, catch_foreign, log_failure
from runner.serve.env_api.routing import json_response
from runner.types import Action, Chat, PackedCells, SupportsCells
from runner.types.maybe_async import optional_method
from runner.util.clock import Clock

logger = logging.getLogger(__name__)


class PoolRejected(RunnerError):
    """The message of the error is sent to the client."""

    published_error_type = "refused"


class PooledInstance(msgspec.Struct, eq=False, dict=True):
    """An environment instance with its latest state; hold ``lock`` while using it, because it is not thread-safe.

    Attributes:
        initial_observation: observation of the latest reset; None before the first reset.
        reward: reward of the latest step; 0 before the first step.
        score: sum of the rewards since the latest reset.
    """

    instance_id: int
    build: Callable[[], EmbeddedEnvironment]
    last_used_at: float
    lock: asyncio.Lock = msgspec.field(default_factory=asyncio.Lock)
    initial_observation: str | None = None
    observation: str = ""
    task_number: int = 0
    reward: float = 0.0
    score: float = 0.0
    done: bool = False

    @cached_property
    def environment(self) -> EmbeddedEnvironment:
        """It is built on first access."""
        return self.build()

    def reset(self, task_number: int, task_index: int) -> None:
        """The client sent ``task_number`` to select the task."""
        self.initial_observation = None
        self.task_number, self.reward, self.score, self.done = task_number, 0.0, 0.0, False
        self.initial_observation = self.observation = _text(self.environment.reset(task_index=task_index))

    def step(self, action: str) -> None:
        chat, self.reward, self.done = self.environment.step(Action(text=action))
        self.observation = _text(chat)
        self.score += self.reward

    def draw(self) -> PackedCells | None:
        render = optional_method(self.environment, SupportsCells.render_cells)
        cells = None if render is None else render()
        return None if cells is None else pack_cells(cells)

    def require_unfinished(self) -> None:
        if self.done:
            raise PoolRejected(f"The task with environment {self.instance_id} has finished.")

    def cleanup(self) -> None:
        if "environment" in vars(self):
            self.environment.cleanup()


class InstancePool:
    """The open instances by id; only one event loop may use a pool.

    Args:
        idle_s: seconds without a request after which ``remove_idle`` removes an instance.
        first_id: id of the first instance; each further one has the next number.
    """

    def __init__(
        self,
        build: Callable[[], EmbeddedEnvironment],
        *,
        limit: int,
        idle_s: float,
        clock: Clock | None = None,
        first_id: int = 0,
    ) -> None:
        self.limit = limit
        self._build = build
        self._idle_s = idle_s
        self._clock = clock or Clock()
        self._instances: dict[int, PooledInstance] = {}
        """The open instances by id, least recently used first."""
        self._next_id = first_id

    def __len__(self) -> int:
        return len(self._instances)

    @property
    def instance_ids(self) -> list[int]:
        return sorted(self._instances)

    def open(self) -> PooledInstance:
        """Raises ``PoolRejected`` if the maximum number of instances is open."""
        if len(self._instances) >= self.limit:
            raise PoolRejected(
                f"This server has {self.limit} environments open, which is its limit; "
                "close one, or restart the server with a larger --max-open"
            )
        instance = PooledInstance(self._next_id, self._build, self._clock.monotonic())
        self._next_id += 1
        self._instances[instance.instance_id] = instance
        return instance

    def touch(self, instance_id: int) -> PooledInstance | None:
        """Restart the idle time of the instance; return None if no such instance is open."""
        instance = self._instances.pop(instance_id, None)
        if instance is not None:
            instance.last_used_at = self._clock.monotonic()
            self._instances[instance_id] = instance
        return instance

    def remove(self, instance: PooledInstance) -> None:
        """The id of the instance becomes invalid."""
        self._instances.pop(instance.instance_id, None)

    def remove_idle(self) -> list[PooledInstance]:
        """Remove and return the instances that got no request for ``idle_s`` seconds and are not in use."""
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


Operation: TypeAlias = Callable[[PooledInstance], object]
"""Uses an instance and returns the reply as values for JSON; an exception becomes an error response."""


class InstanceCalls:
    """Runs operations on the instances of one environment; operations on the same instance never overlap."""

    def __init__(
        self, env: str, pool: InstancePool, executor: Executor, error_response: Callable[[str], Response]
    ) -> None:
        self.pool = pool
        self._env = env
        self._executor = executor
        self._error_response = error_response

    async def open(self, operation: Operation) -> Response:
        """The response is an error if the pool is full."""
        self.close_idle()
        try:
            instance = self.pool.open()
        except PoolRejected as exc:
            return self._error_response(str(exc))
        return await self.run(instance.instance_id, operation)

    async def run(self, instance_id: int, operation: Operation, *, remove_after: bool = False) -> Response:
        """The operation runs in the executor."""
        self.close_idle()
        instance = self.pool.touch(instance_id)
        if instance is None:
            return self._error_response(f"The id {instance_id} is not valid.")
        async with instance.lock:
            if self.pool.touch(instance_id) is not instance:  # closed while waiting for the lock
                return self._error_response(f"The id {instance_id} is not valid.")
            response = await asyncio.get_running_loop().run_in_executor(
                self._executor, self._attempt, lambda: operation(instance)
            )
            if remove_after:
                self.pool.remove(instance)
            return response

    async def close(self, instance_id: int) -> Response:
        """The reply is whether the instance was open."""
        if self.pool.touch(instance_id) is None:
            return json_response(False)

        def operation(instance: PooledInstance) -> object:
            instance.cleanup()
            return True

        return await self.run(instance_id, operation, remove_after=True)

    def close_idle(self) -> None:
        """The instances are closed in the background."""
        for instance in self.pool.remove_idle():
            self._executor.submit(self._attempt, instance.cleanup)

    def _attempt(self, action: Callable[[], object]) -> Response:
        errors: list[BaseException] = []
        with catch_foreign(errors.append):
            return json_response(action())
        if isinstance(errors[0], RunnerError):
            return self._error_response(str(errors[0]))
        log_failure(logger, self._env)(errors[0])
        return self._error_response(f"The environment failed: {type(errors[0]).__name__}")


def _text(chat: Chat) -> str:
    return str(chat[0]["content"])
