"""Syntax of a query: words and terms, negation, ``OR`` and parentheses, parsed into a tree.

    query  = group ("OR" group)*        group = part+             part = ("-" | "NOT")* (term | "(" query ")")
    term   = field ":" value ("," value)* | field comparison value | word | "quoted words"

``AND`` may stand between the parts of a group. The parser accepts any text or names the place of its first error.
"""

from __future__ import annotations

import re
from typing import Literal, TypeAlias, get_args

import msgspec

from runner.errors import RunnerError
from runner.util.safe_values import escape_surrogates

MAX_CHARS = 4_000
MAX_PARTS = 200
"""Maximum number of words and terms; SQLite limits the depth of an expression."""
MAX_DEPTH = 30

Operator: TypeAlias = Literal[":", ">=", "<=", ">", "<", "="]


class QueryError(RunnerError):
    """A query that cannot be used; ``start`` and ``end`` are the place of the error in its text."""

    def __init__(self, message: str, start: int, end: int) -> None:
        super().__init__(message)
        self.start = start
        self.end = max(end, start + 1)


class Word(msgspec.Struct, frozen=True):
    """Text that must occur in the row, ignoring case."""

    text: str
    start: int = 0
    end: int = 0


class Term(msgspec.Struct, frozen=True):
    """A comparison of a field with one of several values; ``quoted`` has whether each value was quoted."""

    field: str
    operator: Operator
    values: tuple[str, ...]
    quoted: tuple[bool, ...]
    start: int = 0
    end: int = 0


class Not(msgspec.Struct, frozen=True):
    part: Node


class All(msgspec.Struct, frozen=True):
    """Without parts, true everywhere."""

    parts: tuple[Node, ...] = ()


class Any(msgspec.Struct, frozen=True):
    parts: tuple[Node, ...]


Node: TypeAlias = "Word | Term | Not | All | Any"

_TOKEN = re.compile(
    r"""\s*(?:
        (?P<open>\() | (?P<close>\))
      | (?P<minus>-(?=[^\s)]))
      | (?P<field>[A-Za-z_][A-Za-z_-]*)(?P<operator>:|>=|<=|>|<|=)
      | "(?P<quoted>(?:[^"\\]|\\.)*)(?P<end>"?)
      | (?P<word>[^\s()]+)
    )""",
    re.VERBOSE | re.DOTALL,
)
_VALUE = re.compile(r'"(?P<quoted>(?:[^"\\]|\\.)*)(?P<end>"?)|(?P<plain>[^\s(),"]*)', re.DOTALL)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_OPERATORS = get_args(Operator)


def parse(text: str) -> Node:
    """Return the tree of a query; an empty query is true everywhere.

    Raises ``QueryError`` if a quotation mark, a parenthesis or a value is missing, or the query is too long or too
    deep.
    """
    if len(text) > MAX_CHARS:
        raise QueryError(f"a query has at most {MAX_CHARS} characters", MAX_CHARS, len(text))
    return _Parser(escape_surrogates(text)).parse()


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._n_parts = 0

    def parse(self) -> Node:
        node = self._query(0)
        if match := self._peek():
            raise QueryError("this parenthesis closes none; remove it", match.start("close"), match.end())
        return node

    def _peek(self) -> re.Match[str] | None:
        return _TOKEN.match(self._text, self._at)

    def _query(self, depth: int) -> Node:
        if depth > MAX_DEPTH:
            raise QueryError(f"at most {MAX_DEPTH} parentheses inside one another", self._at, self._at)
        groups = [self._group(depth)]
        while (match := self._peek()) and match["word"] == "OR":
            self._require_part(groups[-1], match)
            self._at = match.end()
            groups.append(self._group(depth))
            self._require_part(groups[-1], match)
        return groups[0] if len(groups) == 1 else Any(tuple(groups))

    def _require_part(self, group: Node, match: re.Match[str]) -> None:
        if group == All():
            raise QueryError("OR needs a part on both sides", match.start("word"), match.end())

    def _group(self, depth: int) -> Node:
        parts: list[Node] = []
        while (match := self._peek()) and match["close"] is None and match["word"] != "OR":
            if match["word"] == "AND":
                self._at = match.end()
                continue
            parts.append(self._part(match, depth))
        return parts[0] if len(parts) == 1 else All(tuple(parts))

    def _part(self, match: re.Match[str], depth: int) -> Node:
        self._at = match.end()
        self._n_parts += 1
        if self._n_parts > MAX_PARTS:
            raise QueryError(f"a query has at most {MAX_PARTS} words and terms", match.start(), match.end())
        if match["minus"] or match["word"] == "NOT":
            if (negated := self._peek()) is None or negated["close"] or negated["word"] in ("OR", "AND"):
                raise QueryError("NOT needs a part after it", match.start(), match.end())
            if depth > MAX_DEPTH:
                raise QueryError(f"at most {MAX_DEPTH} negations inside one another", match.start(), match.end())
            return Not(self._part(negated, depth + 1))
        if match["open"]:
            return self._parenthesis(match, depth)
        if match["field"]:
            return self._term(match)
        if match["quoted"] is not None:
            self._require_end(match)
            return Word(_unescaped(match["quoted"]), match.start("quoted") - 1, match.end())
        return Word(match["word"], match.start("word"), match.end())

    def _parenthesis(self, match: re.Match[str], depth: int) -> Node:
        node = self._query(depth + 1)
        closing = self._peek()
        if closing is None:
            raise QueryError("this parenthesis is not closed; add )", match.start("open"), match.end())
        self._at = closing.end()
        return node

    def _term(self, match: re.Match[str]) -> Term:
        values, quoted = [], []
        while True:
            value = _VALUE.match(self._text, self._at)
            if value is None or not value[0]:
                raise QueryError(f"{match['field']}{match['operator']} needs a value", match.start("field"), self._at)
            self._require_end(value)
            self._at = value.end()
            quoted.append(value["quoted"] is not None)
            values.append(value["plain"] if value["quoted"] is None else _unescaped(value["quoted"]))
            if self._text[self._at : self._at + 1] != ",":
                break
            self._at += 1
        operator = next(known for known in _OPERATORS if known == match["operator"])
        return Term(match["field"].lower(), operator, tuple(values), tuple(quoted), match.start("field"), self._at)

    def _require_end(self, match: re.Match[str]) -> None:
        if match["quoted"] is not None and not match["end"]:
            raise QueryError("this quotation mark is not closed", match.start("quoted") - 1, match.end())


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(r"\1", text)
