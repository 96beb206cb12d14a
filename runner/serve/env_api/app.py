"""The web application of one environment: AgentGym's protocol and createEnv's, on one pool of instances."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from concurrent.futures import Executor
from functools import partial

from starlette.applications import Starlette
from starlette.responses import PlainTextResponse, Response

from runner import __version__
from runner.envs.base import AS_PUBLISHED, EmbeddedEnvironment
from runner.serve.env_api.dialects import CREATE_ENV, TRUNCATED, ReadRoute, ServerDialect, render_reply
from runner.serve.env_api.pool import InstanceCalls, InstancePool, Operation, PooledInstance, PoolRejected
from runner.serve.env_api.routing import (
    BodyVariant,
    Handler,
    RequestField,
    Route,
    Values,
    build_application,
    json_response,
    openapi_document,
)
from runner.util.display_text import one_line

_ENV_NAME = RequestField("env_name", "string", required=False)


class EnvironmentApp:
    """Serves the instances in ``pool``; ``sample`` supplies the description of the environment and is never stepped."""

    def __init__(
        self, dialect: ServerDialect, sample: EmbeddedEnvironment, pool: InstancePool, executor: Executor
    ) -> None:
        self._dialect = dialect
        self._sample = sample
        self._pool = pool
        self._compat = sample.mode == "compat"
        self._steps_after_end = self._compat and not dialect.final_when_done
        self._task_counter = itertools.count()
        self._instances = {
            each.id_field: InstanceCalls(sample.name, pool, executor, partial(self._error_response, each))
            for each in (dialect, CREATE_ENV)
        }

    @property
    def description(self) -> str:
        return f"{self._sample.name} ({self._sample.mode}, {self._sample.data_label or AS_PUBLISHED})"

    def application(self) -> Starlette:
        """The caller adds the request guard."""
        routes = self._routes()
        document = openapi_document(self.description, __version__, routes, text_errors=self._dialect.text_errors)

        async def describe(values: Values) -> Response:
            return json_response(document)

        return build_application([*routes, Route("GET", "/openapi.json", "This document", describe)])

    def _routes(self) -> list[Route]:
        dialect, id_field = self._dialect, RequestField(self._dialect.id_field)
        reset = (id_field, dialect.task_field, *dialect.reset_options)
        shared = [self._shared_routes(prefix) for prefix in dict.fromkeys((dialect.prefix, ""))]
        routes = [
            *itertools.chain(*shared),  # first, because paths are matched in order and most requests are steps
            Route("GET", "/", "The environment of this server, as text", self._root),
            Route("GET", "/health", "The environment of this server, as an object", self._health),
            self._post("/create", "Open an instance", self._create, () if dialect.create_starts_task else None),
            self._post("/reset", "Start a task", self._reset, reset),
            self._get("/admissible", "The admissible actions", self._admissible, (id_field,)),
            self._get("/world", "A picture of the current state, or null", self._draw, (id_field,)),
            *(
                self._get(read.path, "Read an instance", partial(self._read, dialect, read), (id_field,))
                for read in dialect.read_routes
            ),
        ]
        for path in dialect.action_list_paths:
            routes.append(self._get(path, "All actions of the environment", self._list_actions, ()))
        if dialect.lists_instances:
            routes.append(self._get("/list_envs", "The ids of the open instances", self._list_open, ()))
        return routes

    def _shared_routes(self, prefix: str) -> list[Route]:
        """Return the routes with ``env_id``, which exist with and without the prefix: their clients know none."""
        (own_step, own_close), (other_step, other_close) = map(self._bodies, (self._dialect, CREATE_ENV))
        read, create = CREATE_ENV.read_routes[0], (_ENV_NAME, CREATE_ENV.task_field)
        observe = partial(self._read, CREATE_ENV, read)
        return [
            Route("POST", f"{prefix}/step", "Take an action", *own_step, variant=other_step),
            Route("POST", f"{prefix}/close", "Close an instance", *own_close, variant=other_close),
            Route("POST", f"{prefix}/createEnv", "Open an instance with a task", self._create_with_task, create),
            Route("POST", prefix + read.path, "Read the observation", observe, (RequestField(CREATE_ENV.id_field),)),
        ]

    def _bodies(self, dialect: ServerDialect) -> tuple[BodyVariant, BodyVariant]:
        id_field = RequestField(dialect.id_field)
        return (
            BodyVariant(partial(self._step, dialect), (id_field, RequestField("action", "string"))),
            BodyVariant(partial(self._close, dialect), (id_field,)),
        )

    def _post(self, path: str, summary: str, handler: Handler, body: Sequence[RequestField] | None) -> Route:
        return Route("POST", self._dialect.prefix + path, summary, handler, body=body)

    def _get(self, path: str, summary: str, handler: Handler, query: Sequence[RequestField]) -> Route:
        return Route("GET", self._dialect.prefix + path, summary, handler, query=query)

    async def _root(self, values: Values) -> Response:
        return json_response(f"AgentGym Console {__version__}: {self.description}")

    async def _health(self, values: Values) -> Response:
        self._instances[self._dialect.id_field].close_idle()
        sample = self._sample
        return json_response(
            {
                "env": sample.name,
                "mode": sample.mode,
                "version": __version__,
                "data_label": sample.data_label,
                "n_tasks": sample.n_tasks,
                "open": len(self._pool),
                "limit": self._pool.limit,
            }
        )

    async def _create(self, values: Values) -> Response:
        def operation(instance: PooledInstance) -> object:
            if self._dialect.create_starts_task:
                instance.reset(0, 0)
            return render_reply(self._dialect.create_reply, instance)

        return await self._instances[self._dialect.id_field].open(operation)

    async def _create_with_task(self, values: Values) -> Response:
        """Open an instance for the requested task; without a request, the tasks are counted up from 0."""
        requested, task_index = values[_ENV_NAME.name], values[CREATE_ENV.task_field.name]
        if requested and _normalize(requested) != _normalize(self._sample.name):
            return self._error_response(
                CREATE_ENV,
                f"This server plays {self._sample.name}, not {one_line(requested, 100)}; "
                "send the request to that environment's server",
            )

        def operation(instance: PooledInstance) -> object:
            number = next(self._task_counter) if task_index is None else task_index
            instance.task_number = number % self._sample.n_tasks
            return render_reply(CREATE_ENV.create_reply, instance)

        return await self._instances[CREATE_ENV.id_field].open(operation)

    async def _reset(self, values: Values) -> Response:
        task_number = values[self._dialect.task_field.name]

        def operation(instance: PooledInstance) -> object:
            for field in self._dialect.reset_options:
                if field.choices and values[field.name] not in field.choices:
                    raise PoolRejected(f"{field.name} must be one of {', '.join(field.choices)}")
            n_tasks = self._sample.n_tasks
            index = self._dialect.task_index_of(task_number, n_tasks) if self._compat else task_number % n_tasks
            instance.reset(task_number, index)
            return render_reply(self._dialect.reset_reply, instance)

        return await self._run(self._dialect, values, operation)

    async def _step(self, dialect: ServerDialect, values: Values) -> Response:
        def operation(instance: PooledInstance) -> object:
            self._require_running(dialect, instance)
            if not self._steps_after_end:
                instance.require_unfinished()
            instance.step(values["action"])
            return render_reply({**dialect.step_reply, "truncated": TRUNCATED}, instance)

        return await self._run(dialect, values, operation)

    async def _read(self, dialect: ServerDialect, read: ReadRoute, values: Values) -> Response:
        def operation(instance: PooledInstance) -> object:
            if instance.initial_observation is None and read.reply_before_reset is not None:
                return render_reply(read.reply_before_reset, instance)
            self._require_running(dialect, instance, read.error_before_reset)
            return render_reply(read.reply, instance)

        return await self._run(dialect, values, operation)

    async def _admissible(self, values: Values) -> Response:
        def operation(instance: PooledInstance) -> object:
            self._require_running(self._dialect, instance)
            return instance.environment.admissible_actions()

        return await self._run(self._dialect, values, operation)

    async def _draw(self, values: Values) -> Response:
        def operation(instance: PooledInstance) -> object:
            self._require_task(self._dialect, instance)
            return instance.draw()

        return await self._run(self._dialect, values, operation)

    async def _close(self, dialect: ServerDialect, values: Values) -> Response:
        return await self._instances[dialect.id_field].close(values[dialect.id_field])

    async def _list_open(self, values: Values) -> Response:
        self._instances[self._dialect.id_field].close_idle()
        return json_response(self._pool.instance_ids)

    async def _list_actions(self, values: Values) -> Response:
        return json_response(self._sample.admissible_actions())

    async def _run(self, dialect: ServerDialect, values: Values, operation: Operation) -> Response:
        return await self._instances[dialect.id_field].run(values[dialect.id_field], operation)

    def _require_running(
        self, dialect: ServerDialect, instance: PooledInstance, error_before_reset: str | None = None
    ) -> None:
        self._require_task(dialect, instance, error_before_reset)
        if dialect.final_when_done:
            instance.require_unfinished()

    def _require_task(
        self, dialect: ServerDialect, instance: PooledInstance, error_before_reset: str | None = None
    ) -> None:
        """Check that the instance has a task; start the one that it was created for, where there is one."""
        if instance.initial_observation is None and (dialect is CREATE_ENV or dialect.starts_itself):
            instance.reset(instance.task_number, instance.task_number % self._sample.n_tasks)
        if instance.initial_observation is None:
            text = f"The environment {instance.instance_id} has no task yet; reset it first."
            raise PoolRejected((error_before_reset or str(instance.instance_id)) if self._compat else text)

    def _error_response(self, dialect: ServerDialect, text: str) -> Response:
        if dialect.text_errors:
            return PlainTextResponse("Internal Server Error" if self._compat else text, 500)
        return json_response({"error": text})


def _normalize(name: str) -> str:
    return re.sub(r"[\W_]", "", name).casefold()
