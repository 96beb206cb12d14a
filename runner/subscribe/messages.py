"""Items of a subscription: decoded messages, and notices about the subscription itself."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Literal, TypeAlias

import msgspec
from nats.js import JetStreamContext
from nats.js.api import StreamInfo
from nats.js.errors import NotFoundError

from runner.bus.streams import stream_info
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


class Position(msgspec.Struct):
    """Read position in a stream.

    Attributes:
        created: creation time of the stream, which identifies it.
        cursor: sequence of the last message read, None before the first one.
        start: time to start from while there is no cursor.
    """

    created: datetime | None
    cursor: int | None = None
    start: datetime | None = None

    @classmethod
    def initial(cls, since: Since, info: StreamInfo, subscribed_at: datetime) -> Position:
        """The subscription started at ``subscribed_at``."""
        match since:
            case "now":
                return cls(info.created, info.state.last_seq)
            case "all":
                return cls(info.created, max(info.state.first_seq, 1) - 1)
            case timedelta():
                return cls(info.created, start=subscribed_at - since)
            case int():
                return cls(info.created, min(max(since, 1) - 1, info.state.last_seq))

    def n_left(self, info: StreamInfo) -> int:
        """Return the number of messages after this position; 0 until the server has resolved ``start``."""
        state = info.state
        if self.created != info.created:  # recreated: it is read from its beginning
            return state.messages
        if self.cursor is None:
            return 0
        return min(max(state.last_seq - self.cursor, 0), state.messages)  # purged messages do not count


async def n_left(js: JetStreamContext, positions: Mapping[str, Position]) -> int:
    """Return the total number of messages after ``positions`` (keys: stream names); a deleted stream counts as 0."""
    infos = {name: info for name in list(positions) if (info := await _existing_stream(js, name)) is not None}
    return sum(positions[name].n_left(info) for name, info in infos.items())


async def _existing_stream(js: JetStreamContext, stream: str) -> StreamInfo | None:
    try:
        return await stream_info(js, stream)
    except NotFoundError:
        return None
