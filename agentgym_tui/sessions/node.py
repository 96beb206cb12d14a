"""The console's node: finding its state directory and profile, starting it, and requests to it over the bus."""

from __future__ import annotations

import asyncio
import hashlib
import importlib
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypeVar

import msgspec

from agentgym_tui.state.batches import ACTIVE
from agentgym_tui.state.nodes import ProfileDifference, VariableChange
from runner.errors import ConfigError, RunnerError, StoreError
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
from runner.events.subjects import control_subject
from runner.node.state_lock import NodeFile, is_node_alive, variable_digests
from runner.types.notes import Note
from runner.util.files import create_private, make_folder, read_regular, resolve_path

if TYPE_CHECKING:
    from runner.bus.connection import NatsConnection
    from runner.config import Profile, ProfileFile
    from runner.config.own_model import OwnModel
    from runner.inference.health import EndpointHealth
    from runner.node.preflight import ModelTrial

NODE_IDLE_EXIT_S: Final = 120  # without work or requests after which a node started by the console exits
STOP_TIMEOUT_S: Final = 60.0  # for a node to stop: it ends the running steps, and publishes the remaining events
POLL_INTERVAL_S: Final = 0.05  # between checks while a node starts or stops
MAX_LOG_LINES: Final = 6  # number of lines shown from the end of a failed node's log
MAX_LOG_BYTES: Final = 4_096
MAX_NODE_FILE_BYTES: Final = 64 * 1024
TIMEOUT_S: Final = 5.0  # to wait for a reply
REPEAT_S: Final = 1.5  # after which a request without a reply is sent again if its operation is one of ``REPEATABLE``
REPEATABLE: Final = frozenset({"start", "move", "replay", "episode", "annotate", "health", "list"})  # twice is as once
RETRY_INTERVAL_S: Final = 0.25  # between attempts while no node answers
MAX_RETRIES: Final = 10  # repeating is safe, because a request without a responder reached no node
MAX_REPLY_BYTES: Final = 1 << 20  # largest reply that is decoded
MAX_EPISODE_BYTES: Final = 64 << 20  # largest episode file that is fetched

_OTHER_VERSION: Final = "it may be of another version: restart it with `agentgym-tui launch`"

_ResultT = TypeVar("_ResultT")
RunCommand: TypeAlias = Literal["cancel", "pause", "resume", "step"]  # for a batch, a battery or an episode
_NODE_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


class LaunchOptions(msgspec.Struct, frozen=True):
    """Options of the command line: name or path of the profile, state directory, node; None: something else decides."""

    config: str | None = None
    data_dir: str | None = None
    node: str | None = None


class StateLocation(msgspec.Struct, frozen=True):
    """A state directory, the node that is started there, and its profile.

    ``notice`` is what the user should know about the choice of the state directory.
    """

    data_dir: Path
    node: str
    profile: Profile
    notice: str = ""
    profile_file: ProfileFile | None = None


