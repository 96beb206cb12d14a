"""Requests to a node over the bus."""

from __future__ import annotations

import asyncio
import hashlib
import re
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from agentgym_tui.sessions.protocols import ControlFailed, Order
from runner.errors import RunnerError
from runner.events.control import (
    BatchState,
    EpisodeArgs,
    EpisodeChunk,
    NoArgs,
    NodeHealth,
    NodeList,
    Op,
    Reply,
    Request,
    ShutdownArgs,
    StartArgs,
    TargetArgs,
)

if TYPE_CHECKING:
    from runner.bus.connection import Connection

_T = TypeVar("_T")

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
TIMEOUT_S: Final = 5.0
LOOK_S: Final = 0.25
N_LOOKS: Final = 10
"""How often a node that nobody answers for is asked again; nobody has then got the request."""

MAX_REPLY: Final = 1 << 20
MAX_EPISODE: Final = 64 << 20
"""The largest episode file that is fetched, in bytes."""


class NodeControl:
    """Asks a node; see ``Control``.

    Args:
        connection: the way to it, None while there is none.
        node: its name; asked at each request, given the id of the episode that the request is about, else "".
        refusal: why nothing may be commanded; "" when it may.
        on_order: called when the node obeyed.
        start_key: what a person presses to have the node started.
    """

    def __init__(
        self,
        connection: Callable[[], Connection | None],
        node: Callable[[str], str],
        *,
        refusal: str = "",
        on_order: Callable[[], object] = lambda: None,
        start_key: str = "N",
    ) -> None:
        """Nothing is asked yet."""
        self._connection = connection
        self._node = node
        self._refusal = refusal
        self._on_order = on_order
        self._start_key = start_key

    async def start(self, args: StartArgs) -> list[BatchState]:
        """Play batches."""
        return await self._order("start", args, list[BatchState])

    async def order(self, order: Order, *, batch_id: str | None = None, episode_id: str | None = None) -> None:
        """Command a batch or an episode."""
        await self._order(order, TargetArgs(batch_id=batch_id, episode_id=episode_id), NoArgs)

    async def shutdown(self, *, drain: bool) -> None:
        """Stop the node."""
        await self._order("shutdown", ShutdownArgs(drain=drain), NoArgs)

    async def listed(self) -> NodeList:
        """Batches, and what may be started."""
        return await self._ask("list", NoArgs(), NodeList)

    async def health(self) -> NodeHealth:
        """How the node is."""
        return await self._ask("health", NoArgs(), NodeHealth)

    async def episode(self, episode_id: str) -> bytes:
        """An episode file, part by part, checked against its digest; read again from the start when it changed."""
        for _ in range(2):
            if (data := await self._fetched(episode_id)) is not None:
                return data
        raise ControlFailed(f"episode {episode_id} keeps changing while it is read", "try again")

    async def _fetched(self, episode_id: str) -> bytes | None:
        data = bytearray()
        digest: tuple[int, str] | None = None
        while digest is None or len(data) < digest[0]:
            args = EpisodeArgs(episode_id=episode_id, offset=len(data))
            part = await self._ask("episode", args, EpisodeChunk)
            if part.total > MAX_EPISODE:
                raise ControlFailed(f"episode {episode_id} has {part.total} bytes, more than the {MAX_EPISODE} fetched")
            if digest not in (None, (part.total, part.sha256)) or not part.data:
                return None
            digest = part.total, part.sha256
            data += part.data
        return bytes(data) if hashlib.sha256(data).hexdigest() == digest[1] and len(data) == digest[0] else None

    async def _order(self, op: Op, args: msgspec.Struct, result: type[_T]) -> _T:
        if self._refusal:
            raise ControlFailed(self._refusal)
        answer = await self._ask(op, args, result)
        self._on_order()
        return answer

    async def _ask(self, op: Op, args: Any, result: type[_T]) -> _T:  # noqa: ANN401 - one of ``ARGS``
        """The result of a request; raises ``ControlFailed``."""
        connection = self._connection()
        if connection is None or not connection.connected:
            raise ControlFailed(
                f"{op}: there is no connection to the node",
                "wait for it" + f", or press {self._start_key} to start the node" * (not self._refusal),
            )
        node = self._node(args.episode_id or "" if isinstance(args, EpisodeArgs | TargetArgs) else "")
        if _NAME.fullmatch(node) is None:  # it may come from the bus, and becomes part of a subject
            raise ControlFailed(f"{op}: {node!r} is no name of a node")
        request = Request(id=secrets.token_hex(8), op=op, args=msgspec.Raw(msgspec.json.encode(args)))
        reply = await self._replied(connection, node, request)
        try:
            return msgspec.json.decode(reply, type=result)
        except (ValueError, RecursionError) as exc:
            raise ControlFailed(f"{op}: {node} answers with something that cannot be read") from exc

    async def _replied(self, connection: Connection, node: str, request: Request) -> bytes:
        from runner.bus.rpc import ask
        from runner.events.subjects import control_subject

        subject, asked = control_subject(node), msgspec.json.encode(request)
        try:
            payload = await ask(connection, subject, asked, timeout_s=TIMEOUT_S)
            for _ in range(N_LOOKS):  # a node whose broker was restarted takes a moment until it listens again
                if payload is not None:
                    break
                await asyncio.sleep(LOOK_S)
                payload = await ask(connection, subject, asked, timeout_s=TIMEOUT_S)
        except RunnerError as exc:
            raise ControlFailed(f"{request.op}: {exc}") from exc
        if payload is None:
            raise ControlFailed(
                f"{request.op}: nobody answers as {node}",
                "its node is gone" + f"; press {self._start_key} to start it again" * (not self._refusal),
            )
        return _result(request, payload[: MAX_REPLY + 1])


def _result(request: Request, payload: bytes) -> bytes:
    try:
        if len(payload) > MAX_REPLY:
            raise ValueError("too long")
        reply = msgspec.json.decode(payload, type=Reply)
    except (ValueError, RecursionError) as exc:
        raise ControlFailed(f"{request.op}: the answer cannot be read") from exc
    if isinstance(error := reply.error, msgspec.Struct):
        if error.code == "not_running":  # the node speaks of its list, by ids
            raise ControlFailed(f"{request.op}: that is not played any more, or not yet")
        raise ControlFailed(f"{request.op}: {error.message.removeprefix(f'{request.op}: ')}", error.hint)
    if reply.id != request.id or not reply.ok or not isinstance(reply.result, msgspec.Raw):
        raise ControlFailed(f"{request.op}: the answer does not fit the question")
    return bytes(reply.result)
