"""What one episode of a worker reports to its driver: the parts of the episode as frames."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeAlias

import msgspec

from runner.episode.control import EpisodeControl
from runner.errors import ServerGone
from runner.store.encoded import EncodedEnd, EncodedReset, EncodedStep
from runner.types import EpisodeEvent, EpisodePaused, EpisodeResumed, EpisodeStarted, Outcome, TimeStep, TokensStreamed
from runner.util.clock import Clock
from runner.util.resources import find_shortage
from runner.util.safe_values import encode, escape_surrogates, safe_str
from runner.worker.channel import DriverLink
from runner.worker.frames import (
    Decided,
    Ended,
    Failed,
    Free,
    Paused,
    Reset,
    Started,
    Stepped,
    Streamed,
    WorkerFrame,
    encode_frame,
)

MAX_QUEUED_BYTES = 4 << 20
"""Size of the queue above which a sender waits and streamed tokens are dropped."""

Send: TypeAlias = Callable[[WorkerFrame], None]

Packed: TypeAlias = bytes
"""Several encoded frames as one MessagePack array."""


def pack(frames: list[bytes]) -> Packed:
    return msgspec.msgpack.encode(frames)


def unpack(packed: Packed) -> list[bytes]:
    """Raises ``msgspec.MsgspecError`` if the bytes are not joined frames."""
    return msgspec.msgpack.decode(packed, type=list[bytes])


class FrameQueue(DriverLink):
    """Keeps the frames of a worker until ``take`` fetches them; thread-safe."""

    def __init__(self, max_bytes: int = MAX_QUEUED_BYTES) -> None:
        super().__init__()
        self._max_bytes = max_bytes
        self._changed = threading.Condition()
        self._frames: list[bytes] = []
        self._n_bytes = 0
        self._has_end = False
        self._waiter: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None

    def send(self, frame: WorkerFrame) -> None:
        """Queue a frame; while the queue is full, streamed tokens are dropped and other frames wait.

        Raises ``ValueError`` or ``TypeError`` if MessagePack cannot hold a value of the frame.
        """
        data = encode_frame(frame)
        with self._changed:
            if isinstance(frame, Streamed) and self._n_bytes > self._max_bytes:
                return
            self._changed.wait_for(lambda: self._n_bytes <= self._max_bytes)
            self._frames.append(data)
            self._n_bytes += len(data)
            self._has_end = self._has_end or isinstance(frame, Free)
            if self._waiter is not None:
                loop, event = self._waiter
                loop.call_soon_threadsafe(event.set)

    async def take(self, linger_s: float = 0.0) -> tuple[list[bytes], bool]:
        """Wait for frames and return them, encoded, and whether an episode's ``Free`` is among them.

        The first frame waits ``linger_s`` seconds for others.
        """
        while (event := self._expect()) is not None:
            await event.wait()
        if linger_s and not self._has_end:
            await asyncio.sleep(linger_s)
        with self._changed:
            frames, has_end = self._frames, self._has_end
            self._frames, self._n_bytes, self._has_end, self._waiter = [], 0, False, None
            self._changed.notify_all()
            return frames, has_end

    def _expect(self) -> asyncio.Event | None:
        """Return an event that the next frame sets; None if there is a frame."""
        with self._changed:
            if self._frames:
                return None
            event = asyncio.Event()
            self._waiter = asyncio.get_running_loop(), event
            return event


class ReportedControl(EpisodeControl):
    """Control of an episode in a worker; reports the outcome as soon as it is final."""

    def __init__(self, episode_id: str, send: Send, clock: Clock | None = None) -> None:
        self._final_outcome: Outcome | None = None
        self._episode_id, self._send = episode_id, send
        super().__init__(clock)

    @property
    def final_outcome(self) -> Outcome | None:
        return self._final_outcome

    @final_outcome.setter
    def final_outcome(self, outcome: Outcome | None) -> None:
        self._final_outcome = outcome
        if outcome is not None:
            self._send(Decided(episode_id=self._episode_id, outcome=outcome, error=self.final_error))


class FrameSender:
    """Sends the parts of an episode to the driver, see ``EpisodeParts``; used on the episode's thread only."""

    def __init__(self, episode_id: str, control: EpisodeControl, send: Send) -> None:
        self._id = episode_id
        self._control = control
        self._send = send

    def on_event(self, event: EpisodeEvent) -> None:
        match event:
            case EpisodeStarted():
                self._send(Started(episode_id=self._id, at=event.at, seq=event.seq))
            case TokensStreamed():
                frame = Streamed(episode_id=self._id, at=event.at, seq=event.seq, step=event.step, delta=event.delta)
                with contextlib.suppress(TypeError, ValueError):  # half a character of a model that sends invalid text
                    self._send(frame)
            case EpisodePaused() | EpisodeResumed():
                resumed, paused_s = isinstance(event, EpisodeResumed), self._control.paused_s()
                frame_of_pause = Paused(
                    episode_id=self._id, at=event.at, seq=event.seq, resumed=resumed, paused_s=paused_s
                )
                self._send(frame_of_pause)

    def on_reset(self, reset: EncodedReset) -> None:
        self._send(Reset(episode_id=self._id, reset=reset))

    def on_step(self, step: EncodedStep) -> None:
        try:
            self._send(Stepped(episode_id=self._id, step=step))
        except (TypeError, ValueError, OverflowError):  # a name or a warning of the agent
            self._send(Stepped(episode_id=self._id, step=_repaired(step)))

    def on_end(self, end: EncodedEnd) -> None:
        self._send(Ended(episode_id=self._id, end=end))

    def on_error(self, exc: BaseException) -> None:
        """Send the part of the error that the driver decides on."""
        gone = isinstance(exc, ServerGone)
        self._send(
            Failed(
                episode_id=self._id,
                gone=escape_surrogates(safe_str(exc, "the server is gone")) if gone else None,
                timed_out=isinstance(exc, ServerGone) and exc.timed_out,
                shortage=find_shortage(exc),
            )
        )


def _repaired(step: EncodedStep) -> EncodedStep:
    """Return a step whose summary has only texts and numbers that MessagePack can hold."""
    return msgspec.structs.replace(step, summary=msgspec.json.decode(encode(step.summary), type=TimeStep))
