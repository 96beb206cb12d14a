"""Items of foreign files: lines, elements of a JSON array, or a whole document, read one at a time within limits.

Nothing of a file is followed: links are not opened, and no text of a file becomes part of a path.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final, Literal, NamedTuple, TypeAlias

import msgspec

from runner.errors import StoreError
from runner.util.json_accessors import decode_json

HEAD_BYTES: Final = 256 << 10
"""Bytes of a file from which its format is recognised."""
_CHUNK_BYTES: Final = 1 << 20
_SPACE: Final = b" \t\r\n"
_BOM: Final = b"\xef\xbb\xbf"
_BETWEEN: Final = re.compile(rb'[,"\[\]{}]|[^\s,"\[\]{}]+')
_STRUCTURE, _STRING_END = re.compile(rb'["\[\]{}]'), re.compile(rb'["\\]')
_ARRAY: Final = re.compile(rb"\s*\[(\s*\[)?")
_NEXT_DOCUMENT: Final = re.compile(rb"\}[ \t\r]*\n\s*\{")
"""Between two objects of which neither contains the other: a string of JSON has no line end, and a list a comma."""


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


def open_regular(path: Path) -> BinaryIO:
    """Open a file without following a link; raises ``StoreError`` if it is missing, unreadable or not regular."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY)
    except (OSError, ValueError) as exc:
        raise StoreError(f"{path} cannot be read: {getattr(exc, 'strerror', None) or exc}") from exc
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise StoreError(f"{path} is not a regular file")
    return os.fdopen(descriptor, "rb")


def read_head(path: Path, n_bytes: int = HEAD_BYTES) -> bytes:
    """Raises like ``open_regular``."""
    with open_regular(path) as file:
        return _read(file, n_bytes, path)


def read_small(path: Path, limits: Limits) -> bytes:
    """Return the content of a regular file; raises a ``StoreError`` also if it is larger than an item may be."""
    data = read_head(path, limits.item_bytes + 1)
    if len(data) > limits.item_bytes:
        raise StoreError(_too_large(limits))
    return data


def read_place(place: Place, limits: Limits = LIMITS) -> bytes:
    """Raises a ``StoreError`` if the file has become shorter."""
    with open_regular(place.path) as file:
        try:
            file.seek(place.start)
        except OSError as exc:
            raise StoreError(f"{place.path} cannot be read: {exc.strerror}") from exc
        data = _read(file, min(place.size, limits.item_bytes), place.path)
    if len(data) < place.size:
        raise StoreError(f"{place.path} is shorter than before; reload it")
    return data


def json_items(path: Path, limits: Limits = LIMITS) -> Iterator[Found]:
    """Yield the items of a JSON file: elements of an array or of the arrays therein, lines, or longer documents."""
    head = read_head(path)
    start = len(_BOM) if head.startswith(_BOM) else 0
    if (array := _ARRAY.match(head, start)) is not None:
        yield from _parts(path, limits, "element", start, is_nested=array[1] is not None)
    elif is_document(head):
        yield from _documents(path, limits, start)
    else:
        yield from _lines(path, limits)


def array_items(path: Path, limits: Limits, start: int) -> Iterator[Found]:
    """Yield the elements of the array that begins at an offset of a document; raises like ``json_items``."""
    yield from _parts(path, limits, "element", start, is_part=True)


def is_document(head: bytes) -> bool:
    """Return whether a file that starts with ``head`` has a JSON object over several lines, not JSON Lines."""
    first, newline, rest = head.removeprefix(_BOM).lstrip(_SPACE).partition(b"\n")
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


def _read(file: BinaryIO, n_bytes: int, path: Path) -> bytes:
    try:
        return file.read(n_bytes)
    except OSError as exc:
        raise StoreError(f"{path} cannot be read: {exc.strerror or exc}") from exc


def _too_large(limits: Limits) -> str:
    return f"it is larger than {limits.item_bytes >> 20} MiB" if limits.item_bytes >= 1 << 20 else "it is too large"


def _documents(path: Path, limits: Limits, start: int) -> Iterator[Found]:
    data = read_head(path, limits.item_bytes + 1)
    if _NEXT_DOCUMENT.search(data):
        yield from _parts(path, limits, "document", start)
        return
    place = Place(path, 1, 0, len(data), "document")
    yield Malformed(place, _too_large(limits)) if len(data) > limits.item_bytes else Item(place, data)


def _lines(path: Path, limits: Limits) -> Iterator[Found]:
    with open_regular(path) as file:
        number = start = 0
        while line := _read_line(file, limits.item_bytes + 1, path):
            number += 1
            size = len(line)
            if size > limits.item_bytes:
                size += _skip_line(file, path) if not line.endswith(b"\n") else 0
                yield Malformed(Place(path, number, start, size), _too_large(limits))
            elif content := line.removeprefix(_BOM if number == 1 else b"").strip(_SPACE):
                place = Place(path, number, start + line.index(content), len(content))
                line, kept = b"", [content]  # an item is kept once, by whoever reads it
                del content
                yield Item(place, kept.pop())
            start += size


