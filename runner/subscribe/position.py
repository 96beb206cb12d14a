"""How far the streams of a bus were read, and what is left of them."""

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
    """How far a stream was read: after ``cursor``, or from ``start``; ``created`` says which stream it was."""

    created: datetime | None
    cursor: int | None = None
    start: datetime | None = None

    @classmethod
    def at(cls, since: Since, info: StreamInfo, began: datetime) -> Position:
        """Where to begin in a stream that was not read so far, by somebody who ``began`` to follow then."""
        match since:
            case "now":
                return cls(info.created, info.state.last_seq)
            case "all":
                return cls(info.created, max(info.state.first_seq, 1) - 1)
            case timedelta():
                return cls(info.created, start=began - since)
            case int():
                return cls(info.created, min(max(since, 1) - 1, info.state.last_seq))

    def n_left(self, info: StreamInfo) -> int:
        """Messages that the stream has after this; 0 until its server has found the ``start`` in it."""
        state = info.state
        if self.created != info.created:  # made again: it is read from its beginning
            return state.messages
        if self.cursor is None:
            return 0
        return min(max(state.last_seq - self.cursor, 0), state.messages)  # of what was purged nothing waits


async def n_left(js: JetStreamContext, positions: Mapping[str, Position]) -> int:
    """Messages that streams have after these positions, as they are when all streams were looked at.

    Raises:
        nats.errors.Error, OSError: no answer, or none that can be read.
    """
    infos = {name: info for name in list(positions) if (info := await _look_at(js, name)) is not None}
    return sum(positions[name].n_left(info) for name, info in infos.items())


async def _look_at(js: JetStreamContext, stream: str) -> StreamInfo | None:
    """None for a stream that is there no more."""
    try:
        return await stream_info(js, stream)
    except NotFoundError:
        return None
