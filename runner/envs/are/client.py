"""ARE's process as seen from this process: started at the first episode, kept warm, replaced when it hangs.

A frame (``runner.util.framing``) is a JSON object of at most ``MAX_FRAME_BYTES``; the other side of them is
``runner.envs.are.engine.episode_server``. The control socket carries ``Ready`` or ``Failed`` after the start, and then
belongs to ``runner.util.fork_server``. An episode's socket carries requests (``Reset``, then ``Call`` and
``Evaluate``), each answered by ``Stepped``, ``Evaluated`` or ``Failed``. Before that, the model of a judge may be
needed: each ``Ask`` is answered by ``Answer``.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import os
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import IO, Any, Literal, TypeAlias, TypeVar

import msgspec

from runner.config import ARESettings
from runner.envs.are.catalog import interpreter, process_environment, read_catalog
from runner.envs.are.tools import MAX_FRAME_BYTES
from runner.errors import EnvironmentFault, EvaluationFault
from runner.util.child_process import ChildProcess
from runner.util.display_text import one_line
from runner.util.fork_server import ForkedProcess, fork
from runner.util.framing import FrameBuffer, FrameTooLarge, framed, read_frame

logger = logging.getLogger(__name__)
_output = logging.getLogger("runner.worker.output.are")  # like that of workers, it goes to the log file alone
_output.setLevel(logging.INFO)

PROGRAM = Path(__file__).parent / "engine" / "__main__.py"
MAX_LOGGED_LINES = 1000
"""Maximum number of lines of one process's output that are logged; the rest is read and dropped."""
LATE_REPLY_S = 3.0
"""Seconds in which a request that was cancelled must be answered, before the next request is sent."""
_FORK_TIMEOUT_S = 30.0
_EXIT_TIMEOUT_S = 5.0
_MAX_LINE_BYTES = 4096
_CHUNK = 1 << 20
_LATE = (
    "ARE's process did not answer in time, so it was ended; a longer limit for its start is are.start_timeout_sec in "
    "the profile"
)

Kind: TypeAlias = Literal["result", "error", "user", "notification", "environment"]
"""Kind of a message; see ``runner.envs.are.environment``."""


class ToolRequest(msgspec.Struct, frozen=True):
    name: str
    arguments: dict[str, Any] = {}


class _Frame(msgspec.Struct, frozen=True, tag_field="type", tag=str.lower):
    pass


class Reset(_Frame, frozen=True):
    """Start a scenario; the first request of an episode."""

    scenario: str


class Call(_Frame, frozen=True):
    """Call a tool, and let simulated time pass."""

    name: str
    arguments: dict[str, Any]


class Evaluate(_Frame, frozen=True):
    pass


class Ask(_Frame, frozen=True):
    """A chat that the judge's model has to answer; each message has a role and a text."""

    messages: list[dict[str, str]]


class Answer(_Frame, frozen=True):
    """The answer of the judge's model; ``text`` is None if there is none, for the reason in ``problem``."""

    text: str | None = None
    problem: str = ""


class Ready(_Frame, frozen=True):
    """ARE is loaded: its version and the ids of its scenarios."""

    version: str
    scenarios: list[str]
    pid: int


class Stepped(_Frame, frozen=True):
    """The messages after a reset or a call.

    Attributes:
        parts: kind and text of each message.
        oracle: the oracle's next action; None at the end, and if an oracle event calls no tool.
        tools: OpenAI function schemas, after a reset only.
    """

    parts: list[tuple[Kind, str]]
    done: bool
    reward: float
    oracle: ToolRequest | None = None
    tools: list[dict[str, Any]] | None = None


class Evaluated(_Frame, frozen=True):
    details: dict[str, Any]


class Failed(_Frame, frozen=True):
    """A request failed; the process may be unusable.

    Attributes:
        kind: ``import`` (ARE cannot be loaded), ``unknown_scenario``, ``scenario`` (it raised an exception), ``judge``
            (its model gave no verdict), ``memory`` (the limit was reached), ``too_large`` (the reply is larger than a
            frame), or ``protocol`` (a request before ``Reset``).
    """

    kind: str
    message: str


Request: TypeAlias = Reset | Call | Evaluate | Answer
Reply: TypeAlias = Ready | Stepped | Evaluated | Ask | Failed
_ReplyT = TypeVar("_ReplyT", Ready, Stepped, Evaluated)

_decoder: msgspec.json.Decoder[Reply] = msgspec.json.Decoder(Reply)


def encode_request(request: Request) -> bytes:
    """Return the frame of a request; raises ``EnvironmentFault`` if it is too large, as an agent's call may be."""
    try:
        return framed(msgspec.json.encode(request), MAX_FRAME_BYTES)
    except FrameTooLarge as exc:
        raise EnvironmentFault(f"the request {type(request).__name__.lower()} to ARE's process is {exc}") from exc


