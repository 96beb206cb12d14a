"""What a request has to hold, and what a malformed one is answered: both as FastAPI, which AgentGym's servers use."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import msgspec

Place: TypeAlias = Literal["body", "query"]
Values: TypeAlias = dict[str, Any]

MAX_DIGITS = 4300
"""Longer numbers written as texts are not read, as Python itself refuses to."""
_MAX_ECHO = 1 << 16

_INTEGER = re.compile(r"\s*[+-]?\d+(?:_\d+)*(?:\.0*)?\s*", re.ASCII)
_NULL = msgspec.Raw(b"null")
_EMPTY = msgspec.Raw(b"{}")


class Field(msgspec.Struct, frozen=True):
    """One field of a request.

    Attributes:
        required: one that is not may also be null, and is then ``default``.
        one_of: the texts it may be, where not every text will do; for whoever uses the value to check.
    """

    name: str
    kind: Literal["integer", "string"] = "integer"
    required: bool = True
    default: int | None = None
    one_of: tuple[str, ...] = ()


class Problem(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is wrong with one field, in FastAPI's words."""

    type: str
    loc: tuple[str | int, ...]
    msg: str
    input: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    ctx: dict[str, str] | None = None


class Malformed(Exception):
    """A request that is not as its route wants it."""

    def __init__(self, *problems: Problem) -> None:
        """Keep what is wrong with it."""
        super().__init__("malformed request")
        self.problems = problems


def read_body(fields: Sequence[Field], body: bytes) -> Values:
    """The values of a JSON body; fields that are not asked for are passed over.

    Raises:
        Malformed: with everything that is wrong.
    """
    sent = _decoded(body) if body else None
    if sent is None:
        raise Malformed(Problem("missing", ("body",), "Field required", _NULL))
    if not isinstance(sent, dict):
        wanted = "Input should be a valid dictionary or object to extract fields from"
        raise Malformed(Problem("model_attributes_type", ("body",), wanted, _echo(sent)))
    return read_fields("body", fields, sent, _echo(sent))


def read_fields(
    place: Place, fields: Sequence[Field], sent: Mapping[str, object], whole: msgspec.Raw = _NULL
) -> Values:
    """The values of ``fields`` among those that were sent.

    Raises:
        Malformed: with everything that is wrong.
    """
    values: Values = {}
    problems: list[Problem] = []
    for field in fields:
        loc = (place, field.name)
        value = sent.get(field.name)
        if field.name not in sent and field.required:
            problems.append(Problem("missing", loc, "Field required", whole))
        elif value is None and not field.required:
            values[field.name] = field.default
        elif problem := _problem(field, value):
            problems.append(Problem(problem[0], loc, problem[1], _echo(value)))
        else:
            values[field.name] = _converted(field, value)
    if problems:
        raise Malformed(*problems)
    return values


def _problem(field: Field, value: object) -> tuple[str, str] | None:
    """The type and the words of what is wrong with a value, None where it can be used."""
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


def _converted(field: Field, value: Any) -> str | int:  # noqa: ANN401 - what ``_problem`` found nothing wrong with
    if field.kind == "string":
        return str(value)
    return int(value.partition(".")[0] if isinstance(value, str) else value)


def _decoded(body: bytes) -> object:
    try:
        return msgspec.json.decode(body)
    except (msgspec.MsgspecError, RecursionError) as exc:
        raise Malformed(_not_json(body, str(exc))) from exc


def _not_json(body: bytes, problem: str) -> Problem:
    """Where and why a body is no JSON; the words are those of Python's own reader where it has any."""
    place = 0
    try:
        json.loads(body)
    except json.JSONDecodeError as exc:
        place, problem = exc.pos, exc.msg
    except (ValueError, RecursionError):
        pass
    return Problem("json_invalid", ("body", place), "JSON decode error", _EMPTY, {"error": problem})


def _echo(value: object) -> msgspec.Raw:
    """A value that was sent, encoded to be sent back; null where it is large, or nested too deeply to be encoded."""
    try:
        encoded = msgspec.json.encode(value)
    except RecursionError:
        return _NULL
    return msgspec.Raw(encoded) if len(encoded) <= _MAX_ECHO else _NULL
