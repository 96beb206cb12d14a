"""Replies of a node to the console's requests; the input is the operation, a line each, and then the replies.

The id of each request replaces ``@ID@`` in a reply.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, cast

import msgspec
from nats.aio.msg import Msg

from agentgym_tui.safe_text import sanitize_message
from runner.bus.connection import NatsConnection
from runner.client.node_client import ControlRequestError, NodeClient
from runner.events.control import BatchState, ControlRequest, NodeHealth, NodeList, StartArgs
from tests.fuzz.oracles import check_displayable, event_loop
from tests.fuzz.targets.episode_file import BATCH, EPISODE

TOKENS = (
    b'{"id":"@ID@","ok":true,"result":{}}',
    b'{"id":"@ID@","ok":false,"error":{"code":"not_running","message":"m"}}',
    b'{"stream":"S","seq":1}',
    b'"sha256":',
    b'"data":"AA=="',
    b'"total":1',
)
MAX_REPLIES: Final = 6
EMPTY: Final = msgspec.json.encode({"id": "@ID@", "ok": False, "error": {"code": "internal", "message": "no more"}})


def check(data: bytes) -> None:
    operation, *replies = data.split(b"\n")
    bus = _Bus(replies[:MAX_REPLIES])
    control = NodeClient(lambda: cast("NatsConnection", bus), lambda _: "n1", timeout_s=10)
    request = OPERATIONS[operation[0] % len(OPERATIONS) if operation else 0]
    try:
        event_loop().run_until_complete(request(control))
    except ControlRequestError as error:
        assert str(error)
        for text in (sanitize_message(str(error)), sanitize_message(error.hint)):
            check_displayable(text, lines=True)


class _Bus:
    """A connection and its client in one: a request is answered at once with the next replies."""

    connected = is_connected = True

    def __init__(self, replies: list[bytes]) -> None:
        self._replies = [*replies, EMPTY]
        self._on_message: Callable[[Msg], Awaitable[None]] | None = None
        self.client = self

    def new_inbox(self) -> str:
        return "_INBOX.a"

    async def subscribe(self, subject: str, cb: Callable[[Msg], Awaitable[None]]) -> _Bus:
        self._on_message = cb
        return self

    async def unsubscribe(self) -> None:
        self._on_message = None

    async def publish(self, subject: str, payload: bytes, reply: str) -> None:
        request = msgspec.json.decode(payload, type=ControlRequest)
        # A stream's acknowledgement is no reply; the last reply is one in any case.
        while self._replies and self._on_message is not None:
            data = self._replies.pop(0).replace(b"@ID@", request.id.encode())
            await self._on_message(Msg(cast("Any", None), subject=reply, data=data))
            if b'"stream"' not in data:
                break
        if not self._replies:
            self._replies = [EMPTY]

    async def wait_connected(self) -> None: ...

    async def wait_changed(self) -> None:
        await asyncio.Event().wait()

    def permission_error(self, subject: str) -> None:
        return None


async def _start(control: NodeClient) -> None:
    batches = await control.start(StartArgs(batch_id=BATCH, envs=["Maze"]))
    assert all(isinstance(batch, BatchState) for batch in batches)


async def _list(control: NodeClient) -> None:
    assert isinstance(await control.fetch_list(), NodeList)


async def _health(control: NodeClient) -> None:
    assert isinstance(await control.fetch_health(), NodeHealth)


async def _cancel(control: NodeClient) -> None:
    await control.command("cancel", batch_id=BATCH)


async def _episode(control: NodeClient) -> None:
    data = await control.fetch_episode(EPISODE)
    assert isinstance(data, bytes) and hashlib.sha256(data).digest()


OPERATIONS: Final[tuple[Callable[[NodeClient], Coroutine[Any, Any, None]], ...]] = (
    _start,
    _list,
    _health,
    _cancel,
    _episode,
)
