"""Checks the sizes that the pages of a Parquet file declare: pyarrow allocates them before it has read a page.

Source: ``PageHeader`` in ``parquet.thrift`` of https://github.com/apache/parquet-format, version 2.11, encoded in the
compact protocol of https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md.
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


class Page(NamedTuple):
    """What a page declares: whether it is a dictionary, its unpacked size in bytes, and its number of values."""

    is_dictionary: bool
    size: int
    n_values: int


def check_pages(file: BinaryIO, group: Any, number: int, limits: Limits) -> None:  # noqa: ANN401 - pyarrow's metadata
    """Check a row group before it is read.

    Args:
        file: the open file.
        group: its metadata, of which the columns have offsets and sizes.
        number: number of the row group, for the message.
        limits: bounds of what is read.

    Raises:
        StoreError: a page is damaged or too large, or the lists of a column have too many values.
    """
    in_memory = 0
    for index in range(group.num_columns):
        column = group.column(index)
        pages = list(islice(_pages(file, column, number), _MAX_PAGES + 1))
        sizes = [max((page.size for page in pages if page.is_dictionary is kind), default=0) for kind in (False, True)]
        in_memory += sum(sizes)
        n_values = sum(page.n_values for page in pages if not page.is_dictionary)
        if len(pages) > _MAX_PAGES:
            raise StoreError(f"a column of row group {number} has too many pages")
        if in_memory > limits.item_bytes * MAX_ITEMS or max(sizes) > limits.item_bytes:
            raise StoreError(f"the pages of row group {number} are too large")
        if n_values > max(group.num_rows, limits.item_values * MAX_VALUES):
            raise StoreError(f"row group {number} has too many values")


def _pages(file: BinaryIO, column: Any, number: int) -> Iterator[Page]:  # noqa: ANN401 - pyarrow's metadata
    start, size = column.data_page_offset, column.total_compressed_size
    if column.has_dictionary_page and 0 < column.dictionary_page_offset < start:
        start = column.dictionary_page_offset
    end = start + size
    while start < end:
        page, start = _page(file, start, number)
        yield page


def _page(file: BinaryIO, start: int, number: int) -> tuple[Page, int]:
    """Return a page and the offset behind it."""
    for size in (_SMALL_HEADER, _LARGEST_HEADER):
        header = _Header(os.pread(file.fileno(), size, start))
        try:
            fields = header.struct(_MAX_DEPTH)
        except IndexError:
            continue
        packed, unpacked = fields.get(_COMPRESSED, -1), fields.get(_UNCOMPRESSED, -1)
        is_dictionary = fields.get(_TYPE) == _DICTIONARY_PAGE
        kinds = (_DICTIONARY,) if is_dictionary else (_DATA_PAGE, _DATA_PAGE_V2)
        n_values = max(
            (fields[kind].get(_N_VALUES, -1) for kind in kinds if isinstance(fields.get(kind), dict)), default=0
        )
        if packed < 0 or unpacked < 0 or n_values < 0 or (is_dictionary and n_values > unpacked * 8):
            break
        return Page(is_dictionary, unpacked, n_values), start + header.position + packed
    raise StoreError(f"a page header of row group {number} is damaged")


class _Header:
    """Decodes a struct of Thrift's compact protocol; raises an ``IndexError`` where it ends too early or is damaged."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.position = 0

    def struct(self, depth: int) -> dict[int, Any]:
        """Return the integers and structs of a struct by field number; everything else is skipped."""
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
            self._repeat(self._unsigned() if byte >> 4 == 15 else byte >> 4, lambda: self._value(byte & 15, depth - 1))
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
