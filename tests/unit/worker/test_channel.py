"""The channel of a worker: any bytes, and a driver that ends or does not read."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.types import Outcome, StreamDelta
from runner.util.framing import read_frame
from runner.worker.channel import SocketLink
from runner.worker.frames import (
    Command,
    Decided,
    Free,
    Request,
    Streamed,
    decode_driver_frame,
    decode_worker_frame,
    encode_frame,
)
from tests.support.episodes import damaged_bytes
from tests.support.worker_frames import TIMEOUT_S

ENCODED = encode_frame(Command(episode_id="e1", name="cancel", outcome=Outcome.INTERRUPTED))
NOW = datetime(2026, 3, 4, tzinfo=UTC)


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    ours.settimeout(TIMEOUT_S)
    with ours, theirs:
        yield ours, theirs


@settings(deadline=None)
@given(st.one_of(st.binary(max_size=300), damaged_bytes(ENCODED)))
def test_a_decoder_accepts_frames_only(data: bytes) -> None:
    for decode in (decode_driver_frame, decode_worker_frame):
        with contextlib.suppress(ValueError, RecursionError):
            assert decode(encode_frame(decode(data))) is not None


def test_streamed_tokens_are_dropped_while_the_driver_does_not_read(ends: tuple[socket.socket, socket.socket]) -> None:
    link = SocketLink(ends[1], pytest.fail)
    token = Streamed(episode_id="e1", at=NOW, seq=0, step=0, delta=StreamDelta(text="x" * 10_000))
    for _ in range(200):  # twice of what a socket holds
        link.send(token)
    sender = threading.Thread(target=link.send, args=(Free(episode_id="e1"),), daemon=True)
    sender.start()
    n_tokens = 0
    while isinstance(frame := decode_worker_frame(read_frame(ends[0]) or b""), Streamed):
        n_tokens += 1
    assert frame == Free(episode_id="e1")
    assert 0 < n_tokens < 200


def test_other_frames_wait_for_the_driver(ends: tuple[socket.socket, socket.socket]) -> None:
    link = SocketLink(ends[1], pytest.fail)
    outcomes = [Decided(episode_id=f"{number:0>2000}", outcome=Outcome.SUCCESS) for number in range(500)]

    def send_all() -> None:
        for frame in outcomes:
            link.send(frame)

    sender = threading.Thread(target=send_all, daemon=True)
    sender.start()
    assert [decode_worker_frame(read_frame(ends[0]) or b"") for _ in outcomes] == outcomes


def test_a_driver_that_is_gone_is_reported(ends: tuple[socket.socket, socket.socket]) -> None:
    broken = threading.Event()
    link = SocketLink(ends[1], broken.set)
    ends[0].close()
    link.send(Request(id=1, name="place", target="http://env"))
    assert broken.is_set()
