"""Crash-safe appending of protobuf packets to a Perfetto trace file that several processes share, and their encoding.

Few fields are written, so they are encoded here: Perfetto's protobuf classes need 65 ms of CPU to load.
"""

from __future__ import annotations

import fcntl
import functools
import logging
import mmap
import os
from pathlib import Path

from runner.errors import StoreError
from runner.util.resources import file_advice

logger = logging.getLogger(__name__)

_PACKET_TAG = 0x0A
"""Protobuf tag of ``Trace.packet``: field 1, length-delimited. A trace file is a sequence of such packets."""
_MAX_UINT64 = 2**64 - 1


@functools.lru_cache(maxsize=1024)
def field_header(length: int, tag: int = _PACKET_TAG) -> bytes:
    """By default the tag of a packet."""
    return varint(tag) + varint(length)


def varint(value: int) -> bytes:
    """A negative number is encoded as 64 bits in two's complement."""
    value &= _MAX_UINT64
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def number_field(field: int, value: int) -> bytes:
    """Encode a field of a type such as ``uint64``, ``int64``, ``bool`` or an enum."""
    return varint(field << 3) + varint(value)


def content_field(field: int, content: bytes | str) -> bytes:
    data = content.encode() if isinstance(content, str) else content
    return field_header(len(data), field << 3 | 2) + data


def append_packets(path: Path, packets: bytes, *, valid_bytes: int = 0) -> int:
    """Append encoded packets in one write; creates the file with mode 0600 and its folder with 0700.

    An incomplete packet at the end of the file, left by a killed process, is removed first: all data after it would be
    unreadable.

    Args:
        valid_bytes: number of bytes at the beginning that are known to be complete packets; the rest is scanned.

    Returns:
        The number of bytes at the beginning that are complete packets after the call.

    Raises:
        StoreError: the file cannot be written; its previous content is unchanged.
    """
    try:
        descriptor = _open(path)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            size = _truncate_incomplete(path, descriptor, valid_bytes)
            return _write_all_or_nothing(descriptor, packets, size)
        finally:
            os.close(descriptor)
    except OSError as exc:
        advice = file_advice(exc, "check disk space and permissions")
        raise StoreError(f"cannot append to the trace {path}: {exc}; {advice}") from exc


def _open(path: Path) -> int:
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        return os.open(path, flags, 0o600)
    except FileNotFoundError:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return os.open(path, flags, 0o600)


def _write_all_or_nothing(descriptor: int, packets: bytes, size: int) -> int:
    written = os.write(descriptor, packets)
    if written < len(packets):
        os.ftruncate(descriptor, size)
        raise OSError(f"only {written} of {len(packets)} bytes were written")
    return size + written


def _truncate_incomplete(path: Path, descriptor: int, valid_bytes: int) -> int:
    size = os.fstat(descriptor).st_size
    if size in (0, valid_bytes):
        return size
    with mmap.mmap(descriptor, size, prot=mmap.PROT_READ) as data:
        complete = complete_length(data, valid_bytes if valid_bytes < size else 0)
    if complete < size:
        logger.warning("removed %d bytes of an incomplete packet at the end of the trace %s", size - complete, path)
        os.ftruncate(descriptor, complete)
    return complete


def complete_length(data: bytes | mmap.mmap, start: int = 0) -> int:
    """Return the size of all complete packets at the beginning; the first ``start`` bytes are not scanned."""
    size, complete = len(data), start
    while complete < size and data[complete] == _PACKET_TAG:
        end = _packet_end(data, complete + 1)
        if end > size:
            break
        complete = end
    return complete


def _packet_end(data: bytes | mmap.mmap, position: int) -> int:
    """Return the end of the packet whose length (a varint) is at ``position``; may be beyond the end of ``data``."""
    length = shift = 0
    for index in range(position, min(position + 10, len(data))):
        length |= (data[index] & 0x7F) << shift
        shift += 7
        if data[index] < 0x80:
            return index + 1 + length
    return len(data) + 1
