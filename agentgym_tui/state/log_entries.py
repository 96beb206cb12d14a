"""Entries of an event log or a log file: messages and notices.

This module imports little, so that the first lines of a log are shown before the rest of the console is loaded.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final, NamedTuple, TypeAlias

import msgspec

MAX_HEADER_BYTES: Final = 64 << 10
"""Largest size of the headers kept per message, in bytes."""

ENTRY_BYTES: Final = 400
"""Approximate memory of an entry without its texts, in bytes."""


class EventMessage(msgspec.Struct, gc=False):
    """A message of the bus or a line of a log file.

    Attributes:
        number: sequence number of the entry in the log.
        at: when the server stored the message; the time of arrival on this machine where no stream stores it.
        payload: first bytes of the payload.
        n_bytes: full length of the payload in bytes.
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
        """Approximate memory of the entry in bytes."""
        headers = sum([len(name) + len(value) for name, value in self.headers.items()]) if self.headers else 0
        return ENTRY_BYTES + len(self.payload) + headers


class LogNotice(NamedTuple):
    """A notice about the subscription, placed between the messages where it occurred.

    Attributes:
        number: sequence number of the entry in the log.
        at: when the notice arrived.
        kind: kind of the notice, as in ``Notice``.
    """

    number: int
    at: datetime
    kind: str
    text: str

    @property
    def size(self) -> int:
        """Approximate memory of the entry in bytes."""
        return ENTRY_BYTES + len(self.text)


LogEntry: TypeAlias = EventMessage | LogNotice
