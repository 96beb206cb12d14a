"""Sizes that pages of a Parquet file declare are checked before pyarrow would allocate them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from runner.errors import StoreError
from runner.formats.parquet_pages import check_pages
from runner.formats.reading import LIMITS

DATA, DICTIONARY, DATA_V2 = 0, 2, 3
KINDS = {DATA: 5, DICTIONARY: 7, DATA_V2: 8}


def integer(field: int, value: int, before: int = 0) -> bytes:
    """Return a field of a struct with a 32-bit integer, in Thrift's compact protocol."""
    return bytes([((field - before) << 4) | 5]) + varint((value << 1) ^ (value >> 31))


def varint(value: int) -> bytes:
    data = bytearray()
    while value > 0x7F:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*data, value])


def page(kind: int, size: int, n_values: int, body: bytes = b"packed", more: bytes = b"") -> bytes:
    """Return a page that says it has ``size`` bytes and ``n_values`` values; ``more`` are fields of the inner one."""
    fields = integer(1, kind) + integer(2, size, 1) + integer(3, len(body), 2)
    inner = bytes([((KINDS[kind] - 3) << 4) | 12]) + integer(1, n_values) + more + b"\0"
    return fields + inner + b"\0" + body


STATISTICS = bytes([4 << 4 | 12, 1 << 4 | 8, 3]) + b"max" + b"\0"
"""The field 5 of a data page: a struct with the largest value as bytes."""


def check(tmp_path: Path, *columns: list[bytes], n_rows: int = 3) -> None:
    path = tmp_path / "table.parquet"
    data, described = b"PAR1", list[Any]()
    for pages in columns:
        has_dictionary = pages[0][1] == DICTIONARY << 1
        first = len(data)
        data += b"".join(pages)
        described.append(
            SimpleNamespace(
                has_dictionary_page=has_dictionary,
                dictionary_page_offset=first if has_dictionary else None,
                data_page_offset=first + len(pages[0]) if has_dictionary else first,
                total_compressed_size=len(data) - first,
            )
        )
    path.write_bytes(data)
    group = SimpleNamespace(num_columns=len(columns), num_rows=n_rows, column=described.__getitem__)
    with path.open("rb") as file:
        check_pages(file, group, 0, LIMITS)


def test_pages_of_usual_sizes_are_read(tmp_path: Path) -> None:
    column = [page(DICTIONARY, 1_000, 20), page(DATA, 1 << 20, 500, more=STATISTICS), page(DATA_V2, 9, 3)]
    check(tmp_path, column, [page(DATA, 0, 0)], [page(DATA, 7, 3, b"x" * 10_000)] * 3)


@pytest.mark.parametrize(
    ("column", "reason"),
    [
        ([page(DATA, 2**31 - 1, 3)], "the pages of row group 0 are too large"),
        ([page(DATA, 5, 3), page(DATA, 2**31 - 1, 3)], "the pages of row group 0 are too large"),
        ([page(DICTIONARY, 2**31 - 1, 3), page(DATA, 5, 3)], "the pages of row group 0 are too large"),
        ([page(DATA, 5, 2**31 - 1)], "row group 0 has too many values"),
        ([page(DATA, 5, 20_000_000)] * 2, "row group 0 has too many values"),
        ([page(DICTIONARY, 100, 2**31 - 1), page(DATA, 5, 3)], "a page header of row group 0 is damaged"),
        ([page(DATA, -1, 3)], "a page header of row group 0 is damaged"),
        ([page(DATA, 5, -3)], "a page header of row group 0 is damaged"),
        ([integer(1, DATA) + integer(2, 5, 1)], "a page header of row group 0 is damaged"),
        ([page(DATA, 5, 3, more=bytes([1 << 4 | 8]) + varint(2**60))], "a page header of row group 0 is damaged"),
        ([page(DATA, 5, 3, more=bytes([1 << 4 | 9, 0xFC]) + varint(2**60))], "a page header of row group 0 is damaged"),
        ([bytes([1 << 4 | 12]) * 1_000], "a page header of row group 0 is damaged"),
        ([b"\xff" * 1_000], "a page header of row group 0 is damaged"),
    ],
)
def test_sizes_that_would_take_too_much_memory_are_refused(tmp_path: Path, column: list[bytes], reason: str) -> None:
    with pytest.raises(StoreError, match=reason):
        check(tmp_path, column)


def test_the_pages_of_all_columns_are_counted_together(tmp_path: Path) -> None:
    check(tmp_path, *[[page(DATA, 60 << 20, 3)]] * 4)
    with pytest.raises(StoreError, match="are too large"):
        check(tmp_path, *[[page(DATA, 60 << 20, 3)]] * 5)


def test_a_chunk_of_tiny_pages_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="too many pages"):
        check(tmp_path, [page(DATA, 0, 0, b"")] * 100_001)
