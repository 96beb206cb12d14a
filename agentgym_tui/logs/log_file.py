"""A file of lines that may be huge, grow, shrink or be replaced while it is looked at; read piece by piece.

It is not mapped into memory: a file that becomes shorter would end the process with SIGBUS.
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
"""Bytes; an offset within a block fits into two."""


NEWLINE: Final = b"\n"


class LineIndex:
    """Takes a file from its beginning on, as far as it was read; eight bytes are kept of each block.

    Args:
        block: bytes of a block, ``BLOCK_BYTES`` at most.

    Attributes:
        block: the same.
        size: bytes that were taken.
        n_newlines: among them.
    """

    def __init__(self, block: int = BLOCK_BYTES) -> None:
        self.block = block
        self.size = self.n_newlines = 0
        self._newlines_before = array("Q")
        self._ends_with_newline = True

    def __len__(self) -> int:
        """Lines; the last one may have no newline yet."""
        return self.n_newlines + (not self._ends_with_newline)

    def add(self, data: bytes | bytearray, n: int) -> None:
        """Take the first ``n`` bytes of what comes next."""
        at = 0
        while at < n:
            room = self.block - self.size % self.block
            if room == self.block:
                self._newlines_before.append(self.n_newlines)
            stop = min(at + room, n)
            found = data.count(NEWLINE, at, stop)
            self._ends_with_newline = data[stop - 1] == NEWLINE[0]
            self.n_newlines += found
            self.size += stop - at
            at = stop

    def locate(self, number: int) -> tuple[int, int]:
        """The block in which a line, from 1 to ``n_newlines``, begins after a newline, and the how manieth of it."""
        block = bisect_left(self._newlines_before, number) - 1
        return block, number - 1 - self._newlines_before[block]


def newline_offsets(block: bytes) -> array[int]:
    """Where they are in a block."""
    found, at = array("H"), block.find(NEWLINE)
    while at >= 0:
        found.append(at)
        at = block.find(NEWLINE, at + 1)
    return found


READ_BYTES: Final = 1 << 18

BUDGET_S: Final = 0.03
"""Seconds of reading after which somebody may be told."""

MAX_LINE_BYTES: Final = 1 << 20
"""Bytes of a line that are looked at."""

_TAIL_BYTES: Final = 64
"""Bytes before the end by which a file is known again once it has grown."""

_MAX_BLOCKS: Final = 32

ReloadReason: TypeAlias = Literal["", "shorter", "changed"]


class LogLine(NamedTuple):
    """A line: its beginning as it is, without newline and carriage return, and how many bytes it has."""

    number: int
    head: bytes
    n_bytes: int


class LogFile:
    """Reads a file; ``advance`` is called in a thread, again and again, all else by whoever shows it.

    Args:
        path: the file; nothing is opened yet.
        at_once: bytes that are read in one go.
        block: bytes of which one number is kept.

    Attributes:
        index: the lines as far as they were read; another object once it is read anew.
        size: bytes of the file, as it was seen last.
        failure: why it cannot be read, in our own words or those of the system; "" when it can.
        anew: why it was read anew the last time.
        replaced: another file has its name now; this one is still read.
        gone: no file has its name any more.
    """

    def __init__(self, path: Path, *, at_once: int = READ_BYTES, block: int = BLOCK_BYTES) -> None:
        self.path = path
        self.index = LineIndex(block)
        self.size = 0
        self.failure = ""
        self.reload_reason: ReloadReason = ""
        self.replaced = self.deleted = False
        self._reading, self._lock = threading.Lock(), threading.Lock()
        self._descriptor: int | None = None
        self._buffer = bytearray(at_once)
        self._tail = b""
        self._blocks: dict[tuple[LineIndex, int, int], array[int]] = {}
        self._suspect = False

    @property
    def is_complete(self) -> bool:
        """Whether all of it was read that there is, as far as is known."""
        return self._descriptor is not None and self.index.size >= self.size

    def advance(self, budget_s: float = BUDGET_S) -> bool:
        """Look whether the file changed and read on for a while; whether there is more to read now."""
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
        """Read the file that has the name now, from its beginning; called in a thread."""
        with self._reading:
            self.close()
            self._restart("")

    def close(self) -> None:
        """Let go of the file."""
        with self._lock:
            if self._descriptor is not None:
                os.close(self._descriptor)
                self._descriptor = None

    def line(self, number: int, limit: int = MAX_LINE_BYTES) -> LogLine:
        """A line by its number, from 0; of one that is gone meanwhile nothing is left."""
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
        """Where a line begins; after the last one the end of what was read."""
        index = index or self.index
        if number <= 0:
            return 0
        if number > index.n_newlines:
            return index.size
        block, nth = index.locate(number)
        found = self._newlines(index, block)
        if nth >= len(found):  # somebody wrote into the middle of the file
            self._suspect = True
            return min((block + 1) * index.block, index.size)
        return block * index.block + found[nth] + 1

    def read(self, start: int, n: int) -> bytes:
        """Bytes of the file, as many of them as there still are."""
        with self._lock:
            if self._descriptor is None or n <= 0:
                return b""
            try:
                return os.pread(self._descriptor, n, start)
            except OSError:  # ``advance`` will say so
                return b""

    def _newlines(self, index: LineIndex, block: int) -> array[int]:
        n = min(index.size - block * index.block, index.block)
        blocks, key = self._blocks, (index, block, n)
        if (known := blocks.get(key)) is None:
            known = newline_offsets(self.read(block * index.block, n))
            if len(blocks) >= _MAX_BLOCKS:
                blocks = self._blocks = {}  # a new one: another thread may be looking into the old one
            blocks[key] = known
        return known

    def _check_file(self) -> None:
        """Open it, or see what became of it."""
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
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY  # a pipe would be waited for
        descriptor = os.open(self.path, flags)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            self.failure = "it is no regular file"
            return
        with self._lock:
            self._descriptor = descriptor

    def _has_same_tail(self) -> bool:
        return self.read(self.index.size - len(self._tail), len(self._tail)) == self._tail

    def _restart(self, why: ReloadReason) -> None:
        self.index, self.size, self.reload_reason, self._tail, self._suspect = LineIndex(self.index.block), 0, why, b"", False
        self._blocks = {}

    def _read_next(self) -> bool:
        """Read what comes next; False when there is nothing, as the file became shorter."""
        index = self.index
        with self._lock:
            if self._descriptor is None:
                return False
            n = os.preadv(self._descriptor, [self._buffer], index.size)
        n = min(n, self.size - index.size)
        if n <= 0:
            self.size = index.size
            return False
        self._tail = (self._tail + self._buffer[max(n - _TAIL_BYTES, 0) : n])[-_TAIL_BYTES:]
        index.add(self._buffer, n)
        return True
