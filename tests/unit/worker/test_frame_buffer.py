"""Frames in the bytes that arrive from a worker."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.pool.process_pool import FrameBuffer
from runner.pool.remote_worker import BrokenFrame
from runner.worker.frames import MAX_FRAME_BYTES, encode_frame
from tests.support.episodes import episode_header
from tests.support.fake_worker import episode_frames

FRAMES = episode_frames(episode_header())
STREAM = b"".join(len(data).to_bytes(4, "big") + data for data in map(encode_frame, FRAMES))


@given(st.lists(st.integers(0, len(STREAM)), max_size=20))
def test_frames_arrive_whole_however_their_bytes_are_split(cuts: list[int]) -> None:
    buffer, edges = FrameBuffer(), [0, *sorted(cuts), len(STREAM)]
    pieces = [STREAM[start:end] for start, end in itertools.pairwise(edges)]
    assert [frame for piece in pieces for frame in buffer.feed(piece)] == FRAMES
    assert buffer.n_incomplete == 0


@given(st.binary(max_size=400), st.integers(0, len(STREAM)))
def test_other_bytes_are_incomplete_or_broken(garbage: bytes, start: int) -> None:
    buffer = FrameBuffer()
    try:
        for _ in buffer.feed(STREAM[:start] + garbage):
            pass
    except BrokenFrame as exc:
        assert "frame of " in str(exc)


def test_a_frame_that_is_too_large_is_not_awaited() -> None:
    with pytest.raises(BrokenFrame, match="at most 256 MiB"):
        list(FrameBuffer().feed((MAX_FRAME_BYTES + 1).to_bytes(4, "big")))