def decode_frame(data: bytes) -> Reply:
    """Raises ``EnvironmentFault`` for anything but a known reply."""
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        raise EnvironmentFault(f"ARE's process sent a frame that cannot be read: {exc}") from exc


def check_reply(reply: Reply, expected: type[_ReplyT]) -> _ReplyT:
    """Raises ``EvaluationFault`` if the model of a judge failed, and ``EnvironmentFault`` for any other reply."""
    if isinstance(reply, expected):
        return reply
    if isinstance(reply, Failed) and reply.kind == "judge":
        raise EvaluationFault(reply.message)
    if isinstance(reply, Failed):
        raise EnvironmentFault(f"ARE's process failed ({reply.kind}): {reply.message}")
    raise EnvironmentFault(f"ARE's process sent {type(reply).__name__} instead of {expected.__name__}")


class EpisodeProcess:
    """The process that plays one episode, and the socket to it; used by one task at a time.

    After ``time_limit_s`` seconds a request fails and the process is ended; those of ``answer_judge`` do not count.
    """

    def __init__(self, connection: socket.socket, process: ForkedProcess, time_limit_s: float) -> None:
        connection.setblocking(False)
        self._connection = connection
        self._process = process
        self._time_limit_s = time_limit_s
        self._pending: asyncio.Future[Reply] | None = None
        self.answer_judge: Callable[[Ask], Awaitable[Answer]]

    async def request(self, request: Request, expected: type[_ReplyT]) -> _ReplyT:
        """Raises ``EvaluationFault`` if the model of a judge fails in a step, ``EnvironmentFault`` in other cases.

        If the process does not report the failure itself, it is ended. After a request that was cancelled, such as by
        the time limit of the episode, the next one first waits for the reply to the cancelled one, for at most
        ``LATE_REPLY_S``.
        """
        if self._connection.fileno() < 0:
            raise EnvironmentFault("ARE's process of this episode has been ended already")
        what, frame = type(request).__name__.lower(), encode_request(request)
        try:
            if self._pending is not None:
                await self._wait_for_late_reply(self._pending)
            self._pending = asyncio.ensure_future(self._exchange(frame))
            reply = await asyncio.shield(self._pending)
            self._pending = None
        except EnvironmentFault:
            self.kill()
            raise
        except (OSError, EOFError, FrameTooLarge) as exc:
            self.kill()
            raise EnvironmentFault(self._describe(exc, what)) from exc
        return check_reply(reply, expected)

    def _describe(self, exc: Exception, what: str) -> str:
        match exc:
            case FrameTooLarge():
                return f"ARE's process sent {exc}"
            case TimeoutError():
                return (
                    f"ARE's process did not answer {what} within {self._time_limit_s:g} s, so it was ended. A longer "
                    "limit is are.step_timeout_sec in the profile"
                )
        return (
            f"ARE's process ended during {what} ({type(exc).__name__}); it may have needed more than are.memory_mib or "
            "are.step_timeout_sec of the profile allow. The log has its last output"
        )

    async def _wait_for_late_reply(self, cancelled: asyncio.Future[Reply]) -> None:
        if not (await asyncio.wait({cancelled}, timeout=LATE_REPLY_S))[0]:
            raise EnvironmentFault(
                f"ARE's process had not answered {LATE_REPLY_S:g} s after a request was cancelled, such as by the time "
                "limit of the episode, so it was ended"
            )

    async def _exchange(self, frame: bytes) -> Reply:
        loop, buffer, frames = asyncio.get_running_loop(), FrameBuffer(MAX_FRAME_BYTES), list[bytes]()
        while True:
            async with asyncio.timeout(self._time_limit_s):
                await loop.sock_sendall(self._connection, frame)
                while not frames:
                    if not (data := await loop.sock_recv(self._connection, _CHUNK)):
                        raise EOFError
                    frames.extend(buffer.feed(data))
            reply = decode_frame(frames.pop())
            if not isinstance(reply, Ask):
                return reply
            frame = encode_request(await self.answer_judge(reply))

    def kill(self) -> None:
        self._process.kill()
        self._disconnect()

    def close(self) -> None:
        """Close the socket; the process ends when it reads that, or at once if it still owes a reply."""
        if self._pending is not None and not self._pending.done():
            self.kill()
        else:
            self._disconnect()

    def _disconnect(self) -> None:
        if self._pending is not None:
            self._pending.add_done_callback(lambda done: done.cancelled() or done.exception())
            self._pending.cancel()
            self._pending = None
        self._connection.close()
        self._process.close()


