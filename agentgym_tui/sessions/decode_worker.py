"""Reads large live messages for a console: a process of its own, which ends when its parent does.

python -P -m agentgym_tui.sessions.decode_worker

Each request is a live message, each reply its ``Digest`` in MessagePack, both after their length in four bytes. An
empty reply leaves the message to the parent.
"""

from __future__ import annotations

import sys
from typing import IO, Final

import msgspec

from agentgym_tui.state.coalesce import digest_of
from runner.events.codec import DurableNames, decode
from runner.events.decoded import LiveRow
from runner.events.subjects import live_subject

N_LENGTH: Final = 4
_SUBJECT: Final = live_subject("episode", "any")


def digested(payload: bytes) -> bytes:
    """The reply to a request."""
    row = decode(_SUBJECT, None, payload, DurableNames())
    try:
        return _ENCODER.encode(digest_of(row)) if isinstance(row, LiveRow) else b""
    except OverflowError:  # JSON has numbers that MessagePack has not
        return b""


def receive(pipe: IO[bytes]) -> bytes | None:
    """What comes next, None at the end."""
    n = int.from_bytes(head) if len(head := pipe.read(N_LENGTH)) == N_LENGTH else None
    data = None if n is None else pipe.read(n)
    return data if data is not None and len(data) == n else None


def send(pipe: IO[bytes], data: bytes) -> None:
    """Say something; raises ``OSError`` when nobody listens."""
    pipe.write(len(data).to_bytes(N_LENGTH))
    pipe.write(data)
    pipe.flush()


def main() -> None:
    """Answer until nobody asks any more."""
    while (payload := receive(sys.stdin.buffer)) is not None:
        send(sys.stdout.buffer, digested(payload))


_ENCODER: Final = msgspec.msgpack.Encoder()

if __name__ == "__main__":
    main()
