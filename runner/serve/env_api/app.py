"""The web application of one environment: AgentGym's protocol and createEnv's, on one pool of instances."""

from __future__ import annotations

import itertools
import re
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from functools import partial
from typing import Annotated, TypeAlias

import msgspec
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse, Response

from runner import __version__, plugins
from runner.envs.base import AS_PUBLISHED, EmbeddedEnvironment
from runner.errors import ConfigError, RunnerError
from runner.serve.env_api.dialects import CREATE_ENV, DIALECTS, TRUNCATED, ReadRoute, ServerDialect, render_reply
from runner.serve.env_api.pool import InstancePool, PooledInstance, PoolRejected
from runner.serve.env_api.routing import (
    Fields,
    Handler,
    Number,
    Route,
    Values,
    Variant,
    build_application,
    json_response,
    openapi_document,
)
from runner.types import Mode
from runner.util.clock import Clock
from runner.util.display_text import one_line

InstanceOperation: TypeAlias = Callable[[PooledInstance, Values], object]

_ENV_NAME = "env_name"
_CreateEnv = msgspec.defstruct(
    "CreateEnv", [(_ENV_NAME, str | None, None), (CREATE_ENV.task_field, Number | None, CREATE_ENV.task_default)]
)


class EnvironmentApp:
    """Serves the instances that ``build`` makes; one that is never stepped describes the environment.

    ``idle_s`` are the seconds without a request after which an instance is closed. The id of the first instance should
    differ after each start, so that an id from before is unknown.
    """

    def __init__(
        self,
        dialect: ServerDialect,
        build: Callable[[], EmbeddedEnvironment],
        executor: Executor,
        *,
        max_open: int,
        idle_s: float,
        clock: Clock | None = None,
        first_id: int = 0,
    ) -> None:
        self._dialect = dialect
        self._sample = sample = build()
        self._pool = InstancePool(
            sample.name, build, executor, limit=max_open, idle_s=idle_s, clock=clock or Clock(), first_id=first_id
        )
        self._compat = sample.mode == "compat"
        self._steps_after_end = self._compat and not dialect.final_when_done
        self._task_counter = itertools.count()

    @property
    def description(self) -> str:
        return f"{self._sample.name} ({self._sample.mode}, {self._sample.data_label or AS_PUBLISHED})"

    def application(self) -> Starlette:
        """The caller adds the request guard."""
        routes = [*self._shared_routes(), *self._own_routes()]
        document = openapi_document(self.description, __version__, routes, text_errors=self._dialect.text_errors)

        async def describe(values: Values) -> Response:
            return json_response(document)

        return build_application([*routes, Route("GET", "/openapi.json", "This document", describe)])

    def _shared_routes(self) -> list[Route]:
        """Return the routes with ``env_id``, which exist with and without the prefix: their clients know none."""
        own, other = self._dialect, CREATE_ENV
        instance, read = _instance_fields(other), other.read_routes[0]
        routes = []
        for prefix in dict.fromkeys((own.prefix, "")):  # first, because most requests are steps
            step = Variant(self._use(other, partial(self._step, other)), _instance_fields(other, action=True))
            close = Variant(self._close(other), instance)
            own_step = self._use(own, partial(self._step, own))
            routes += [
                Route("POST", f"{prefix}/step", "Take an action", own_step, _instance_fields(own, action=True), step),
                Route("POST", f"{prefix}/close", "Close an instance", self._close(own), _instance_fields(own), close),
                Route("POST", f"{prefix}/createEnv", "Open an instance with a task", self._create_env, _CreateEnv),
                Route("POST", prefix + read.path, "Read the observation", self._read(other, read), instance),
            ]
        return routes

    def _own_routes(self) -> list[Route]:
        own, instance = self._dialect, _instance_fields(self._dialect)
        create = self._open(own, self._start)
        empty = msgspec.defstruct("Create", []) if own.create_starts_task else None
        routes = [
            Route("GET", "/", "The environment of this server, as text", self._root),
            Route("GET", "/health", "The environment of this server, as an object", self._health),
            Route("POST", f"{own.prefix}/create", "Open an instance", create, empty),
            Route("POST", f"{own.prefix}/reset", "Start a task", self._use(own, self._reset), _reset_fields(own)),
        ]
        reads = [
            ("/admissible", "The admissible actions", self._use(own, self._admissible)),
            ("/world", "A picture of the current state, or null", self._use(own, self._draw)),
            *((read.path, "Read an instance", self._read(own, read)) for read in own.read_routes),
        ]
        routes += [Route("GET", own.prefix + path, summary, handler, instance) for path, summary, handler in reads]
        for path in own.action_list_paths:
            routes.append(Route("GET", own.prefix + path, "All actions of the environment", self._list_actions))
        if own.lists_instances:
            routes.append(Route("GET", f"{own.prefix}/list_envs", "The ids of the open instances", self._list_open))
        return routes

    async def _root(self, values: Values) -> Response:
        return json_response(f"AgentGym Console {__version__}: {self.description}")

    async def _health(self, values: Values) -> Response:
        sample = self._sample
        return json_response(
            {
                "env": sample.name,
                "mode": sample.mode,
                "version": __version__,
                "data_label": sample.data_label,
                "n_tasks": sample.n_tasks,
                "open": len(self._pool.open_ids()),
                "limit": self._pool.limit,
            }
        )

    async def _list_open(self, values: Values) -> Response:
        return json_response(self._pool.open_ids())

    async def _list_actions(self, values: Values) -> Response:
        return json_response(self._sample.admissible_actions())

    async def _create_env(self, values: Values) -> Response:
        name = values[_ENV_NAME]
        if name and _normalize(name) != _normalize(self._sample.name):
            return self._error_response(
                CREATE_ENV,
                f"This server plays {self._sample.name}, not {one_line(name, 100)}; "
                "send the request to that environment's server",
            )
        return await self._open(CREATE_ENV, self._choose_task)(values)

    def _open(self, dialect: ServerDialect, operation: InstanceOperation) -> Handler:
        async def handler(values: Values) -> Response:
            return await self._respond(dialect, self._pool.open(lambda instance: operation(instance, values)))

        return handler

    def _use(self, dialect: ServerDialect, operation: InstanceOperation) -> Handler:
        async def handler(values: Values) -> Response:
            used = self._pool.run(values[dialect.id_field], lambda instance: operation(instance, values))
            return await self._respond(dialect, used)

        return handler

    def _close(self, dialect: ServerDialect) -> Handler:
        async def handler(values: Values) -> Response:
            return await self._respond(dialect, self._pool.close(values[dialect.id_field]))

        return handler

    def _read(self, dialect: ServerDialect, read: ReadRoute) -> Handler:
        def operation(instance: PooledInstance, values: Values) -> object:
            if instance.initial_observation is None and read.reply_before_reset is not None:
                return render_reply(read.reply_before_reset, instance)
            self._require_running(dialect, instance, read.error_before_reset)
            return render_reply(read.reply, instance)

        return self._use(dialect, operation)

    async def _respond(self, dialect: ServerDialect, work: Awaitable[bytes]) -> Response:
        try:
            return Response(await work, media_type="application/json")
        except RunnerError as exc:
            return self._error_response(dialect, str(exc))

    def _error_response(self, dialect: ServerDialect, text: str) -> Response:
        if dialect.text_errors:
            return PlainTextResponse("Internal Server Error" if self._compat else text, 500)
        return json_response({"error": text})

    def _start(self, instance: PooledInstance, values: Values) -> object:
        if self._dialect.create_starts_task:
            instance.reset(0, 0)
        return render_reply(self._dialect.create_reply, instance)

    def _choose_task(self, instance: PooledInstance, values: Values) -> object:
        """Without a request for a task, the tasks are counted up from 0."""
        requested = values[CREATE_ENV.task_field]
        number = next(self._task_counter) if requested is None else requested
        instance.task_number = number % self._sample.n_tasks
        return render_reply(CREATE_ENV.create_reply, instance)

    def _reset(self, instance: PooledInstance, values: Values) -> object:
        for name, choices in self._dialect.reset_options.items():
            if values[name] not in choices:
                raise PoolRejected(f"{name} must be one of {', '.join(choices)}")
        sent: int | None = values[self._dialect.task_field]
        number = (self._dialect.task_default or 0) if sent is None else sent
        n_tasks = self._sample.n_tasks
        index = self._dialect.task_index_of(number, n_tasks) if self._compat else number % n_tasks
        instance.reset(number, index)
        return render_reply(self._dialect.reset_reply, instance)

    def _step(self, dialect: ServerDialect, instance: PooledInstance, values: Values) -> object:
        self._require_running(dialect, instance)
        if not self._steps_after_end:
            instance.require_unfinished()
        instance.step(values["action"])
        return render_reply({**dialect.step_reply, "truncated": TRUNCATED}, instance)

    def _admissible(self, instance: PooledInstance, values: Values) -> object:
        self._require_running(self._dialect, instance)
        return instance.environment.admissible_actions()

    def _draw(self, instance: PooledInstance, values: Values) -> object:
        self._require_task(self._dialect, instance)
        return instance.draw()

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


