"""Runs requests on the instances of a pool: ``InstanceRunner``."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeAlias

from starlette.responses import Response

from runner.errors import RunnerError, catch_foreign, log_failure
from runner.serve.env_api.pool import InstancePool, PooledInstance, PoolRejected
from runner.serve.env_api.routing import json_response

Operation: TypeAlias = Callable[[PooledInstance], object]
"""Uses an instance and returns the reply as values for JSON; an exception becomes an error response."""

logger = logging.getLogger(__name__)


class InstanceRunner:
    """Runs operations on the instances of one environment; operations on the same instance never overlap.

    Args:
        env: name of the environment, for the log.
        pool: the instances that clients have opened.
        executor: runs the environment's code.
        error_response: returns the response for the text of an error.
    """

    def __init__(
        self, env: str, pool: InstancePool, executor: Executor, error_response: Callable[[str], Response]
    ) -> None:
        self.pool = pool
        self._env = env
        self._executor = executor
        self._error_response = error_response

    async def open(self, operation: Operation) -> Response:
        """Open an instance and run an operation on it; the response is an error if the pool is full."""
        self.close_idle()
        try:
            instance = self.pool.open()
        except PoolRejected as exc:
            return self._error_response(str(exc))
        return await self.run(instance.instance_id, operation)

    async def run(self, instance_id: int, operation: Operation, *, remove_after: bool = False) -> Response:
        """Run an operation on the instance with this id in the executor."""
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
        """Close the instance with this id; the reply is whether it was open."""
        if self.pool.touch(instance_id) is None:
            return json_response(False)

        def operation(instance: PooledInstance) -> object:
            instance.cleanup()
            return True

        return await self.run(instance_id, operation, remove_after=True)

    def close_idle(self) -> None:
        """Close the instances that got no request for too long, in the background."""
        for instance in self.pool.remove_idle():
            self._executor.submit(self._attempt, instance.cleanup)

    def _attempt(self, action: Callable[[], object]) -> Response:
        responses: list[Response] = []
        with catch_foreign(lambda exc: responses.append(self._failure_response(exc))):
            responses.append(json_response(action()))
        return responses[0]

    def _failure_response(self, exc: BaseException) -> Response:
        if isinstance(exc, RunnerError):
            return self._error_response(str(exc))
        log_failure(logger, self._env)(exc)
        return self._error_response(f"The environment failed: {type(exc).__name__}")
