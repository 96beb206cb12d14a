"""Filter and order of a list: queries in the language of ``runner.query``, their completion, and sorting by column."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache, partial
from itertools import islice
from typing import Annotated, Final, Generic, NamedTuple, TypeAlias, TypeVar

import msgspec

from agentgym_tui.safe_text import has_unsafe_chars
from runner.errors import StoreError
from runner.query.fields import Field, GetValue, Kind, Lookup, Matches, Value, compile_query
from runner.query.syntax import All, QueryError, Word, parse

MAX_CHARS: Final = 1_000  # of a query that is typed or kept
MAX_SEARCHED_CHARS: Final = 200  # at the start of a text of a row
MAX_OPTIONS: Final = 30  # values that are offered to complete a query
MAX_VALUE_CHARS: Final = 60  # of a value that is offered
UP, DOWN = "▲", "▼"
_MAX_RANK: Final = 10**18
_PIECE: Final = re.compile(r'"(?:[^"\\]|\\.)*"?|[^\s()"]+|[\s()]+', re.DOTALL)
_TERM: Final = re.compile(r"(?P<field>[A-Za-z_][A-Za-z_-]*)(?P<operator>>=|<=|[:><=])")
_LAST_VALUE: Final = re.compile(r'(?:^|,)("(?:[^"\\]|\\.)*|[^,"]*)$', re.DOTALL)
Row = TypeVar("Row")
Item = TypeVar("Item")
Rank: TypeAlias = tuple[float, str]  # sort key of a row: by number, then by text
WordTest: TypeAlias = Callable[[str], Matches[Row]]  # returns what finds a word in a row


class FieldSet(Generic[Row]):
    """The fields of a kind of row: name, kind, description, and what reads a row's value.

    ``values`` are offered even if no row has them, by name of the field.
    """

    def __init__(
        self, *columns: tuple[str, Kind, str, GetValue[Row]], values: Mapping[str, tuple[str, ...]] | None = None
    ) -> None:
        self._fields = {
            name: Field(name=name, kind=kind, description=about, values=(values or {}).get(name, ()))
            for name, kind, about, _ in columns
        }
        self._getters = {name: get for name, _, _, get in columns}

    @property
    def fields(self) -> Mapping[str, Field]:
        return self._fields

    def getter(self, name: str) -> GetValue[Row]:
        return self._getters[name]

    def ranks(self, *names: str) -> dict[str, Callable[[Row], Rank | None]]:
        return {name: partial(rank_of, self.getter(name)) for name in names}

    def values_of(self, name: str, rows: Iterable[Row]) -> list[str]:
        """Return the texts that a field has, the most frequent first; numbers and times are left out."""
        field, found = self.fields[name], Counter[str]()
        if field.kind in ("text", "id"):
            for value in map(self.getter(name), rows):
                found.update(each for each in _all(value) if isinstance(each, str) and each)
        return list(dict.fromkeys([*(value for value, _ in found.most_common()), *field.values]))


def _all(value: Value | tuple[Value, ...]) -> tuple[Value, ...]:
    return value if isinstance(value, tuple) else (value,)


class Query(Generic[Row]):
    """A parsed filter; an empty one, and one with an error, match every row.

    Without ``word_test``, no row has words; ``lookups`` find the ids of rows by name of a field. If it ``splits``, the
    caller searches the ``words`` that every row must contain, and ``matches`` only tests the rest, if it ``has_rest``.
    It ``has_terms`` if it names a field.
    """

    def __init__(
        self,
        fields: FieldSet[Row],
        text: str = "",
        *,
        word_test: WordTest[Row] | None = None,
        lookups: Mapping[str, Lookup] | None = None,
        splits: bool = False,
    ) -> None:
        self.text = text.strip()
        self.words: tuple[str, ...] = ()
        self.error: QueryError | None = None
        self.has_terms = self.has_rest = False
        self._fields = fields
        self._matches: Matches[Row] | None = None
        if not self.text:
            return
        try:
            node = parse(text)
            if splits:
                parts = node.parts if isinstance(node, All) else (node,)
                self.words = tuple(part.text for part in parts if isinstance(part, Word))
                node = All(tuple(part for part in parts if not isinstance(part, Word)))
            self.has_rest = node != All()
            self._matches = compile_query(
                node,
                fields.fields,
                getter=self._getter,
                word_test=word_test or (lambda word: lambda row: False),
                now=datetime.now(UTC),
                lookups=lookups or {},
            )
        except QueryError as exc:
            self.error = exc
        except StoreError as exc:  # of a lookup
            self.error = QueryError(str(exc), 0, len(text))

    def _getter(self, name: str) -> GetValue[Row]:
        self.has_terms = True
        return self._fields.getter(name)

    def __bool__(self) -> bool:
        return bool(self.text)

    def matches(self, row: Row) -> bool:
        return self._matches is None or self._matches(row)


class Searchable(Generic[Row]):
    def __init__(self, fields: FieldSet[Row]) -> None:
        self.query: Query[Row] = Query(fields)
        self._fields = fields

    @property
    def query_text(self) -> str:
        return self.query.text

    @property
    def query_fields(self) -> Mapping[str, Field]:
        return self._fields.fields

    def values_of(self, field: str) -> list[str]:
        """The most frequent first, as untrusted text."""
        return self._fields.values_of(field, self.sample_rows())

    def sample_rows(self) -> Iterable[Row]:
        raise NotImplementedError

    def parse(self, text: str) -> Query[Row]:
        raise NotImplementedError

    def show_matches(self) -> None:
        raise NotImplementedError

    def search(self, text: str) -> QueryError | None:
        """Show only the rows that match a query; return its error, with which the shown rows stay."""
        query = self.parse(text)
        if query.error is None:
            self.query = query
            self.show_matches()
        return query.error


def search_text(texts: Iterable[str | None]) -> str:
    """Return the texts of a row as one, for ``word_test``."""
    return "\n".join(text[:MAX_SEARCHED_CHARS] for text in texts if text).casefold()


def word_test(text_of: Callable[[Row], str]) -> WordTest[Row]:
    """Return what finds words in upper and lower case; ``text_of`` returns a text converted by ``str.casefold``."""

    def test(word: str) -> Matches[Row]:
        folded = word.casefold()
        return lambda row: folded in text_of(row)

    return test


def quoted(value: str) -> str:
    """Return a value as it stands in a query: in quotation marks unless it is a plain word other than ``none``."""
    plain = all(character.isalnum() or character in "_-.:/+#" for character in value)
    if value and plain and ".." not in value and value.lower() != "none":
        return value
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


class Completion(NamedTuple):
    """What the end of a query may become."""

    start: int
    options: tuple[str, ...] = ()  # for the query from ``start`` on, the best one first; free of unsafe characters
    best: str = ""  # query with the first option; "" where nothing was typed, or no option is known
    field: Field | None = None  # of the end of the query; None before its name is complete


def complete(text: str, fields: Mapping[str, Field], values_of: Callable[[str], Iterable[str]]) -> Completion:
    """Complete a query up to the cursor; ``values_of`` returns the untrusted values of a field."""
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
    """The last part begins after its minus signs; parts end at blanks outside of quotes."""
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
    wanted = typed.lstrip('"').casefold()
    found = (value for value in values if value.casefold().startswith(wanted) and len(value) <= MAX_VALUE_CHARS)
    options = [quoted(value) for value in islice((each for each in found if not has_unsafe_chars(each)), MAX_OPTIONS)]
    if typed.startswith('"'):
        options = [option if option.startswith('"') else f'"{option}"' for option in options]
    is_complete = len(options) == 1 and options[0].casefold() == typed.casefold()
    best = text[:start] + options[0] if options and not is_complete else ""
    return Completion(start, tuple(options), best, field)


class Sorting(NamedTuple):
    """By the column with a title; ``descending``: the row with the largest value comes first."""

    column: Annotated[str, msgspec.Meta(max_length=40)]
    descending: bool = False

    @property
    def sign(self) -> str:
        return DOWN if self.descending else UP


def number_rank(value: float | None) -> Rank | None:
    """Return the sort key of an untrusted number of any size; None without one."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    return float(max(-_MAX_RANK, min(value, _MAX_RANK))), ""


