"""Items of foreign files: lines, elements of a JSON array, or a whole document, read one at a time within limits.

Nothing of a file is followed: links are not opened, and no text of a file becomes part of a path.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple, TypeAlias

import msgspec

from runner.errors import StoreError
from runner.util.json_accessors import decode_json

HEAD_BYTES: Final = 256 << 10
"""Bytes of a file from which its format is recognised."""
BOM: Final = b"\xef\xbb\xbf"
_CHUNK_BYTES: Final = 1 << 20
_SPACE: Final = b" \t\r\n"
_BETWEEN: Final = re.compile(rb'[,"\[\]{}]|[^\s,"\[\]{}]+')
_STRUCTURE, _STRING_END = re.compile(rb'["\[\]{}]'), re.compile(rb'["\\]')
_ARRAY: Final = re.compile(rb"\s*\[(\s*\[)?")


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of what is read of a foreign file.

    Attributes:
        item_bytes: largest line, array element, document or unpacked zip member, in bytes; half of it where it has
            characters beyond ASCII, each of whose texts takes up to four bytes per character.
        item_values: largest number of JSON values in an item, where one with a name counts as three; each takes up to
            about 100 bytes of memory.
        branches: largest number of branches of a message graph that become episodes.
        folder_depth: number of folder levels that are searched; 1 is the named folder itself.
    """

    item_bytes: int = 60 << 20
    item_values: int = 2_000_000
    branches: int = 32
    files: int = 200_000
    folder_depth: int = 3


LIMITS: Final = Limits()


class Place(NamedTuple):
    """Where an item is; ``n_same`` is the number of equal items before it, as of attempts that went the same way."""

    path: Path
    number: int
    start: int = 0
    size: int = 0
    unit: str = "line"
    n_same: int = 0


class Item(NamedTuple):
    place: Place
    data: bytes


class Malformed(NamedTuple):
    """An item that cannot be read, and the reason; only this item is lost."""

    place: Place
    reason: str


Found: TypeAlias = Item | Malformed


