"""The protocol of other field runners: ``/createEnv``, ``/observation`` and ``/step`` with the id ``env_id``.

The client side of it is ``create_env_dialect`` in ``runner/envs/http/dialects.py``.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from concurrent.futures import Executor

from starlette.responses import Response

from runner.serve.env_api.instance_runner import InstanceRunner
from runner.serve.env_api.pool import InstancePool, PooledInstance
from runner.serve.env_api.reply_fields import DONE, INSTANCE_ID, OBSERVATION, REWARD, FieldGetter, render_fields
from runner.serve.env_api.request_fields import RequestField, Values
from runner.serve.env_api.routing import BodyVariant, Route, json_response
from runner.util.display_text import one_line

_ENV_ID = RequestField("env_id")
_ENV_NAME = RequestField("env_name", "string", required=False)
_TASK_INDEX = RequestField("task_index", required=False)

_CREATE_REPLY: Mapping[str, FieldGetter] = {"env_id": INSTANCE_ID}
_OBSERVATION_REPLY: Mapping[str, FieldGetter] = {"observation": OBSERVATION, "done": DONE}
_STEP_REPLY: Mapping[str, FieldGetter] = {"observation": OBSERVATION, "reward": REWARD, "done": DONE}


class CreateEnvApi:
    """Handlers of the protocol with ``/createEnv``; replies have the same form in all environments.

    The task of an instance is fixed when it is created: the requested ``task_index``, else the server counts the tasks
    up from 0. The first observation or step starts the task, so that an instance whose task cannot be started has an
    id with which it can be closed.

    Args:
        env: name of the environment.
        n_tasks: number of tasks; a task index counts modulo this number.
        steps_after_end: whether a task can be stepped after its end.
        pool: the instances that clients have opened, over this protocol or another.
        executor: runs the environment's code.
    """

    def __init__(
        self, env: str, n_tasks: int, *, steps_after_end: bool, pool: InstancePool, executor: Executor
    ) -> None:
        self.step_body = BodyVariant(self._step, (_ENV_ID, RequestField("action", "string")))
        self.close_body = BodyVariant(self._close, (_ENV_ID,))
        self._env = env
        self._n_tasks = n_tasks
        self._steps_after_end = steps_after_end
        self._instances = InstanceRunner(env, pool, executor, _error_response)
        self._task_counter = itertools.count()

    def routes(self, prefix: str) -> list[Route]:
        """Return the routes that only this protocol has; ``/step`` and ``/close`` are variants of AgentGym's."""
        create, observation = (_ENV_NAME, _TASK_INDEX), (_ENV_ID,)
        return [
            Route("POST", f"{prefix}/createEnv", "Open an instance with a task", self._create, body=create),
            Route("POST", f"{prefix}/observation", "Read the observation", self._observe, body=observation),
        ]

    async def _create(self, values: Values) -> Response:
        requested, task_index = values[_ENV_NAME.name], values[_TASK_INDEX.name]
        if requested and _normalize(requested) != _normalize(self._env):
            return _error_response(
                f"This server plays {self._env}, not {one_line(requested, 100)}; "
                "send the request to that environment's server"
            )

        def operation(instance: PooledInstance) -> object:
            instance.task_number = (next(self._task_counter) if task_index is None else task_index) % self._n_tasks
            return render_fields(_CREATE_REPLY, instance)

        return await self._instances.open(operation)

    async def _observe(self, values: Values) -> Response:
        def operation(instance: PooledInstance) -> object:
            self._start_task(instance)
            return render_fields(_OBSERVATION_REPLY, instance)

        return await self._instances.run(values[_ENV_ID.name], operation)

    async def _step(self, values: Values) -> Response:
        def operation(instance: PooledInstance) -> object:
            self._start_task(instance)
            if not self._steps_after_end:
                instance.require_unfinished()
            instance.step(values["action"])
            return {**render_fields(_STEP_REPLY, instance), "truncated": instance.environment.truncated}

        return await self._instances.run(values[_ENV_ID.name], operation)

    async def _close(self, values: Values) -> Response:
        return await self._instances.close(values[_ENV_ID.name])

    def _start_task(self, instance: PooledInstance) -> None:
        if instance.initial_observation is None:
            instance.reset(instance.task_number, instance.task_number % self._n_tasks)


def _normalize(name: str) -> str:
    return re.sub(r"[\W_]", "", name).casefold()


def _error_response(text: str) -> Response:
    return json_response({"error": text})
