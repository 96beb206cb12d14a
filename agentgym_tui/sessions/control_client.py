"""Requests to a node over the bus, and the trial of a model server that the user names, from this process."""

from __future__ import annotations

import asyncio
import hashlib
import importlib
import os
import re
import secrets
from collections.abc import Callable
from contextlib import closing
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
    MoveArgs,
    NoArgs,
    NodeHealth,
    NodeList,
    Op,
    ReplayArgs,
    SentHistory,
    ServerArgs,
    ServerInfo,
    ShutdownArgs,
    StartArgs,
    TargetArgs,
)
from runner.types.notes import Note

if TYPE_CHECKING:
    from runner.bus.connection import NatsConnection
    from runner.config.own_model import OwnModel
    from runner.inference.health import EndpointHealth
    from runner.node.preflight import ModelTrial

_ResultT = TypeVar("_ResultT")

RunCommand: TypeAlias = Literal["cancel", "pause", "resume", "step"]  # for a batch, a battery or an episode
_NODE_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
TIMEOUT_S: Final = 5.0  # to wait for a reply
REPEAT_S: Final = 1.5  # after which a request without a reply is sent again if its operation is one of ``REPEATABLE``
REPEATABLE: Final = frozenset({"start", "move", "replay", "episode", "annotate", "health", "list"})  # at no risk
RETRY_INTERVAL_S: Final = 0.25  # between attempts while no node answers
MAX_RETRIES: Final = 10  # repeating is safe, because a request without a responder reached no node
MAX_REPLY_BYTES: Final = 1 << 20  # largest reply that is decoded
MAX_EPISODE_BYTES: Final = 64 << 20  # largest episode file that is fetched


class ControlRequestError(Exception):
    """A request to a node could not be sent, was rejected (``code``) or was not answered; its texts may quote a node.

    The message is what was requested and why it failed, ``hint`` what the user can do.
    """

    published_error_type = "ControlFailed"

    def __init__(self, message: str, hint: str = "", code: str = "") -> None:
        super().__init__(message)
        self.hint, self.code = hint, code

    @property
    def text(self) -> str:
        return "; ".join(filter(None, (str(self), self.hint)))


class NodeControl:
    """Sends requests to a node; all methods raise ``ControlRequestError`` where a request fails.

    ``node`` returns the name of the node for the id of the episode that a request concerns, or for "". ``read_only`` is
    why commands are not allowed, ``start_key`` the key that starts the node, as hints name it; both may be "".
    ``on_command`` is called after a command has succeeded.
    """

    def __init__(
        self,
        connection: Callable[[], NatsConnection | None],
        node: Callable[[str], str],
        *,
        read_only: str = "",
        on_command: Callable[[], object] = lambda: None,
        start_key: str = "",
        timeout_s: float = TIMEOUT_S,
        retry_interval_s: float = RETRY_INTERVAL_S,
    ) -> None:
        self._connection, self._node = connection, node
        self._read_only, self._on_command, self._start_key = read_only, on_command, start_key
        self._timeout_s, self._retry_interval_s = timeout_s, retry_interval_s

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

    async def replay(self, args: ReplayArgs) -> list[BatchState]:
        return await self._command("replay", args, list[BatchState])

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

    async def fetch_list(self) -> NodeList:
        return await self._request("list", NoArgs(), NodeList)

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
        while digest is None or len(data) < digest[0]:
            args = EpisodeArgs(episode_id=episode_id, offset=len(data))
            chunk = await self._request("episode", args, EpisodeChunk)
            if chunk.total > MAX_EPISODE_BYTES:
                reason = f"episode {episode_id} has {chunk.total} bytes; the limit is {MAX_EPISODE_BYTES}"
                raise ControlRequestError(reason)
            if digest not in (None, (chunk.total, chunk.sha256)) or not chunk.data:
                return None
            digest = chunk.total, chunk.sha256
            data += chunk.data
        return bytes(data) if hashlib.sha256(data).hexdigest() == digest[1] and len(data) == digest[0] else None

    async def _command(self, op: Op, args: msgspec.Struct, result: type[_ResultT]) -> _ResultT:
        if self._read_only:
            raise ControlRequestError(self._read_only)
        reply = await self._request(op, args, result)
        self._on_command()
        return reply

    async def _request(self, op: Op, args: Any, result: type[_ResultT]) -> _ResultT:  # noqa: ANN401 - one of ``ARGS``
        connection = self._connection()
        if connection is None or not connection.connected:
            hint = "wait for the connection" + f", or press {self._start_key} to start the node" * bool(self._start_key)
            raise ControlRequestError(f"{op}: not connected to the node", hint)
        node = self._node(args.episode_id or "" if isinstance(args, EpisodeArgs | AnnotateArgs | TargetArgs) else "")
        if _NODE_NAME.fullmatch(node) is None:  # the name may come from the bus and becomes part of a subject
            raise ControlRequestError(f"{op}: {node!r} is not a valid node name")
        request = ControlRequest(id=secrets.token_hex(8), op=op, args=msgspec.Raw(msgspec.json.encode(args)))
        reply = await self._send(connection, node, request)
        try:
            return msgspec.json.decode(reply, type=result)
        except (ValueError, RecursionError) as exc:
            raise ControlRequestError(f"{op}: the reply of {node} cannot be decoded") from exc

    async def _send(self, connection: NatsConnection, node: str, request: ControlRequest) -> bytes:
        from runner.bus.rpc import send_request
        from runner.events.subjects import control_subject

        subject, message = control_subject(node), msgspec.json.encode(request)
        repeat_s = REPEAT_S if request.op in REPEATABLE else None
        try:
            for attempt in range(1 + MAX_RETRIES):  # after a restart of its broker a node takes a moment to subscribe
                await asyncio.sleep(self._retry_interval_s if attempt else 0)
                payload = await send_request(connection, subject, message, timeout_s=self._timeout_s, repeat_s=repeat_s)
                if payload is not None:
                    return _checked_result(request, payload[: MAX_REPLY_BYTES + 1])
        except RunnerError as exc:
            raise ControlRequestError(f"{request.op}: {exc}") from exc
        hint = "the node has stopped" + f"; press {self._start_key} to start it again" * bool(self._start_key)
        raise ControlRequestError(f"{request.op}: node {node} does not answer", hint)


