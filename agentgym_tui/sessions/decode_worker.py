"""Worker process that decodes large live messages for a console; it ends when the console ends.

    python -P -m agentgym_tui.sessions.decode_worker

Requests and replies are frames: the length of the content in four bytes, then the content. A request is the payload of
a live message. The reply is the ``DecodedBatch`` of that message in MessagePack. A reply without content means that the
console has to decode the message itself.
"""

from __future__ import annotations

import sys
from typing import IO, Final

import msgspec

from agentgym_tui.state.coalesce import coalesce_batch
from runner.events.codec import LiveRow, decode
from runner.events.subjects import DurableNames, live_subject

LENGTH_BYTES: Final = 4
_SUBJECT: Final = live_subject("episode", "any")


def decode_payload(payload: bytes) -> bytes:
    """Decode the payload of a live message; return the ``DecodedBatch`` in MessagePack, or b"" on failure."""
    row = decode(_SUBJECT, None, payload, DurableNames())
    try:
        return _ENCODER.encode(coalesce_batch(row)) if isinstance(row, LiveRow) else b""
    except OverflowError:  # JSON integers may be too large for MessagePack
        return b""


def read_frame(pipe: IO[bytes]) -> bytes | None:
    """Read the content of the next frame; None at the end of the pipe."""
    n = int.from_bytes(head) if len(head := pipe.read(LENGTH_BYTES)) == LENGTH_BYTES else None
    data = None if n is None else pipe.read(n)
    return data if data is not None and len(data) == n else None


def write_frame(pipe: IO[bytes], data: bytes) -> None:
    """Write ``data`` as a frame; raises ``OSError`` where the reader has closed the pipe."""
    pipe.write(len(data).to_bytes(LENGTH_BYTES))
    pipe.write(data)
    pipe.flush()


def main() -> None:
    """Answer requests until stdin is closed."""
    while (payload := read_frame(sys.stdin.buffer)) is not None:
        write_frame(sys.stdout.buffer, decode_payload(payload))


_ENCODER: Final = msgspec.msgpack.Encoder()

if __name__ == "__main__":
    main()
