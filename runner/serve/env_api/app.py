"""The web application of one environment: AgentGym's protocol and createEnv's, on one pool of instances."""

from __future__ import annotations

import itertools
import re
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Annotated, TypeAlias

import msgspec
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse, Response

from runner import __version__, plugins
from runner.envs.base import AS_PUBLISHED, EmbeddedEnvironment
from runner.errors import ConfigError, RunnerError
from runner.serve.env_api.dialects import CREATE_ENV, DIALECTS, ServerDialect, members, render_reply
from runner.serve.env_api.pool import InstancePool, PooledInstance, PoolOptions, PoolRejected
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
from runner.util.display_text import one_line

InstanceOperation: TypeAlias = Callable[[Values, PooledInstance], object]

_CreateEnv = msgspec.defstruct(
    "CreateEnv", [("env_name", str | None, None), (CREATE_ENV.task_field, Number | None, None)]
)


def environment_app(name: str, mode: Mode, options: PoolOptions) -> EnvironmentApp:
    """Raises ``ConfigError`` if the environment is unknown or cannot be loaded, or AgentGym has no server for it."""
    name = plugins.find(plugins.ENVS, name).name
    if name not in DIALECTS:
        raise ConfigError(
            f"AgentGym has no protocol for {name}. Environments that can be served: {', '.join(DIALECTS)}"
        )
    return EnvironmentApp(DIALECTS[name], partial(plugins.load(plugins.ENVS, name), mode=mode), options)


