from __future__ import annotations

import asyncio
import fcntl
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from typing import Any

import psutil
import pytest

from agentgym_tui.sessions.decode_worker_client import MAX_GAP_S, MIN_BYTES, RESTART_DELAY_S, DecodeWorkerClient
from agentgym_tui.state.coalesce import coalesce_batch
from runner.events.codec import LiveRow, decode, encode
from runner.events.live import LiveBatch, LiveItem
from runner.events.subjects import EPISODE_COMPLETED, DurableNames
from runner.subscribe.buffer import RawMessage
from tests.support.console.live_items import BOOT, NODE, FakeClock, timestep, token

NAMES = DurableNames()
SUBJECT = "agentgym.live.token.v1.n1"
MANY_ITEMS: list[LiveItem] = [timestep(), *(token(seq=number, text="so ") for number in range(2, 1_000))]
_READ = "import sys; from agentgym_tui.sessions.decode_worker import read_frame, write_frame\n"
SILENT = (sys.executable, "-c", "import sys; sys.stdin.buffer.read()")
OTHER_VERSION = (
    sys.executable,
    "-c",
    f"{_READ}while True: read_frame(sys.stdin.buffer); write_frame(sys.stdout.buffer, b'another version')",
)
EXITING = (sys.executable, "-c", "pass")
WAIT_S = 30


def message(*items: LiveItem, subject: str = SUBJECT, headers: dict[str, str] | None = None) -> RawMessage:
    payload = encode(LiveBatch(node=NODE, boot=BOOT, dropped=0, items=list(items)))
    return RawMessage(subject=subject, headers=headers or {}, payload=payload)


def has_worker(client: DecodeWorkerClient) -> bool:
    return client.first_reply is not None


@asynccontextmanager
async def worker_of(client: DecodeWorkerClient) -> AsyncIterator[psutil.Process]:
    """Start the worker of a client, yield its process and wait for its end."""
    before = set(psutil.Process().children())
    async with asyncio.timeout(WAIT_S):
        with closing(client):
            assert [await client.decode(message(*MANY_ITEMS)) for _ in range(2)] == [None, None]
            (process,) = set(psutil.Process().children()) - before
            assert client.first_reply is not None and await client.first_reply is not None
            yield process
        await asyncio.to_thread(process.wait, WAIT_S)


async def test_a_large_message_is_decoded_by_a_worker_process_that_ends_with_its_client() -> None:
    large = message(*MANY_ITEMS)
    row = decode(SUBJECT, {}, large.payload, NAMES)
    assert len(large.payload) > MIN_BYTES and isinstance(row, LiveRow)
    async with worker_of(client := DecodeWorkerClient(NAMES, timeout_s=WAIT_S)) as process:
        before_s = process.cpu_times().user
        assert await client.decode(large) == coalesce_batch(row)
        for _ in range(50):
            await client.decode(large)
        assert process.cpu_times().user > before_s


@pytest.mark.parametrize(
    "raw_message",
    [
        message(*MANY_ITEMS[:5]),
        message(*MANY_ITEMS, subject="plant.line1"),
        message(*MANY_ITEMS, subject=EPISODE_COMPLETED),
        message(*MANY_ITEMS, headers={"ce-type": EPISODE_COMPLETED}),
    ],
)
async def test_a_small_or_durable_message_starts_no_worker(raw_message: RawMessage) -> None:
    with closing(DecodeWorkerClient(NAMES)) as client:
        assert await client.decode(raw_message) is None
        assert client.first_reply is None


async def test_rare_large_messages_start_no_worker() -> None:
    clock = FakeClock()
    with closing(DecodeWorkerClient(NAMES, now=clock)) as client:
        for _ in range(3):
            assert await client.decode(message(*MANY_ITEMS)) is None and client.first_reply is None
            clock.at += 1.5 * MAX_GAP_S


