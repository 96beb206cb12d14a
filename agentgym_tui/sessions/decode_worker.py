"""Reads large live messages for a console: a process of its own, which ends when its parent does.

python -P -m agentgym_tui.sessions.decode_worker

Each request is a live message, each reply its ``Digest`` in MessagePack, both after their length in four bytes. An
empty reply leaves the message to the parent.
"""

from __future__ import annotations

import sys
from typing import IO, Final

import msgspec

from agentgym_tui.state.coalesce import coalesce_batch
from runner.events.codec import decode
from runner.events.decoded import LiveRow
from runner.events.subjects import DurableNames, live_subject

LENGTH_BYTES: Final = 4
_SUBJECT: Final = live_subject("episode", "any")


def decode_payload(payload: bytes) -> bytes:
    """The reply to a request."""
    row = decode(_SUBJECT, None, payload, DurableNames())
    try:
        return _ENCODER.encode(coalesce_batch(row)) if isinstance(row, LiveRow) else b""
    except OverflowError:  # JSON has numbers that MessagePack has not
        return b""


def read_frame(pipe: IO[bytes]) -> bytes | None:
    """What comes next, None at the end."""
    n = int.from_bytes(head) if len(head := pipe.read(LENGTH_BYTES)) == LENGTH_BYTES else None
    data = None if n is None else pipe.read(n)
    return data if data is not None and len(data) == n else None


def write_frame(pipe: IO[bytes], data: bytes) -> None:
    """Say something; raises ``OSError`` when nobody listens."""
    pipe.write(len(data).to_bytes(LENGTH_BYTES))
    pipe.write(data)
    pipe.flush()


def main() -> None:
    """Answer until nobody asks any more."""
    while (payload := read_frame(sys.stdin.buffer)) is not None:
        write_frame(sys.stdout.buffer, decode_payload(payload))


_ENCODER: Final = msgspec.msgpack.Encoder()

if __name__ == "__main__":
    main()
