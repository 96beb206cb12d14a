"""The fields of bus messages in the filter of the Events screen, and the bytes in which its words are found."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from agentgym_tui.state.log_entries import EventMessage, LogEntry, LogNotice
from agentgym_tui.state.normalize import as_aware
from agentgym_tui.state.payload_search import json_columns
from agentgym_tui.state.query import FieldSet

LIVE_SUBJECT: Final = re.compile(r"agentgym\.live\.[a-z]+\.v1\.([^.]+)")


def node_of(message: EventMessage) -> str:
    """Return the node that sent a message, by its headers or subject (untrusted text); "" if it is not known."""
    if message.headers:
        for name, value in message.headers.items():
            if name.lower() == "ce-source":
                return value
    live = LIVE_SUBJECT.fullmatch(message.subject)
    return live[1] if live is not None else ""


def searched_parts(entry: LogEntry) -> Iterator[bytes]:
    """Return the bytes of an entry in which words are found, the payload first."""
    if isinstance(entry, LogNotice):
        yield entry.text.encode("utf-8", "replace")
    else:
        yield entry.payload
        yield subject_and_headers(entry.subject, entry.headers)


def subject_and_headers(subject: str, headers: dict[str, str]) -> bytes:
    """Return the subject and the headers of a message as bytes."""
    if not headers:
        return subject.encode("utf-8", "replace")
    return "\n".join((subject, *headers, *headers.values())).encode("utf-8", "replace")


def _payload(entry: LogEntry) -> bytes:
    return entry.payload if isinstance(entry, EventMessage) else b""


EVENT_FIELDS: Final[FieldSet[LogEntry]] = FieldSet(
    ("subject", "text", "subject", lambda entry: getattr(entry, "subject", None)),
    ("node", "text", "node that sent it", lambda entry: node_of(entry) if isinstance(entry, EventMessage) else None),
    *json_columns(_payload),
    ("seq", "number", "sequence number in its stream", lambda entry: getattr(entry, "sequence", None)),
    ("stream", "text", "stream that stores it", lambda entry: getattr(entry, "stream", None)),
    ("size", "number", "bytes of the payload", lambda entry: getattr(entry, "n_bytes", None)),
    ("since", "since", "stored since an age or a time: 5m, 2h, 2026-11-26", lambda entry: as_aware(entry.at)),
    ("until", "until", "stored until then", lambda entry: as_aware(entry.at)),
    ("notice", "text", "kind of a notice of the subscription", lambda entry: getattr(entry, "kind", None)),
)
"""The fields of a message or notice; those of a payload are looked for in live items, too."""