def _instance_fields(dialect: ServerDialect, *, action: bool = False) -> Fields:
    return msgspec.defstruct("Instance", [(dialect.id_field, Number), *([("action", str)] if action else [])])


def _reset_fields(dialect: ServerDialect) -> Fields:
    default, name = dialect.task_default, dialect.task_field
    task = (name, Number) if default is None else (name, Number | None, default)
    options = [
        (option, Annotated[str, msgspec.Meta(extra_json_schema={"enum": list(choices)})])
        for option, choices in dialect.reset_options.items()
    ]
    return msgspec.defstruct("Reset", [(dialect.id_field, Number), *options, task])


def _normalize(name: str) -> str:
    return re.sub(r"[\W_]", "", name).casefold()


def environment_app(
    name: str,
    executor: Executor,
    *,
    mode: Mode,
    max_open: int,
    idle_s: float,
    clock: Clock | None = None,
    first_id: int = 0,
) -> EnvironmentApp:
    """Build the application of a registered environment.

    Raises ``ConfigError`` if the environment is unknown or cannot be loaded, or AgentGym has no server for it.
    """
    name = plugins.find(plugins.ENVS, name).name
    if name not in DIALECTS:
        raise ConfigError(
            f"AgentGym has no protocol for {name}. Environments that can be served: {', '.join(DIALECTS)}"
        )
    build: Callable[[], EmbeddedEnvironment] = partial(plugins.load(plugins.ENVS, name), mode=mode)
    return EnvironmentApp(
        DIALECTS[name], build, executor, max_open=max_open, idle_s=idle_s, clock=clock, first_id=first_id
    )