async def test_a_batch_that_the_worker_cannot_encode_is_left_to_the_client() -> None:
    raw_messages = [
        message(*MANY_ITEMS, token(seq=10**30)),
        RawMessage(subject=SUBJECT, headers={}, payload=b"\x1b" * MIN_BYTES),
    ]
    async with worker_of(client := DecodeWorkerClient(NAMES, timeout_s=WAIT_S)):
        assert [await client.decode(each) for each in raw_messages] == [None, None]
        assert await client.decode(message(*MANY_ITEMS)) is not None


async def test_a_killed_worker_is_replaced_after_the_restart_delay() -> None:
    clock, large = FakeClock(), message(*MANY_ITEMS)
    async with asyncio.timeout(WAIT_S):
        async with worker_of(client := DecodeWorkerClient(NAMES, timeout_s=WAIT_S, now=clock)) as process:
            process.kill()
            assert await client.decode(large) is None
            assert await client.decode(large) is None and not has_worker(client)
            clock.at += RESTART_DELAY_S
            assert [await client.decode(large) for _ in range(2)] == [None, None]
            assert client.first_reply is not None and await client.first_reply is not None
            assert await client.decode(large) is not None


@pytest.mark.parametrize("command", [SILENT, EXITING, ("/nonexistent/python",)])
async def test_a_worker_that_never_replies_is_abandoned(command: tuple[str, ...]) -> None:
    large = message(*MANY_ITEMS)
    async with asyncio.timeout(WAIT_S):
        with closing(DecodeWorkerClient(NAMES, command, timeout_s=0.05, now=FakeClock())) as client:
            assert [await client.decode(large) for _ in range(2)] == [None, None]
            if client.first_reply is not None:
                assert await client.first_reply is None
            assert await client.decode(large) is None
            assert await client.decode(large) is None and client.first_reply is None


async def test_a_worker_of_another_version_is_abandoned() -> None:
    large = message(*MANY_ITEMS)
    async with asyncio.timeout(WAIT_S):
        with closing(DecodeWorkerClient(NAMES, OTHER_VERSION, timeout_s=WAIT_S, now=FakeClock())) as client:
            assert [await client.decode(large) for _ in range(2)] == [None, None]
            assert client.first_reply is not None and await client.first_reply is not None
            assert await client.decode(large) is None and not has_worker(client)


async def test_a_cancelled_decode_leaves_no_worker() -> None:
    async with worker_of(client := DecodeWorkerClient(NAMES, timeout_s=WAIT_S)) as process:
        process.suspend()
        decoding = asyncio.create_task(client.decode(message(*MANY_ITEMS)))
        await asyncio.sleep(0)
        decoding.cancel()
        with pytest.raises(asyncio.CancelledError):
            await decoding
        await asyncio.to_thread(process.wait, WAIT_S)


async def test_a_half_written_message_leaves_nothing_registered_in_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(fcntl, "F_SETPIPE_SZ", raising=False)  # as on systems whose pipes hold at most 64 KiB
    large = message(*(token(seq=number, text="so " * 10) for number in range(1, 3_000)))
    async with worker_of(client := DecodeWorkerClient(NAMES, timeout_s=1.0)) as process:
        process.suspend()
        assert await client.decode(large) is None and not has_worker(client)
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    async with server, asyncio.timeout(WAIT_S):
        for _ in range(8):  # each connection reuses file descriptors that were closed
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            assert await reader.read() == b""
            writer.close()


@pytest.mark.parametrize("n_turns", range(6))
async def test_a_client_can_be_closed_at_any_moment_of_its_start(n_turns: int) -> None:
    exceptions: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: exceptions.append(context))
    before = set(psutil.Process().children())
    with closing(client := DecodeWorkerClient(NAMES)):
        assert [await client.decode(message(*MANY_ITEMS)) for _ in range(2)] == [None, None]
        (process,) = set(psutil.Process().children()) - before
        for _ in range(n_turns):
            await asyncio.sleep(0)
    await asyncio.to_thread(process.wait, WAIT_S)
    await asyncio.sleep(0)
    assert exceptions == []
