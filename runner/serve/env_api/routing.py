"""The routes of a server with their request fields, and the web application and OpenAPI document built from them.

Invalid fields get FastAPI's error responses, as on AgentGym's servers.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias, cast

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as StarletteRoute

Location: TypeAlias = Literal["body", "query"]
Values: TypeAlias = dict[str, Any]
JsonSchema: TypeAlias = dict[str, Any]

MAX_DIGITS = 4300
"""Maximum characters of an integer in a string; Python has the same limit."""
_MAX_ECHO_BYTES = 1 << 16

_INTEGER = re.compile(r"\s*[+-]?\d+(?:_\d+)*(?:\.0*)?\s*", re.ASCII)
_NULL = msgspec.Raw(b"null")
_EMPTY = msgspec.Raw(b"{}")
_TEXT_ERROR: JsonSchema = {
    "description": "The request failed; plain text, as from AgentGym's server",
    "content": {"text/plain": {"schema": {"type": "string"}}},
}
_FIELD_ERROR: JsonSchema = {
    "type": "object",
    "required": ["type", "loc", "msg"],
    "properties": {
        "type": {"type": "string"},
        "loc": {"type": "array", "items": {"type": ["string", "integer"]}},
        "msg": {"type": "string"},
        "input": {},
        "ctx": {"type": "object"},
    },
}
_VALIDATION_ERROR: JsonSchema = {
    "type": "object",
    "required": ["detail"],
    "properties": {"detail": {"type": "array", "items": _FIELD_ERROR}},
}


class RequestField(msgspec.Struct, frozen=True):
    """One field of a request.

    Attributes:
        required: whether the field must be present; if not, ``default`` replaces a missing value or null.
        choices: allowed strings; empty: any string. The handler of the request checks them.
    """

    name: str
    kind: Literal["integer", "string"] = "integer"
    required: bool = True
    default: int | None = None
    choices: tuple[str, ...] = ()


class FieldError(msgspec.Struct, frozen=True, omit_defaults=True):
    """Validation error of one field, with the keys and texts that FastAPI uses."""

    type: str
    loc: tuple[str | int, ...]
    msg: str
    input: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    ctx: dict[str, str] | None = None


class MalformedRequest(Exception):
    """Error: the body or the query of a request does not match its route."""

    published_error_type = "Malformed"

    def __init__(self, *errors: FieldError) -> None:
        super().__init__("malformed request")
        self.errors = errors


def decode_body(body: bytes) -> dict[str, object]:
    """Raises ``MalformedRequest`` if the body is empty, not JSON, or not an object."""
    payload = _decode_json(body) if body else None
    if payload is None:
        raise MalformedRequest(FieldError("missing", ("body",), "Field required", _NULL))
    if not isinstance(payload, dict):
        message = "Input should be a valid dictionary or object to extract fields from"
        raise MalformedRequest(FieldError("model_attributes_type", ("body",), message, _echo_input(payload)))
    return payload


def parse_payload(fields: Sequence[RequestField], payload: Mapping[str, object]) -> Values:
    """Ignores other members of the body. Raises ``MalformedRequest`` with all validation errors."""
    return parse_fields("body", fields, payload, _echo_input(payload))


def parse_fields(
    location: Location, fields: Sequence[RequestField], payload: Mapping[str, object], raw_payload: msgspec.Raw = _NULL
) -> Values:
    """Ignores other members of the body or query. Raises ``MalformedRequest`` with all validation errors."""
    values: Values = {}
    errors: list[FieldError] = []
    for field in fields:
        loc = (location, field.name)
        value = payload.get(field.name)
        if field.name not in payload and field.required:
            errors.append(FieldError("missing", loc, "Field required", raw_payload))
        elif value is None and not field.required:
            values[field.name] = field.default
        elif problem := _find_error(field, value):
            errors.append(FieldError(problem[0], loc, problem[1], _echo_input(value)))
        else:
            values[field.name] = _convert(field, value)
    if errors:
        raise MalformedRequest(*errors)
    return values


def _find_error(field: RequestField, value: object) -> tuple[str, str] | None:
    if field.kind == "string":
        return None if isinstance(value, str) else ("string_type", "Input should be a valid string")
    match value:
        case int():
            return None
        case float() if math.isfinite(value) and value.is_integer():
            return None
        case float():
            return "int_from_float", "Input should be a valid integer, got a number with a fractional part"
        case str() if len(value) > MAX_DIGITS:
            return "int_parsing_size", "Unable to parse input string as an integer, exceeded maximum size"
        case str() if _INTEGER.fullmatch(value):
            return None
        case str():
            return "int_parsing", "Input should be a valid integer, unable to parse string as an integer"
    return "int_type", "Input should be a valid integer"


def _convert(field: RequestField, value: Any) -> str | int:  # noqa: ANN401 - a value that ``_find_error`` accepts
    if field.kind == "string":
        return str(value)
    return int(value.partition(".")[0] if isinstance(value, str) else value)


def _decode_json(body: bytes) -> object:
    try:
        return msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        raise MalformedRequest(_json_error(body, str(exc))) from exc


def _json_error(body: bytes, problem: str) -> FieldError:
    """Return the error for invalid JSON, like FastAPI with the position and message of Python's decoder if known."""
    location = 0
    try:
        json.loads(body)
    except json.JSONDecodeError as exc:
        location, problem = exc.pos, exc.msg
    except (ValueError, RecursionError):
        pass
    return FieldError("json_invalid", ("body", location), "JSON decode error", _EMPTY, {"error": problem})


def _echo_input(value: object) -> msgspec.Raw:
    try:
        encoded = msgspec.json.encode(value)
    except RecursionError:
        return _NULL
    return msgspec.Raw(encoded) if len(encoded) <= _MAX_ECHO_BYTES else _NULL


Handler: TypeAlias = Callable[[Values], Awaitable[Response]]


class BodyVariant(NamedTuple):
    """Another body of a route: with the first of its own fields, and without the first of the route's fields."""

    handler: Handler
    fields: Sequence[RequestField]


class Route(NamedTuple):
    """One route of a server; ``variant`` is another body that it accepts, and requires ``body``.

    Attributes:
        body: fields of the JSON body; None: the route ignores the body, which must be JSON if the method is ``POST``.
    """

    method: Literal["GET", "POST"]
    path: str
    summary: str
    handler: Handler
    body: Sequence[RequestField] | None = None
    query: Sequence[RequestField] = ()
    variant: BodyVariant | None = None


def build_application(routes: Sequence[Route]) -> Starlette:
    """Unknown paths and methods get the same errors as in FastAPI."""
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
    handler = route.handler
    try:
        values = parse_fields("query", route.query, request.query_params)
        if route.body is not None:
            payload = decode_body(await request.body())
            fields, variant = route.body, route.variant
            if variant is not None and variant.fields[0].name in payload and fields[0].name not in payload:
                handler, fields = variant
            values |= parse_payload(fields, payload)
        elif route.method == "POST" and (body := await request.body()):
            _decode_json(body)
    except MalformedRequest as exc:
        return json_response({"detail": exc.errors}, 422)
    return await handler(values)


async def _http_error(request: Request, exc: Exception) -> Response:
    error = cast("HTTPException", exc)
    response = json_response({"detail": error.detail}, error.status_code)
    response.headers.update(error.headers or {})
    return response


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
