"""Matching of rows in memory: a query becomes a function of a row's values."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import cache
from typing import TypeAlias

from runner.query.fields import (
    NONE,
    Field,
    GetValue,
    Lookup,
    Value,
    ascii_lower,
    check_term,
    has_wildcards,
    number_range,
    point_in_time,
)
from runner.query.syntax import All, Node, Not, QueryError, Term, Word

Matches: TypeAlias = Callable[[GetValue, str], bool]
"""Returns whether a row matches: its values by field, and its text, with ASCII letters in lower case, for words."""

ID = "id"
"""Field with the id that lookups return."""


def compile_query(
    node: Node, fields: Mapping[str, Field], *, now: datetime, lookups: Mapping[str, Lookup] | None = None
) -> Matches:
    """Return the function that matches rows.

    Args:
        node: the query.
        fields: the fields of the rows by name.
        now: the time to which ages refer.
        lookups: by name of a field of the kind ``lookup``, what finds its rows.

    Raises:
        QueryError: a field, an operator or a value is invalid.
    """
    return _compile(node, fields, now, lookups or {})


def _compile(node: Node, fields: Mapping[str, Field], now: datetime, lookups: Mapping[str, Lookup]) -> Matches:
    match node:
        case Word():
            needle = ascii_lower(node.text)
            return lambda get, text: needle in text
        case Not():
            part = _compile(node.part, fields, now, lookups)
            return lambda get, text: not part(get, text)
        case Term():
            return _compile_term(node, check_term(node, fields, now), now, lookups)
    parts = [_compile(part, fields, now, lookups) for part in node.parts]
    combine = all if isinstance(node, All) else any
    return lambda get, text: combine(part(get, text) for part in parts)


def _compile_term(term: Term, field: Field, now: datetime, lookups: Mapping[str, Lookup]) -> Matches:
    name = field.name
    match field.kind:
        case "number" | "duration":
            ranges = [number_range(field, term, value) for value in term.values]
            return lambda get, text: isinstance(value := get(name), int | float) and any(value in r for r in ranges)
        case "since":
            since = min(point_in_time(term, value, now) for value in term.values)
            return lambda get, text: isinstance(value := get(name), datetime) and value >= since
        case "until":
            until = max(point_in_time(term, value, now) for value in term.values)
            return lambda get, text: isinstance(value := get(name), datetime) and value <= until
        case "lookup":
            ids = find_ids(term, lookups)
            return lambda get, text: get(ID) in ids
    tests = [_text_test(value, field, quoted) for value, quoted in zip(term.values, term.quoted, strict=True)]
    return lambda get, text: any(test(get(name)) for test in tests)


def find_ids(term: Term, lookups: Mapping[str, Lookup]) -> frozenset[str]:
    """Return the ids of the rows that a term of the kind ``lookup`` finds; raises ``QueryError`` if none can."""
    lookup = lookups.get(term.field)
    if lookup is None:
        raise QueryError(f"{term.field} cannot be searched here", term.start, term.end)
    values = zip(term.values, term.quoted, strict=True)
    return frozenset(id for value, quoted in values for id in lookup(value, quoted))


def _text_test(value: str, field: Field, quoted: bool) -> Callable[[Value], bool]:
    wanted = ascii_lower(value)
    if wanted == NONE and not quoted:
        return lambda found: found is None or found == ""
    if has_wildcards(value) and not quoted:
        pattern = glob_pattern(wanted)
        return lambda found: pattern.fullmatch(_lower(found)) is not None
    if field.kind == "id":
        return lambda found: _lower(found).startswith(wanted)
    return lambda found: _lower(found) == wanted


def _lower(value: Value) -> str:
    if value is None:
        return ""
    return ascii_lower(value if isinstance(value, str) else str(value))


@cache
def glob_pattern(glob: str) -> re.Pattern[str]:
    """Return the pattern of a text with ``*`` for any characters and ``?`` for one."""
    parts = re.split(r"([*]+|\?)", glob)
    return re.compile("".join({"*": ".*", "?": "."}.get(part[:1], re.escape(part)) for part in parts), re.DOTALL)