class StateLocator:
    """Finds the state directory at the first call of ``find``, because loading a profile takes time.

    The methods block, and raise ``ConfigError`` if the profile or a name is not valid.
    """

    def __init__(
        self, options: LaunchOptions, *, environ: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> None:
        self.options = options
        self._environ = os.environ if environ is None else environ
        self._cwd = cwd or Path.cwd()
        self._lock = threading.Lock()
        self._location: StateLocation | None = None

    def find(self) -> StateLocation:
        with self._lock:
            self._location = self._location or self._read()
            return self._location

    def running_folder(self) -> Path | None:
        """Return the state directory if a node runs there; None also if only the profile names it, which takes long."""
        if not (chosen := self.options.data_dir or self._environ.get("AGENTGYM_DATA_DIR")):
            return None
        data_dir = resolve_path(chosen, self._environ, self._cwd)
        return data_dir if is_node_alive(data_dir) else None

    def reload(self, config: str | None = None) -> StateLocation:
        """Read the profile again, or that at the path ``config`` from now on; without effect if it is not valid."""
        from runner.config import read_profile

        known = self.find()
        own = self.options.config if known.profile_file is None else str(known.profile_file.path)
        profile, file = read_profile(config or own, environ=self._environ, cwd=self._cwd)
        self.options = msgspec.structs.replace(self.options, config=config or self.options.config)
        return self._use(known, profile, file)

    def follow_node(self) -> StateLocation | None:
        """Take the profile of the node that runs now; None if ``options`` name one, or the node's cannot be read."""
        known = self.find()
        if self.options.config is not None or (running := _running_profile(known.data_dir, self._environ)) is None:
            return None
        return self._use(known, *running)

    def _use(self, known: StateLocation, profile: Profile, file: ProfileFile | None) -> StateLocation:
        location = msgspec.structs.replace(known, profile=profile, profile_file=file, notice="")
        with self._lock:
            self._location = location
        return location

    def _read(self) -> StateLocation:
        from runner.config import find_data_dir, read_profile, resolve_node

        options, environ = self.options, self._environ
        profile, file = read_profile(options.config, environ=environ, cwd=self._cwd)
        data_dir, notice = find_data_dir(options.data_dir, environ, profile, self._cwd)
        node = resolve_node(options.node, environ, profile, socket.gethostname())
        if options.config is None and (running := _running_profile(data_dir, environ)) is not None:
            profile, file = running
        return StateLocation(data_dir, node, profile, notice, file)


class NodeStartError(RunnerError):
    published_error_type = "node_failed"


def read_node_file(data_dir: Path) -> NodeFile | None:
    try:
        return msgspec.json.decode(read_regular(data_dir / "node.json", MAX_NODE_FILE_BYTES)[0], type=NodeFile)
    except (OSError, ValueError):
        return None


def _running_profile(data_dir: Path, environ: Mapping[str, str]) -> tuple[Profile, ProfileFile] | None:
    from runner.config import read_profile

    node_file = read_node_file(data_dir)
    if node_file is None or not node_file.profile_path or not is_node_alive(data_dir):
        return None
    try:
        return read_profile(node_file.profile_path, environ=environ, cwd=data_dir)
    except ConfigError:
        return None


def profile_difference(
    location: StateLocation, node_file: NodeFile, environ: Mapping[str, str]
) -> ProfileDifference | None:
    """Return how the profile and the keys of the running node differ from the location's file and ``environ`` now.

    None also if that is unknown, as the file is gone. A variable that is set only for the node is no difference by
    itself: a node started from here would lack the key.
    """
    from runner.config import profile_digest

    if location.profile_file is None or not node_file.profile_digest:
        return None
    path = location.profile_file.path
    if (digest := profile_digest(path)) is None:
        return None
    is_same = digest == node_file.profile_digest
    is_changed = not is_same and node_file.profile_path == str(path)
    variables = tuple(_variable_changes(location.data_dir, node_file, environ)) if is_same or is_changed else ()
    if is_same and all(change == "missing" for _, change in variables):
        return None
    running, wanted = (node_file.profile, node_file.profile_path), (location.profile.id, str(path))
    return ProfileDifference(
        boot=node_file.boot, digest=digest, is_changed=is_changed, running=running, wanted=wanted, variables=variables
    )


def _variable_changes(
    data_dir: Path, node_file: NodeFile, environ: Mapping[str, str]
) -> Iterator[tuple[str, VariableChange]]:
    try:
        digests = variable_digests(data_dir, node_file.variables, environ)
    except ConfigError:  # without the key nothing is known
        return
    for name, there in node_file.variables.items():
        if (here := digests[name]) != there:
            yield name, "missing" if not here else "changed" if there else "set"


async def wait_until_stopped(data_dir: Path) -> None:
    """Wait until no node owns the state directory; raises ``NodeStartError`` after ``STOP_TIMEOUT_S``."""
    try:
        async with asyncio.timeout(STOP_TIMEOUT_S):
            while await asyncio.to_thread(is_node_alive, data_dir):  # noqa: ASYNC110 - the node is another process
                await asyncio.sleep(POLL_INTERVAL_S)
    except TimeoutError:
        raise NodeStartError(f"the node did not stop within {STOP_TIMEOUT_S:g} s; see its log") from None


async def ensure_node(location: StateLocation, config: str | None) -> None:
    """Start a node process in the background unless a node owns the state directory; return once a node owns it.

    Raises ``NodeStartError`` if the process exits, ``StoreError`` if nothing can be stored in the state directory.
    """
    if is_node_alive(location.data_dir):
        return
    from runner.node.storage import require_storage

    await asyncio.to_thread(require_storage, location.data_dir)
    before = read_node_file(location.data_dir)
    process, log = await asyncio.to_thread(_start, location, config)
    try:
        while process.poll() is None:
            # Testing the lock would hold it for a moment, and the starting node would find it taken.
            if (now := read_node_file(location.data_dir)) is not None and (before is None or now.boot != before.boot):
                return
            await asyncio.sleep(POLL_INTERVAL_S)
    finally:
        threading.Thread(target=process.wait, daemon=True).start()  # reaps the process when it exits
    if not is_node_alive(location.data_dir):  # otherwise another console's node was faster
        raise NodeStartError(f"the node could not start: {read_last_lines(log) or f'exit code {process.returncode}'}")


def _start(location: StateLocation, config: str | None) -> tuple[subprocess.Popen[bytes], Path]:
    folder = location.data_dir / "logs"
    try:
        make_folder(folder)
    except OSError as exc:
        raise StoreError(f"{folder} cannot be created: {exc.strerror}; choose another folder with --data-dir") from exc
    log = folder / "node-start.log"
    options = ["--data-dir", str(location.data_dir), "--node", location.node, "--idle-exit", str(NODE_IDLE_EXIT_S)]
    if config is not None:
        options += ["--config", config]
    # -P: a folder named runner in the working directory must not shadow the package.
    command = [sys.executable, "-P", "-m", "runner.cli", "node", *options]
    try:
        with os.fdopen(create_private(log), "wb") as stderr:
            no_file = subprocess.DEVNULL
            process = subprocess.Popen(command, stdin=no_file, stdout=no_file, stderr=stderr, start_new_session=True)
            return process, log
    except OSError as exc:
        raise NodeStartError(f"the node could not be started: {exc.strerror or exc}; check {log}") from exc


def node_logs(data_dir: Path) -> list[Path]:
    """Return the logs of a node that exist: its own one first, then those of its start, its broker and its servers."""
    folder = data_dir / "logs"
    names = ["runner.log", "node-start.log", "nats-server.log"]
    paths = [folder / name for name in names] + sorted(folder.glob("server-*.log"))
    return [path for path in paths if path.is_file()] or paths[:1]


def read_last_lines(log: Path) -> str:
    try:
        with log.open("rb") as file:
            file.seek(max(log.stat().st_size - MAX_LOG_BYTES, 0))
            text = file.read(MAX_LOG_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
    return "\n".join(text.strip().split("\n")[-MAX_LOG_LINES:])


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
    ) -> None:
        self._connection, self._node = connection, node
        self._read_only, self._on_command, self._start_key = read_only, on_command, start_key
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
        request = ControlRequest(id=os.urandom(8).hex(), op=op, args=msgspec.Raw(msgspec.json.encode(args)))
        reply = await self._send(connection, node, request)
        try:
            return msgspec.json.decode(reply, type=result)
        except (ValueError, RecursionError) as exc:
            raise ControlRequestError(f"{op}: {node} sent an unreadable reply", _OTHER_VERSION) from exc

    async def _send(self, connection: NatsConnection, node: str, request: ControlRequest) -> bytes:
        from runner.bus.rpc import send_request

        subject, message = control_subject(node), msgspec.json.encode(request)
        repeat_s = REPEAT_S if request.op in REPEATABLE else None
        try:
            for attempt in range(1 + MAX_RETRIES):  # after a restart of its broker a node takes a moment to subscribe
                await asyncio.sleep(RETRY_INTERVAL_S if attempt else 0)
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
        raise ControlRequestError(f"{request.op}: the node sent an unreadable reply", _OTHER_VERSION) from exc
    if isinstance(error := reply.error, msgspec.Struct):
        if error.code == "not_running":  # the node's message lists ids
            raise ControlRequestError(f"{request.op}: it has ended", code=error.code)
        message = f"{request.op}: {error.message.removeprefix(f'{request.op}: ')}"
        raise ControlRequestError(message, error.hint, error.code)
    if reply.id != request.id or not reply.ok or not isinstance(reply.result, msgspec.Raw):
        raise ControlRequestError(f"{request.op}: the node replied to something else", _OTHER_VERSION)
    return bytes(reply.result)


def running_ids(listed: NodeList) -> set[str]:
    return {batch.batch_id for batch in listed.batches if batch.status in ACTIVE}


def unfinished_ids(listed: NodeList) -> list[str]:
    """Return the ids of the batches that run or wait, in this order; none if a paused one holds up the others."""
    if any(batch.status == "paused" for batch in listed.batches):
        return []
    # those that were paused while they wait do so after a restart without being resumed
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
