"""What ``watch`` says to the person when a server, or somebody on it, is rude."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from nats.aio.msg import Msg

from tests.support.command import COMMAND
from tests.support.nats_server import NatsServer
from tests.support.publishing import client_of

INFO = {"server_id": "a", "version": "2.10.0", "proto": 1, "max_payload": 1 << 20, "headers": True, "jetstream": False}
NO_HISTORY = "agentgym.>: "
CONFIG = {"name": "S", "subjects": ["agentgym.>"], "retention": "limits", "storage": "file", "max_consumers": -1}
STATE = {"messages": 2, "bytes": 9, "first_seq": 1, "last_seq": 2, "consumer_count": 0}
STREAM = {"config": CONFIG, "state": STATE, "created": "2026-01-01T00:00:00Z"}


@asynccontextmanager
async def rude_server(rudeness: bytes) -> AsyncIterator[str]:
    """Speaks NATS well enough to be taken for a server, and is rude after each ping but the first."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        n_pings = 0
        writer.write(f"INFO {json.dumps(INFO)}\r\n".encode())
        with contextlib.suppress(OSError):
            while line := await reader.readline():
                if line.startswith(b"PING"):
                    n_pings += 1
                    writer.write(b"PONG\r\n" + (rudeness if n_pings > 1 else b""))
                    await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def said_by_watch(folder: Path, url: str, *, until: tuple[str, ...]) -> str:
    """Standard error until all of these were said, and then until Ctrl-C."""
    process = await asyncio.create_subprocess_exec(
        COMMAND,
        *("watch", "--nats", url, "--since", "all"),
        cwd=folder,
        env={"PATH": os.environ["PATH"], "HOME": str(folder)},
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    said = ""
    try:
        async with asyncio.timeout(60):
            while not all(text in said for text in until):
                line = (await process.stderr.readline()).decode()
                assert line, f"it ended by itself before {until}: {said}"
                said += line
            process.send_signal(signal.SIGINT)
            said += (await process.stderr.read()).decode()
            assert await process.wait() == 130, said
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return said


def check(said: str, kind: str) -> None:
    """Each line is a notice of ours, and none of them can do anything to a terminal."""
    for line in said.splitlines():
        assert line.isprintable(), (kind, said)
        assert line.startswith("-- "), (kind, said)
        assert len(line) < 700, (kind, said)
    assert "Traceback" not in said, (kind, said)


RUDE: dict[str, tuple[bytes, str]] = {
    "error": (b"-ERR '\x1b[2J\xe2\x80\xae boo'\r\n", "boo"),
    "bytes": (b"-ERR '\xff\xfe'\r\n", "connected again"),
    "permission": (
        b"-ERR 'Permissions Violation for Subscription to \"agentgym.>\" \x1b[2J\xe2\x80\xae'\r\n",
        "not allowed to",
    ),
    "login": (b"-ERR 'Authorization Violation \x1b[2J'\r\n", "credentials"),
    "list": (b"INFO []\r\n", "connected again"),
    "address": (b'INFO {"connect_urls":["\x1b[2J"]}\r\n', "connected again"),
    "message": (b"MSG agentgym.x 1 abc 3\r\nabc\r\n\x1b[2J", "connected"),
    "endless": (b"MSG agentgym.x 1 99999999999999999999\r\n", "does not answer"),
}
"""What a server says, and what is to be said of it."""


@pytest.mark.long
async def test_a_rude_server_is_said_in_lines_of_ours(tmp_path: Path) -> None:
    async def meet(kind: str, rudeness: bytes, until: str) -> None:
        async with rude_server(rudeness) as url:
            check(await said_by_watch(tmp_path, url, until=(NO_HISTORY, until)), kind)

    await asyncio.gather(*(meet(kind, *told) for kind, told in RUDE.items()))


FORGERY = "\x1b[2J\u202e\n-- all is well\n" * 100
FORGED: list[tuple[object, object, object]] = [
    ([], [], []),
    ({"error": {"code": 500, "description": FORGERY}}, {}, {}),
    ({"streams": [FORGERY]}, {}, {}),
    ({"streams": ["S"]}, {"error": {"code": 500, "err_code": 1, "description": FORGERY}}, {}),
    ({"streams": ["S"]}, {"error": {"code": 500, "err_code": 1, "description": 7}}, {}),
    ({"streams": ["S"]}, {**STREAM, "state": {**STATE, "last_seq": "2"}}, {}),
    ({"streams": ["S"]}, {**STREAM, "config": {**CONFIG, "subjects": [3]}}, {}),
    ({"streams": ["S"]}, STREAM, []),
    ({"streams": ["S"]}, STREAM, {"error": {"code": 500, "err_code": 1, "description": FORGERY}}),
    ({"streams": ["S"]}, STREAM, {"name": "a b\r\nPUB x 0", "config": {}, "created": "2026-01-01T00:00:00Z"}),
]
"""What is answered when asked for names of streams, for a stream, and for a consumer."""


@pytest.mark.long
async def test_who_answers_in_the_place_of_jetstream_forges_no_line(tmp_path: Path) -> None:
    async def meet(number: int, names: object, info: object, consumer: object) -> None:
        with NatsServer(tmp_path / f"nats{number}", jetstream=False) as server:
            async with client_of(server) as client:

                async def answer(message: Msg) -> None:
                    kind = message.subject.split(".")[2:4]
                    said = names if kind == ["STREAM", "NAMES"] else info if kind == ["STREAM", "INFO"] else consumer
                    await client.publish(message.reply, json.dumps(said).encode())

                await client.subscribe("$JS.API.>", cb=answer)
                await client.flush()
                said = await said_by_watch(tmp_path, server.url, until=("-- ",))
        check(said, str(number))
        assert "\n-- all is well" not in said, number

    await asyncio.gather(*(meet(number, *told) for number, told in enumerate(FORGED)))
