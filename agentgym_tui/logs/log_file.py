"""Reader and line index for a log file that may be huge and may grow, shrink or be replaced while it is shown.

``LineIndex`` counts the newlines in each block of the file; ``LogFile`` reads the file piece by piece. The file is not
mapped into memory, because reading a mapped file that another process has truncated ends this process with SIGBUS.
"""

from __future__ import annotations

import os
import stat
import threading
import time
from array import array
from bisect import bisect_left
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeAlias

BLOCK_BYTES: Final = 1 << 16
"""Largest size of an indexed block in bytes, so that an offset within a block fits into two bytes."""

NEWLINE: Final = b"\n"


class LineIndex:
    """Index of the lines in the part of a file that has been read; takes eight bytes of memory per block.

    Args:
        block: size of a block in bytes, at most ``BLOCK_BYTES``.

    Attributes:
        block: size of a block in bytes.
        size: number of indexed bytes.
        n_newlines: number of newlines in the indexed bytes.
    """

    def __init__(self, block: int = BLOCK_BYTES) -> None:
        self.block = block
        self.size = self.n_newlines = 0
        self._newlines_before = array("Q")
        self._ends_with_newline = True

    def __len__(self) -> int:
        """Return the number of lines, including a last line that does not end with a newline yet."""
        return self.n_newlines + (not self._ends_with_newline)

    def add(self, data: bytes | bytearray, n: int) -> None:
        """Index the first ``n`` bytes of ``data``, which follow the indexed bytes in the file."""
        at = 0
        while at < n:
            n_free = self.block - self.size % self.block
            if n_free == self.block:
                self._newlines_before.append(self.n_newlines)
            stop = min(at + n_free, n)
            n_newlines = data.count(NEWLINE, at, stop)
            self._ends_with_newline = data[stop - 1] == NEWLINE[0]
            self.n_newlines += n_newlines
            self.size += stop - at
            at = stop

    def locate(self, number: int) -> tuple[int, int]:
        """Return the position of the newline that precedes a line.

        Args:
            number: line number from 1 to ``n_newlines``; the first line of the file has the number 0.

        Returns:
            The number of the block that contains the newline, and the number of the newline in that block. Both are
            counted from 0.
        """
        block = bisect_left(self._newlines_before, number) - 1
        return block, number - 1 - self._newlines_before[block]


def newline_offsets(block: bytes) -> array[int]:
    """Return the offset of each newline in a block, from the start of the block."""
    offsets, at = array("H"), block.find(NEWLINE)
    while at >= 0:
        offsets.append(at)
        at = block.find(NEWLINE, at + 1)
    return offsets


READ_BYTES: Final = 1 << 18
"""Number of bytes per read."""

BUDGET_S: Final = 0.03
"""Seconds for which a call reads or searches before it returns, so that the caller can repaint."""

MAX_LINE_BYTES: Final = 1 << 20
"""Largest number of bytes read of a line."""

_TAIL_BYTES: Final = 64
"""Number of bytes at the indexed end of the file that are compared, to detect that a grown file was overwritten."""

_MAX_BLOCKS: Final = 32
"""Largest number of blocks whose newline offsets are cached."""

ReloadReason: TypeAlias = Literal["", "shorter", "changed"]


class LogLine(NamedTuple):
    """A line of a log file.

    Attributes:
        number: number of the line, from 0.
        head: first bytes of the line, without the line break.
        n_bytes: full length of the line in bytes, without the line break.
    """

    number: int
    head: bytes
    n_bytes: int


