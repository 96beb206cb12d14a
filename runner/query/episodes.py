"""Queries of stored episodes: their fields, and the SQL condition on the index."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

from runner.errors import ConfigError
from runner.query.fields import (
    NONE,
    Field,
    Lookup,
    Range,
    ascii_lower,
    check_term,
    find_ids,
    has_wildcards,
    number_range,
    point_in_time,
    text_test,
)
from runner.query.syntax import All, Any, Node, Not, Term, Word, parse
from runner.store.flags import FLAGS
from runner.store.notes import Notes
from runner.store.passages import TextPattern
from runner.store.text_index import find_texts
from runner.types import IMPORTED, MIX, SHAPES, UNKNOWN_OUTCOME, Outcome

_OUTCOMES = (*map(str, Outcome), UNKNOWN_OUTCOME)
_FIELDS = (
    Field(name="env", kind="text", description="environment"),
    Field(name="outcome", kind="text", description="how it ended", values=_OUTCOMES),
    Field(name="agent", kind="text", description="agent"),
    Field(name="model", kind="text", description="model, also one that answered; none for baselines"),
    Field(name="models", kind="text", description="all models that answered, such as a + b"),
    Field(name="reward", kind="number", description="sum of the step rewards"),
    Field(name="rounds", kind="number", description="number of steps"),
    Field(name="tokens", kind="number", description="prompt and completion tokens"),
    Field(name="cost", kind="number", description="cost in the currency of the prices"),
    Field(name="time", kind="duration", description="duration, such as 90s or 2m"),
    Field(name="since", kind="since", description="ended since an age or a time: 2h, 3d, 2026-11-26"),
    Field(name="until", kind="until", description="ended until then"),
    Field(name="task", kind="number", description="index of the task"),
    Field(name="attempt", kind="number", description="number of the attempt, from 0"),
    Field(name="seed", kind="number", description="seed of the agent"),
    Field(name="batch", kind="id", description="beginning of the id of its batch"),
    Field(name="battery", kind="id", description="beginning of the id of its battery, or of the batch that it extends"),
    Field(name="id", kind="id", description="beginning of its id"),
    Field(name="error", kind="text", description="type of the error that ended it"),
    Field(name="fallback", kind="text", description="endpoint that answered for a failed one"),
    Field(name="shape", kind="text", description="how requests differ, as the server refused the usual", values=SHAPES),
    Field(name="limits", kind="text", description="limits that are not 15 rounds and 300 s, such as 30 rounds"),
    Field(name="flag", kind="text", description="what is wrong with it", values=tuple(FLAGS)),
    Field(name="failure", kind="text", description="how it failed, such as loop*: cause, action, answer"),
    Field(name="data", kind="text", description="label of the environment's data"),
    Field(name="mode", kind="text", description="rules", values=("strict", "compat")),
    Field(name="transport", kind="text", description="where the environment ran", values=("embedded", "http")),
    Field(name="node", kind="text", description="node"),
    Field(name="profile", kind="text", description="profile"),
    Field(name="tag", kind="lookup", description="a tag of the episode or of a step"),
    Field(name="note", kind="lookup", description="words of a note"),
    Field(name="text", kind="lookup", description="words of observations, thoughts, answers, tool calls, errors"),
)
FIELDS: Final[Mapping[str, Field]] = {field.name: field for field in _FIELDS}

_IS_UNKNOWN = f"transport = '{IMPORTED}' AND outcome = '{Outcome.INTERRUPTED}' AND unscored"
_COLUMNS = {
    "outcome": f"CASE WHEN {_IS_UNKNOWN} THEN '{UNKNOWN_OUTCOME}' ELSE outcome END",
    "tokens": "tokens_prompt + tokens_completion",
    "time": "duration_s",
    "since": "ended_at",
    "until": "ended_at",
    "task": "task_index",
    "batch": "batch_id",
    "battery": "coalesce(battery_id, batch_id)",
    "id": "episode_id",
    "error": "error_type",
    "flag": "flags",
    "data": "data_label",
}
_TEXT_COLUMNS = (
    "env",
    "data_label",
    "agent",
    "model",
    "models",
    "outcome",
    "error_type",
    "node",
    "batch_id",
    "episode_id",
)
_TEXT = " || ' ' || ".join(f"ifnull({column}, '')" for column in _TEXT_COLUMNS)
"""Text of a row in which words are found."""


class Condition(msgspec.Struct, frozen=True):
    """An SQL condition on the table ``episodes`` with named parameters; it has no text of the query itself."""

    sql: str
    parameters: dict[str, object]


def episode_condition(query: str, *, now: datetime, lookups: Mapping[str, Lookup] | None = None) -> Condition:
    """Return the condition of a query on the index; an empty query selects every episode.

    ``now`` is the time to which ages such as ``2h`` refer; ``lookups`` find the ids of episodes by ``tag`` and
    ``note``. Raises ``QueryError`` if the query is invalid, or needs a lookup that there is not.
    """
    builder = _Builder(now, lookups or {})
    return Condition(builder.build(parse(query)), builder.parameters)


def note_lookups(data_dir: Path) -> dict[str, Lookup]:
    notes = Notes(data_dir)
    return {
        "tag": lambda tag, quoted: notes.find("tag", _glob(tag, quoted)),
        "note": lambda words, _: notes.find("note", words),
    }


def episode_lookups(data_dir: Path) -> dict[str, Lookup]:
    """A lookup of texts may take a while."""
    return note_lookups(data_dir) | {"text": lambda words, quoted: find_texts(data_dir, text_pattern(words, quoted))}


def text_pattern(words: str, quoted: bool) -> TextPattern:
    """Return the pattern of a value of ``text``; a final ``*`` that was not quoted stands for the rest of a word."""
    return TextPattern(words, is_prefix=words.endswith("*") and not quoted)


def text_patterns(node: Node) -> list[TextPattern]:
    """Return the patterns of all terms of a query that search texts, and are not negated."""
    return [text_pattern(*value) for value in text_values(node, negated=False)]


def text_values(node: Node, *, negated: bool = True) -> list[tuple[str, bool]]:
    """Return the values of ``text`` in a query, and whether each is in quotation marks."""
    match node:
        case Term(field="text"):
            return list(zip(node.values, node.quoted, strict=True))
        case All() | Any():
            return [value for part in node.parts for value in text_values(part, negated=negated)]
        case Not() if negated:
            return text_values(node.part)
    return []


class _Builder:
    def __init__(self, now: datetime, lookups: Mapping[str, Lookup]) -> None:
        self.parameters: dict[str, object] = {}
        self._now = now
        self._lookups = lookups

    def build(self, node: Node) -> str:
        match node:
            case Word():
                return f"instr(lower({_TEXT}), {self._bind(ascii_lower(node.text))}) > 0"
            case Not():
                return f"NOT ({self.build(node.part)})"
            case Term():
                return self._term(node)
            case All():
                return " AND ".join(f"({self.build(part)})" for part in node.parts) or "TRUE"
            case Any():
                return " OR ".join(f"({self.build(part)})" for part in node.parts)

    def _bind(self, value: object) -> str:
        name = f"q{len(self.parameters)}"
        self.parameters[name] = value
        return f":{name}"

    def _term(self, term: Term) -> str:
        field = check_term(term, FIELDS, self._now)
        column, values = _COLUMNS.get(field.name, field.name), list(zip(term.values, term.quoted, strict=True))
        match field.kind:
            case "number" | "duration":
                tests: Iterable[str] = [self._range(column, number_range(field, term, value)) for value in term.values]
            case "since" | "until":
                times = [point_in_time(term, value, self._now) for value in term.values]
                operator, at = (">=", min(times)) if field.kind == "since" else ("<=", max(times))
                return f"{column} {operator} {self._bind(at.astimezone(UTC).isoformat())}"
            case "lookup":
                ids = sorted(find_ids(term, self._lookups))
                found = self._bind(msgspec.json.encode(ids).decode())
                return f"episode_id IN (SELECT value FROM json_each({found}))"
            case _ if field.name == "model":
                tests = [self._model(*each) for each in values]
            case _ if field.name == "flag":
                tests = [self._flags(*each) for each in values]
            case _:
                is_id = field.kind == "id"
                tests = [self._text(column, value, quoted=quoted, prefix=is_id) for value, quoted in values]
        return " OR ".join(f"ifnull({test}, FALSE)" for test in tests)

    def _range(self, column: str, numbers: Range) -> str:
        tests = [f"{column} IS NOT NULL"]
        if numbers.low is not None:
            tests.append(f"({column}) >{'' if numbers.low_open else '='} {self._bind(numbers.low)}")
        if numbers.high is not None:
            tests.append(f"({column}) <{'' if numbers.high_open else '='} {self._bind(numbers.high)}")
        return " AND ".join(tests)

    def _model(self, value: str, quoted: bool) -> str:
        wanted = ascii_lower(value)
        if wanted == NONE and not quoted:
            return self._text("models", value, quoted=quoted, prefix=False)
        answered = f"'{MIX}' || lower(models) || '{MIX}' GLOB {self._bind(f'*{MIX}{_glob(wanted, quoted)}{MIX}*')}"
        return f"({self._text('model', value, quoted=quoted, prefix=False)} OR {answered})"

    def _flags(self, value: str, quoted: bool) -> str:
        if value.lower() == NONE and not quoted:
            return "flags = ''"
        test = text_test(value, FIELDS["flag"], quoted)
        names = [name for name in FLAGS if test(name)]
        return " OR ".join(f"instr(',' || flags || ',', {self._bind(f',{name},')}) > 0" for name in names) or "FALSE"

    def _text(self, column: str, value: str, *, quoted: bool, prefix: bool) -> str:
        wanted = ascii_lower(value)
        if wanted == NONE and not quoted:
            return f"ifnull({column}, '') = ''"
        is_pattern = has_wildcards(value) and not quoted
        if is_pattern or prefix:
            rest = "" if is_pattern else "*"
            return f"lower({column}) GLOB {self._bind(_glob(wanted, quoted) + rest)}"
        return f"{column} = {self._bind(value)} COLLATE NOCASE"


def _glob(text: str, quoted: bool) -> str:
    """Return a value as a pattern of GLOB, in which wildcards that were quoted stand for themselves."""
    special = "*?[" if quoted else "["
    return "".join(f"[{character}]" if character in special else character for character in text)


def order_by(field: str) -> str:
    """Numbers and times begin with the largest, ids with the newest; texts are alphabetical.

    Raises ``ConfigError`` if episodes cannot be sorted by this field.
    """
    found = FIELDS.get(field)
    if found is None or found.kind == "lookup":
        known = ", ".join(name for name, each in FIELDS.items() if each.kind != "lookup")
        raise ConfigError(f"episodes cannot be sorted by {field[:40]!r}; fields are {known}")
    column = _COLUMNS.get(field, field)
    return f"{column}{' COLLATE NOCASE' if found.kind == 'text' else ' DESC'}, episode_id DESC"
