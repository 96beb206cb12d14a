"""The routes of a server with their request fields; the web application and the OpenAPI document built from them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias, cast

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as StarletteRoute

from runner.util.display_text import one_line

Values: TypeAlias = dict[str, Any]
"""The fields of a valid request, by name."""
Handler: TypeAlias = Callable[[Values], Awaitable[Response]]
Fields: TypeAlias = type[msgspec.Struct]
"""The fields of a body or query; numbers are of the type ``Number``, and all others are texts."""
Number: TypeAlias = int | bool
"""AgentGym's servers take ``true`` for 1."""
JsonSchema: TypeAlias = dict[str, Any]


class Problem(msgspec.Struct, frozen=True):
    type: str
    loc: tuple[str, ...]
    msg: str


class MalformedRequest(msgspec.Struct, frozen=True):
    """The reply to a request that does not match its route, in the form of AgentGym's servers."""

    detail: list[Problem]


class Variant(NamedTuple):
    """Another body of a route: with the first of its own fields, and without the first of the route's fields."""

    handler: Handler
    fields: Fields


class Route(NamedTuple):
    """One route of a server.

    Attributes:
        fields: fields of the JSON body of a ``POST``, or of the query of a ``GET``; None: the route ignores both, but
            a body must be JSON.
    """

    method: Literal["GET", "POST"]
    path: str
    summary: str
    handler: Handler
    fields: Fields | None = None
    variant: Variant | None = None


def build_application(routes: Sequence[Route]) -> Starlette:
    """Unknown paths and methods get ``{"detail": text}``."""
    by_path: dict[str, dict[str, Route]] = {}
    for route in routes:
        by_path.setdefault(route.path, {})[route.method] = route
    # one handler per path: only then does the error for another method list all allowed methods
    handlers = [StarletteRoute(path, partial(_handle, by), methods=[*by]) for path, by in by_path.items()]
    app = Starlette(routes=handlers, exception_handlers={HTTPException: _http_error})
    app.router.redirect_slashes = False
    return app


def json_response(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")


async def _handle(by_method: Mapping[str, Route], request: Request) -> Response:
    route = by_method["GET" if request.method == "HEAD" else request.method]
    try:
        handler, values = _parse(route, request.query_params, await request.body())
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        location = "query" if route.method == "GET" else "body"
        return json_response(MalformedRequest([Problem("invalid", (location,), one_line(str(exc)))]), 422)
    return await handler(values)


def _parse(route: Route, query: Mapping[str, str], body: bytes) -> tuple[Handler, Values]:
    """Other members of the query or body are ignored. Text counts as a number if it is one, as on AgentGym's server."""
    handler, fields, payload = route.handler, route.fields, cast("object", dict(query))
    if route.method == "POST":
        payload = msgspec.json.decode(body) if body or fields else None
    if fields is None:
        return handler, {}
    if route.variant is not None and isinstance(payload, dict):
        own, other = (kind.__struct_fields__[0] for kind in (fields, route.variant.fields))
        if other in payload and own not in payload:
            handler, fields = route.variant
    values = msgspec.structs.asdict(msgspec.convert(payload, fields, strict=False))
    return handler, {name: int(value) if isinstance(value, bool) else value for name, value in values.items()}


async def _http_error(request: Request, exc: Exception) -> Response:
    error = cast("HTTPException", exc)
    response = json_response({"detail": error.detail}, error.status_code)
    response.headers.update(error.headers or {})
    return response


def openapi_document(title: str, version: str, routes: Sequence[Route], *, text_errors: bool) -> JsonSchema:
    """Return the OpenAPI 3.1 document of the routes; ``text_errors``: errors are plain text with status 500."""
    (malformed,), schemas = msgspec.json.schema_components(
        [MalformedRequest], ref_template="#/components/schemas/{name}"
    )
    paths: dict[str, JsonSchema] = {}
    for route in routes:
        responses = {"200": _response("The requested data", {})}
        if route.method == "POST" or route.fields is not None:
            responses["422"] = _response("A malformed request", malformed)
        if text_errors:
            responses["500"] = _response("A request that failed", {"type": "string"}, "text/plain")
        operation = {"summary": route.summary, "responses": responses, **_request_schema(route)}
        paths.setdefault(route.path, {})[route.method.lower()] = operation
    info = {"title": title, "version": version}
    return {"openapi": "3.1.0", "info": info, "paths": paths, "components": {"schemas": schemas}}


def _request_schema(route: Route) -> JsonSchema:
    schema = _fields_schema(route.fields) if route.fields else {}
    if route.method == "GET":
        parameters = [
            {"name": name, "in": "query", "required": True, "schema": kind}
            for name, kind in schema.get("properties", {}).items()
        ]
        return {"parameters": parameters}
    if route.fields and route.variant:
        without_own = {"not": {"required": [route.fields.__struct_fields__[0]]}}
        schema = {"anyOf": [schema, {**_fields_schema(route.variant.fields), **without_own}]}
    content = {"application/json": {"schema": schema}}
    return {"requestBody": {"required": route.fields is not None, "content": content}}


def _fields_schema(fields: Fields) -> JsonSchema:
    (schema,) = msgspec.json.schema(fields)["$defs"].values()
    return cast(JsonSchema, schema)


def _response(description: str, schema: JsonSchema, kind: str = "application/json") -> JsonSchema:
    return {"description": description, "content": {kind: {"schema": schema}}}
