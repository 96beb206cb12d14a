"""Where the lines of a large file are: newlines are counted block by block, and one block is read to find a line."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from typing import Final

BLOCK: Final = 1 << 16
"""Bytes; an offset within a block fits into two."""

NEWLINE: Final = b"\n"


class LineIndex:
    """Takes a file from its beginning on, as far as it was read; eight bytes are kept of each block.

    Args:
        block: bytes of a block, ``BLOCK`` at most.

    Attributes:
        block: the same.
        size: bytes that were taken.
        n_newlines: among them.
    """

    def __init__(self, block: int = BLOCK) -> None:
        self.block = block
        self.size = self.n_newlines = 0
        self._before = array("Q")
        self._ended = True

    def __len__(self) -> int:
        """Lines; the last one may have no newline yet."""
        return self.n_newlines + (not self._ended)

    def add(self, data: bytes | bytearray, n: int) -> None:
        """Take the first ``n`` bytes of what comes next."""
        at = 0
        while at < n:
            room = self.block - self.size % self.block
            if room == self.block:
                self._before.append(self.n_newlines)
            stop = min(at + room, n)
            found = data.count(NEWLINE, at, stop)
            self._ended = data[stop - 1] == NEWLINE[0]
            self.n_newlines += found
            self.size += stop - at
            at = stop

    def place(self, number: int) -> tuple[int, int]:
        """The block in which a line, from 1 to ``n_newlines``, begins after a newline, and the how manieth of it."""
        block = bisect_left(self._before, number) - 1
        return block, number - 1 - self._before[block]


def newlines(block: bytes) -> array[int]:
    """Where they are in a block."""
    found, at = array("H"), block.find(NEWLINE)
    while at >= 0:
        found.append(at)
        at = block.find(NEWLINE, at + 1)
    return found
