"""A message of a bus, or a line of a log, as it came, and remarks among them."""

from __future__ import annotations

from datetime import datetime
from typing import Final, NamedTuple, TypeAlias

import msgspec

MAX_HEADERS: Final = 64 << 10
ENTRY: Final = 400
"""Bytes that an entry takes beside its texts, about."""


class Message(msgspec.Struct, gc=False):
    """A message: ``at`` by the server's clock where a stream keeps it, else by this machine's.

    Attributes:
        number: counts entries of the log.
        payload: its beginning; ``n_bytes`` is the length of the whole.
    """

    number: int
    at: datetime
    subject: str
    headers: dict[str, str]
    payload: bytes
    n_bytes: int
    stream: str | None = None
    sequence: int | None = None

    @property
    def size(self) -> int:
        """Bytes it takes, about."""
        headers = sum([len(name) + len(value) for name, value in self.headers.items()]) if self.headers else 0
        return ENTRY + len(self.payload) + headers


class Remark(NamedTuple):
    """Something about the following, in its place among the messages; ``kind`` as of a ``Notice``."""

    number: int
    at: datetime
    kind: str
    text: str

    @property
    def size(self) -> int:
        """Bytes it takes, about."""
        return ENTRY + len(self.text)


LogEntry: TypeAlias = Message | Remark
