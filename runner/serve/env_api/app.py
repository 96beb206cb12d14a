"""The web application of one environment: AgentGym's protocol on the outside, instances and threads on the inside."""

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
from runner.errors import RunnerError, boundary, log_failure
from runner.serve.env_api.dialects import Dialect, Read
from runner.serve.env_api.fields import Field, Values
from runner.serve.env_api.openapi import document
from runner.serve.env_api.pool import Instance, Pool, Refused
from runner.serve.env_api.routes import Endpoint, Handler, application, json_reply
from runner.serve.env_api.values import shown, shown_fields
from runner.types import Mode

_Work: TypeAlias = Callable[[Instance], object]

logger = logging.getLogger(__name__)


class Served(msgspec.Struct, frozen=True, kw_only=True):
    """What a server plays."""

    env: str
    mode: Mode
    data_label: str
    n_tasks: int

    @classmethod
    def of(cls, sample: EmbeddedEnvironment) -> Served:
        """What instances such as ``sample`` make of a server."""
        return cls(env=sample.name, mode=sample.mode, data_label=sample.data_label, n_tasks=sample.n_tasks)

    @property
    def about(self) -> str:
        """The environment, how it is played and with which data."""
        return f"{self.env} ({self.mode}, {self.data_label or AS_PUBLISHED})"


