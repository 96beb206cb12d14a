"""Routes, what they take, and the forms of what they answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Literal, NamedTuple, TypeAlias, cast

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from runner.serve.env_api.fields import Field, Malformed, Values, read_body, read_fields

Handler: TypeAlias = Callable[[Values], Awaitable[Response]]


class Endpoint(NamedTuple):
    """One route.

    Attributes:
        body: the fields of its JSON body; None: it takes none and ignores what is sent.
        query: its query parameters.
    """

    method: Literal["GET", "POST"]
    path: str
    summary: str
    handler: Handler
    body: Sequence[Field] | None = None
    query: Sequence[Field] = ()


def application(endpoints: Sequence[Endpoint]) -> Starlette:
    """An application of these routes, with FastAPI's words for requests that fit none of them."""
    routes = [Route(each.path, partial(_answered, each), methods=[each.method]) for each in endpoints]
    app = Starlette(routes=routes, exception_handlers={HTTPException: _refused})
    app.router.redirect_slashes = False
    return app


def json_reply(value: object, status: int = 200) -> Response:
    """A value as JSON."""
    return Response(msgspec.json.encode(value), status, media_type="application/json")


async def _answered(endpoint: Endpoint, request: Request) -> Response:
    try:
        values = read_fields("query", endpoint.query, request.query_params)
        if endpoint.body is not None:
            values |= read_body(endpoint.body, await request.body())
    except Malformed as exc:
        return json_reply({"detail": exc.problems}, 422)
    return await endpoint.handler(values)


async def _refused(request: Request, exc: Exception) -> Response:
    refusal = cast(HTTPException, exc)
    reply = json_reply({"detail": refusal.detail}, refusal.status_code)
    reply.headers.update(refusal.headers or {})
    return reply