def _checked_result(request: ControlRequest, payload: bytes) -> bytes:
    try:
        if len(payload) > MAX_REPLY_BYTES:
            raise ValueError("too long")
        reply = msgspec.json.decode(payload, type=ControlReply)
    except (ValueError, RecursionError) as exc:
        raise ControlRequestError(f"{request.op}: the reply cannot be decoded") from exc
    if isinstance(error := reply.error, msgspec.Struct):
        if error.code == "not_running":  # the node's message lists ids
            raise ControlRequestError(f"{request.op}: not running", code=error.code)
        message = f"{request.op}: {error.message.removeprefix(f'{request.op}: ')}"
        raise ControlRequestError(message, error.hint, error.code)
    if reply.id != request.id or not reply.ok or not isinstance(reply.result, msgspec.Raw):
        raise ControlRequestError(f"{request.op}: the reply does not match the request")
    return bytes(reply.result)


def running_ids(listed: NodeList) -> set[str]:
    return {batch.batch_id for batch in listed.batches if batch.status in ("running", "paused")}


def unfinished_ids(listed: NodeList) -> list[str]:
    """Return the ids of the batches that run or wait, in this order; none if a paused one holds up the others.

    Waiting batches that were paused are left out: they wait on after a restart without being resumed.
    """
    if any(batch.status == "paused" for batch in listed.batches):
        return []
    oldest_first = [batch for batch in listed.batches[::-1] if not batch.paused]
    return [batch.batch_id for status in ("running", "queued") for batch in oldest_first if batch.status == status]


async def try_own_model(own: OwnModel, on_health: Callable[[EndpointHealth], object]) -> ModelTrial | None:
    """Check a server, which goes to ``on_health``, and ask its model in two turns of an agent if the server answers.

    Raises ``ConfigError`` if the URL or the name of the variable with the key is not valid, or that is not set here.
    """
    await asyncio.to_thread(importlib.import_module, "runner.node.preflight")  # takes too long for the event loop
    from runner.config import Profile
    from runner.inference.profile_models import Models, is_answering
    from runner.node.preflight import try_endpoints

    profile = own.used_by(Profile(id="own"), os.environ)
    with closing(Models(profile.agent, os.environ)) as models:
        (health,) = await models.manager.check(own.model)
        on_health(health)
        if not is_answering(health):
            return None
        (trial,) = await try_endpoints(own.model, models, profile.episode.max_duration_sec, lambda _: None)
        return trial
