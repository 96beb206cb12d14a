"""The open environment instances of one server, with limits for their number and idle time, and requests on them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from functools import cached_property, partial
from typing import TypeAlias

import msgspec

from runner.envs.base import EmbeddedEnvironment
from runner.episode.world import pack_cells
from runner.errors import RunnerError, catch_foreign, log_failure
from runner.types import Action, Chat, PackedCells, SupportsCells
from runner.types.protocols import optional_method
from runner.util.clock import Clock

logger = logging.getLogger(__name__)


class PoolRejected(RunnerError):
    """The message of the error is sent to the client."""

    published_error_type = "refused"


class PoolOptions(msgspec.Struct, frozen=True):
    """How instances are kept.

    Attributes:
        executor: runs the requests on instances; its threads limit how many run at the same time.
        idle_s: seconds without a request after which an instance is closed.
        first_id: id of the first instance; it should differ after each start, so that an id from before is unknown.
    """

    executor: Executor
    max_open: int
    idle_s: float
    first_id: int = 0
    clock: Clock = msgspec.field(default_factory=Clock)


class PooledInstance(msgspec.Struct, eq=False, dict=True):
    """An environment instance with its latest state; hold ``lock`` while using it, because it is not thread-safe.

    Attributes:
        initial_observation: observation of the latest reset; None before the first reset.
        reward: reward of the latest step; 0 before the first step.
        score: sum of the rewards since the latest reset.
    """

    id: int
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
            raise PoolRejected(f"The task with environment {self.id} has finished.")

    def cleanup(self) -> bool:
        if "environment" in vars(self):
            self.environment.cleanup()
        return True


def _text(chat: Chat) -> str:
    return str(chat[0]["content"])


Operation: TypeAlias = Callable[[PooledInstance], object]
"""Uses an instance and returns the reply as values for JSON."""


class InstancePool:
    """The open instances by id; only one event loop may use a pool.

    Operations on the same instance never overlap. ``open``, ``run`` and ``close`` return the reply as JSON, or raise a
    ``RunnerError`` whose text is for the client.
    """

    def __init__(self, env: str, build: Callable[[], EmbeddedEnvironment], options: PoolOptions) -> None:
        self._env = env
        self._build = build
        self._options = options
        self._instances: dict[int, PooledInstance] = {}
        self._next_id = options.first_id

    def open_ids(self) -> list[int]:
        self._close_idle()
        return list(self._instances)

    async def open(self, operation: Operation) -> bytes:
        self._close_idle()
        if len(self._instances) >= self._options.max_open:
            raise PoolRejected(
                f"This server has {self._options.max_open} environments open, which is its limit; "
                "close one, or restart the server with a larger --max-open"
            )
        instance_id, self._next_id = self._next_id, self._next_id + 1
        self._instances[instance_id] = PooledInstance(instance_id, self._build, self._options.clock.monotonic())
        return await self.run(instance_id, operation)

    async def run(self, instance_id: int, operation: Operation) -> bytes:
        self._close_idle()
        if (instance := self._instances.get(instance_id)) is not None:
            async with instance.lock:
                if instance_id in self._instances:  # not closed while waiting for the lock
                    loop = asyncio.get_running_loop()
                    action = partial(operation, instance)
                    try:
                        return await loop.run_in_executor(self._options.executor, self._attempt, action)
                    finally:
                        instance.last_used_at = self._options.clock.monotonic()
        raise PoolRejected(f"The id {instance_id} is not valid.")

    async def close(self, instance_id: int) -> bytes:
        """The reply is whether the instance was open."""
        if instance_id not in self._instances:
            return b"false"
        try:
            return await self.run(instance_id, PooledInstance.cleanup)
        finally:
            self._instances.pop(instance_id, None)

    def _close_idle(self) -> None:
        latest = self._options.clock.monotonic() - self._options.idle_s
        for instance in list(self._instances.values()):
            if instance.last_used_at <= latest and not instance.lock.locked():
                del self._instances[instance.id]
                self._options.executor.submit(self._attempt, instance.cleanup)

    def _attempt(self, action: Callable[[], object]) -> bytes:
        errors: list[BaseException] = []
        with catch_foreign(errors.append):
            return msgspec.json.encode(action())
        if isinstance(errors[0], RunnerError):
            raise errors[0]
        log_failure(logger, self._env)(errors[0])
        raise PoolRejected(f"The environment failed: {type(errors[0]).__name__}")
