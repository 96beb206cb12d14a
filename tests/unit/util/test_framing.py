"""Frames over a socket and in bytes: any bytes, any pieces, a peer that ends or does not answer."""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.util.framing import MAX_FRAME_BYTES, FrameBuffer, FrameTooLarge, framed, read_frame, send_frame
from tests.support.worker_frames import TIMEOUT_S

FRAMES = st.lists(st.binary(max_size=100), max_size=5)


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    ours.settimeout(TIMEOUT_S)
    with ours, theirs:
        yield ours, theirs


def frames_of(data: bytes) -> list[bytes]:
    """Return the frames that a reader gets from these bytes and the end of the channel."""
    ours, theirs = socket.socketpair()
    ours.settimeout(TIMEOUT_S)
    with ours, theirs:
        theirs.sendall(data)
        theirs.shutdown(socket.SHUT_WR)
        frames = []
        while (frame := read_frame(ours)) is not None:
            frames.append(frame)
        return frames


@settings(deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes_are_frames_or_an_end(data: bytes) -> None:
    with contextlib.suppress(FrameTooLarge):
        frames = frames_of(data)
        assert b"".join(map(framed, frames)) == data[: sum(map(len, frames)) + 4 * len(frames)]


@settings(deadline=None)
@given(FRAMES, st.integers(0, 3))
def test_a_torn_last_frame_is_dropped(frames: list[bytes], n_lost: int) -> None:
    data = b"".join(map(framed, frames))
    n_read = len(frames_of(data[: len(data) - n_lost]))
    assert frames[:n_read] == frames_of(data)[:n_read]
    assert n_read == len(frames) if n_lost == 0 else n_read < max(len(frames), 1)


def test_a_frame_of_megabytes_arrives_in_pieces(ends: tuple[socket.socket, socket.socket]) -> None:
    data = bytes(range(256)) * 40_000
    sender = threading.Thread(target=send_frame, args=(ends[1], data), daemon=True)
    sender.start()
    assert read_frame(ends[0]) == data
    sender.join(TIMEOUT_S)


def test_a_frame_that_is_too_large_is_neither_sent_nor_read(ends: tuple[socket.socket, socket.socket]) -> None:
    with pytest.raises(FrameTooLarge, match="at most 256 MiB"):
        send_frame(ends[1], bytes(MAX_FRAME_BYTES + 1))
    ends[1].sendall((MAX_FRAME_BYTES + 1).to_bytes(4, "big"))
    with pytest.raises(FrameTooLarge, match="268,435,457 bytes"):
        read_frame(ends[0])
    with pytest.raises(FrameTooLarge, match="at most 256 MiB"):
        list(FrameBuffer().feed((MAX_FRAME_BYTES + 1).to_bytes(4, "big")))


def test_a_peer_that_does_not_answer_is_not_one_that_has_ended(ends: tuple[socket.socket, socket.socket]) -> None:
    ends[0].settimeout(0.01)
    with pytest.raises(TimeoutError):
        read_frame(ends[0])
    ends[1].close()
    assert read_frame(ends[0]) is None


@given(FRAMES, st.lists(st.integers(0, 520), max_size=20))
def test_frames_arrive_whole_however_their_bytes_are_split(frames: list[bytes], cuts: list[int]) -> None:
    stream, buffer = b"".join(map(framed, frames)), FrameBuffer()
    edges = [0, *sorted(cuts), len(stream)]
    pieces = [stream[start:end] for start, end in itertools.pairwise(edges)]
    assert [frame for piece in pieces for frame in buffer.feed(piece)] == frames
    assert buffer.n_incomplete == 0
