from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from runner.types import StreamDelta
from runner.worker.frame_sender import FrameQueue, pack, unpack
from runner.worker.frames import Decided, Free, Reply, Request, Streamed, WorkerFrame, decode_worker_frame

LIMIT_S = 60.0
FREE = Free(episode_id="e")


def streamed(text: str) -> Streamed:
    return Streamed(episode_id="e", at=datetime(2026, 1, 1, tzinfo=UTC), seq=0, step=0, delta=StreamDelta(text=text))


def decided(seq: int) -> WorkerFrame:
    return Decided(episode_id=str(seq), outcome="success")  # type: ignore[arg-type]


@given(st.lists(st.binary(max_size=40)))
def test_joined_frames_are_split_again(frames: list[bytes]) -> None:
    assert unpack(pack(frames)) == frames


async def test_frames_are_taken_in_their_order_and_the_last_one_is_known() -> None:
    queue = FrameQueue()
    waiting = asyncio.create_task(queue.take())
    await asyncio.sleep(0)
    await asyncio.to_thread(queue.send, decided(1))
    frames, is_last = await asyncio.wait_for(waiting, LIMIT_S)
    assert ([decode_worker_frame(frame) for frame in frames], is_last) == ([decided(1)], False)
    for frame in (decided(2), decided(3), FREE):
        queue.send(frame)
    frames, is_last = await asyncio.wait_for(queue.take(), LIMIT_S)
    assert ([decode_worker_frame(frame) for frame in frames], is_last) == ([decided(2), decided(3), FREE], True)


async def test_a_full_queue_drops_tokens_and_lets_other_frames_wait_for_the_driver() -> None:
    queue = FrameQueue(max_bytes=100)
    queue.send(streamed("x" * 200))
    queue.send(streamed("dropped"))
    sent = threading.Event()

    def send_last() -> None:
        queue.send(FREE)
        sent.set()

    sender = threading.Thread(target=send_last)
    sender.start()
    assert not sent.wait(0.05)
    frames, is_last = await asyncio.wait_for(queue.take(), LIMIT_S)
    assert ([decode_worker_frame(frame) for frame in frames], is_last) == ([streamed("x" * 200)], False)
    frames, is_last = await asyncio.wait_for(queue.take(), LIMIT_S)
    assert ([decode_worker_frame(frame) for frame in frames], is_last) == ([FREE], True)
    sender.join(LIMIT_S)


async def test_a_request_waits_for_the_reply_with_its_id() -> None:
    queue = FrameQueue()
    requests = [asyncio.create_task(queue.request("lease", "http://server", number)) for number in (1, 2)]
    await asyncio.sleep(0)
    frames, _ = await asyncio.wait_for(queue.take(), LIMIT_S)
    sent = [decode_worker_frame(frame) for frame in frames]
    for frame in reversed(sent):
        assert isinstance(frame, Request)
        queue.resolve(Reply(id=frame.id, granted=frame.instance == 2))
    replies = await asyncio.wait_for(asyncio.gather(*requests), LIMIT_S)
    assert [reply.granted for reply in replies] == [False, True]
