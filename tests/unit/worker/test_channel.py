"""The channel of a worker: any bytes, and a driver that ends or does not read."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.store.parts import Decided, Free, Tokens
from runner.types import Outcome
from runner.util.framing import read_frame
from runner.worker.driver_link import MAX_QUEUED_BYTES, FrameQueue, write_frames
from runner.worker.frames import Command, Request, WorkerFrame, decode_driver_frame, decode_worker_frame, encode_frame
from tests.support.episodes import damaged_bytes
from tests.support.worker_frames import TIMEOUT_S

ENCODED = encode_frame(Command(episode_id="e1", name="cancel", outcome=Outcome.INTERRUPTED))


class Channel:
    """A queue that a thread writes to a socket, and the driver's end of it."""

    def __init__(self) -> None:
        self.ours, self.theirs = socket.socketpair()
        self.ours.settimeout(TIMEOUT_S)
        self.queue = FrameQueue()
        self.writer = threading.Thread(target=write_frames, args=(self.queue, self.theirs), daemon=True)
        self.writer.start()

    def read(self) -> WorkerFrame:
        return decode_worker_frame(read_frame(self.ours) or b"")


@pytest.fixture
def channel() -> Iterator[Channel]:
    channel = Channel()
    yield channel
    channel.ours.close()
    channel.queue.send(Free(episode_id="e"))  # by which the writer notices
    channel.writer.join(TIMEOUT_S)
    channel.theirs.close()


@settings(deadline=None)
@given(st.one_of(st.binary(max_size=300), damaged_bytes(ENCODED)))
def test_a_decoder_accepts_frames_only(data: bytes) -> None:
    for decode in (decode_driver_frame, decode_worker_frame):
        with contextlib.suppress(ValueError, RecursionError):
            assert decode(encode_frame(decode(data))) is not None


def test_streamed_tokens_are_dropped_while_the_driver_does_not_read(channel: Channel) -> None:
    n_sent = 4 * MAX_QUEUED_BYTES // 10_000  # the writer holds at most as much as the queue, and a socket less
    for _ in range(n_sent):
        channel.queue.send(Tokens(episode_id="e1", seq=1, live=b"x" * 10_000))
    channel.queue.send(Free(episode_id="e1"))
    n_tokens = 0
    while isinstance(frame := channel.read(), Tokens):
        n_tokens += 1
    assert frame == Free(episode_id="e1")
    assert 0 < n_tokens < n_sent


def test_other_frames_wait_for_the_driver(channel: Channel) -> None:
    n_frames = 4 * MAX_QUEUED_BYTES // 20_000
    sent = [Decided(episode_id=f"{number:0>20000}", outcome=Outcome.SUCCESS) for number in range(n_frames)]
    for frame in sent:
        channel.queue.send(frame)
    assert [channel.read() for _ in sent] == sent


def test_the_writer_ends_with_the_driver(channel: Channel) -> None:
    channel.queue.send(Request(id=1, name="place", target="http://env", instance=7))
    assert channel.read() == Request(id=1, name="place", target="http://env", instance=7)
    channel.ours.close()
    channel.queue.send(Free(episode_id="e1"))
    channel.writer.join(TIMEOUT_S)
    assert not channel.writer.is_alive()
    channel.queue.send(Free(episode_id="e2"))  # does not block
