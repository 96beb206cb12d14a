"""The web application of one environment: AgentGym's protocol and createEnv's, on one pool of instances."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from concurrent.futures import Executor
from functools import partial

import msgspec
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse, Response

from runner import __version__
from runner.envs.base import EmbeddedEnvironment
from runner.envs.data_labels import AS_PUBLISHED
from runner.serve.env_api.create_env import CreateEnvApi
from runner.serve.env_api.dialects import ReadRoute, ServerDialect
from runner.serve.env_api.instance_runner import InstanceRunner
from runner.serve.env_api.pool import InstancePool, PooledInstance, PoolRejected
from runner.serve.env_api.reply_fields import render_fields, render_reply
from runner.serve.env_api.request_fields import RequestField, Values
from runner.serve.env_api.routing import Handler, Route, build_application, json_response, openapi_document
from runner.types import Mode


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
        self._instances = InstanceRunner(served.env, pool, executor, self._error_response)
        self._steps_after_end = self._compat and not dialect.final_when_done
        self._create_env = CreateEnvApi(
            served.env, served.n_tasks, steps_after_end=self._steps_after_end, pool=pool, executor=executor
        )

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
        reset = (id_field, dialect.task_field, *dialect.reset_options)
        shared = [self._shared_routes(prefix) for prefix in dict.fromkeys((dialect.prefix, ""))]
        return [
            *itertools.chain(*shared),  # first, because paths are matched in order and most requests are steps
            Route("GET", "/", "The environment of this server, as text", self._root),
            Route("GET", "/health", "The environment of this server, as an object", self._health),
            self._post("/create", "Open an instance", self._create, () if dialect.create_starts_task else None),
            self._post("/reset", "Start a task", self._reset, reset),
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

    def _shared_routes(self, prefix: str) -> list[Route]:
        """Return the routes with ``env_id``, which exist with and without the prefix: their clients know none."""
        id_field, other = RequestField(self._dialect.id_field), self._create_env
        step, close = (id_field, RequestField("action", "string")), (id_field,)
        return [
            Route("POST", f"{prefix}/step", "Take an action", self._step, body=step, variant=other.step_body),
            Route("POST", f"{prefix}/close", "Close an instance", self._close, body=close, variant=other.close_body),
            *other.routes(prefix),
        ]

    def _post(self, path: str, summary: str, handler: Handler, body: Sequence[RequestField] | None) -> Route:
        return Route("POST", self._dialect.prefix + path, summary, handler, body=body)

    def _get(self, path: str, summary: str, handler: Handler, query: Sequence[RequestField]) -> Route:
        return Route("GET", self._dialect.prefix + path, summary, handler, query=query)

    async def _root(self, values: Values) -> Response:
        return json_response(f"AgentGym Console {__version__}: {self.served.description}")

    async def _health(self, values: Values) -> Response:
        self._instances.close_idle()
        served = self.served
        return json_response(
            {
                "env": served.env,
                "mode": served.mode,
                "version": __version__,
                "data_label": served.data_label,
                "n_tasks": served.n_tasks,
                "open": len(self._instances.pool),
                "limit": self._instances.pool.limit,
            }
        )

    async def _create(self, values: Values) -> Response:
        return await self._instances.open(self._created)

    async def _reset(self, values: Values) -> Response:
        task_number = values[self._dialect.task_field.name]

        def operation(instance: PooledInstance) -> object:
            for field in self._dialect.reset_options:
                if field.choices and values[field.name] not in field.choices:
                    raise PoolRejected(f"{field.name} must be one of {', '.join(field.choices)}")
            instance.reset(task_number, self._task_index(task_number))
            return render_reply(self._dialect.reset_reply, instance)

        return await self._instances.run(values[self._dialect.id_field], operation)

    async def _step(self, values: Values) -> Response:
        def operation(instance: PooledInstance) -> object:
            self._require_running(instance)
            if not self._steps_after_end:
                instance.require_unfinished()
            instance.step(values["action"])
            return {**render_fields(self._dialect.step_reply, instance), "truncated": instance.environment.truncated}

        return await self._instances.run(values[self._dialect.id_field], operation)

    async def _read(self, read: ReadRoute, values: Values) -> Response:
        def operation(instance: PooledInstance) -> object:
            if instance.initial_observation is None and read.reply_before_reset is not None:
                return render_reply(read.reply_before_reset, instance)
            self._require_running(instance, read.error_before_reset)
            return render_reply(read.reply, instance)

        return await self._instances.run(values[self._dialect.id_field], operation)

    async def _admissible(self, values: Values) -> Response:
        def operation(instance: PooledInstance) -> object:
            self._require_running(instance)
            return instance.environment.admissible_actions()

        return await self._instances.run(values[self._dialect.id_field], operation)

    async def _close(self, values: Values) -> Response:
        return await self._instances.close(values[self._dialect.id_field])

    async def _list_open(self, values: Values) -> Response:
        self._instances.close_idle()
        return json_response(self._instances.pool.instance_ids)

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
        if self._dialect.final_when_done:
            instance.require_unfinished()

    def _error_response(self, text: str) -> Response:
        if self._dialect.text_errors:
            return PlainTextResponse("Internal Server Error" if self._compat else text, 500)
        return json_response({"error": text})
