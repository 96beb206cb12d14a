"""Sizes that pages of a Parquet file declare are checked before pyarrow would allocate them."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.errors import StoreError
from runner.formats.parquet import Column, Group, check_pages, read_groups
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
    data, described = b"PAR1", list[Column]()
    for pages in columns:
        has_dictionary = pages[0][1] == DICTIONARY << 1
        first = len(data)
        data += b"".join(pages)
        described.append(
            Column(
                n_values=n_rows,
                unpacked=0,
                packed=len(data) - first,
                data_offset=first + len(pages[0]) if has_dictionary else first,
                dictionary_offset=first if has_dictionary else 0,
            )
        )
    path.write_bytes(data)
    with path.open("rb") as file:
        check_pages(file, Group(n_rows, described), 0, LIMITS)


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
        ([integer(1, DATA) + b"\x1c\0" * 2 + b"\0"], "a page header of row group 0 is damaged"),
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


def footer(groups: bytes) -> bytes:
    return b"PAR1" + groups + len(groups).to_bytes(4, "little") + b"PAR1"


METADATA = bytes([(5 << 4) | 6, 14, (1 << 4) | 6, 40, (1 << 4) | 6, 20, (2 << 4) | 6, 8, (2 << 4) | 6, 2, 0])
"""Fields 5, 6, 7, 9 and 11: 7 values, 20 bytes, 10 packed ones, and the offsets 4 and 1."""
GROUP = bytes([(1 << 4) | 9, (1 << 4) | 12, (3 << 4) | 12]) + METADATA + bytes([0, (2 << 4) | 6, 6, 0])


@pytest.mark.parametrize(
    ("data", "groups"),
    [
        (footer(bytes([(4 << 4) | 9, (1 << 4) | 12]) + GROUP + b"\0"), [Group(3, [Column(7, 20, 10, 4, 1)])]),
        (footer(b"\0"), []),
        (footer(bytes([(4 << 4) | 9, 0xFC]) + varint(2**40) + b"\0"), None),
        (footer(bytes([(4 << 4) | 9, (1 << 4) | 12])), None),
        (footer(bytes([(4 << 4) | 5, 3, 0])), None),
        (b"PAR1" + (2**31).to_bytes(4, "little") + b"PAR1", None),
        (b"PAR1", None),
    ],
)
def test_the_footer_is_read_without_pyarrow(tmp_path: Path, data: bytes, groups: list[Group] | None) -> None:
    path = tmp_path / "table.parquet"
    path.write_bytes(data)
    with path.open("rb") as file:
        if groups is None:
            with pytest.raises(StoreError, match="footer"):
                read_groups(file)
        else:
            assert read_groups(file) == groups
