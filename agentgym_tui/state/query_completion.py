"""Completion of a query: the fields or values that its end may become."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from agentgym_tui.safe_text import has_unsafe_chars
from agentgym_tui.state.query import quoted

if TYPE_CHECKING:
    from runner.query.fields import Field

MAX_OPTIONS: Final = 30
MAX_VALUE_CHARS: Final = 60
"""Maximum length of a value that is offered."""

_PIECE: Final = re.compile(r'"(?:[^"\\]|\\.)*"?|[^\s()"]+|[\s()]+', re.DOTALL)
_TERM: Final = re.compile(r"(?P<field>[A-Za-z_][A-Za-z_-]*)(?P<operator>>=|<=|[:><=])")
_LAST_VALUE: Final = re.compile(r'(?:^|,)("(?:[^"\\]|\\.)*|[^,"]*)$', re.DOTALL)


class Completion(NamedTuple):
    """What the end of a query may become.

    Attributes:
        start: where the completed part begins.
        options: texts that may replace the query from ``start`` on, the best one first; free of unsafe characters.
        best: the query with the first option; "" where nothing of the part was typed, or no option is known.
        field: the field to which the end of the query belongs; None before its name is complete.
    """

    start: int
    options: tuple[str, ...] = ()
    best: str = ""
    field: Field | None = None


def complete(text: str, fields: Mapping[str, Field], values_of: Callable[[str], Iterable[str]]) -> Completion:
    """Return the completion of a query.

    Args:
        text: the query up to the cursor.
        fields: the fields by name.
        values_of: returns the values of a field, as untrusted text.
    """
    start = _start_of_part(text)
    part = text[start:]
    if (term := _TERM.match(part)) is None:
        return _complete_name(text, start, part, fields)
    field = fields.get(term["field"].lower())
    value = _LAST_VALUE.search(part[term.end() :])
    if field is None or value is None or term["operator"] not in (":", "="):
        return Completion(len(text), field=field)
    return _complete_value(text, start + term.end() + value.start(1), field, values_of(field.name))


def _start_of_part(text: str) -> int:
    """Return where the last part of a query begins, after its minus signs; parts end at blanks outside of quotes."""
    start = 0
    for piece in _PIECE.finditer(text):
        if piece[0][0].isspace() or piece[0][0] in "()":
            start = piece.end()
    return start + len(text[start:]) - len(text[start:].lstrip("-"))


def _complete_name(text: str, start: int, part: str, fields: Mapping[str, Field]) -> Completion:
    typed = part.lower()
    names = [name for name in fields if name.startswith(typed)]
    options = tuple(f"{name}{'>' if fields[name].kind in ('number', 'duration') else ':'}" for name in names)
    best = text[:start] + options[0] if typed and options else ""
    return Completion(start, options, best, fields.get(typed))


def _complete_value(text: str, start: int, field: Field, values: Iterable[str]) -> Completion:
    typed = text[start:]
    in_quotes = typed.startswith('"')
    wanted = typed.lstrip('"').casefold()
    options: list[str] = []
    for value in values:
        if len(options) >= MAX_OPTIONS:
            break
        if value.casefold().startswith(wanted) and len(value) <= MAX_VALUE_CHARS and not has_unsafe_chars(value):
            option = quoted(value)
            options.append(f'"{option}"' if in_quotes and not option.startswith('"') else option)
    is_complete = len(options) == 1 and options[0].casefold() == typed.casefold()
    best = text[:start] + options[0] if options and not is_complete else ""
    return Completion(start, tuple(options), best, field)
