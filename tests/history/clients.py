"""Independent clients of both brokers: control requests, readers of the streams, and subscribers of live items.

They use nats-py alone, so that no code of the product that reads a bus can hide what is on it.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import nats
import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.errors import Error as JetStreamError

from runner.events.subjects import EVENTS_STREAM, LIVE_SUBJECTS, control_subject
from tests.history.records import Call, Live, Message, Recorder, Sink, StreamRead

Login = tuple[str, str, str]
FindLogin = Callable[[], Login | None]
"""Returns URL, user and password of a broker; None while they are unknown."""

NATS_ERRORS: Final = (nats.errors.Error, JetStreamError, OSError, TimeoutError, ValueError, KeyError)
CALL_TIMEOUT_S: Final = 5.0
POLL_S: Final = 0.1
_CONNECT_TIMEOUT_S: Final = 2
_NUMBERED: Final = ("kind", "episode_id", "seq")


async def _ignore_error(error: Exception) -> None:
    pass


@asynccontextmanager
async def connect(find_login: FindLogin) -> AsyncIterator[Client]:
    """Connect once, without reconnections; a lost connection shows as an error of the next operation."""
    login = find_login()
    if login is None:
        raise nats.errors.NoServersError
    url, user, password = login
    client = await asyncio.wait_for(
        nats.connect(
            url,
            user=user or None,
            password=password or None,
            allow_reconnect=False,
            connect_timeout=_CONNECT_TIMEOUT_S,
            ping_interval=2,
            max_outstanding_pings=2,
            error_cb=_ignore_error,
        ),
        2 * _CONNECT_TIMEOUT_S,
    )
    try:
        yield client
    finally:
        with contextlib.suppress(*NATS_ERRORS):
            await asyncio.wait_for(client.close(), _CONNECT_TIMEOUT_S)


class ControlClient:
    """Sends control requests over connections of its own, and records each with its reply."""

    def __init__(
        self, node: str, find_login: FindLogin, recorder: Recorder, *, timeout_s: float = CALL_TIMEOUT_S
    ) -> None:
        self._timeout_s = timeout_s
        self._subject = control_subject(node)
        self._find_login = find_login
        self._recorder = recorder
        self._numbers = itertools.count()

    async def call(self, op: str, **args: Any) -> dict[str, Any] | None:  # noqa: ANN401
        """Return the reply; None if none came, so that the outcome is unknown."""
        at = time.monotonic()
        reply: dict[str, Any] | None = None
        with contextlib.suppress(*NATS_ERRORS):
            reply = await self._send(op, args)
        self._recorder.write(Call(at=at, ended_at=time.monotonic(), op=op, args=args, reply=reply))
        return reply

    async def call_until_answered(self, op: str, args: dict[str, Any], give_up_at: float) -> dict[str, Any] | None:
        """Repeat a request until it is answered or the monotonic clock reaches ``give_up_at``."""
        while (reply := await self.call(op, **args)) is None and time.monotonic() < give_up_at:  # noqa: ASYNC110
            await asyncio.sleep(POLL_S)
        return reply

    async def _send(self, op: str, args: dict[str, Any]) -> dict[str, Any]:
        payload = json.dumps({"id": f"{op}-{next(self._numbers)}", "op": op, "args": args}).encode()
        async with connect(self._find_login) as client:
            message = await client.request(self._subject, payload, timeout=self._timeout_s)
            decoded: dict[str, Any] = json.loads(message.data)
            return decoded


class StreamReader:
    """Records every message of the stream of durable events of one broker, by sequence.

    Attributes:
        ids: ids of all messages that were read, over all incarnations of the stream.
    """

    def __init__(self, sink: Sink, find_login: FindLogin, recorder: Recorder) -> None:
        self.ids: set[str] = set()
        self._sink = sink
        self._find_login = find_login
        self._recorder = recorder
        self._created = ""
        self._next_seq = 1

    async def run(self) -> None:
        while True:
            with contextlib.suppress(*NATS_ERRORS):
                async with connect(self._find_login) as client:
                    while True:
                        await self._read(client)
                        await asyncio.sleep(POLL_S)
            await asyncio.sleep(POLL_S)

    async def finish(self) -> bool:
        """Read the stream to its end and record that; return whether that was possible."""
        with contextlib.suppress(*NATS_ERRORS):
            async with connect(self._find_login) as client:
                last = await self._read(client)
                self._recorder.write(
                    StreamRead(sink=self._sink, stream=EVENTS_STREAM, created=self._created, last_seq=last)
                )
                return True
        return False

    async def _read(self, client: Client) -> int:
        """Record the new messages and return the last sequence of the stream."""
        info = await self._request(client, f"STREAM.INFO.{EVENTS_STREAM}", {})
        state, created = info["state"], info["created"]
        if created != self._created or state["last_seq"] < self._next_seq - 1:
            self._created, self._next_seq = created, 1
        for seq in range(max(self._next_seq, state["first_seq"]), state["last_seq"] + 1):
            reply = await self._request(client, f"STREAM.MSG.GET.{EVENTS_STREAM}", {"seq": seq})
            self._record(reply["message"])
            self._next_seq = seq + 1
        last: int = state["last_seq"]
        return last

    async def _request(self, client: Client, operation: str, body: dict[str, Any]) -> dict[str, Any]:
        message = await client.request(f"$JS.API.{operation}", json.dumps(body).encode(), timeout=CALL_TIMEOUT_S)
        reply: dict[str, Any] = json.loads(message.data)
        return reply

    def _record(self, message: dict[str, Any]) -> None:
        headers = _parse_headers(base64.b64decode(message.get("hdrs", "")))
        self.ids.add(headers.get("ce-id", ""))
        self._recorder.write(
            Message(
                sink=self._sink,
                stream=EVENTS_STREAM,
                created=self._created,
                seq=message["seq"],
                subject=message["subject"],
                headers=headers,
                payload=json.loads(base64.b64decode(message.get("data", ""))),
            )
        )


def _parse_headers(block: bytes) -> dict[str, str]:
    lines = block.decode("utf-8", "replace").split("\r\n")[1:]
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines) if name}


class LiveSubscriber:
    """Records the live items of one broker as a core subscriber receives them."""

    def __init__(self, sink: Sink, find_login: FindLogin, recorder: Recorder) -> None:
        self._sink = sink
        self._find_login = find_login
        self._recorder = recorder

    async def run(self) -> None:
        for number in itertools.count():
            with contextlib.suppress(*NATS_ERRORS):
                async with connect(self._find_login) as client:
                    await self._subscribe(client, number)
            await asyncio.sleep(POLL_S)

    async def _subscribe(self, client: Client, number: int) -> None:
        subscription = await client.subscribe(LIVE_SUBJECTS)
        while client.is_connected:
            try:
                message = await subscription.next_msg(timeout=1.0)
            except nats.errors.TimeoutError:
                continue
            self._record(message, number)

    def _record(self, message: Msg, number: int) -> None:
        payload = json.loads(message.data)
        channel = message.subject.split(".")[2]
        if channel in ("span", "token"):  # the numbers alone, because these items are the most by far
            payload["items"] = [{name: item.get(name) for name in _NUMBERED} for item in payload["items"]]
        fields = {name: payload[name] for name in ("node", "boot", "dropped", "items")}
        self._recorder.write(Live(sink=self._sink, subscription=number, channel=channel, **fields))


async def create_stream(find_login: FindLogin, subjects: list[str]) -> None:
    """Create the stream of durable events on a foreign broker, whose administrator would do so."""
    async with connect(find_login) as client:
        config = {"name": EVENTS_STREAM, "subjects": subjects, "storage": "file", "duplicate_window": 600_000_000_000}
        body = json.dumps(config).encode()
        reply = json.loads((await client.request(f"$JS.API.STREAM.CREATE.{EVENTS_STREAM}", body, timeout=5)).data)
        assert "error" not in reply, reply