@contextlib.contextmanager
def open_regular(path: Path) -> Iterator[BinaryIO]:
    """Open a file without following a link; raises ``StoreError`` if it is missing or not regular, or reading fails."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise StoreError(f"{path} is not a regular file")
            yield file
    except (OSError, ValueError) as exc:
        raise StoreError(f"{path} cannot be read: {getattr(exc, 'strerror', None) or exc}") from exc


def read_head(path: Path, n_bytes: int = HEAD_BYTES) -> bytes:
    """Raises like ``open_regular``."""
    with open_regular(path) as file:
        return file.read(n_bytes)


def read_small(path: Path, limits: Limits) -> bytes:
    """Return the content of a regular file; raises a ``StoreError`` also if it is larger than an item may be."""
    data = read_head(path, limits.item_bytes + 1)
    if len(data) > limits.item_bytes:
        raise StoreError(_too_large(limits))
    return data


def read_place(place: Place, limits: Limits = LIMITS) -> bytes:
    """Raises a ``StoreError`` if the file has become shorter."""
    with open_regular(place.path) as file:
        return _read_at(file, place, limits)


def json_items(path: Path, limits: Limits = LIMITS) -> Iterator[Found]:
    """Yield the items of a JSON file: elements of an array or of the arrays therein, lines, or longer documents."""
    head = read_head(path)
    start = len(BOM) if head.startswith(BOM) else 0
    if (array := _ARRAY.match(head, start)) is not None:
        yield from _Parts(path, limits, "element", 1 if array[1] is None else 2).find(start)
    elif is_document(head):
        yield from _Parts(path, limits, "document", 0).find(start)
    else:
        yield from _lines(path, limits)


def array_items(path: Path, limits: Limits, start: int) -> Iterator[Found]:
    """Yield the elements of the array that begins at an offset of a document; raises like ``json_items``."""
    yield from _Parts(path, limits, "element", 1).find(start, is_whole=False)


def is_document(head: bytes) -> bool:
    """Return whether a file that starts with ``head`` has a JSON object over several lines, not JSON Lines."""
    first, newline, rest = head.removeprefix(BOM).lstrip(_SPACE).partition(b"\n")
    if not newline or not rest.strip(_SPACE):
        return False
    return first.rstrip(_SPACE).endswith((b"{", b"[", b",", b":")) and first.startswith(b"{")


def decode_item(data: bytes, limits: Limits = LIMITS) -> object:
    """Raises ``ValueError`` if it is no JSON, or is larger or has more values than ``limits`` allow."""
    if len(data) > limits.item_bytes // 2 and (not data.isascii() or b"\\u" in data):
        raise ValueError(f"it has characters beyond ASCII and is larger than {limits.item_bytes >> 21} MiB")
    if data.count(b",") + data.count(b"[") + data.count(b"{") + 2 * data.count(b":") > limits.item_values:
        raise ValueError(f"it has more than {limits.item_values:,} values")
    try:
        return msgspec.json.decode(data)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except (msgspec.MsgspecError, UnicodeError) as exc:
        value = decode_json(data)
        if value is None:
            raise ValueError(f"it is no JSON: {exc}") from None
        return value


def _too_large(limits: Limits) -> str:
    return f"it is larger than {limits.item_bytes >> 20} MiB" if limits.item_bytes >= 1 << 20 else "it is too large"


def _read_at(file: BinaryIO, place: Place, limits: Limits) -> bytes:
    data = os.pread(file.fileno(), min(place.size, limits.item_bytes), place.start)
    if len(data) < place.size:
        raise StoreError(f"{place.path} is shorter than before; reload it")
    return data


def _lines(path: Path, limits: Limits) -> Iterator[Found]:
    start = 0
    with open_regular(path) as file:
        for number in count(1):
            if not (line := file.readline(limits.item_bytes + 1)):
                return
            size = len(line)
            if size > limits.item_bytes:
                while line and not line.endswith(b"\n"):
                    line = file.readline(_CHUNK_BYTES)
                    size += len(line)
                yield Malformed(Place(path, number, start, size), _too_large(limits))
            elif content := line.removeprefix(BOM if number == 1 else b"").strip(_SPACE):
                place = Place(path, number, start + line.index(content), len(content))
                line, kept = b"", [content]  # an item is kept once, by whoever reads it
                del content
                yield Item(place, kept.pop())
            start += size


class _Parts:
    """Finds the parts of a JSON file, of which it knows only strings, brackets and commas.

    ``n_around``: brackets around each part; 0 of documents one after another, 1 of the elements of an array, 2 of those
    of the arrays in an array.
    """

    def __init__(self, path: Path, limits: Limits, unit: str, n_around: int) -> None:
        self._path, self._limits, self._unit, self._n_around = path, limits, unit, n_around
        self._depth = self._number = self._start = 0
        self._position = 0  # in the chunk that is searched; beyond its end after a backslash
        self._is_open = self._in_string = self._in_scalar = self._is_complete = False

    def find(self, start: int, *, is_whole: bool = True) -> Iterator[Found]:
        """Yield the parts from an offset on; unless ``is_whole``, anything may follow their array."""
        self._position, offset, goes_on = start, 0, False
        with open_regular(self._path) as file:
            while not goes_on and (data := file.read(_CHUNK_BYTES)):
                for place in self._places(data, offset):
                    yield self._found(file, place)
                goes_on = self._is_complete and bool(data[self._position :].strip(_SPACE))
                offset += len(data)
                self._position = max(self._position - len(data), 0)
        is_fine = self._is_complete and not (goes_on and is_whole)
        if not (is_fine if self._n_around else not self._is_complete and not self._is_open):
            whole = "array" if self._n_around else "document"
            reason = (
                f"the file goes on after the end of the {whole}" if self._is_complete else f"the {whole} has no end"
            )
            number = self._number + (not self._is_open)
            yield Malformed(Place(self._path, number, self._start, offset - self._start, self._unit), reason)

    def _places(self, data: bytes, offset: int) -> Iterator[Place]:
        """Yield the places of the parts that end in a chunk, and, with size 0, of the other values that begin there."""
        while not self._is_complete:
            is_between = self._depth == self._n_around
            pattern = _STRING_END if self._in_string else _BETWEEN if is_between else _STRUCTURE
            if (match := pattern.search(data, self._position)) is None:
                return
            self._position, sign = match.end(), match[0]
            if self._in_string:
                self._in_string = sign == b"\\"
                self._position += self._in_string
            elif sign in (b"[", b"{"):
                self._depth += 1
                if is_between:
                    self._number, self._start, self._is_open = self._number + 1, offset + match.start(), True
            elif sign in (b"]", b"}"):
                self._depth -= 1
                self._is_complete = self._depth < min(self._n_around, 1)
                if self._depth == self._n_around:
                    self._is_open = False
                    yield Place(
                        self._path, self._number, self._start, offset + self._position - self._start, self._unit
                    )
            else:
                self._in_string = sign == b'"'
                if is_between and sign != b"," and not self._in_scalar:
                    self._number += 1
                    yield Place(self._path, self._number, offset + match.start(), 0, self._unit)
                self._in_scalar = is_between and sign != b","

    def _found(self, file: BinaryIO, place: Place) -> Found:
        if not place.size:
            return Malformed(place, "it is no object")
        if place.size > self._limits.item_bytes:
            return Malformed(place, _too_large(self._limits))
        return Item(place, _read_at(file, place, self._limits))
