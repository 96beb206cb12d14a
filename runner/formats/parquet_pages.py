"""Checks the sizes that the pages of a Parquet file declare: pyarrow allocates them before it has read a page.

The footer is decoded here, too, as pyarrow ends the process where the footer describes a column in a damaged way.

Source: ``FileMetaData`` and ``PageHeader`` in ``parquet.thrift`` of https://github.com/apache/parquet-format, version
2.11, encoded in the compact protocol of
https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, BinaryIO, Final, NamedTuple

from runner.errors import StoreError
from runner.formats.reading import Limits

_SMALL_HEADER, _LARGEST_HEADER = 4 << 10, 1 << 20
_MAX_DEPTH: Final = 8
_MAX_PAGES: Final = 100_000
MAX_ITEMS: Final = 4
"""Largest size of what pyarrow holds of a row group at once, a dictionary and a page per column, in items."""
MAX_VALUES: Final = 16
"""Largest number of values in the lists of a column of a row group, in items."""
_BOOLEANS: Final = frozenset({1, 2})
_STOP, _BYTE, _INTEGERS, _DOUBLE, _BINARY, _LISTS, _MAP, _STRUCT = 0, 3, frozenset({4, 5, 6}), 7, 8, {9, 10}, 11, 12
_DICTIONARY_PAGE: Final = 2
_TYPE, _UNCOMPRESSED, _COMPRESSED, _DATA_PAGE, _DICTIONARY, _DATA_PAGE_V2, _N_VALUES = 1, 2, 3, 5, 7, 8, 1
"""Field numbers: of ``PageHeader``, and that of the number of values in the header of each kind of page."""
_MAX_FOOTER: Final = 16 << 20
_MAX_KEPT: Final = 1_000_000
"""Largest number of structs in lists that are kept."""
_ROW_GROUPS, _COLUMNS, _N_ROWS, _COLUMN = 4, 1, 3, 3
"""Field numbers: of ``FileMetaData``, of ``RowGroup``, and that of the metadata of a ``ColumnChunk``."""


class Column(NamedTuple):
    """The sizes are in bytes; an offset is 0 if there are no such pages."""

    n_values: int
    unpacked: int
    packed: int
    data_offset: int
    dictionary_offset: int


_COLUMN_FIELDS: Final = (5, 6, 7, 9, 11)
"""Field numbers of ``ColumnMetaData``, in the order of ``Column``."""


class Group(NamedTuple):
    n_rows: int
    columns: list[Column]


def read_groups(file: BinaryIO) -> list[Group]:
    """Raises a ``StoreError`` if the footer is damaged or too large."""
    size = os.fstat(file.fileno()).st_size
    tail = os.pread(file.fileno(), 8, max(0, size - 8))
    n_footer = int.from_bytes(tail[:4], "little")
    if not tail.endswith(b"PAR1") or n_footer > min(_MAX_FOOTER, size - 8):
        raise StoreError("its footer is damaged or too large")
    try:
        footer = _Header(os.pread(file.fileno(), n_footer, size - 8 - n_footer), keeps_lists=True).struct(_MAX_DEPTH)
        return [_group(group) for group in footer.get(_ROW_GROUPS, [])]
    except (IndexError, AttributeError, TypeError) as exc:
        raise StoreError("its footer is damaged or too large") from exc


def _group(fields: dict[int, Any]) -> Group:
    columns = [chunk.get(_COLUMN) or {} for chunk in fields.get(_COLUMNS) or []]
    found = [Column(*(int(column.get(number) or 0) for number in _COLUMN_FIELDS)) for column in columns]
    n_rows = int(fields.get(_N_ROWS) or 0)
    if min((min(column) for column in found), default=0) < 0 or n_rows < 0:
        raise IndexError
    return Group(n_rows, found)


class Page(NamedTuple):
    """What a page declares; ``size`` is unpacked, in bytes."""

    is_dictionary: bool
    size: int
    n_values: int


def check_pages(file: BinaryIO, group: Group, number: int, limits: Limits) -> None:
    """Raises a ``StoreError`` if a page is damaged or too large, or the lists of a column have too many values."""
    in_memory = 0
    for column in group.columns:
        pages = list(islice(_pages(file, column, number), _MAX_PAGES + 1))
        sizes = [max((page.size for page in pages if page.is_dictionary is kind), default=0) for kind in (False, True)]
        in_memory += sum(sizes)
        n_values = sum(page.n_values for page in pages if not page.is_dictionary)
        if len(pages) > _MAX_PAGES:
            raise StoreError(f"a column of row group {number} has too many pages")
        if in_memory > limits.item_bytes * MAX_ITEMS or max(sizes) > limits.item_bytes:
            raise StoreError(f"the pages of row group {number} are too large")
        if n_values > max(group.n_rows, limits.item_values * MAX_VALUES):
            raise StoreError(f"row group {number} has too many values")


def _pages(file: BinaryIO, column: Column, number: int) -> Iterator[Page]:
    start = column.data_offset
    if 0 < column.dictionary_offset < start:
        start = column.dictionary_offset
    end = start + column.packed
    while start < end:
        page, start = _page(file, start, number)
        yield page


def _page(file: BinaryIO, start: int, number: int) -> tuple[Page, int]:
    for size in (_SMALL_HEADER, _LARGEST_HEADER):
        try:
            header = _Header(os.pread(file.fileno(), size, start))
            fields = header.struct(_MAX_DEPTH)
        except IndexError:
            continue
        packed, unpacked = _number(fields, _COMPRESSED), _number(fields, _UNCOMPRESSED)
        is_dictionary = fields.get(_TYPE) == _DICTIONARY_PAGE
        kinds = (_DICTIONARY,) if is_dictionary else (_DATA_PAGE, _DATA_PAGE_V2)
        n_values = max(
            (_number(fields[kind], _N_VALUES) for kind in kinds if isinstance(fields.get(kind), dict)), default=0
        )
        if packed < 0 or unpacked < 0 or n_values < 0 or (is_dictionary and n_values > unpacked * 8):
            break
        return Page(is_dictionary, unpacked, n_values), start + header.position + packed
    raise StoreError(f"a page header of row group {number} is damaged")


def _number(fields: dict[int, Any], id: int) -> int:
    """Without it, or if the field has another type, -1."""
    value = fields.get(id)
    return value if isinstance(value, int) else -1


class _Header:
    """Decodes a struct of Thrift's compact protocol; raises an ``IndexError`` where it ends too early or is damaged."""

    def __init__(self, data: bytes, *, keeps_lists: bool = False) -> None:
        self._data = data
        self.position = 0
        self._n_left = _MAX_KEPT if keeps_lists else 0

    def struct(self, depth: int) -> dict[int, Any]:
        fields: dict[int, Any] = {}
        id = 0
        while (byte := self._byte()) != _STOP:
            id = id + (byte >> 4) if byte >> 4 else self._integer()
            kind = byte & 15
            if kind not in _BOOLEANS:  # the kind is the value
                fields[id] = self._value(kind, depth - 1)
        return fields

    def _value(self, kind: int, depth: int) -> Any:  # noqa: ANN401
        if depth < 0:
            raise IndexError
        if kind in _INTEGERS:
            return self._integer()
        if kind == _STRUCT:
            return self.struct(depth)
        if kind in _LISTS:
            byte = self._byte()
            n = self._unsigned() if byte >> 4 == 15 else byte >> 4
            if self._n_left and byte & 15 == _STRUCT:
                return self._structs(n, depth - 1)
            self._repeat(n, lambda: self._value(byte & 15, depth - 1))
        elif kind == _MAP:
            n = self._unsigned()
            kinds = self._byte() if n else 0
            self._repeat(n, lambda: [self._value(each, depth - 1) for each in (kinds >> 4, kinds & 15)])
        elif kind in _BOOLEANS or kind == _BYTE:
            self._byte()
        elif kind in (_DOUBLE, _BINARY):
            self._skip(8 if kind == _DOUBLE else self._unsigned())
        else:
            raise IndexError
        return None

    def _structs(self, n: int, depth: int) -> list[dict[int, Any]]:
        self._n_left -= n
        if self._n_left <= 0:
            raise IndexError
        return [self.struct(depth) for _ in range(n)]

    def _repeat(self, n: int, read: Callable[[], object]) -> None:
        for _ in range(n):  # ends with the data, as every value has a byte at least
            read()

    def _skip(self, n: int) -> None:
        self.position += n
        if self.position > len(self._data):
            raise IndexError

    def _byte(self) -> int:
        self.position += 1
        return self._data[self.position - 1]

    def _unsigned(self) -> int:
        value = shift = 0
        while (byte := self._byte()) & 0x80:
            value |= (byte & 0x7F) << shift
            shift += 7
            if shift > 63:
                raise IndexError
        return value | byte << shift

    def _integer(self) -> int:
        value = self._unsigned()
        return (value >> 1) ^ -(value & 1)
