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
from runner.events.codec import decode, encode
from runner.events.decoded import LiveRow
from runner.events.durable import LiveBatch, LiveItem
from runner.events.subjects import EPISODE_COMPLETED, DurableNames
from runner.subscribe.buffer import RawMessage
from tests.support.console.live_items import BOOT, NODE, FakeClock, timestep, token

NAMES = DurableNames()
SUBJECT = "agentgym.live.token.v1.n1"
MANY: list[LiveItem] = [timestep(), *(token(seq=number, text="so ") for number in range(2, 1_000))]
_READ = "import sys; from agentgym_tui.sessions.decode_worker import read_frame, write_frame\n"
SILENT = (sys.executable, "-c", "import sys; sys.stdin.buffer.read()")
OTHER = (
    sys.executable,
    "-c",
    f"{_READ}while True: read_frame(sys.stdin.buffer); write_frame(sys.stdout.buffer, b'another version')",
)
GONE = (sys.executable, "-c", "pass")
WAIT_S = 30


def message(*items: LiveItem, subject: str = SUBJECT, headers: dict[str, str] | None = None) -> RawMessage:
    payload = encode(LiveBatch(node=NODE, boot=BOOT, dropped=0, items=list(items)))
    return RawMessage(subject=subject, headers=headers or {}, payload=payload)


def wanted(client: DecodeWorkerClient) -> bool:
    return client.first_reply is not None


@asynccontextmanager
async def at_work(client: DecodeWorkerClient) -> AsyncIterator[psutil.Process]:
    """Its process, once it is there; gone in the end."""
    before = set(psutil.Process().children())
    async with asyncio.timeout(WAIT_S):
        with closing(client):
            assert [await client.decode(message(*MANY)) for _ in range(2)] == [None, None]
            (process,) = set(psutil.Process().children()) - before
            assert client.first_reply is not None and await client.first_reply is not None
            yield process
        await asyncio.to_thread(process.wait, WAIT_S)


async def test_a_large_message_is_read_by_another_process_which_ends_with_who_asked_it() -> None:
    large = message(*MANY)
    row = decode(SUBJECT, {}, large.payload, NAMES)
    assert len(large.payload) > MIN_BYTES and isinstance(row, LiveRow)
    async with at_work(client := DecodeWorkerClient(NAMES, timeout_s=WAIT_S)) as process:
        before_s = process.cpu_times().user
        assert await client.decode(large) == coalesce_batch(row)
        for _ in range(50):
            await client.decode(large)
        assert process.cpu_times().user > before_s


@pytest.mark.parametrize(
    "other",
    [
        message(*MANY[:5]),
        message(*MANY, subject="plant.line1"),
        message(*MANY, subject=EPISODE_COMPLETED),
        message(*MANY, headers={"ce-type": EPISODE_COMPLETED}),
    ],
)
async def test_what_is_small_or_not_live_needs_nobody_else(other: RawMessage) -> None:
    with closing(DecodeWorkerClient(NAMES)) as client:
        assert await client.decode(other) is None
        assert client.first_reply is None


async def test_for_a_large_message_now_and_then_no_process_is_started() -> None:
    clock = FakeClock()
    with closing(DecodeWorkerClient(NAMES, now=clock)) as client:
        for _ in range(3):
            assert await client.decode(message(*MANY)) is None and client.first_reply is None
            clock.at += 1.5 * MAX_GAP_S


async def test_what_the_other_process_cannot_say_is_left_to_the_asker() -> None:
    odd = [message(*MANY, token(seq=10**30)), RawMessage(subject=SUBJECT, headers={}, payload=b"\x1b" * MIN_BYTES)]
    async with at_work(client := DecodeWorkerClient(NAMES, timeout_s=WAIT_S)):
        assert [await client.decode(each) for each in odd] == [None, None]
        assert await client.decode(message(*MANY)) is not None


async def test_where_the_process_is_killed_another_one_takes_its_place_after_a_while() -> None:
    clock, large = FakeClock(), message(*MANY)
    async with asyncio.timeout(WAIT_S):
        async with at_work(client := DecodeWorkerClient(NAMES, timeout_s=WAIT_S, now=clock)) as process:
            process.kill()
            assert await client.decode(large) is None
            assert await client.decode(large) is None and not wanted(client)
            clock.at += RESTART_DELAY_S
            assert [await client.decode(large) for _ in range(2)] == [None, None]
            assert client.first_reply is not None and await client.first_reply is not None
            assert await client.decode(large) is not None


@pytest.mark.parametrize("command", [SILENT, GONE, ("/nonexistent/python",)])
async def test_a_process_that_never_answers_is_not_waited_for(command: tuple[str, ...]) -> None:
    large = message(*MANY)
    async with asyncio.timeout(WAIT_S):
        with closing(DecodeWorkerClient(NAMES, command, timeout_s=0.05, now=FakeClock())) as client:
            assert [await client.decode(large) for _ in range(2)] == [None, None]
            if client.first_reply is not None:
                assert await client.first_reply is None
            assert await client.decode(large) is None
            assert await client.decode(large) is None and client.first_reply is None


async def test_a_process_of_another_version_is_left() -> None:
    large = message(*MANY)
    async with asyncio.timeout(WAIT_S):
        with closing(DecodeWorkerClient(NAMES, OTHER, timeout_s=WAIT_S, now=FakeClock())) as client:
            assert [await client.decode(large) for _ in range(2)] == [None, None]
            assert client.first_reply is not None and await client.first_reply is not None
            assert await client.decode(large) is None and not wanted(client)


async def test_who_stops_waiting_leaves_no_process() -> None:
    async with at_work(client := DecodeWorkerClient(NAMES, timeout_s=WAIT_S)) as process:
        process.suspend()
        asking = asyncio.create_task(client.decode(message(*MANY)))
        await asyncio.sleep(0)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await asyncio.to_thread(process.wait, WAIT_S)


async def test_a_message_that_a_process_took_half_of_leaves_nothing_in_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(fcntl, "F_SETPIPE_SZ", raising=False)  # as where pipes take 64 KiB at most
    large = message(*(token(seq=number, text="so " * 10) for number in range(1, 3_000)))
    async with at_work(client := DecodeWorkerClient(NAMES, timeout_s=1.0)) as process:
        process.suspend()
        assert await client.decode(large) is None and not wanted(client)
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    async with server, asyncio.timeout(WAIT_S):
        for _ in range(8):  # each gets numbers of files that were closed
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            assert await reader.read() == b""
            writer.close()


@pytest.mark.parametrize("n_turns", range(6))
async def test_it_may_be_left_at_any_moment_of_its_start(n_turns: int) -> None:
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    before = set(psutil.Process().children())
    with closing(client := DecodeWorkerClient(NAMES)):
        assert [await client.decode(message(*MANY)) for _ in range(2)] == [None, None]
        (process,) = set(psutil.Process().children()) - before
        for _ in range(n_turns):
            await asyncio.sleep(0)
    await asyncio.to_thread(process.wait, WAIT_S)
    await asyncio.sleep(0)
    assert complaints == []
