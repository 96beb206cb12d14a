"""The routes of a server: the web application and the OpenAPI document that are built from them."""

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

from runner.serve.env_api.request_fields import (
    MalformedRequest,
    RequestField,
    Values,
    check_ignored_body,
    decode_body,
    parse_fields,
    parse_payload,
)

Handler: TypeAlias = Callable[[Values], Awaitable[Response]]


class BodyVariant(NamedTuple):
    """Another body of a route with its own handler.

    It applies to bodies with the first of its fields and without the first of the route's fields.
    """

    handler: Handler
    fields: Sequence[RequestField]


class Route(NamedTuple):
    """One route of a server.

    Attributes:
        body: fields of the JSON body; None: the route ignores the body, which must be JSON if the method is ``POST``.
        query: fields of the query.
        variant: another body that the route accepts, if any; requires ``body``.
    """

    method: Literal["GET", "POST"]
    path: str
    summary: str
    handler: Handler
    body: Sequence[RequestField] | None = None
    query: Sequence[RequestField] = ()
    variant: BodyVariant | None = None


def build_application(routes: Sequence[Route]) -> Starlette:
    """Build the web application of these routes; unknown paths and methods get the same errors as in FastAPI."""
    by_path: dict[str, dict[str, Route]] = {}
    for route in routes:
        by_path.setdefault(route.path, {})[route.method] = route
    # one handler per path: only then does the error for another method list all allowed methods
    handlers = [StarletteRoute(path, partial(_handle, by), methods=[*by]) for path, by in by_path.items()]
    app = Starlette(routes=handlers, exception_handlers={HTTPException: _http_error})
    app.router.redirect_slashes = False
    return app


def json_response(value: object, status: int = 200) -> Response:
    """Return a response with a value encoded as JSON."""
    return Response(msgspec.json.encode(value), status, media_type="application/json")


async def _handle(by_method: Mapping[str, Route], request: Request) -> Response:
    route = by_method["GET" if request.method == "HEAD" else request.method]
    handler = route.handler
    try:
        values = parse_fields("query", route.query, request.query_params)
        if route.body is not None:
            payload = decode_body(await request.body())
            fields, variant = route.body, route.variant
            if variant is not None and variant.fields[0].name in payload and fields[0].name not in payload:
                handler, fields = variant
            values |= parse_payload(fields, payload)
        elif route.method == "POST":
            check_ignored_body(await request.body())
    except MalformedRequest as exc:
        return json_response({"detail": exc.errors}, 422)
    return await handler(values)


async def _http_error(request: Request, exc: Exception) -> Response:
    error = cast("HTTPException", exc)
    response = json_response({"detail": error.detail}, error.status_code)
    response.headers.update(error.headers or {})
    return response


JsonSchema: TypeAlias = dict[str, Any]


def openapi_document(title: str, version: str, routes: Sequence[Route], *, text_errors: bool) -> JsonSchema:
    """Return the OpenAPI 3.1 document of the routes; ``text_errors``: errors are plain text with status 500."""
    paths: dict[str, JsonSchema] = {}
    for route in routes:
        operation = _operation(route)
        if text_errors:
            operation["responses"]["500"] = _TEXT_ERROR
        paths.setdefault(route.path, {})[route.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": version},
        "paths": paths,
        "components": {"schemas": {"HTTPValidationError": _VALIDATION_ERROR}},
    }


def _operation(route: Route) -> JsonSchema:
    operation: JsonSchema = {"summary": route.summary, "responses": {"200": _response_schema("The requested data", {})}}
    if route.query:
        operation["parameters"] = [
            {"name": field.name, "in": "query", "required": field.required, "schema": _field_schema(field)}
            for field in route.query
        ]
    if route.body is not None:
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": _body_schema(route.body, route.variant)}},
        }
    elif route.method == "POST":
        operation["requestBody"] = {"required": False, "content": {"application/json": {"schema": {}}}}
    if route.query or route.method == "POST":
        reference = {"$ref": "#/components/schemas/HTTPValidationError"}
        operation["responses"]["422"] = _response_schema("A malformed request", reference)
    return operation


def _body_schema(body: Sequence[RequestField], variant: BodyVariant | None) -> JsonSchema:
    if variant is None:
        return _object_schema(body)
    without_first_field = {"not": {"required": [body[0].name]}}
    return {"anyOf": [_object_schema(body), {**_object_schema(variant.fields), **without_first_field}]}


def _object_schema(fields: Sequence[RequestField]) -> JsonSchema:
    return {
        "type": "object",
        "properties": {field.name: _field_schema(field) for field in fields},
        "required": [field.name for field in fields if field.required],
    }


def _field_schema(field: RequestField) -> JsonSchema:
    if field.choices:
        return {"type": field.kind, "enum": list(field.choices)}
    return {"type": field.kind} if field.required else {"type": [field.kind, "null"], "default": field.default}


def _response_schema(description: str, schema: JsonSchema) -> JsonSchema:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


_TEXT_ERROR: JsonSchema = {
    "description": "The request failed; plain text, as from AgentGym's server",
    "content": {"text/plain": {"schema": {"type": "string"}}},
}


_VALIDATION_ERROR: JsonSchema = {
    "type": "object",
    "required": ["detail"],
    "properties": {
        "detail": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["type", "loc", "msg"],
                "properties": {
                    "type": {"type": "string"},
                    "loc": {"type": "array", "items": {"type": ["string", "integer"]}},
                    "msg": {"type": "string"},
                    "input": {},
                    "ctx": {"type": "object"},
                },
            },
        }
    },
}
