"""Reply subjects of requests: which of them a service may publish to, and the connection that sent a request."""

from __future__ import annotations

import re

MAX_REPLY_CHARS = 255
"""Maximum length of a reply subject; inboxes of NATS clients have fewer than 60 characters."""

_INBOX = re.compile(r"(?:_INBOX(?:_[A-Za-z0-9_-]+)?|_R_)(?:\.[!-)+-\-/-=?-~]+)+")
"""An inbox: a first token, then at least one token of visible ASCII characters without ``.``, ``*`` and ``>``.

Clients with private inboxes use the prefix ``_INBOX.<name>`` or ``_INBOX_<name>``. A nats-server replaces the reply
subject of a request from another account by ``_R_.<token>.<token>`` (its "service import"), and maps the reply back.
"""

_NUID_PREFIX_CHARS = 12
"""Length of the part of a NUID that is the same in all NUIDs of a process (nats-io/nuid)."""


def is_inbox(subject: str) -> bool:
    """Return whether a reply subject is an inbox, which no event, live item, control request or stream API uses.

    The sender of a request chooses its reply subject freely; a reply to another subject would be a message in the name
    of the service.
    """
    return len(subject) <= MAX_REPLY_CHARS and _INBOX.fullmatch(subject) is not None


def sender_of(reply: str) -> str:
    """Return a key for the connection that sent a request; "" for a request without a reply subject.

    NATS does not reveal the connection of a message. Clients derive their inboxes from one NUID per process, so the
    beginning of the reply subject is the same in all requests of a connection.
    """
    first, _, rest = reply.partition(".")
    return f"{first}.{rest[:_NUID_PREFIX_CHARS]}" if rest else ""
