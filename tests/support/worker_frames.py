"""A driver of one worker, in this process or another one, for tests."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from runner.store.parts import Free
from runner.types import EpisodeHeader
from runner.util.framing import FrameBuffer, read_frame, send_frame
from runner.worker.driver_link import FrameQueue
from runner.worker.frames import Configure, DriverFrame, Hello, Play, WorkerFrame, decode_worker_frame, encode_frame
from tests.support.batches import make_setup
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


class ChannelDriver:
    """Drives a worker process over its channel."""

    def __init__(self, sock: socket.socket) -> None:
        sock.settimeout(TIMEOUT_S)
        self._sock = sock
        self.reader = FrameReader(self._read)
        self.hello = self.reader.wait_for(Hello)

    def send(self, frame: DriverFrame) -> None:
        send_frame(self._sock, encode_frame(frame))

    def configure(self, env: str, agent: str = "oracle", **settings: object) -> None:
        self.send(Configure(setup=make_setup(env, agent, **settings)))

    def start(self, task_index: int = 0, *, paused: bool = False) -> str:
        """Start an episode and return its id."""
        header = episode_header(task_index=task_index)
        self.send(Play(header=header, track="slot 0", paused=paused))
        return header.episode_id

    def play(self, task_index: int = 0) -> Free:
        """Play an episode to its end."""
        return self.reader.wait_for(Free, self.start(task_index))

    def _read(self) -> WorkerFrame | None:
        data = read_frame(self._sock)
        return None if data is None else decode_worker_frame(data)


def play_frame(header: EpisodeHeader | None = None, **fields: object) -> Play:
    return Play(header=header or episode_header(), track="slot 0", **fields)  # type: ignore[arg-type]
