"""Items of a subscription: decoded messages, and notices about the subscription itself."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

if TYPE_CHECKING:
    from runner.events.codec import Decoded

Since: TypeAlias = Literal["now", "all"] | timedelta | int
"""Start of the history: ``now`` (no history), ``all``, a time span before now, or a sequence number in each stream.

A stream that has not reached the sequence has no history.
"""

NoticeKind: TypeAlias = Literal[
    "no_history", "gap", "removed", "recreated", "disconnected", "reconnected", "skipped", "permission", "lost_server"
]


class BusMessage(msgspec.Struct, frozen=True, kw_only=True):
    """Decoded message; all its texts are untrusted.

    Attributes:
        stream: stream that keeps the message; without a stream, it is None, like ``sequence`` and ``time``.
        sequence: position in the stream, which defines the order of events.
        time: when the stream stored the message, by the server's clock.
    """

    subject: str
    stream: str | None = None
    sequence: int | None = None
    time: datetime | None = None
    headers: dict[str, str]
    decoded: Decoded

    @property
    def ahead_s(self) -> float | None:
        """Return the seconds from the server's time to the sender's ``ce-time``; negative for a delayed message."""
        sent_at = self.sent_at
        return None if sent_at is None or self.time is None else (sent_at - self.time).total_seconds()

    @property
    def sent_at(self) -> datetime | None:
        """Return the sender's ``ce-time``, by its clock; None if there is none, or none with a time zone."""
        try:
            sent_at = datetime.fromisoformat(self.headers.get("ce-time", ""))
        except ValueError:
            return None
        return sent_at if sent_at.tzinfo is not None else None


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """Report about the subscription itself, such as a lost connection.

    Attributes:
        kind: ``no_history``: only new messages are available; ``permission``: reading is denied; ``gap``: messages were
            removed from their stream before they were read; ``removed``: a stream was deleted; ``recreated``: a stream
            was replaced and is read from its beginning; ``disconnected``, ``lost_server`` (connected, but no answer),
            ``reconnected``; ``skipped``: the subscriber was too slow for messages that no stream keeps.
        text: message for people; may quote subjects.
        count: number of missing messages for ``gap`` and ``skipped``.
    """

    kind: NoticeKind
    text: str
    count: int = 0


SubscriptionItem: TypeAlias = BusMessage | Notice
