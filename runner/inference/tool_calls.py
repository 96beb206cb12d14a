"""Tool calls of model messages in the OpenAI shape; quick to import, because formats of episodes need them, too.

What a server sends with a call beside the standard fields, such as a signature of its thoughts, stays with the call:
some servers reject a chat in which it is missing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from itertools import count
from math import isfinite
from typing import Any

import msgspec

from runner.util.json_accessors import as_dict, as_list, as_text, encode_json

MAX_TOOL_CALLS = 64
MAX_ID_CHARS = 64 << 10
"""Maximum length of the id of a call; some gateways put a signature of several KB into it."""
MAX_DEPTH = 64
"""Maximum nesting of a field that is kept; JSON that nests as deeply as it may be read cannot be written again."""

_FIELDS = frozenset({"id", "type", "function", "index"})
_FUNCTION_FIELDS = frozenset({"name", "arguments"})
_EMPTY: tuple[object, ...] = (None, "", [], {})
_PORTABLE_ID = re.compile(r"[A-Za-z0-9]{9}")


class CallPiece(msgspec.Struct, frozen=True):
    """A tool call, or a piece of one in a stream, as a server sent it.

    Attributes:
        index: place among the calls of the reply, if the server sent one.
        arguments: JSON text, in a stream a part of it.
        is_object: whether the arguments came as a JSON object instead of a text, so that they are complete.
        fields: what else the server sent with the call, without nulls, and empty if it nests too deeply.
        function_fields: what else the server sent in ``function``.
    """

    index: int | str | None
    id: str
    name: str
    arguments: str
    is_object: bool
    fields: dict[str, Any]
    function_fields: dict[str, Any]


def read_piece(value: object) -> CallPiece:
    """Values of a wrong type are missing."""
    call = as_dict(value)
    function, index, id = as_dict(call.get("function")), call.get("index"), as_text(call.get("id"))
    arguments = function.get("arguments")
    is_text = arguments is None or isinstance(arguments, str)  # some servers send an object instead
    return CallPiece(
        index if type(index) in (int, str) else None,
        id if len(id) <= MAX_ID_CHARS else "",
        as_text(function.get("name"))[:200],
        as_text(arguments) if is_text else encode_json(arguments).decode(),
        isinstance(arguments, dict),
        other_fields(call, _FIELDS),
        other_fields(function, _FUNCTION_FIELDS),
    )


def parse_tool_calls(value: object) -> list[dict[str, Any]]:
    """Calls without a function name are omitted."""
    return build_calls(piece for piece in map(read_piece, as_list(value)[:MAX_TOOL_CALLS]) if piece.name)


def build_calls(pieces: Iterable[CallPiece]) -> list[dict[str, Any]]:
    """Return complete calls in the OpenAI shape, with unique ids, because a tool result refers to its call by id."""
    calls = list(pieces)
    ids = unique_ids([call.id for call in calls])
    return [
        tool_call(number, id, call.name, call.arguments, call.fields, call.function_fields)
        for number, (id, call) in enumerate(zip(ids, calls, strict=True))
    ]


def unique_ids(ids: Sequence[str]) -> list[str]:
    """Return the ids of a reply's calls; a missing one, and one that an earlier call has, is made."""
    received, unique = set(ids), dict[str, None]()
    for number, id in enumerate(ids):
        if not id or id in unique:
            id = next(made for made in map(made_id, count(number)) if made not in received and made not in unique)
        unique[id] = None
    return list(unique)


def made_id(number: int) -> str:
    """Of nine letters and digits, since Mistral's servers accept no other id."""
    return f"call{number % 100_000:05}"


def portable_id(id: str) -> str:
    """Return an id of nine letters and digits for the id of a call that another server made."""
    return id if _PORTABLE_ID.fullmatch(id) else blake2b(id.encode(), digest_size=5).hexdigest()[:9]


def tool_call(
    number: int,
    id: str,
    name: str,
    arguments: str,
    fields: dict[str, Any] | None = None,
    function_fields: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Return a tool call in the OpenAI shape, other fields last; an empty id is replaced by one made of the number."""
    return {
        "id": id or made_id(number),
        "type": "function",
        "function": {"name": name[:200], "arguments": arguments or "{}", **(function_fields or {})},
        **(fields or {}),
    }


def plain_call(call: dict[str, Any]) -> dict[str, Any]:
    function = {name: value for name, value in as_dict(call.get("function")).items() if name in _FUNCTION_FIELDS}
    return {**{name: call[name] for name in ("id", "type") if name in call}, "function": function}


def calls_size(calls: Iterable[dict[str, Any]]) -> int:
    """Counts the arguments, and the other fields as JSON."""
    size = 0
    for call in calls:
        others = other_fields(call, _FIELDS), other_fields(call["function"], _FUNCTION_FIELDS)
        size += len(call["function"]["arguments"]) + sum(len(encode_json(fields)) for fields in others if fields)
    return size


def other_fields(value: dict[str, Any], known: frozenset[str]) -> dict[str, Any]:
    """Return what a message, a call or a function has besides its known fields; nothing if it nests too deeply."""
    if known.issuperset(value):  # as in nearly all pieces of a stream
        return {}
    others = ((key, each) for key, each in value.items() if key not in known and each not in _EMPTY)
    try:
        return {as_text(key): _writable(each, MAX_DEPTH) for key, each in others}
    except RecursionError:
        return {}


def _writable(value: Any, depth: int) -> Any:  # noqa: ANN401 - any JSON value
    """Escape lone surrogates, and drop infinity and NaN; raises ``RecursionError`` if the value nests too deeply."""
    match value:
        case dict() | list() if depth == 0:
            raise RecursionError
        case dict():
            return {as_text(key): _writable(each, depth - 1) for key, each in value.items()}
        case list():
            return [_writable(each, depth - 1) for each in value]
        case str():
            return as_text(value)
        case float() if not isfinite(value):
            return None
    return value
