"""Requests to our environment servers, in AgentGym's protocol and in createEnv's.

The input is a line with the environment and the mode, then one line ``METHOD PATH BODY`` per request.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import cache, partial
from typing import Any
from unittest.mock import patch

import msgspec
from starlette.types import ASGIApp

from runner import plugins
from runner.envs.base import EmbeddedEnvironment
from runner.serve.env_api import DIALECTS, EnvironmentApp
from runner.serve.env_api import pool as instance_pool
from runner.serve.env_api.pool import InstancePool
from runner.serve.request_guard import guard_app
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
        future.set_result(fn(*args, **kwargs))
        return future


def check(data: bytes) -> None:
    head, *lines = data.split(b"\n")
    env, _, mode = head.decode("ascii", "replace").partition(" ")
    if env in ENVIRONMENTS:
        app = guard_app(_application(env, "compat" if mode == "compat" else "strict"))
        with patch.object(instance_pool, "log_failure", _report_failure):  # replies of some servers hide the failure
            event_loop().run_until_complete(_send_all(app, lines[:MAX_REQUESTS], DIALECTS[env].text_errors))


def _report_failure(logger: object, operation: str) -> Callable[[BaseException], None]:
    def report(exc: BaseException) -> None:
        raise AssertionError(f"{operation} failed") from exc

    return report


def _application(env: str, mode: Mode) -> ASGIApp:
    build = environment_builder(env, mode)
    pool = InstancePool(build, limit=3, idle_s=1e9)
    return EnvironmentApp(DIALECTS[env], _sample(env, mode), pool, _SameThread()).application()


@cache
def _sample(env: str, mode: Mode) -> EmbeddedEnvironment:
    return environment_builder(env, mode)()


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
