"""Urgent frames of a worker wake the driver; the others are read together with them."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from runner.pool import process_pool
from runner.pool.process_pool import ChannelReader
from runner.types import Outcome
from runner.util.framing import send_frame
from runner.worker.channel import SocketLink
from runner.worker.frames import (
    Decided,
    Free,
    Hello,
    Paused,
    Release,
    Request,
    Started,
    WorkerFrame,
    decode_worker_frame,
    encode_frame,
)
from tests.support.episodes import episode_header
from tests.support.fake_worker import step_frame

NOW = datetime(2026, 3, 4, tzinfo=UTC)
TIMEOUT_S = 60.0
STARTED = Started(episode_id="e1", at=NOW, seq=0)
FIRST_STEP = step_frame(episode_header(), 0)
FREE = Free(episode_id="e1")


class Ends:
    """A worker's link, and the reader of its driver, which has read the first frames."""

    def __init__(self, *, has_bell: bool = True) -> None:
        self.sock, self.theirs = socket.socketpair()
        self.link = SocketLink(self.theirs, pytest.fail)
        self.reader = ChannelReader(self.sock)
        hello = Hello(worker_id="w", host="h", pid=os.getpid(), monotonic_ns=0, wall=NOW)
        if has_bell:
            self.link.greet(hello)
        else:
            send_frame(self.theirs, encode_frame(hello))
        assert self.read() == [hello]

    def read(self) -> list[WorkerFrame]:
        """Wait, and return the frames that are read at once."""
        assert self.reader.wait(TIMEOUT_S)
        return [decode_worker_frame(data) for data in self.reader.buffer.feed(self.reader.receive())]

    def close(self) -> None:
        self.reader.close()
        self.sock.close()
        self.theirs.close()


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ends]:
    """Return the ends of a channel where frames that are not urgent wait for longer than any test takes.

    The worker has sent its first step, which is urgent.
    """
    monkeypatch.setattr(process_pool, "LINGER_S", 10 * TIMEOUT_S)
    ends = Ends()
    ends.link.send(STARTED)
    ends.link.send(FIRST_STEP)
    assert ends.read() == [STARTED, FIRST_STEP]
    yield ends
    ends.close()


@pytest.mark.parametrize(
    "urgent",
    [
        FREE,
        Request(id=1, name="place", target="http://env"),
        Release(name="place", target="http://env"),
        Paused(episode_id="e1", at=NOW, seq=1),
    ],
)
def test_frames_wait_for_an_urgent_one(ends: Ends, urgent: WorkerFrame) -> None:
    step = step_frame(episode_header(), 1)
    decided = Decided(episode_id="e1", outcome=Outcome.SUCCESS)
    found: list[WorkerFrame] = []
    reader = threading.Thread(target=lambda: found.extend(ends.read()), daemon=True)
    reader.start()
    for frame in (STARTED, step, decided):
        ends.link.send(frame)
    reader.join(0.2)
    assert (reader.is_alive(), found) == (True, [])
    ends.link.send(urgent)
    reader.join(TIMEOUT_S)
    assert found == [STARTED, step, decided, urgent]


@pytest.mark.parametrize("size", [1000, 1_000_000])
def test_a_full_channel_does_not_wait(ends: Ends, size: int) -> None:
    n_frames = 3_000_000 // size
    sent: list[WorkerFrame] = [
        Decided(episode_id=f"{number:0>{size}}", outcome=Outcome.SUCCESS) for number in range(n_frames)
    ]
    sent.append(FREE)

    def send_all() -> None:
        for frame in sent:
            ends.link.send(frame)

    sender = threading.Thread(target=send_all, daemon=True)
    sender.start()
    found = ends.read()
    while FREE not in found:
        found += ends.read()
    assert found == sent


def test_frames_that_come_seldom_are_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_pool, "LINGER_S", 0.02)
    ends = Ends()
    ends.reader.wait(0.1)  # nothing arrives for some time
    monkeypatch.setattr(process_pool, "LINGER_S", TIMEOUT_S)
    ends.link.send(STARTED)
    assert ends.read() == [STARTED]
    ends.close()


def test_without_a_bell_every_frame_is_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_pool, "LINGER_S", TIMEOUT_S)
    ends = Ends(has_bell=False)
    for _ in range(3):
        ends.link.send(STARTED)
        assert ends.read() == [STARTED]
    ends.close()
