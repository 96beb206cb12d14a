"""Parsing and validation of request fields; invalid ones get FastAPI's error responses, as on AgentGym's servers."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import msgspec

Location: TypeAlias = Literal["body", "query"]
Values: TypeAlias = dict[str, Any]

MAX_DIGITS = 4300
"""Maximum characters of an integer in a string; Python has the same limit."""
_MAX_ECHO_BYTES = 1 << 16

_INTEGER = re.compile(r"\s*[+-]?\d+(?:_\d+)*(?:\.0*)?\s*", re.ASCII)
_NULL = msgspec.Raw(b"null")
_EMPTY = msgspec.Raw(b"{}")


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
        """Create the exception for one or more validation errors."""
        super().__init__("malformed request")
        self.errors = errors


def decode_body(body: bytes) -> dict[str, object]:
    """Return the members of a body, which must be a JSON object.

    Raises:
        MalformedRequest: the body is empty, not JSON, or not an object.
    """
    payload = _decode_json(body) if body else None
    if payload is None:
        raise MalformedRequest(FieldError("missing", ("body",), "Field required", _NULL))
    if not isinstance(payload, dict):
        message = "Input should be a valid dictionary or object to extract fields from"
        raise MalformedRequest(FieldError("model_attributes_type", ("body",), message, _echo_input(payload)))
    return payload


def check_ignored_body(body: bytes) -> None:
    """Check a body whose content is ignored: it must be empty or JSON.

    Raises:
        MalformedRequest: the body is not JSON.
    """
    if body:
        _decode_json(body)


def parse_payload(fields: Sequence[RequestField], payload: Mapping[str, object]) -> Values:
    """Return the values of these fields in a decoded body; ignore its other members.

    Raises:
        MalformedRequest: with all validation errors.
    """
    return parse_fields("body", fields, payload, _echo_input(payload))


def parse_fields(
    location: Location, fields: Sequence[RequestField], payload: Mapping[str, object], raw_payload: msgspec.Raw = _NULL
) -> Values:
    """Return the values of these fields in a decoded body or query; ignore other members.

    Raises:
        MalformedRequest: with all validation errors.
    """
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
    """Return the type and message of the validation error for a value; None if the value is valid."""
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