def _read_line(file: BinaryIO, n_bytes: int, path: Path) -> bytes:
    try:
        return file.readline(n_bytes)
    except OSError as exc:
        raise StoreError(f"{path} cannot be read: {exc.strerror or exc}") from exc


def _skip_line(file: BinaryIO, path: Path) -> int:
    n_skipped = 0
    while part := _read_line(file, _CHUNK_BYTES, path):
        n_skipped += len(part)
        if part.endswith(b"\n"):
            break
    return n_skipped


class _Splitter:
    """Finds the elements of a JSON array, or documents one after another, in parts of a file.

    It knows only strings, brackets and commas, and passes over ``n_skipped`` bytes at the start of the file.
    ``is_nested``: the elements are those of arrays in the array; ``is_part``: the array is only a part of the file.
    """

    def __init__(
        self,
        path: Path,
        limits: Limits,
        unit: Literal["element", "document"],
        n_skipped: int,
        *,
        is_nested: bool = False,
        is_part: bool = False,
    ) -> None:
        self._path, self._limits, self._unit, self._is_part = path, limits, unit, is_part
        self._whole = 1 if unit == "element" else 0  # the depth in the array, or between two documents
        self._outside = self._whole + is_nested  # the depth between two elements
        self._depth, self._in_string, self._in_scalar = 0, False, False
        self._n_escaped = n_skipped  # bytes at the start of the next part that belong to an escape
        self._element: list[bytes] | None = None
        self._n_bytes = self._start = self._number = 0
        self._offset = 0  # of the current part in the file
        self._is_complete = self.goes_on = False

    def feed(self, part: bytes) -> Iterator[Found]:
        """Yield the elements that end in the next part of the file, and the scalars that begin there."""
        begin, position = 0, self._n_escaped
        while not self._is_complete:
            pattern = _STRING_END if self._in_string else _BETWEEN if self._depth == self._outside else _STRUCTURE
            if (match := pattern.search(part, position)) is None:
                break
            position, sign = match.end(), match[0]
            if self._in_string:
                position += sign == b"\\"
                self._in_string = sign == b"\\"
            elif sign in (b"[", b"{"):
                self._depth += 1
                if self._depth == self._outside + 1:
                    begin = match.start()
                    self._begin(self._offset + begin)
            elif sign in (b"]", b"}"):
                self._depth -= 1
                self._is_complete = self._depth < self._whole
                if self._depth == self._outside:
                    self._keep(part[begin:position])
                    yield self._found()
            else:
                self._in_string = sign == b'"'
                if self._depth == self._outside:
                    yield from self._scalar(sign, self._offset + match.start())
        self._keep(part[begin:])
        self._n_escaped = max(position - len(part), 0)
        self.goes_on |= self._is_complete and bool(part[position:].strip(_SPACE))
        self._offset += len(part)

    def rest(self) -> Malformed | None:
        """Return what follows the last complete part or the array; None if there is nothing else in the file."""
        if self._unit == "document":
            if not self._is_complete and self._element is None:
                return None
        elif self._is_complete and (self._is_part or not self.goes_on):
            return None
        number = self._number + 1 if self._element is None else self._number
        whole = "array" if self._unit == "element" else "document"
        reason = f"the file goes on after the end of the {whole}" if self._is_complete else f"the {whole} has no end"
        return Malformed(Place(self._path, number, self._start, self._offset - self._start, self._unit), reason)

    def _scalar(self, sign: bytes, start: int) -> Iterator[Malformed]:
        """Yield a number, a text or the like, of which nothing but its place is kept, when it begins."""
        if sign != b"," and not self._in_scalar:
            self._number += 1
            yield Malformed(Place(self._path, self._number, start, 0, self._unit), "it is no object")
        self._in_scalar = sign != b","

    def _begin(self, start: int) -> None:
        self._element, self._start, self._n_bytes = [], start, 0
        self._number += 1

    def _keep(self, data: bytes) -> None:
        if self._element is not None:
            self._n_bytes += len(data)
            if self._n_bytes <= self._limits.item_bytes:
                self._element.append(data)
            else:
                self._element.clear()

    def _found(self) -> Found:
        place = Place(self._path, self._number, self._start, self._n_bytes, self._unit)
        data, self._element = b"".join(self._element or ()), None
        return Item(place, data) if len(data) == self._n_bytes else Malformed(place, _too_large(self._limits))


def _parts(
    path: Path, limits: Limits, unit: Literal["element", "document"], n_skipped: int, **kind: bool
) -> Iterator[Found]:
    splitter = _Splitter(path, limits, unit, n_skipped, **kind)
    with open_regular(path) as file:
        while not splitter.goes_on and (part := _read(file, _CHUNK_BYTES, path)):
            yield from splitter.feed(part)
    if (rest := splitter.rest()) is not None:
        yield rest