class LogFile:
    """A log file that is read piece by piece.

    One thread calls ``advance`` repeatedly; any thread may read lines. When the file has to be read again from its
    start, ``index`` becomes a new object.

    Args:
        path: the file; it is opened by the first ``advance``.
        read_bytes: number of bytes per read.
        block: size of an indexed block in bytes.

    Attributes:
        path: the file.
        index: index of the lines in the part of the file that has been read.
        size: size of the file in bytes when it was last checked.
        failure: why the file cannot be read; "" where the file can be read.
        reload_reason: why the file was last read again from its start; "" where it was not.
        replaced: whether ``path`` now names another file; the original file is still read.
        deleted: whether ``path`` no longer names a file.
    """

    def __init__(self, path: Path, *, read_bytes: int = READ_BYTES, block: int = BLOCK_BYTES) -> None:
        self.path = path
        self.index = LineIndex(block)
        self.size = 0
        self.failure = ""
        self.reload_reason: ReloadReason = ""
        self.replaced = self.deleted = False
        self._reading, self._lock = threading.Lock(), threading.Lock()
        self._descriptor: int | None = None
        self._read_bytes = read_bytes
        self._buffer = bytearray()  # not before the first read: a folder can have many logs
        self._tail = b""
        self._blocks: dict[tuple[LineIndex, int, int], array[int]] = {}
        self._suspect = False

    @property
    def is_complete(self) -> bool:
        """Whether the file has been read up to its last known size."""
        return self._descriptor is not None and self.index.size >= self.size

    def advance(self, budget_s: float = BUDGET_S) -> bool:
        """Check the file for changes and read for up to ``budget_s`` seconds; return whether unread bytes are left."""
        deadline = time.monotonic() + budget_s
        with self._reading:
            try:
                self._check_file()
                while self.index.size < self.size and self._read_next() and time.monotonic() < deadline:
                    pass
            except OSError as exc:
                self.failure = exc.strerror or type(exc).__name__
                return False
            return self.index.size < self.size

    def reopen(self) -> None:
        """Close the file; the next ``advance`` opens the file that ``path`` names now and reads it from its start."""
        with self._reading:
            self.close()
            self._restart("")

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            if self._descriptor is not None:
                os.close(self._descriptor)
                self._descriptor = None

    def line(self, number: int, limit: int = MAX_LINE_BYTES) -> LogLine:
        """Return a line; it is empty if the file no longer contains it.

        Args:
            number: line number, from 0.
            limit: largest number of bytes read of the line.
        """
        index = self.index
        start, stop = self.line_start(number, index), self.line_start(number + 1, index)
        if number < index.n_newlines:
            stop -= 1
        head = self.read(start, min(stop - start, limit))
        n_bytes = max(stop - start, 0)
        if number < index.n_newlines and len(head) == n_bytes and head.endswith(b"\r"):
            return LogLine(number, head[:-1], n_bytes - 1)
        return LogLine(number, head, n_bytes)

    def line_start(self, number: int, index: LineIndex | None = None) -> int:
        """Return the byte offset at which a line starts.

        Args:
            number: line number, from 0. Past the last line, the result is the end of the indexed bytes.
            index: index to use; ``self.index`` by default.
        """
        index = index or self.index
        if number <= 0:
            return 0
        if number > index.n_newlines:
            return index.size
        block, position = index.locate(number)
        offsets = self._newlines(index, block)
        if position >= len(offsets):  # another process wrote into the middle of the file
            self._suspect = True
            return min((block + 1) * index.block, index.size)
        return block * index.block + offsets[position] + 1

    def read(self, start: int, n: int) -> bytes:
        """Return up to ``n`` bytes of the file from the offset ``start``; no bytes where the file cannot be read."""
        with self._lock:
            if self._descriptor is None or n <= 0:
                return b""
            try:
                return os.pread(self._descriptor, n, start)
            except OSError:  # ``advance`` reports the failure
                return b""

    def _newlines(self, index: LineIndex, block: int) -> array[int]:
        n = min(index.size - block * index.block, index.block)
        blocks, key = self._blocks, (index, block, n)
        if (known := blocks.get(key)) is None:
            known = newline_offsets(self.read(block * index.block, n))
            if len(blocks) >= _MAX_BLOCKS:
                blocks = self._blocks = {}  # not cleared: another thread may be reading the old one
            blocks[key] = known
        return known

    def _check_file(self) -> None:
        """Open the file where needed; detect that it was truncated, overwritten, replaced or deleted."""
        if self._descriptor is None:
            self._open()
        descriptor = self._descriptor
        if descriptor is None:
            return
        status = os.fstat(descriptor)
        try:
            self.replaced = not os.path.samestat(self.path.stat(), status)
            self.deleted = False
        except OSError:
            self.replaced, self.deleted = False, True
        self.failure = ""
        if status.st_size < self.index.size:
            self._restart("shorter")
        elif self._suspect or (status.st_size > self.index.size and not self._has_same_tail()):
            self._restart("changed")
        self.size = status.st_size

    def _open(self) -> None:
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY  # opening a pipe would block
        descriptor = os.open(self.path, flags)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            self.failure = "not a regular file"
            return
        with self._lock:
            self._descriptor = descriptor

    def _has_same_tail(self) -> bool:
        return self.read(self.index.size - len(self._tail), len(self._tail)) == self._tail

    def _restart(self, reason: ReloadReason) -> None:
        self.index, self.size = LineIndex(self.index.block), 0
        self.reload_reason, self._suspect = reason, False
        self._tail = b""
        self._blocks = {}

    def _read_next(self) -> bool:
        """Read and index the next piece of the file; return False if the file is closed or became shorter."""
        index = self.index
        with self._lock:
            if self._descriptor is None:
                return False
            self._buffer = self._buffer or bytearray(self._read_bytes)
            n = os.preadv(self._descriptor, [self._buffer], index.size)
        n = min(n, self.size - index.size)
        if n <= 0:
            self.size = index.size
            return False
        self._tail = (self._tail + self._buffer[max(n - _TAIL_BYTES, 0) : n])[-_TAIL_BYTES:]
        index.add(self._buffer, n)
        return True