class EnvironmentApp:
    """One environment on its server.

    Args:
        dialect: how it is asked.
        sample: an instance that is not played, which says what is.
        pool: the instances that are.
        executor: runs whatever they do.
    """

    def __init__(self, dialect: Dialect, sample: EmbeddedEnvironment, pool: Pool, executor: Executor) -> None:
        self.served = served = Served.of(sample)
        self._dialect = dialect
        self._sample = sample
        self._compat = served.mode == "compat"
        self._pool = pool
        self._executor = executor

    def application(self) -> Starlette:
        """The application, with no guard before it."""
        endpoints = self._endpoints()
        plain_errors = self._dialect.plain_errors
        described = document(self.served.about, __version__, endpoints, plain_errors=plain_errors)

        async def describe(values: Values) -> Response:
            return json_reply(described)

        return application([*endpoints, Endpoint("GET", "/openapi.json", "This document", describe)])

    def _endpoints(self) -> list[Endpoint]:
        dialect, key = self._dialect, Field(self._dialect.key)
        action = Field("action", "string")
        reset = (key, dialect.task, *dialect.options)
        return [
            Endpoint("GET", "/", "What this server plays, as a text", self._greet),
            Endpoint("GET", "/health", "What this server plays, as an object", self._health),
            self._post("/create", "Open an instance", self._create, () if dialect.create_takes_body else None),
            self._post("/reset", "Start a task", self._reset, reset),
            self._post("/step", "Take an action", self._step, (key, action)),
            self._post("/close", "Close an instance", self._close, (key,)),
            self._get("/admissible", "What can be done now", self._admissible, (key,)),
            *(self._get(read.path, "Look at an instance", partial(self._read, read), (key,)) for read in dialect.reads),
            *(self._get(path, "The actions there are", self._list_actions, ()) for path in dialect.lists),
            *([self._get("/list_envs", "The open instances", self._list_open, ())] if dialect.lists_open else []),
        ]

    def _post(self, path: str, summary: str, handler: Handler, body: Sequence[Field] | None) -> Endpoint:
        return Endpoint("POST", self._dialect.prefix + path, summary, handler, body=body)

    def _get(self, path: str, summary: str, handler: Handler, query: Sequence[Field]) -> Endpoint:
        return Endpoint("GET", self._dialect.prefix + path, summary, handler, query=query)

    async def _greet(self, values: Values) -> Response:
        return json_reply(f"AgentGym Console {__version__}: {self.served.about}")

    async def _health(self, values: Values) -> Response:
        self._forget()
        served = self.served
        return json_reply(
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
        self._forget()
        try:
            instance = self._pool.open()
        except Refused as exc:
            return self._failed(str(exc))
        return await self._with(instance.number, self._created)

    async def _reset(self, values: Values) -> Response:
        given = values[self._dialect.task.name]

        def work(instance: Instance) -> object:
            for field in self._dialect.options:
                if field.one_of and values[field.name] not in field.one_of:
                    raise Refused(f"{field.name} should be one of {', '.join(field.one_of)}")
            instance.reset(given, self._task_index(given))
            return shown(self._dialect.was_reset, instance)

        return await self._with(values[self._dialect.key], work)

    async def _step(self, values: Values) -> Response:
        def work(instance: Instance) -> object:
            self._check_running(instance)
            instance.step(values["action"])
            return {**shown_fields(self._dialect.stepped, instance), "truncated": instance.environment.truncated}

        return await self._with(values[self._dialect.key], work)

    async def _read(self, read: Read, values: Values) -> Response:
        def work(instance: Instance) -> object:
            if instance.opening is None and read.before is not None:
                return shown(read.before, instance)
            self._check_running(instance, read.missing)
            return shown(read.reply, instance)

        return await self._with(values[self._dialect.key], work)

    async def _admissible(self, values: Values) -> Response:
        def work(instance: Instance) -> object:
            self._check_running(instance)
            return instance.environment.admissible_actions()

        return await self._with(values[self._dialect.key], work)

    async def _close(self, values: Values) -> Response:
        number = values[self._dialect.key]
        if self._pool.use(number) is None:
            return json_reply(False)

        def work(instance: Instance) -> object:
            instance.cleanup()
            return True

        return await self._with(number, work, last=True)

    async def _list_open(self, values: Values) -> Response:
        self._forget()
        return json_reply(self._pool.numbers)

    async def _list_actions(self, values: Values) -> Response:
        return json_reply(self._sample.admissible_actions())

    def _created(self, instance: Instance) -> object:
        if self._dialect.create_takes_body:
            instance.reset(0, 0)
        return shown(self._dialect.created, instance)

    def _task_index(self, given: int) -> int:
        if self._compat:
            return self._dialect.number_task(given, self.served.n_tasks)
        return given % self.served.n_tasks

    def _check_running(self, instance: Instance, missing: str | None = None) -> None:
        if instance.opening is None:
            text = f"The environment {instance.number} has no task yet; reset it first."
            raise Refused((missing or str(instance.number)) if self._compat else text)
        if instance.done and self._dialect.ends:
            raise Refused(f"The task with environment {instance.number} has finished.")

    def _forget(self) -> None:
        for instance in self._pool.take_forgotten():
            self._executor.submit(self._worked, Instance.cleanup, instance)

    async def _with(self, number: int, work: _Work, *, last: bool = False) -> Response:
        """Do something with an instance, after whatever else is done with it."""
        self._forget()
        instance = self._pool.use(number)
        if instance is None:
            return self._failed(f"The id {number} is not valid.")
        async with instance.lock:
            if self._pool.use(number) is not instance:  # somebody has just closed it
                return self._failed(f"The id {number} is not valid.")
            reply = await asyncio.get_running_loop().run_in_executor(self._executor, self._worked, work, instance)
            if last:
                self._pool.remove(instance)
            return reply

    def _worked(self, work: _Work, instance: Instance) -> Response:
        replies: list[Response] = []
        with boundary(lambda exc: replies.append(self._fault(exc))):
            replies.append(json_reply(work(instance)))
        return replies[0]

    def _fault(self, exc: BaseException) -> Response:
        if isinstance(exc, RunnerError):
            return self._failed(str(exc))
        log_failure(logger, self.served.env)(exc)
        return self._failed(f"The environment failed: {type(exc).__name__}")

    def _failed(self, text: str) -> Response:
        if self._dialect.plain_errors:
            return PlainTextResponse("Internal Server Error" if self._compat else text, 500)
        return json_reply({"error": text})
