"""What a follower of a bus gets to see: messages, and notices of what happened to the following itself."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Literal, TypeAlias

import msgspec

from runner.events.decoded import Decoded

Since: TypeAlias = Literal["now", "all"] | timedelta | int
"""Where history begins: nowhere, at its beginning, so long ago, or at this sequence of each stream.

A stream that has not come so far has none.
"""

NoticeKind: TypeAlias = Literal[
    "no_history", "gap", "removed", "recreated", "disconnected", "reconnected", "skipped", "permission", "lost_server"
]


class BusMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message.

    Attributes:
        subject: hostile text, as all of this.
        stream: the stream that kept it; None, as ``sequence`` and ``time``, for what was only passed on.
        sequence: its place in the stream: the order of events.
        time: when the stream took it, by the server's clock.
        headers: as they came, a CloudEvent's among them.
        decoded: what it says.
    """

    subject: str
    stream: str | None = None
    sequence: int | None = None
    time: datetime | None = None
    headers: dict[str, str]
    decoded: Decoded

    @property
    def ahead_s(self) -> float | None:
        """Seconds by which the sender's ``ce-time`` lies after the server's time; negative for what came late."""
        sent = self.headers.get("ce-time")
        if sent is None or self.time is None:
            return None
        try:
            return (datetime.fromisoformat(sent) - self.time).total_seconds()
        except (ValueError, TypeError):  # not a time, or one without a zone
            return None


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """Something about the following; ``count`` says how many messages a ``gap`` or ``skipped`` is about.

    Attributes:
        kind: ``no_history`` and ``permission``: what comes from now on is all, or there is nothing at all;
            ``gap``: messages left their stream unread; ``removed``: a stream is there no more; ``recreated``: it is
            another one, which is read from its beginning; ``disconnected``, ``lost_server`` (connected, but no answer),
            ``reconnected``; ``skipped``: the follower was too slow for messages that no stream keeps.
        text: for people; may quote subjects.
    """

    kind: NoticeKind
    text: str
    count: int = 0


SubscriptionItem: TypeAlias = BusMessage | Notice
