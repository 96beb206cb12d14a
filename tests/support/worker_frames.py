"""A driver of one worker, in this process or another one, for tests."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from runner.types import EpisodeHeader
from runner.util.framing import FrameBuffer
from runner.worker.driver_link import FrameQueue
from runner.worker.frames import Play, WorkerFrame, decode_worker_frame
from tests.support.episodes import episode_header

TIMEOUT_S = 100.0

FrameT = TypeVar("FrameT", bound=WorkerFrame)


class FrameReader:
    """Reads the frames of one worker in order.

    Args:
        receive: waits for the next frame; raises an exception after ``TIMEOUT_S``.
    """

    def __init__(self, receive: Callable[[], WorkerFrame | None]) -> None:
        self._receive = receive
        self.frames: list[WorkerFrame] = []

    def wait_for(self, kind: type[FrameT], episode_id: str | None = None) -> FrameT:
        """Read up to the next frame of a type, of one episode if given."""
        while (frame := self._receive()) is not None:
            self.frames.append(frame)
            if isinstance(frame, kind) and episode_id in (None, getattr(frame, "episode_id", None)):
                return frame
        raise AssertionError(f"the channel ended before {kind.__name__}; it had {self.frames}")

    def of(self, kind: type[FrameT]) -> list[FrameT]:
        """Return the frames of a type that were read."""
        return [frame for frame in self.frames if isinstance(frame, kind)]


class RecordingLink(FrameQueue):
    """The link of a worker whose frames the test reads."""

    def __init__(self) -> None:
        super().__init__()
        self._taken: deque[bytes] = deque()
        self.reader = FrameReader(self._read)

    def _read(self) -> WorkerFrame:
        if not self._taken:
            frames, _ = asyncio.run(asyncio.wait_for(self.take(linger_s=0), TIMEOUT_S))
            self._taken.extend(FrameBuffer().feed(frames))
        return decode_worker_frame(self._taken.popleft())


def play_frame(header: EpisodeHeader | None = None, **fields: object) -> Play:
    return Play(header=header or episode_header(), track="slot 0", **fields)  # type: ignore[arg-type]
