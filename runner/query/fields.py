"""Fields of a query: their kinds, what the values of a term are compared with, and the matching of rows in memory.

A row of any kind can be filtered: each list names its fields and gives their values. Case is ignored in ASCII letters,
as SQLite does, so that a query finds the same in memory and in the index.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache, lru_cache
from typing import Final, Literal, TypeAlias, TypeVar

import msgspec

from runner.plugins import closest_name
from runner.query.syntax import All, Node, Not, QueryError, Term, Word

Kind: TypeAlias = Literal["text", "id", "number", "duration", "since", "until", "lookup"]
"""What a field is compared as.

``text``: whole, with ``*`` and ``?`` as wildcards. ``id``: its beginning. ``number``: with comparisons and ranges.
``duration``: a number of seconds, also as ``90s`` or ``2m``. ``since``, ``until``: a time or an age such as ``2h``.
``lookup``: ids of the rows that another source finds for the value, such as a full-text index.
"""
Value: TypeAlias = str | float | bool | datetime | None
Row = TypeVar("Row")
GetValue: TypeAlias = Callable[[Row], Value | tuple[Value, ...]]
"""Returns the value of a field of a row; several values, one of which must match, as a tuple."""
Lookup: TypeAlias = Callable[[str, bool], Iterable[str]]
"""Returns the ids of the rows that match a value; the second argument is whether the value was quoted."""

NONE = "none"
"""Value that stands for a missing one, e.g. ``model:none``."""


class Field(msgspec.Struct, frozen=True, kw_only=True):
    """A field of a kind of row; ``values`` are offered for completion."""

    name: str
    kind: Kind
    description: str
    values: tuple[str, ...] = ()


class Range(msgspec.Struct, frozen=True):
    """Numbers from ``low`` to ``high``; a limit that is not included is open, one that is None does not exist."""

    low: float | None = None
    high: float | None = None
    low_open: bool = False
    high_open: bool = False

    def __contains__(self, value: float) -> bool:
        if self.low is not None and (value < self.low or (self.low_open and value == self.low)):
            return False
        return self.high is None or not (value > self.high or (self.high_open and value == self.high))


Matches: TypeAlias = Callable[[Row], bool]

N_CACHED: Final = 500
"""Number of different texts of a field for which the result of a test is kept."""

ID = "id"
"""Field with the id that lookups return."""
_COMPARED = ("number", "duration")
_AGE = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,6})?)([smhdw])", re.ASCII)
_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_NUMBER = re.compile(r"-?(?:[0-9]{1,18}(?:\.[0-9]{0,18})?|\.[0-9]{1,18})(?:[eE][+-]?[0-9]{1,2})?", re.ASCII)
_LOWER = {upper: upper + 32 for upper in range(ord("A"), ord("Z") + 1)}


def check_term(term: Term, fields: Mapping[str, Field], now: datetime) -> Field:
    """Raises ``QueryError`` if the field is unknown, or the operator or a value does not fit it."""
    field = fields.get(term.field)
    if field is None:
        close = closest_name(term.field, fields)
        known = f"did you mean {close}" if close else f"fields are {', '.join(fields)}"
        message = f"there is no field {term.field} ({known}); to find the text itself, put it in quotation marks"
        raise QueryError(message, term.start, term.end)
    if field.kind in _COMPARED:
        for value in term.values:
            number_range(field, term, value)
    elif term.operator not in (":", "="):
        raise QueryError(f"{field.name} is compared with : and not with {term.operator}", term.start, term.end)
    elif field.kind in ("since", "until"):
        for value in term.values:
            point_in_time(term, value, now)
    return field


def number_range(field: Field, term: Term, value: str) -> Range:
    """Return the numbers that a value of a term stands for: one, those beyond it, or a range such as ``3..5``."""
    low, separator, high = value.partition("..")
    if separator and term.operator in (":", "="):
        return Range(_number(field, term, low) if low else None, _number(field, term, high) if high else None)
    number = _number(field, term, value)
    match term.operator:
        case ">" | ">=":
            return Range(low=number, low_open=term.operator == ">")
        case "<" | "<=":
            return Range(high=number, high_open=term.operator == "<")
    return Range(number, number)


def _number(field: Field, term: Term, text: str) -> float:
    if field.kind == "duration" and (age := _AGE.fullmatch(text)):
        return float(age[1]) * _UNITS_S[age[2]]
    if _NUMBER.fullmatch(text) is None:
        expected = "a number of seconds, such as 90, 90s or 2m" if field.kind == "duration" else "a number"
        raise QueryError(f"{field.name} needs {expected}, not {text[:40]!r}", term.start, term.end)
    return float(text)


def point_in_time(term: Term, value: str, now: datetime) -> datetime:
    """Return the time that an age such as ``2h``, a date, or an RFC 3339 time stands for; without a zone it is UTC."""
    if age := _AGE.fullmatch(value):
        try:
            return now - timedelta(seconds=float(age[1]) * _UNITS_S[age[2]])
        except OverflowError:
            return datetime.min.replace(tzinfo=UTC)
    try:
        at = datetime.fromisoformat(value)
    except ValueError as exc:
        message = f"{term.field} needs an age such as 30m, 2h or 3d, or a time such as 2026-11-26 or 2026-11-26T14:30"
        raise QueryError(message, term.start, term.end) from exc
    return at.replace(tzinfo=UTC) if at.tzinfo is None else at


def ascii_lower(text: str) -> str:
    return text.lower() if text.isascii() else text.translate(_LOWER)


def has_wildcards(value: str) -> bool:
    """Applies to values that were not quoted."""
    return "*" in value or "?" in value


def compile_query(
    node: Node,
    fields: Mapping[str, Field],
    *,
    getter: Callable[[str], GetValue[Row]],
    word_test: Callable[[str], Matches[Row]],
    now: datetime,
    lookups: Mapping[str, Lookup] | None = None,
) -> Matches[Row]:
    """Return the function that matches rows; ages refer to ``now``.

    ``getter`` returns what reads a field of a row, ``word_test`` what finds a word in it; ``lookups`` find the rows of
    fields of the kind ``lookup``, by name.
    """

    def compiled(node: Node) -> Matches[Row]:
        match node:
            case Word():
                return word_test(node.text)
            case Not():
                part = compiled(node.part)
                return lambda row: not part(row)
            case Term():
                field = check_term(node, fields, now)
                if field.kind == "lookup":
                    ids, read_id = find_ids(node, lookups or {}), getter(ID)
                    return lambda row: read_id(row) in ids
                test, read = _value_test(node, field, now), getter(field.name)

                def matches(row: Row) -> bool:
                    value = read(row)
                    return any(map(test, value)) if isinstance(value, tuple) else test(value)

                return matches
        return _combined([compiled(part) for part in node.parts], is_any=not isinstance(node, All))

    return compiled(node)


def _combined(parts: Sequence[Matches[Row]], *, is_any: bool) -> Matches[Row]:
    """Return what matches if any part does, or all parts; a loop takes half the time of ``any`` with a generator."""

    def matches(row: Row) -> bool:
        for part in parts:
            if part(row) is is_any:
                return is_any
        return not is_any

    return matches


def _value_test(term: Term, field: Field, now: datetime) -> Callable[[Value], bool]:
    match field.kind:
        case "number" | "duration":
            ranges = [number_range(field, term, value) for value in term.values]
            return lambda value: isinstance(value, int | float) and any(value in each for each in ranges)
        case "since":
            since = min(point_in_time(term, value, now) for value in term.values)
            return lambda value: isinstance(value, datetime) and value >= since
        case "until":
            until = max(point_in_time(term, value, now) for value in term.values)
            return lambda value: isinstance(value, datetime) and value <= until
    tests = [text_test(value, field, quoted) for value, quoted in zip(term.values, term.quoted, strict=True)]
    test = tests[0] if len(tests) == 1 else lambda value: any(test(value) for test in tests)
    return test if field.kind == "id" else lru_cache(N_CACHED, typed=True)(test)  # most rows have one of a few texts


def find_ids(term: Term, lookups: Mapping[str, Lookup]) -> frozenset[str]:
    """Raises ``QueryError`` if no lookup can find the ids of the term."""
    lookup = lookups.get(term.field)
    if lookup is None:
        raise QueryError(f"{term.field} cannot be searched here", term.start, term.end)
    values = zip(term.values, term.quoted, strict=True)
    return frozenset(id for value, quoted in values for id in lookup(value, quoted))


def text_test(value: str, field: Field, quoted: bool) -> Callable[[Value], bool]:
    """Return what tests a text against a value of a term; ``quoted``: its wildcards stand for themselves."""
    wanted = ascii_lower(value)
    if wanted == NONE and not quoted:
        return lambda found: found is None or found == ""
    if has_wildcards(value) and not quoted:
        pattern = glob_pattern(wanted)
        return lambda found: found is not None and pattern.fullmatch(_lower(found)) is not None
    if field.kind == "id":
        return lambda found: found is not None and _lower(found).startswith(wanted)
    return lambda found: found is not None and _lower(found) == wanted


def _lower(value: str | float | datetime) -> str:
    return ascii_lower(value if isinstance(value, str) else str(value))


@cache
def glob_pattern(glob: str) -> re.Pattern[str]:
    parts = re.split(r"([*]+|\?)", glob)
    return re.compile("".join({"*": ".*", "?": "."}.get(part[:1], re.escape(part)) for part in parts), re.DOTALL)
