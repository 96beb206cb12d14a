"""The messages of ``watch`` when a server, or a client on it, sends malformed or hostile data."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path

import pytest
from nats.aio.msg import Msg

from tests.support.command import COMMAND
from tests.support.fake_nats import run_fake_nats
from tests.support.nats_server import NatsServer
from tests.support.publishing import nats_client

pytestmark = pytest.mark.long

NO_HISTORY = "agentgym.>: "
CONFIG = {"name": "S", "subjects": ["agentgym.>"], "retention": "limits", "storage": "file", "max_consumers": -1}
STATE = {"messages": 2, "bytes": 9, "first_seq": 1, "last_seq": 2, "consumer_count": 0}
STREAM = {"config": CONFIG, "state": STATE, "created": "2026-01-01T00:00:00Z"}


async def stderr_of_watch(folder: Path, url: str, *, until: tuple[str, ...]) -> str:
    """Return standard error of ``watch``, which is interrupted once all these texts have appeared."""
    process = await asyncio.create_subprocess_exec(
        COMMAND,
        *("watch", "--nats", url, "--since", "all"),
        cwd=folder,
        env={"PATH": os.environ["PATH"], "HOME": str(folder)},
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    output = ""
    try:
        async with asyncio.timeout(60):
            while not all(text in output for text in until):
                line = (await process.stderr.readline()).decode()
                assert line, f"watch ended before {until}: {output}"
                output += line
            process.send_signal(signal.SIGINT)
            output += (await process.stderr.read()).decode()
            assert await process.wait() == 130, output
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return output


def check_notices(output: str, kind: str) -> None:
    """Every line is a notice and safe for a terminal."""
    for line in output.splitlines():
        assert line.isprintable(), (kind, output)
        assert line.startswith("-- "), (kind, output)
        assert len(line) < 700, (kind, output)
    assert "Traceback" not in output, (kind, output)


HOSTILE_DATA: dict[str, tuple[bytes, str]] = {
    "error": (b"-ERR '\x1b[2J\xe2\x80\xae boo'\r\n", "boo"),
    "bytes": (b"-ERR '\xff\xfe'\r\n", "reconnected"),
    "permission": (
        b"-ERR 'Permissions Violation for Subscription to \"agentgym.>\" \x1b[2J\xe2\x80\xae'\r\n",
        "not allowed to",
    ),
    "login": (b"-ERR 'Authorization Violation \x1b[2J'\r\n", "credentials"),
    "list": (b"INFO []\r\n", "reconnected"),
    "address": (b'INFO {"connect_urls":["\x1b[2J"]}\r\n', "reconnected"),
    "message": (b"MSG agentgym.x 1 abc 3\r\nabc\r\n\x1b[2J", "connected"),
    "endless": (b"MSG agentgym.x 1 99999999999999999999\r\n", "does not answer"),
}
"""Data of the server, and the expected notice."""


async def test_hostile_data_is_reported_in_safe_notices(tmp_path: Path) -> None:
    async def check_case(kind: str, hostile_data: bytes, until: str) -> None:
        async with run_fake_nats(hostile_data, jetstream=False) as server:
            check_notices(await stderr_of_watch(tmp_path, server.url, until=(NO_HISTORY, until)), kind)

    await asyncio.gather(*(check_case(kind, *case) for kind, case in HOSTILE_DATA.items()))


FORGERY = "\x1b[2J\u202e\n-- all is well\n" * 100
FORGED_RESPONSES: list[tuple[object, object, object]] = [
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
"""Forged responses to requests for stream names, a stream, and a consumer."""


async def test_forged_jetstream_responses_cannot_forge_a_line(tmp_path: Path) -> None:
    async def check_case(number: int, stream_names: object, stream_info: object, consumer: object) -> None:
        with NatsServer(tmp_path / f"nats{number}", jetstream=False) as server:
            async with nats_client(server) as client:

                async def respond(message: Msg) -> None:
                    kind = ".".join(message.subject.split(".")[2:4])
                    output = {"STREAM.NAMES": stream_names, "STREAM.INFO": stream_info}.get(kind, consumer)
                    await client.publish(message.reply, json.dumps(output).encode())

                await client.subscribe("$JS.API.>", cb=respond)
                await client.flush()
                output = await stderr_of_watch(tmp_path, server.url, until=("-- ",))
        check_notices(output, str(number))
        assert "\n-- all is well" not in output, number

    await asyncio.gather(*(check_case(number, *case) for number, case in enumerate(FORGED_RESPONSES)))
