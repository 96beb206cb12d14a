"""The queue of frames and the channel of a worker."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
import warnings
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.episode.control import EpisodeControl
from runner.store.journal import EpisodeJournal, journal_path
from runner.store.parts import Decided, Free, Part, Paused, Tokens, Unjournaled
from runner.types import Outcome
from runner.util.clock import Clock
from runner.util.framing import FrameBuffer, FrameTooLarge, framed, read_frame
from runner.worker import driver_link
from runner.worker.driver_link import MAX_QUEUED_BYTES, FrameQueue, write_frames
from runner.worker.frames import (
    Command,
    EndpointOutcome,
    Hello,
    Release,
    Reply,
    Request,
    WorkerFrame,
    decode_driver_frame,
    decode_worker_frame,
    encode_frame,
)
from tests.support.episodes import damaged_bytes, episode_header
from tests.support.examples import examples
from tests.support.fake_worker import end_frame, opening_frames, step_frame
from tests.support.worker_frames import TIMEOUT_S

LIMIT_S = 60.0
FOREVER_S = 600.0
"""Longer than any test may take."""
NOW = datetime(2026, 1, 1, tzinfo=UTC)
HEADER = episode_header()
STARTED, RESET = opening_frames(HEADER)
STEPS = [step_frame(HEADER, index) for index in range(3)]
FREE = Free(episode_id="e")
REQUEST = Request(id=1, name="place", target="http://env", instance=7)


def tokens(text: str) -> Tokens:
    return Tokens(episode_id="e", seq=1, live=text.encode())


def decided(number: int, size: int = 0) -> Decided:
    return Decided(episode_id=f"{number:0>{size}}", outcome=Outcome.SUCCESS)


async def take(queue: FrameQueue, linger_s: float = FOREVER_S) -> tuple[list[WorkerFrame], bool]:
    frames, has_end = await asyncio.wait_for(queue.take(linger_s), LIMIT_S)
    return [decode_worker_frame(frame) for frame in FrameBuffer().feed(frames)], has_end


async def test_frames_are_taken_in_their_order_and_an_end_is_known() -> None:
    queue = FrameQueue()
    waiting = asyncio.create_task(take(queue, linger_s=0))
    await asyncio.sleep(0)
    await asyncio.to_thread(queue.send, decided(1))
    assert await waiting == ([decided(1)], False)
    sent: list[WorkerFrame] = [decided(2), FREE, decided(3)]
    for frame in sent:
        queue.send(frame)
    assert await take(queue) == (sent, True)
    queue.send(decided(4))
    assert await take(queue, linger_s=0) == ([decided(4)], False)


@pytest.mark.parametrize(
    "urgent",
    [
        STARTED,
        FREE,
        Paused(episode_id="e", at=NOW, seq=1),
        Unjournaled(episode_id="e", problem="full"),
        Hello(worker_id="w", host="h", pid=1, monotonic_ns=0, wall=NOW),
        REQUEST,
        Release(name="place", target="http://env", instance=7),
        EndpointOutcome(endpoint="a"),
    ],
    ids=lambda frame: type(frame).__name__,
)
async def test_frames_wait_for_an_urgent_one(urgent: WorkerFrame) -> None:
    queue = FrameQueue()
    others: list[WorkerFrame] = [RESET, *STEPS, decided(1), tokens("{}"), end_frame(HEADER, 1)]
    taking = asyncio.create_task(take(queue))
    for frame in others:
        await asyncio.to_thread(queue.send, frame)
        await asyncio.sleep(0)
    assert not taking.done()
    await asyncio.to_thread(queue.send, urgent)
    assert await taking == ([*others, urgent], isinstance(urgent, Free))


async def test_frames_that_are_not_urgent_are_taken_after_a_while() -> None:
    queue = FrameQueue()
    queue.send(RESET)
    queue.send(decided(1))
    assert await take(queue, linger_s=0.001) == ([RESET, decided(1)], False)


async def test_a_full_queue_drops_tokens_and_takes_every_other_frame_at_once() -> None:
    queue = FrameQueue(max_bytes=100)
    sent = [tokens("x" * 200), tokens("dropped"), STARTED, tokens("dropped"), STEPS[0], FREE]
    for frame in sent:
        queue.send(frame)
    assert await take(queue) == ([frame for frame in sent if frame != tokens("dropped")], True)
    queue.send(tokens("there is room again"))
    assert await take(queue, linger_s=0) == ([tokens("there is room again")], False)


async def test_episodes_wait_for_room_before_their_next_step_and_nothing_else_does() -> None:
    queue = FrameQueue(max_bytes=100)
    queue.send(decided(1, 200))
    controls = [EpisodeControl(Clock(), queue.wait_for_room) for _ in range(2)]
    steps = [asyncio.create_task(control.wait_at_step(lambda: None, lambda: None)) for control in controls]
    has_begun = threading.Event()

    async def play_elsewhere() -> None:
        has_begun.set()
        await EpisodeControl(Clock(), queue.wait_for_room).wait_at_step(lambda: None, lambda: None)

    other = threading.Thread(target=asyncio.run, args=(play_elsewhere(),), daemon=True)
    other.start()
    assert await asyncio.to_thread(has_begun.wait, LIMIT_S)
    controls[1].cancel()
    request = asyncio.create_task(queue.grant("place", "http://env", 7))
    await asyncio.sleep(0)
    assert not any(step.done() for step in steps)
    assert other.is_alive()
    frames, _ = await take(queue)
    assert frames == [decided(1, 200), REQUEST]
    queue.resolve(Reply(id=1))
    assert await asyncio.wait_for(request, LIMIT_S)
    assert await asyncio.wait_for(asyncio.gather(*steps), LIMIT_S) == [True, False]
    await asyncio.to_thread(other.join, LIMIT_S)
    assert not other.is_alive()
    assert await asyncio.wait_for(controls[0].wait_at_step(lambda: None, lambda: None), LIMIT_S)


async def test_an_episode_that_is_stopped_waits_for_no_room() -> None:
    queue = FrameQueue(max_bytes=0)
    queue.send(STARTED)
    waiting = asyncio.create_task(queue.wait_for_room())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await take(queue, linger_s=0) == ([STARTED], False)


async def test_a_request_waits_for_the_reply_with_its_id() -> None:
    queue = FrameQueue()
    requests = [asyncio.create_task(queue.grant("lease", "http://server", number)) for number in (1, 2)]
    await asyncio.sleep(0)
    sent, _ = await take(queue)
    for frame in reversed(sent):
        assert isinstance(frame, Request)
        queue.resolve(Reply(id=frame.id, granted=frame.instance == 2))
    assert await asyncio.wait_for(asyncio.gather(*requests), LIMIT_S) == [False, True]


async def test_a_frame_that_cannot_be_sent_leaves_the_queue_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_link, "framed", partial(framed, max_bytes=1000))
    queue = FrameQueue()
    with pytest.raises(FrameTooLarge):
        queue.send(tokens("x" * 1001))
    with pytest.raises(ValueError, match="surrogates"):
        queue.send(Decided(episode_id="\ud800", outcome=Outcome.SUCCESS))
    queue.send(FREE)
    assert await take(queue) == ([FREE], True)


FRAMES: st.SearchStrategy[WorkerFrame | None] = st.one_of(
    st.none(),  # the driver reads
    st.builds(tokens, st.text(st.characters(codec="ascii"), max_size=60)),
    st.builds(decided, st.integers(0, 9), st.integers(0, 60)),
    st.sampled_from([STARTED, RESET, REQUEST, FREE, *STEPS]),
)


def size(frames: list[WorkerFrame]) -> int:
    return sum(len(framed(encode_frame(frame))) for frame in frames)


@settings(deadline=None, max_examples=examples(100))
@given(st.lists(FRAMES, max_size=40), st.integers(0, 2000))
def test_whatever_is_sent_arrives_once_and_in_order_but_for_tokens_above_the_limit(
    script: list[WorkerFrame | None], max_bytes: int
) -> None:
    async def run() -> None:
        queue = FrameQueue(max_bytes)
        expected: list[WorkerFrame] = []
        for frame in (*script, FREE, None):
            if frame is not None:
                is_full = size(expected) > max_bytes
                queue.send(frame)
                expected += [] if is_full and isinstance(frame, Tokens) else [frame]
            elif expected:
                waiting = asyncio.create_task(queue.wait_for_room())
                await asyncio.sleep(0)
                assert waiting.done() == (size(expected) <= max_bytes)
                assert await take(queue, linger_s=0) == (expected, any(isinstance(each, Free) for each in expected))
                await asyncio.wait_for(waiting, LIMIT_S)
                expected = []

    asyncio.run(run())


def test_a_forked_process_writes_no_journal_and_ends_at_its_first_frame(tmp_path: Path) -> None:
    queue, journal = FrameQueue(), EpisodeJournal(tmp_path, HEADER)
    for part in opening_frames(HEADER):
        assert isinstance(part, Part)
        journal.write(part)
    path = journal_path(tmp_path, HEADER.batch_id, HEADER.episode_id)
    before, step = path.read_bytes(), step_frame(HEADER, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the child uses nothing of other threads
        child = os.fork()
    if child == 0:
        try:
            journal.write(step)
            queue.send(step)
        finally:
            os._exit(7)
    assert (os.waitpid(child, 0)[1], path.read_bytes()) == (0, before)
    journal.write(step)
    assert path.read_bytes().startswith(before) and path.read_bytes() != before


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
