"""A worker that a test scripts: a thread at the other end of a socket pair, which speaks the frames of a worker."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec

from runner.store.journal import stored_step
from runner.store.parts import EncodedTraces, Ended, Free, Reset, Started, Step
from runner.types import Action, EpisodeHeader, Outcome, Span, TimeStep
from runner.util.framing import read_frame, send_frame
from runner.util.safe_values import encode
from runner.worker.frames import Configure, DriverFrame, Hello, Play, WorkerFrame, decode_driver_frame, encode_frame
from tests.support.episodes import make_step

Script = Callable[["FakeWorker"], object]


class FakeWorker:
    """The worker's end of the socket; a script reads and sends with it."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.received: list[DriverFrame] = []

    def send(self, *frames: WorkerFrame) -> None:
        for frame in frames:
            send_frame(self.sock, encode_frame(frame))

    def read(self) -> DriverFrame | None:
        """Return the next frame of the driver; None at the end."""
        data = read_frame(self.sock)
        if data is None:
            return None
        frame = decode_driver_frame(data)
        self.received.append(frame)
        return frame

    def read_play(self) -> Play | None:
        while (frame := self.read()) is not None:
            if isinstance(frame, Play):
                return frame
        return None

    def greet(self) -> None:
        now = datetime.now(UTC)
        self.send(Hello(worker_id="w", host="h", pid=os.getpid(), monotonic_ns=0, wall=now))
        assert isinstance(self.read(), Configure)

    def play_all(self, n_steps: int = 3) -> None:
        """Greet and play episodes until the driver closes the connection."""
        self.greet()
        while (play := self.read_play()) is not None:
            self.send(*episode_frames(play.header, n_steps))


class FakeProcess:
    """What the pool gets: the driver's end, and a thread that runs the script in place of a process."""

    pids = itertools.count(900_000)

    def __init__(self, script: Script) -> None:
        self.sock, self._peer = socket.socketpair()
        self.pid = next(self.pids)
        self._script = script
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def kill(self) -> None:
        with contextlib.suppress(OSError):  # the script has ended
            self._peer.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.sock.close()

    def end_reason(self, timeout_s: float) -> str:
        return "ended"

    def _run(self) -> None:
        with self._peer, contextlib.suppress(OSError):  # killed
            self._script(FakeWorker(self._peer))


class FakeProcesses:
    """Starts fake processes; the n-th one runs the n-th script, and all further ones the last script.

    The processes of a worker in ``named`` run its script.
    """

    def __init__(self, *scripts: Script) -> None:
        self._scripts = list(scripts)
        self.started: list[FakeProcess] = []
        self.named: dict[str, Script] = {}
        self._lock = threading.Lock()

    def __call__(self, name: str) -> FakeProcess:
        with self._lock:
            script = self._scripts[min(len(self.started), len(self._scripts) - 1)]
            process = FakeProcess(self.named.get(name, script))
            self.started.append(process)
            return process


def step_part(
    header: EpisodeHeader, step: TimeStep, *, seq: int, schemas_ref: int = 0, spans: list[Span] | None = None
) -> Step:
    """Return a step as a worker encodes it; its tool schemas are new if it is the first step."""
    record = stored_step(step, schemas_ref)
    summary = msgspec.structs.replace(record, chats=[], action=Action(), observation=[])
    return Step(
        episode_id=header.episode_id,
        at=datetime.now(UTC),
        seq=seq,
        data=encode(record),
        summary=summary,
        tool_schemas=encode([step.available_tool_schemas]) if step.index == 0 else b"[]",
        traces=EncodedTraces(spans=encode(spans or []), n_spans=len(spans or [])),
    )


def step_frame(header: EpisodeHeader, index: int, **fields: Any) -> Step:  # noqa: ANN401
    return step_part(header, make_step(index, **fields), seq=1 + index)


def opening_frames(header: EpisodeHeader) -> list[WorkerFrame]:
    observation = encode([{"role": "user", "content": "observation 0"}])
    return [
        Started(episode_id=header.episode_id, at=datetime.now(UTC), seq=0),
        Reset(episode_id=header.episode_id, observation=observation, env_episode_id="e 7"),
    ]


def end_frame(header: EpisodeHeader, n_steps: int, **fields: Any) -> Ended:  # noqa: ANN401
    known: dict[str, Any] = {"outcome": Outcome.SUCCESS, "success": True, "duration_s": 1.5, "paused_s": 0.0}
    return Ended(episode_id=header.episode_id, at=datetime.now(UTC), seq=n_steps + 1, **{**known, **fields})


def episode_frames(header: EpisodeHeader, n_steps: int = 3) -> list[WorkerFrame]:
    return [
        *opening_frames(header),
        *(step_frame(header, index, done=index == n_steps - 1) for index in range(n_steps)),
        end_frame(header, n_steps),
        Free(episode_id=header.episode_id),
    ]
