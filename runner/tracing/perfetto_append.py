"""Adding whole packets to a trace file that other processes add to as well, and that any of them may die writing."""

from __future__ import annotations

import fcntl
import functools
import logging
import mmap
import os
from pathlib import Path

from runner.errors import StoreError

logger = logging.getLogger(__name__)

_PACKET_TAG = 0x0A
"""Field 1, length-delimited: a packet in the trace message, which is all that a trace file consists of."""


@functools.lru_cache(maxsize=1024)
def field_header(length: int, tag: int = _PACKET_TAG) -> bytes:
    """The tag and the length that stand before a message to make it a field of another, by default a packet."""
    encoded = [tag]
    while length >= 0x80:
        encoded.append(length & 0x7F | 0x80)
        length >>= 7
    encoded.append(length)
    return bytes(encoded)


def append_packets(path: Path, packets: bytes, *, whole_until: int = 0) -> int:
    """Add encoded packets in one write; the file is created with mode 0600 and its folder with 0700.

    What a killed process left unfinished at the end of the file is dropped first: it would make everything behind it
    unreadable.

    Args:
        path: the trace file.
        packets: one or more packets, each with its tag and length.
        whole_until: how many bytes are known to be whole packets; what others added behind them is looked through.

    Returns:
        how many bytes are whole packets now.

    Raises:
        StoreError: the file cannot be written; it then holds what it held before.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            size = _drop_torn_end(path, descriptor, whole_until)
            return _write_whole(descriptor, packets, size)
        finally:
            os.close(descriptor)
    except OSError as exc:
        raise StoreError(f"cannot add to the trace {path}: {exc}; check the disk's space and permissions") from exc


def _write_whole(descriptor: int, packets: bytes, size: int) -> int:
    written = os.write(descriptor, packets)
    if written < len(packets):
        os.ftruncate(descriptor, size)
        raise OSError(f"only {written} of {len(packets)} bytes were written")
    return size + written


def _drop_torn_end(path: Path, descriptor: int, whole_until: int) -> int:
    """Cut the file behind its last whole packet; returns its size."""
    size = os.fstat(descriptor).st_size
    if size in (0, whole_until):
        return size
    with mmap.mmap(descriptor, size, prot=mmap.PROT_READ) as data:
        complete = complete_length(data, whole_until if whole_until < size else 0)
    if complete < size:
        logger.warning("dropped %d unfinished bytes at the end of the trace %s", size - complete, path)
        os.ftruncate(descriptor, complete)
    return complete


def complete_length(data: bytes | mmap.mmap, complete: int = 0) -> int:
    """How many bytes at the beginning are whole packets, the first ``complete`` ones being known to be."""
    size = len(data)
    while complete < size and data[complete] == _PACKET_TAG:
        end = _packet_end(data, complete + 1)
        if end > size:
            break
        complete = end
    return complete


def _packet_end(data: bytes | mmap.mmap, position: int) -> int:
    """Where the packet ends whose length, a base-128 number, starts at ``position``; may lie outside the data."""
    length = shift = 0
    for index in range(position, min(position + 10, len(data))):
        length |= (data[index] & 0x7F) << shift
        shift += 7
        if data[index] < 0x80:
            return index + 1 + length
    return len(data) + 1