@lru_cache(maxsize=1_000)  # so that rows with the same text share it
def text_rank(value: str | None) -> Rank | None:
    """Return the sort key of a text, ignoring case; None without one."""
    return (0.0, value.casefold()) if value else None


def value_rank(value: Value | tuple[Value, ...]) -> Rank | None:
    """Of several texts, that of the first."""
    first = next(iter(_all(value)), None)
    return text_rank(first) if isinstance(first, str) else None if isinstance(first, datetime) else number_rank(first)


def rank_of(get: GetValue[Row], row: Row) -> Rank | None:
    return value_rank(get(row))


def sort_by_rank(items: Iterable[Item], rank: Callable[[Item], Rank | None], *, descending: bool) -> list[Item]:
    """Items whose sort key is None come last; those with equal keys keep their order."""
    all_items = list(items)
    ranks = list(map(rank, all_items))
    places = [place for place, key in enumerate(ranks) if key is not None]
    places.sort(key=ranks.__getitem__, reverse=descending)  # type: ignore[arg-type]  # none of these is None
    places += (place for place, key in enumerate(ranks) if key is None)
    return [all_items[place] for place in places]


class FilteredList(Searchable[Row], Generic[Row]):
    """Rows that match the filter, in the chosen order; without ``sorting``, as they were given.

    The key of a row stays the same when its numbers change; ``ranks`` are sort keys by column title.
    """

    def __init__(
        self,
        key_of: Callable[[Row], str],
        text_of: Callable[[Row], str],
        ranks: Mapping[str, Callable[[Row], Rank | None]],
        fields: FieldSet[Row],
    ) -> None:
        self.shown: Sequence[Row] = ()
        super().__init__(fields)
        self.sorting: Sorting | None = None
        self._key_of, self._text_of, self._ranks = key_of, text_of, ranks
        self.all_rows: Sequence[Row] = ()
        self._places: dict[str, int] = {}

    @property
    def n_rows(self) -> int:
        return len(self.all_rows)

    def set_rows(self, rows: Sequence[Row]) -> None:
        self.all_rows = rows
        self.show_matches()

    def parse(self, text: str) -> Query[Row]:
        return Query(self._fields, text, word_test=word_test(lambda row: self._text_of(row).casefold()))

    def sample_rows(self) -> Iterable[Row]:
        return self.all_rows

    def sort(self, sorting: Sorting | None) -> None:
        """None restores the default order."""
        self.sorting = sorting if sorting is not None and sorting.column in self._ranks else None
        self.show_matches()

    def key(self, place: int) -> str:
        return self._key_of(self.shown[place])

    def place_of(self, key: str) -> int | None:
        return self._places.get(key)

    def get(self, key: str) -> Row | None:
        place = self._places.get(key)
        return None if place is None else self.shown[place]

    def matches(self, row: Row) -> bool:
        return self.query.matches(row)

    def rank(self, row: Row) -> Rank | None:
        return None if self.sorting is None else self._ranks[self.sorting.column](row)

    def show_matches(self) -> None:
        rows = list(filter(self.matches, self.all_rows) if self.query else self.all_rows)
        self.shown = rows if self.sorting is None else sort_by_rank(rows, self.rank, descending=self.sorting.descending)
        self._places = {self._key_of(row): place for place, row in enumerate(self.shown)}
