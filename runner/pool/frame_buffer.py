"""The frames in a stream of bytes."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from runner.errors import RunnerError
from runner.worker.frames import LENGTH_BYTES, MAX_FRAME_BYTES, WorkerFrame, decode_worker_frame


class BrokenFrame(RunnerError):
    """A worker sent bytes that are no frame, or a frame that does not fit those before it."""


class FrameBuffer:
    """Collects received bytes until a frame is complete."""

    def __init__(self) -> None:
        """Start empty."""
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[WorkerFrame]:
        """Add bytes and yield the frames that they complete; the iterator must be used up.

        Raises:
            BrokenFrame: a frame is too large or invalid.
        """
        self._data += data
        start = 0
        while len(self._data) - start >= LENGTH_BYTES:
            size = int.from_bytes(self._data[start : start + LENGTH_BYTES], "big")
            if size > MAX_FRAME_BYTES:
                raise BrokenFrame(f"a frame of {size:,} bytes; at most {MAX_FRAME_BYTES >> 20} MiB are allowed")
            end = start + LENGTH_BYTES + size
            if len(self._data) < end:
                break
            yield _decode(bytes(self._data[start + LENGTH_BYTES : end]))
            start = end
        del self._data[:start]

    @property
    def n_incomplete(self) -> int:
        """Number of bytes of the frame that is not complete yet."""
        return len(self._data)


def _decode(data: bytes) -> WorkerFrame:
    try:
        return decode_worker_frame(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as exc:
        raise BrokenFrame(f"an invalid frame of {len(data):,} bytes: {exc}") from exc
