"""Read position in a stream, and the number of messages that streams have left."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

import msgspec
from nats.js import JetStreamContext
from nats.js.api import StreamInfo
from nats.js.errors import NotFoundError

from runner.bus.streams import stream_info
from runner.subscribe.messages import Since


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
