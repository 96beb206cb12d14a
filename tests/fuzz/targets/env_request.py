"""Requests to our environment servers, in AgentGym's protocol and in createEnv's.

The input is a line with the environment and the mode, then one line ``METHOD PATH BODY`` per request.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import cache, partial
from typing import Any

import msgspec
from starlette.types import ASGIApp

from runner import plugins
from runner.envs.base import EmbeddedEnvironment
from runner.errors import catch_foreign
from runner.serve.env_api import DIALECTS, EnvironmentApp, PoolOptions
from runner.serve.request_guard import RequestGuard
from runner.types import Mode
from tests.fuzz.asgi import send
from tests.fuzz.oracles import event_loop

TOKENS = (
    b"\nPOST /step ",
    b"\nPOST /reset ",
    b"\nPOST /create",
    b"\nPOST /createEnv {}",
    b"\nPOST /maze/reset ",
    b"\nPOST /wordle/step ",
    b"\nGET /observation?id=0",
    b"\nGET /health",
    b'{"id":0,"action":"',
    b'"env_idx":0',
    b'"env_id":0',
    b'"data_idx":',
    b'"game":',
    b'"seed":',
)
ENVIRONMENTS = frozenset(DIALECTS) - {"SQLGym"}
"""SQLGym starts a process for each query, which takes too long here."""

STATUSES = {200, 404, 405, 422}
MAX_REQUESTS = 8


class _SameThread(Executor):
    """Runs at once what is submitted, so that an input always gives the same replies."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:  # noqa: ANN401
        future = Future[Any]()
        with catch_foreign(future.set_exception):
            future.set_result(fn(*args, **kwargs))
        return future


def check(data: bytes) -> None:
    head, *lines = data.split(b"\n")
    env, _, mode = head.decode("ascii", "replace").partition(" ")
    if env in ENVIRONMENTS:
        app = RequestGuard(_application(env, "compat" if mode == "compat" else "strict"))
        failures = _Failures()
        logging.getLogger("runner.serve").addHandler(failures)
        try:
            event_loop().run_until_complete(_send_all(app, lines[:MAX_REQUESTS], DIALECTS[env].text_errors))
        finally:
            logging.getLogger("runner.serve").removeHandler(failures)
        assert not failures.messages, failures.messages


class _Failures(logging.Handler):
    """Collects the logged failures of environments, which some servers hide in their replies."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


def _application(env: str, mode: Mode) -> ASGIApp:
    builder = environment_builder(env, mode)
    return EnvironmentApp(DIALECTS[env], builder, PoolOptions(_SameThread(), 3, 1e9)).application()


@cache
def environment_builder(env: str, mode: Mode) -> Callable[[], EmbeddedEnvironment]:
    return partial(plugins.load(plugins.ENVS, env), mode=mode)


async def _send_all(app: ASGIApp, lines: list[bytes], text_errors: bool) -> None:
    for line in lines:
        method, _, rest = line.partition(b" ")
        path, _, body = rest.partition(b" ")
        status, reply = await send(app, "POST" if method == b"POST" else "GET", path, body)
        if not (text_errors and status == 500):
            assert status in STATUSES, (status, reply)
            msgspec.json.decode(reply)