class WarmProcess:
    """A process that has loaded ARE, and forks a process for each episode; usable from any thread.

    Raises ``EnvironmentFault`` if ARE is not installed, cannot be loaded, or does not start in time.
    """

    def __init__(self, settings: ARESettings) -> None:
        if (problem := read_catalog(settings).problem) is not None:
            raise EnvironmentFault(problem)
        self._settings = settings
        self._lock = threading.Lock()
        self._scratch = Path(tempfile.mkdtemp(prefix="agentgym-are-"))
        self._control, theirs = socket.socketpair()
        arguments = (theirs.fileno(), self._scratch, settings.memory_mib, settings.step_timeout_sec)
        argv = [interpreter(settings), "-s", str(PROGRAM), *map(str, arguments)]
        try:
            with theirs:
                self._process = ChildProcess(
                    argv,
                    process_environment(argv[0], self._scratch),
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    pass_fds=[theirs.fileno()],
                    cwd=self._scratch,
                )
        except OSError as exc:
            self._control.close()
            shutil.rmtree(self._scratch, ignore_errors=True)
            raise EnvironmentFault(f"ARE's process cannot be started: {one_line(str(exc))}") from exc
        try:
            assert self._process.stdout is not None
            threading.Thread(target=_log_output, args=(self._process.stdout,), name="are-output", daemon=True).start()
            self.ready = self._wait_until_ready()
        except BaseException:
            self.close()
            raise

    def _wait_until_ready(self) -> Ready:
        started = time.monotonic()
        self._control.settimeout(self._settings.start_timeout_sec)
        try:
            data = read_frame(self._control, MAX_FRAME_BYTES)
        except TimeoutError:
            raise EnvironmentFault(_LATE) from None
        except FrameTooLarge as exc:
            raise EnvironmentFault(f"ARE's process sent {exc}") from exc
        if data is None:
            raise EnvironmentFault("ARE's process ended unexpectedly; the log has its last output")
        ready = check_reply(decode_frame(data), Ready)
        _output.info("ARE %s is loaded after %.1f s", one_line(ready.version), time.monotonic() - started)
        self._control.settimeout(_FORK_TIMEOUT_S)
        return ready

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def start_episode(self) -> EpisodeProcess:
        with contextlib.ExitStack() as opened:  # closed if the start fails
            ours, theirs = socket.socketpair()
            opened.enter_context(ours)
            with self._lock, theirs:
                process = self._fork(theirs.fileno())
            opened.pop_all()
        return EpisodeProcess(ours, process, self._settings.step_timeout_sec)

    def _fork(self, connection: int) -> ForkedProcess:
        try:
            if self._control.fileno() < 0:
                raise ConnectionError("it was late, and has been ended")
            return ForkedProcess(*fork(self._control, b"", connection))
        except TimeoutError:
            self.close()
            raise EnvironmentFault(_LATE) from None
        except ConnectionError:
            self.close()
            raise

    def close(self) -> None:
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_EXIT_TIMEOUT_S)
        self._control.close()
        shutil.rmtree(self._scratch, ignore_errors=True)


def _log_output(stream: IO[bytes]) -> None:
    """Log what a process prints, up to a limit, and drop the rest, so that the process never blocks."""
    logged = 0
    with contextlib.suppress(OSError, ValueError), stream:
        while line := stream.readline(_MAX_LINE_BYTES):
            logged += 1
            if logged <= MAX_LOGGED_LINES:
                _output.info("ARE's process: %s", one_line(line.decode("utf-8", "replace")))
            elif logged == MAX_LOGGED_LINES + 1:
                logger.warning("ARE's process printed more than %d lines; the rest is dropped", MAX_LOGGED_LINES)


_processes: dict[tuple[int, ARESettings], WarmProcess] = {}
_processes_lock = threading.Lock()


def warm_process(settings: ARESettings) -> WarmProcess:
    """Start a process if there is none for these settings or it has ended; blocks for seconds at the first call."""
    settings = msgspec.structs.replace(settings, judge_model=None, judge_timeout_sec=1.0)  # both without effect on it
    key = os.getpid(), settings
    with _processes_lock:
        process = _processes.get(key)
        if process is None or not process.is_alive:
            if process is not None:
                process.close()
            _processes[key] = process = WarmProcess(settings)
        return process


def start_episode(settings: ARESettings) -> EpisodeProcess:
    """A process that has ended since the last episode is replaced."""
    try:
        return warm_process(settings).start_episode()
    except ConnectionError:
        return warm_process(settings).start_episode()


def close_processes() -> None:
    with _processes_lock:
        for (pid, _), process in list(_processes.items()):
            if pid == os.getpid():
                process.close()
        _processes.clear()


atexit.register(close_processes)
