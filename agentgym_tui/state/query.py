"""The filter of a list: a query in the language of ``runner.query`` over the fields of its rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, Generic, TypeAlias, TypeVar

if TYPE_CHECKING:
    from runner.query.fields import Field, GetValue, Kind, Lookup, Matches, Value
    from runner.query.syntax import Node, QueryError

MAX_CHARS: Final = 1_000
"""Maximum length of a query that is typed or kept."""

MAX_SEARCHED_CHARS: Final = 200
"""Number of characters at the start of a text of a row that are searched."""

Row = TypeVar("Row")
WordTest: TypeAlias = "Callable[[str], Matches[Row]]"
"""Returns what finds a word in a row."""


class FieldSet(Generic[Row]):
    """The fields of a kind of row.

    Args:
        columns: for each field its name, its kind, its description, and the function that reads a row's value.
        values: by name of a field, the values that are offered even if no row has them.
    """

    def __init__(
        self,
        *columns: tuple[str, Kind, str, GetValue[Row]],
        values: Mapping[str, tuple[str, ...]] | None = None,
    ) -> None:
        self._columns, self._values = columns, values or {}
        self._fields: Mapping[str, Field] = {}
        self._getters = {name: get for name, _, _, get in columns}

    @property
    def fields(self) -> Mapping[str, Field]:
        """The fields by name. They are made when they are first needed, because their module is imported late."""
        if not self._fields:
            self._fields = self.load()
        return self._fields

    def load(self) -> Mapping[str, Field]:
        """Return the fields by name."""
        from runner.query.fields import Field

        return {
            name: Field(name=name, kind=kind, description=about, values=self._values.get(name, ()))
            for name, kind, about, _ in self._columns
        }

    def getter(self, name: str) -> GetValue[Row]:
        """Return the function that reads a field of a row."""
        return self._getters[name]

    def values_of(self, name: str, rows: Iterable[Row]) -> list[str]:
        """Return the texts that a field has in some rows, the most frequent first; numbers and times are left out."""
        field = self.fields[name]
        found: Counter[str] = Counter()
        if field.kind in ("text", "id"):
            get = self.getter(name)
            found.update(text for row in rows for text in _texts(get(row)))
        return list(dict.fromkeys([*(value for value, _ in found.most_common()), *field.values]))


class Query(Generic[Row]):
    """A parsed filter; an empty one, and one with an error, match every row.

    Args:
        fields: the fields of the rows.
        text: the query.
        word_test: returns what finds a word in a row; without it, no row has words.
        lookups: by name of a field, what finds the ids of its rows.
        splits: whether the caller searches the words that every row must contain, and ``matches`` only tests the rest.

    Attributes:
        text: the query without blanks around it.
        words: the words that every row must contain; none unless ``splits``.
        has_rest: whether ``matches`` tests more than that.
        error: why the query cannot be used, and where in the text; None if it can.
        has_terms: whether the query names a field.
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
        self._fields, self._splits = fields, splits
        self._matches: Matches[Row] | None = None
        if self.text:
            self._compile(text, word_test or (lambda word: lambda row: False), lookups or {})

    def _compile(self, text: str, word_test: WordTest[Row], lookups: Mapping[str, Lookup]) -> None:
        from runner.errors import StoreError
        from runner.query.fields import compile_query
        from runner.query.syntax import All, QueryError, parse

        fields, now = self._fields.fields, datetime.now(UTC)
        try:
            node = parse(text)
            if self._splits:
                self.words, node = _split_words(node)
            self.has_rest = node != All()
            self._matches = compile_query(
                node, fields, getter=self._getter, word_test=word_test, now=now, lookups=lookups
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
        """Return whether a row matches."""
        return self._matches is None or self._matches(row)


class Searchable(Generic[Row]):
    """A list with a filter.

    Args:
        fields: the fields that a query can name.

    Attributes:
        query: the filter of the shown rows.
    """

    def __init__(self, fields: FieldSet[Row]) -> None:
        self.query: Query[Row] = Query(fields)
        self._fields = fields

    @property
    def query_text(self) -> str:
        """The query that the shown rows match."""
        return self.query.text

    @property
    def query_fields(self) -> Mapping[str, Field]:
        """The fields that a query can name here, by name."""
        return self._fields.fields

    def values_of(self, field: str) -> list[str]:
        """Return the values that a field has, the most frequent first, as untrusted text."""
        return self._fields.values_of(field, self.sample_rows())

    def sample_rows(self) -> Iterable[Row]:
        """Return the rows whose values are offered for completion."""
        raise NotImplementedError

    def parse(self, text: str) -> Query[Row]:
        """Return the query of these rows for a text."""
        raise NotImplementedError

    def show_matches(self) -> None:
        """Show the rows that match ``query``."""
        raise NotImplementedError

    def search(self, text: str) -> QueryError | None:
        """Show only the rows that match a query; return its error, with which the shown rows stay."""
        query = self.parse(text)
        if query.error is None:
            self.query = query
            self.show_matches()
        return query.error


def search_text(texts: Iterable[str | None]) -> str:
    """Return the texts of a row as one in which words are found, for ``word_test``; None stands for a missing one."""
    return "\n".join(text[:MAX_SEARCHED_CHARS] for text in texts if text).casefold()


def word_test(text_of: Callable[[Row], str]) -> WordTest[Row]:
    """Return what finds words in upper and lower case; ``text_of`` returns a text converted by ``str.casefold``."""

    def test(word: str) -> Matches[Row]:
        folded = word.casefold()
        return lambda row: folded in text_of(row)

    return test


def _split_words(node: Node) -> tuple[tuple[str, ...], Node]:
    """Return the words that every row must contain, and the rest of a query."""
    from runner.query.syntax import All, Word

    parts = node.parts if isinstance(node, All) else (node,)
    words = tuple(part.text for part in parts if isinstance(part, Word))
    return words, All(tuple(part for part in parts if not isinstance(part, Word)))


def _texts(value: Value | tuple[Value, ...]) -> Iterator[str]:
    for each in value if isinstance(value, tuple) else (value,):
        if isinstance(each, str) and each:
            yield each


def quoted(value: str) -> str:
    """Return a value as it stands in a query: in quotation marks unless it is a plain word other than ``none``."""
    plain = all(character.isalnum() or character in "_-.:/+#" for character in value)
    if value and plain and ".." not in value and value.lower() != "none":
        return value
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