class EnvironmentApp:
    """Serves the instances that ``build`` makes; one that is never stepped describes the environment."""

    def __init__(self, dialect: ServerDialect, build: Callable[[], EmbeddedEnvironment], options: PoolOptions) -> None:
        self._dialect = dialect
        self._sample = build()
        self._pool = InstancePool(self._sample.name, build, options)
        self._max_open = options.max_open
        self._compat = self._sample.mode == "compat"
        self._task_counter = itertools.count()

    @property
    def description(self) -> str:
        return f"{self._sample.name} ({self._sample.mode}, {self._sample.data_label or AS_PUBLISHED})"

    def application(self) -> Starlette:
        """The caller adds the request guard."""
        prefixes = dict.fromkeys((self._dialect.prefix, ""))
        routes = [route for prefix in prefixes for route in self._shared_routes(prefix)]
        routes += self._own_routes()  # last, because most requests are steps
        document = openapi_document(self.description, __version__, routes, text_errors=self._dialect.text_errors)
        return build_application([*routes, Route("GET", "/openapi.json", "This document", _value(lambda: document))])

    def _shared_routes(self, prefix: str) -> list[Route]:
        """Return the routes with ``env_id``, which exist with and without the prefix: their clients know none."""
        own, other = self._dialect, CREATE_ENV
        ids, other_ids = _instance_fields(own), _instance_fields(other)
        step = Variant(self._use(other, partial(self._step, other)), _instance_fields(other, action=True))
        own_step, close = self._use(own, partial(self._step, own)), Variant(self._close(other), other_ids)
        create, observation = self._respond(other, self._create_env), self._read(other, "/observation")
        return [
            Route("POST", f"{prefix}/step", "Take an action", own_step, _instance_fields(own, action=True), step),
            Route("POST", f"{prefix}/close", "Close an instance", self._close(own), ids, close),
            Route("POST", f"{prefix}/createEnv", "Open an instance with a task", create, _CreateEnv),
            Route("POST", f"{prefix}/observation", "Read the observation", observation, other_ids),
        ]

    def _own_routes(self) -> list[Route]:
        own, ids, prefix = self._dialect, _instance_fields(self._dialect), self._dialect.prefix
        name = f"AgentGym Console {__version__}: {self.description}"
        create = self._respond(own, lambda values: self._pool.open(self._start))
        no_fields = msgspec.defstruct("Create", []) if own.create_starts_task else None
        picture = self._use(own, self._draw)
        routes = [
            Route("GET", "/", "The environment of this server, as text", _value(lambda: name)),
            Route("GET", "/health", "The environment of this server, as an object", _value(self._health)),
            Route("POST", f"{prefix}/create", "Open an instance", create, no_fields),
            Route("POST", f"{prefix}/reset", "Start a task", self._use(own, self._reset), _reset_fields(own)),
            Route("GET", f"{prefix}/admissible", "The admissible actions", self._use(own, self._admissible), ids),
            Route("GET", f"{prefix}/world", "A picture of the current state, or null", picture, ids),
        ]
        routes += [Route("GET", prefix + path, "Read an instance", self._read(own, path), ids) for path in own.reads]
        if own.lists_actions:
            listed = _value(self._sample.admissible_actions)
            routes.append(Route("GET", f"{prefix}/available_actions", "All actions of the environment", listed))
        if own.lists_instances:
            listed = _value(self._pool.open_ids)
            routes.append(Route("GET", f"{prefix}/list_envs", "The ids of the open instances", listed))
        return routes

    def _health(self) -> object:
        sample = self._sample
        return {
            "env": sample.name,
            "mode": sample.mode,
            "version": __version__,
            "data_label": sample.data_label,
            "n_tasks": sample.n_tasks,
            "open": len(self._pool.open_ids()),
            "limit": self._max_open,
        }

    def _respond(self, dialect: ServerDialect, call: Callable[[Values], Awaitable[bytes]]) -> Handler:
        async def handler(values: Values) -> Response:
            try:
                return Response(await call(values), media_type="application/json")
            except RunnerError as exc:
                if dialect.text_errors:
                    return PlainTextResponse("Internal Server Error" if self._compat else str(exc), 500)
                return json_response({"error": str(exc)})

        return handler

    def _use(self, dialect: ServerDialect, operation: InstanceOperation) -> Handler:
        name = dialect.id_field
        return self._respond(dialect, lambda values: self._pool.run(values[name], partial(operation, values)))

    def _close(self, dialect: ServerDialect) -> Handler:
        return self._respond(dialect, lambda values: self._pool.close(values[dialect.id_field]))

    def _read(self, dialect: ServerDialect, path: str) -> Handler:
        reply, before_reset = dialect.reads[path], dialect.before_reset.get(path)

        def operation(values: Values, instance: PooledInstance) -> object:
            if instance.initial_observation is None and not isinstance(before_reset, str | None):
                return render_reply(before_reset, instance)
            self._require_running(dialect, instance, before_reset if isinstance(before_reset, str) else None)
            return render_reply(reply, instance)

        return self._use(dialect, operation)

    def _start(self, instance: PooledInstance) -> object:
        if self._dialect.create_starts_task:
            instance.reset(0, 0)
        return render_reply(self._dialect.create_reply, instance)

    async def _create_env(self, values: Values) -> bytes:
        """Open an instance for the requested task; without a request, the tasks are counted up from 0."""
        env, number = values["env_name"], values[CREATE_ENV.task_field]
        if env and _normalize(env) != _normalize(self._sample.name):
            raise PoolRejected(
                f"This server plays {self._sample.name}, not {one_line(env, 100)}; "
                "send the request to that environment's server"
            )

        def operation(instance: PooledInstance) -> object:
            instance.task_number = (next(self._task_counter) if number is None else number) % self._sample.n_tasks
            return render_reply(CREATE_ENV.create_reply, instance)

        return await self._pool.open(operation)

    def _reset(self, values: Values, instance: PooledInstance) -> object:
        for name, choices in self._dialect.reset_options.items():
            if values[name] not in choices:
                raise PoolRejected(f"{name} must be one of {', '.join(choices)}")
        sent: int | None = values[self._dialect.task_field]
        number = (self._dialect.task_default or 0) if sent is None else sent
        n_tasks = self._sample.n_tasks
        instance.reset(number, self._dialect.task_index_of(number, n_tasks) if self._compat else number % n_tasks)
        return render_reply(self._dialect.reset_reply, instance)

    def _step(self, dialect: ServerDialect, values: Values, instance: PooledInstance) -> object:
        self._require_running(dialect, instance)
        if not self._compat or self._dialect.final_when_done:
            instance.require_unfinished()
        instance.step(values["action"])
        return render_reply(dialect.step_reply | members("truncated", "environment."), instance)

    def _admissible(self, values: Values, instance: PooledInstance) -> object:
        self._require_running(self._dialect, instance)
        return instance.environment.admissible_actions()

    def _draw(self, values: Values, instance: PooledInstance) -> object:
        self._require_task(self._dialect, instance)
        return instance.draw()

    def _require_running(self, dialect: ServerDialect, instance: PooledInstance, error: str | None = None) -> None:
        self._require_task(dialect, instance, error)
        if dialect.final_when_done:
            instance.require_unfinished()

    def _require_task(self, dialect: ServerDialect, instance: PooledInstance, error: str | None = None) -> None:
        """Check that the instance has a task; start the one that it was created for, where there is one."""
        if instance.initial_observation is None and (dialect is CREATE_ENV or dialect.starts_itself):
            instance.reset(instance.task_number, instance.task_number % self._sample.n_tasks)
        if instance.initial_observation is None:
            text = f"The environment {instance.id} has no task yet; reset it first."
            raise PoolRejected((error or str(instance.id)) if self._compat else text)


def _value(get: Callable[[], object]) -> Handler:
    async def handler(values: Values) -> Response:
        return json_response(get())

    return handler


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
