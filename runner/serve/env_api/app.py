"""The web application of one environment: AgentGym's protocol, with a pool of instances and a thread pool."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import TypeAlias

import msgspec
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse, Response

from runner import __version__
from runner.envs.base import EmbeddedEnvironment
from runner.envs.data_labels import AS_PUBLISHED
from runner.errors import RunnerError, catch_foreign, log_failure
from runner.serve.env_api.dialects import ReadRoute, ServerDialect
from runner.serve.env_api.pool import InstancePool, PooledInstance, PoolRejected
from runner.serve.env_api.reply_fields import render_fields, render_reply
from runner.serve.env_api.request_fields import RequestField, Values
from runner.serve.env_api.routing import Handler, Route, build_application, json_response, openapi_document
from runner.types import Mode

_Operation: TypeAlias = Callable[[PooledInstance], object]

logger = logging.getLogger(__name__)


class ServedEnvironment(msgspec.Struct, frozen=True, kw_only=True):
    """Description of the environment that a server provides."""

    env: str
    mode: Mode
    data_label: str
    n_tasks: int

    @classmethod
    def of(cls, sample: EmbeddedEnvironment) -> ServedEnvironment:
        """Create the description from an instance of the environment."""
        return cls(env=sample.name, mode=sample.mode, data_label=sample.data_label, n_tasks=sample.n_tasks)

    @property
    def description(self) -> str:
        """Name, mode and data label of the environment as one text."""
        return f"{self.env} ({self.mode}, {self.data_label or AS_PUBLISHED})"


class EnvironmentApp:
    """Serves the instances of one environment.

    Args:
        dialect: protocol of AgentGym's server for this environment.
        sample: an instance that supplies the description of the environment; it is never stepped.
        pool: the instances that clients have opened.
        executor: runs the environment's code.
    """

    def __init__(
        self, dialect: ServerDialect, sample: EmbeddedEnvironment, pool: InstancePool, executor: Executor
    ) -> None:
        self.served = served = ServedEnvironment.of(sample)
        self._dialect = dialect
        self._sample = sample
        self._compat = served.mode == "compat"
        self._pool = pool
        self._executor = executor

    def application(self) -> Starlette:
        """Build the web application; the caller adds the request guard."""
        routes = self._routes()
        text_errors = self._dialect.text_errors
        document = openapi_document(self.served.description, __version__, routes, text_errors=text_errors)

        async def describe(values: Values) -> Response:
            return json_response(document)

        return build_application([*routes, Route("GET", "/openapi.json", "This document", describe)])

    def _routes(self) -> list[Route]:
        dialect, id_field = self._dialect, RequestField(self._dialect.id_field)
        action = RequestField("action", "string")
        reset = (id_field, dialect.task_field, *dialect.reset_options)
        return [
            Route("GET", "/", "The environment of this server, as text", self._root),
            Route("GET", "/health", "The environment of this server, as an object", self._health),
            self._post("/create", "Open an instance", self._create, () if dialect.create_starts_task else None),
            self._post("/reset", "Start a task", self._reset, reset),
            self._post("/step", "Take an action", self._step, (id_field, action)),
            self._post("/close", "Close an instance", self._close, (id_field,)),
            self._get("/admissible", "The admissible actions", self._admissible, (id_field,)),
            *(
                self._get(read.path, "Read an instance", partial(self._read, read), (id_field,))
                for read in dialect.read_routes
            ),
            *(
                self._get(path, "All actions of the environment", self._list_actions, ())
                for path in dialect.action_list_paths
            ),
            *(
                [self._get("/list_envs", "The ids of the open instances", self._list_open, ())]
                if dialect.lists_instances
                else []
            ),
        ]

    def _post(self, path: str, summary: str, handler: Handler, body: Sequence[RequestField] | None) -> Route:
        return Route("POST", self._dialect.prefix + path, summary, handler, body=body)

    def _get(self, path: str, summary: str, handler: Handler, query: Sequence[RequestField]) -> Route:
        return Route("GET", self._dialect.prefix + path, summary, handler, query=query)

    async def _root(self, values: Values) -> Response:
        return json_response(f"AgentGym Console {__version__}: {self.served.description}")

    async def _health(self, values: Values) -> Response:
        self._close_idle()
        served = self.served
        return json_response(
            {
                "env": served.env,
                "mode": served.mode,
                "version": __version__,
                "data_label": served.data_label,
                "n_tasks": served.n_tasks,
                "open": len(self._pool),
                "limit": self._pool.limit,
            }
        )

    async def _create(self, values: Values) -> Response:
        self._close_idle()
        try:
            instance = self._pool.open()
        except PoolRejected as exc:
            return self._error_response(str(exc))
        return await self._run_on_instance(instance.instance_id, self._created)

    async def _reset(self, values: Values) -> Response:
        task_number = values[self._dialect.task_field.name]

        def operation(instance: PooledInstance) -> object:
            for field in self._dialect.reset_options:
                if field.choices and values[field.name] not in field.choices:
                    raise PoolRejected(f"{field.name} must be one of {', '.join(field.choices)}")
            instance.reset(task_number, self._task_index(task_number))
            return render_reply(self._dialect.reset_reply, instance)

        return await self._run_on_instance(values[self._dialect.id_field], operation)

    async def _step(self, values: Values) -> Response:
        def operation(instance: PooledInstance) -> object:
            self._require_running(instance)
            instance.step(values["action"])
            return {**render_fields(self._dialect.step_reply, instance), "truncated": instance.environment.truncated}

        return await self._run_on_instance(values[self._dialect.id_field], operation)

    async def _read(self, read: ReadRoute, values: Values) -> Response:
        def operation(instance: PooledInstance) -> object:
            if instance.initial_observation is None and read.reply_before_reset is not None:
                return render_reply(read.reply_before_reset, instance)
            self._require_running(instance, read.error_before_reset)
            return render_reply(read.reply, instance)

        return await self._run_on_instance(values[self._dialect.id_field], operation)

    async def _admissible(self, values: Values) -> Response:
        def operation(instance: PooledInstance) -> object:
            self._require_running(instance)
            return instance.environment.admissible_actions()

        return await self._run_on_instance(values[self._dialect.id_field], operation)

    async def _close(self, values: Values) -> Response:
        instance_id = values[self._dialect.id_field]
        if self._pool.touch(instance_id) is None:
            return json_response(False)

        def operation(instance: PooledInstance) -> object:
            instance.cleanup()
            return True

        return await self._run_on_instance(instance_id, operation, remove_after=True)

    async def _list_open(self, values: Values) -> Response:
        self._close_idle()
        return json_response(self._pool.instance_ids)

    async def _list_actions(self, values: Values) -> Response:
        return json_response(self._sample.admissible_actions())

    def _created(self, instance: PooledInstance) -> object:
        if self._dialect.create_starts_task:
            instance.reset(0, 0)
        return render_reply(self._dialect.create_reply, instance)

    def _task_index(self, task_number: int) -> int:
        if self._compat:
            return self._dialect.task_index_of(task_number, self.served.n_tasks)
        return task_number % self.served.n_tasks

    def _require_running(self, instance: PooledInstance, error_before_reset: str | None = None) -> None:
        if instance.initial_observation is None:
            text = f"The environment {instance.instance_id} has no task yet; reset it first."
            raise PoolRejected((error_before_reset or str(instance.instance_id)) if self._compat else text)
        if instance.done and self._dialect.final_when_done:
            raise PoolRejected(f"The task with environment {instance.instance_id} has finished.")

    def _close_idle(self) -> None:
        for instance in self._pool.remove_idle():
            self._executor.submit(self._run_operation, PooledInstance.cleanup, instance)

    async def _run_on_instance(
        self, instance_id: int, operation: _Operation, *, remove_after: bool = False
    ) -> Response:
        """Run an operation on an instance in the executor; operations on the same instance never overlap."""
        self._close_idle()
        instance = self._pool.touch(instance_id)
        if instance is None:
            return self._error_response(f"The id {instance_id} is not valid.")
        async with instance.lock:
            if self._pool.touch(instance_id) is not instance:  # closed while waiting for the lock
                return self._error_response(f"The id {instance_id} is not valid.")
            response = await asyncio.get_running_loop().run_in_executor(
                self._executor, self._run_operation, operation, instance
            )
            if remove_after:
                self._pool.remove(instance)
            return response

    def _run_operation(self, operation: _Operation, instance: PooledInstance) -> Response:
        replies: list[Response] = []
        with catch_foreign(lambda exc: replies.append(self._failure_response(exc))):
            replies.append(json_response(operation(instance)))
        return replies[0]

    def _failure_response(self, exc: BaseException) -> Response:
        if isinstance(exc, RunnerError):
            return self._error_response(str(exc))
        log_failure(logger, self.served.env)(exc)
        return self._error_response(f"The environment failed: {type(exc).__name__}")

    def _error_response(self, text: str) -> Response:
        if self._dialect.text_errors:
            return PlainTextResponse("Internal Server Error" if self._compat else text, 500)
        return json_response({"error": text})
