"""Requests to a node over the bus."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypeVar

import msgspec

from runner.errors import RunnerError
from runner.events.control import (
    AnnotateArgs,
    BatchState,
    ControlReply,
    ControlRequest,
    EpisodeArgs,
    EpisodeChunk,
    EpisodeEntry,
    EpisodesArgs,
    ExtendArgs,
    ListArgs,
    LogLines,
    LogsArgs,
    MoveArgs,
    NoArgs,
    NodeHealth,
    NodeList,
    Op,
    ReplayArgs,
    ResultsArgs,
    RunResults,
    SentHistory,
    ServerArgs,
    ServerInfo,
    SetArgs,
    ShutdownArgs,
    StartArgs,
    TargetArgs,
)
from runner.events.subjects import control_subject
from runner.types.notes import Note

if TYPE_CHECKING:
    from runner.bus.connection import NatsConnection

TIMEOUT_S: Final = 5.0  # to wait for a reply
SLOW_TIMEOUT_S: Final = 30.0  # where the node reads its index
REPEAT_S: Final = 1.5  # after which a request without a reply is sent again if its operation is one of ``REPEATABLE``
REPEATABLE: Final = frozenset(
    {"start", "move", "set", "extend", "replay", "episode", "annotate", "health", "list", "logs"}
)  # twice is as once
RETRY_INTERVAL_S: Final = 0.25  # between attempts while no node answers
MAX_RETRIES: Final = 10  # repeating is safe, because a request without a responder reached no node
MAX_REPLY_BYTES: Final = 1 << 20  # largest reply that is decoded
MAX_EPISODE_BYTES: Final = 64 << 20  # largest episode file that is fetched
MAX_CHUNKS: Final = 300  # of at most 256 KiB each, which only the last one does not fill

_OTHER_VERSION: Final = "it may be of another version: restart it with `agentgym-tui launch`"

_ResultT = TypeVar("_ResultT")
RunCommand: TypeAlias = Literal["cancel", "pause", "resume", "step"]  # for a batch, a battery or an episode
_NODE_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


class ControlRequestError(Exception):
    """A request to a node could not be sent, was rejected (``code``) or was not answered.

    The message is what was requested and why it failed, ``hint`` what the user can do; ``is_quote``: both are words of
    the node.
    """

    published_error_type = "ControlFailed"

    def __init__(self, message: str, hint: str = "", code: str = "", *, is_quote: bool = False) -> None:
        super().__init__(message)
        self.hint, self.code, self.is_quote = hint, code, is_quote

    @property
    def text(self) -> str:
        return "; ".join(filter(None, (str(self), self.hint)))


class NodeClient:
    """Sends requests to a node; all methods raise ``ControlRequestError`` where a request fails.

    ``node`` returns the name of the node for the id of the episode that a request concerns, or for "". ``read_only`` is
    why commands are not allowed, ``to_start`` how hints begin that name what starts the node; both may be "".
    """

    def __init__(
        self,
        connection: Callable[[], NatsConnection | None],
        node: Callable[[str], str],
        *,
        read_only: str = "",
        on_command: Callable[[], object] = lambda: None,
        to_start: str = "",
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self._connection, self._node = connection, node
        self._read_only, self._on_command, self._to_start = read_only, on_command, to_start
        self._timeout_s = timeout_s

    async def start(self, args: StartArgs) -> list[BatchState]:
        return await self._command("start", args, list[BatchState])

    async def command(self, command: RunCommand, *, batch_id: str | None = None, episode_id: str | None = None) -> None:
        await self._command(command, TargetArgs(batch_id=batch_id, episode_id=episode_id), NoArgs)

    async def command_all(self, command: RunCommand) -> None:
        """Pause or cancel all that runs or waits at the node, or resume all that is paused."""
        await self._command(command, TargetArgs(everything=True), NoArgs)

    async def move(self, run_id: str, to: int) -> None:
        """Move a waiting batch, or the waiting batches of a battery, so that ``to`` other ones run before."""
        await self._command("move", MoveArgs(batch_id=run_id, to=to), NoArgs)

    async def set(self, args: SetArgs) -> list[BatchState]:
        """Change how batches are played that have not ended."""
        return await self._command("set", args, list[BatchState])

    async def extend(self, args: ExtendArgs) -> list[BatchState]:
        """Plan more episodes; return the batches of the run, among them those that extend an ended one."""
        return await self._command("extend", args, list[BatchState])

    async def replay(self, args: ReplayArgs) -> list[BatchState]:
        return await self._command("replay", args, list[BatchState])

    async def fetch_results(self, run_id: str) -> RunResults:
        """Fetch what the stored episodes of a batch or battery show."""
        return await self._request("results", ResultsArgs(batch_id=run_id), RunResults, SLOW_TIMEOUT_S)

    async def fetch_episodes(self, args: EpisodesArgs) -> list[EpisodeEntry]:
        return await self._request("episodes", args, list[EpisodeEntry], SLOW_TIMEOUT_S)

    async def fetch_logs(self, args: LogsArgs) -> LogLines:
        return await self._request("logs", args, LogLines)

    async def annotate(self, args: AnnotateArgs) -> list[Note]:
        return await self._command("annotate", args, list[Note])

    async def shutdown(self, *, drain: bool) -> None:
        await self._command("shutdown", ShutdownArgs(drain=drain), NoArgs)

    async def start_server(self, env: str) -> ServerInfo:
        return await self._command("server_start", ServerArgs(env=env), ServerInfo)

    async def stop_server(self, env: str) -> ServerInfo:
        return await self._command("server_stop", ServerArgs(env=env), ServerInfo)

    async def send_history(self) -> int:
        """Send the earlier events of the node to its external broker; return their number."""
        return (await self._command("send_history", NoArgs(), SentHistory)).n

    async def fetch_list(self, run_id: str | None = None) -> NodeList:
        """Fetch what the node can play, and its batches, or only those of a batch or battery."""
        return await self._request("list", ListArgs(batch_id=run_id), NodeList)

    async def fetch_health(self) -> NodeHealth:
        return await self._request("health", NoArgs(), NodeHealth)

    async def fetch_episode(self, episode_id: str) -> bytes:
        """Fetch an episode file in chunks and check it against its digest; again if it changes meanwhile."""
        for _ in range(2):
            if (data := await self._download(episode_id)) is not None:
                return data
        raise ControlRequestError(f"episode {episode_id} keeps changing while it is fetched", "try again")

    async def _download(self, episode_id: str) -> bytes | None:
        data = bytearray()
        digest: tuple[int, str] | None = None
        for _ in range(MAX_CHUNKS):
            args = EpisodeArgs(episode_id=episode_id, offset=len(data))
            chunk = await self._request("episode", args, EpisodeChunk)
            if chunk.total > MAX_EPISODE_BYTES:
                reason = f"episode {episode_id} has {chunk.total} bytes; the limit is {MAX_EPISODE_BYTES}"
                raise ControlRequestError(reason)
            if digest not in (None, (chunk.total, chunk.sha256)) or not chunk.data:
                return None
            digest = chunk.total, chunk.sha256
            data += chunk.data
            if len(data) >= chunk.total:
                break
        return bytes(data) if (len(data), hashlib.sha256(data).hexdigest()) == digest else None

    async def _command(self, op: Op, args: msgspec.Struct, result: type[_ResultT]) -> _ResultT:
        if self._read_only:
            raise ControlRequestError(self._read_only)
        reply = await self._request(op, args, result)
        self._on_command()
        return reply

    async def _request(
        self,
        op: Op,
        args: Any,  # noqa: ANN401 - one of ``ARGS``
        result: type[_ResultT],
        timeout_s: float | None = None,
    ) -> _ResultT:
        connection = self._connection()
        if connection is None or not connection.connected:
            hint = "wait for the connection" + f", or {self._to_start} to start the node" * bool(self._to_start)
            raise ControlRequestError(f"{op}: not connected to the node", hint)
        node = self._node(args.episode_id or "" if isinstance(args, EpisodeArgs | AnnotateArgs | TargetArgs) else "")
        if _NODE_NAME.fullmatch(node) is None:  # the name may come from the bus and becomes part of a subject
            raise ControlRequestError(f"{op}: {node!r} is not a valid node name")
        request = ControlRequest(id=os.urandom(8).hex(), op=op, args=msgspec.Raw(msgspec.json.encode(args)))
        reply = await self._send(connection, node, request, timeout_s or self._timeout_s)
        try:
            return msgspec.json.decode(reply, type=result)
        except (ValueError, RecursionError) as exc:
            raise ControlRequestError(f"{op}: {node} sent an unreadable reply", _OTHER_VERSION) from exc

    async def _send(self, connection: NatsConnection, node: str, request: ControlRequest, timeout_s: float) -> bytes:
        from runner.bus.rpc import send_request

        subject, message = control_subject(node), msgspec.json.encode(request)
        repeat_s = REPEAT_S if request.op in REPEATABLE else None
        for attempt in range(1 + MAX_RETRIES):  # after a restart of its broker a node takes a moment to subscribe
            await asyncio.sleep(RETRY_INTERVAL_S if attempt else 0)
            try:
                payload = await send_request(connection, subject, message, timeout_s=timeout_s, repeat_s=repeat_s)
            except RunnerError as exc:
                raise ControlRequestError(f"{request.op}: {exc}") from exc
            if payload is not None:
                return _checked_result(request, payload[: MAX_REPLY_BYTES + 1])
        hint = "the node has stopped" + f"; {self._to_start} to start it again" * bool(self._to_start)
        raise ControlRequestError(f"{request.op}: node {node} does not answer", hint)


def _checked_result(request: ControlRequest, payload: bytes) -> bytes:
    try:
        if len(payload) > MAX_REPLY_BYTES:
            raise ValueError("too long")
        reply = msgspec.json.decode(payload, type=ControlReply)
    except (ValueError, RecursionError) as exc:
        raise ControlRequestError(f"{request.op}: the node sent an unreadable reply", _OTHER_VERSION) from exc
    if isinstance(error := reply.error, msgspec.Struct):
        if error.code == "not_running":  # the node's message lists ids
            raise ControlRequestError(f"{request.op}: it has ended", code=error.code)
        message = f"{request.op}: {error.message.removeprefix(f'{request.op}: ')}"
        raise ControlRequestError(message, error.hint, error.code, is_quote=True)
    if reply.id != request.id or not reply.ok or not isinstance(reply.result, msgspec.Raw):
        raise ControlRequestError(f"{request.op}: the node replied to something else", _OTHER_VERSION)
    return bytes(reply.result)
