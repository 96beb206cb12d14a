"""Large live messages are read by a process of their own, so that keys are answered meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import math
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec

from agentgym_tui.sessions import decode_worker as digest_process
from agentgym_tui.sessions.decode_worker import LENGTH_BYTES
from agentgym_tui.state.item_batches import DecodedBatch
from runner.events.codec import is_live
from runner.events.subjects import DurableNames

if TYPE_CHECKING:
    from runner.subscribe.buffer import RawMessage

MIN_BYTES: Final = 64 * 1024
"""Bytes of a message from which on it is: about a millisecond of work. Few nodes ever say so much at once."""

REPLY_TIMEOUT_S: Final = 2.0
"""Seconds within which it has to answer: while it is waited for nothing else is heard, also no sign of a node."""

FIRST_REPLY_FACTOR: Final = 10
"""How much longer its first answer may take, for which nothing waits."""

MAX_GAP_S: Final = 1.0
"""Seconds within which a second large message has to come for it to be worth while."""

RESTART_DELAY_S: Final = 10.0
"""Seconds after which another one is started where one came to nothing."""

IDLE_S: Final = 60.0
"""Seconds after which one ends that is not asked."""

PIPE_BYTES: Final = 1 << 20
"""Bytes a pipe takes at once, where it can: about as much as a message may have."""

_COMMAND: Final = (sys.executable, "-P", "-m", digest_process.__name__)


class DecodeWorkerClient:
    """Has that process while there is something for it to do; until it is there, and where it fails, there is none.

    Args:
        names: the subjects of the durable events.
        command: starts it.
        timeout_s: seconds within which it has to answer.
        now: a monotonic clock, seconds.

    Attributes:
        coming: its first answer, None where that does not come; it is there then. None before it is wanted.
    """

    def __init__(
        self,
        names: DurableNames,
        command: tuple[str, ...] = _COMMAND,
        *,
        timeout_s: float = REPLY_TIMEOUT_S,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Nothing is started."""
        self.first_reply: asyncio.Task[bytes | None] | None = None
        self._names = names
        self._command = command
        self._timeout_s = timeout_s
        self._now = now
        self._not_before = now()
        self._large_at = -math.inf
        self._process: _WorkerProcess | None = None
        self._idle: asyncio.TimerHandle | None = None

    def close(self) -> None:
        """End the process."""
        if self._idle is not None:
            self._idle.cancel()
        if self.first_reply is not None:
            self.first_reply.cancel()
        if self._process is not None:
            self._process.close()
        self._process = self.first_reply = self._idle = None

    async def decode(self, message: RawMessage) -> DecodedBatch | None:
        """What a large live message says; None where that is to be found out here, as with all others."""
        if len(message.payload) < MIN_BYTES or not is_live(message.subject, message.headers, self._names):
            return None
        before, self._large_at = self._large_at, self._now()
        if self._process is None and self._large_at - before <= MAX_GAP_S:
            self._start()
        if self._process is None or self.first_reply is None or not self.first_reply.done():
            return None
        told = self.first_reply.result()
        if told is not None:
            told = await self._request(self._process, message.payload, self._timeout_s)
        with contextlib.suppress(msgspec.MsgspecError):  # another version of this was installed meanwhile
            if told is not None:
                return _DECODER.decode(told) if told else None
        self.close()
        self._not_before = self._now() + RESTART_DELAY_S
        return None

    def _start(self) -> None:
        if self._now() < self._not_before:
            return
        try:
            self._process = _WorkerProcess(self._command)
        except OSError:
            self._not_before = self._now() + RESTART_DELAY_S
            return
        self.first_reply = asyncio.create_task(self._request(self._process, b"", FIRST_REPLY_FACTOR * self._timeout_s))

    async def _request(self, process: _WorkerProcess, payload: bytes, timeout_s: float) -> bytes | None:
        """What the process says, None where it does not answer; ended when nobody waits for that any more."""
        if self._idle is not None:
            self._idle.cancel()
        self._idle = asyncio.get_running_loop().call_later(IDLE_S, self.close)
        try:
            async with asyncio.timeout(timeout_s):
                return await process.request(payload)
        except (TimeoutError, OSError, asyncio.IncompleteReadError):
            return None
        except asyncio.CancelledError:
            process.close()  # else its reply would be taken for that to the next
            raise


class _WorkerProcess:
    """The process; raises ``OSError`` when it cannot be started."""

    def __init__(self, command: tuple[str, ...]) -> None:
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd="/",  # the folder the console was started in may be taken away
            start_new_session=True,
        )
        self._files = [pipe for pipe in (self._process.stdin, self._process.stdout) if pipe is not None]
        self._replies = asyncio.StreamReader(PIPE_BYTES)
        self._requests: asyncio.WriteTransport | None = None
        self._reply_transport: asyncio.ReadTransport | None = None

    async def request(self, payload: bytes) -> bytes:
        """Ask, and wait for the reply; raises ``OSError`` or ``IncompleteReadError`` when it has ended."""
        requests = self._requests or await self._connected()
        requests.write(len(payload).to_bytes(LENGTH_BYTES))
        requests.write(payload)
        return await self._replies.readexactly(int.from_bytes(await self._replies.readexactly(LENGTH_BYTES)))

    def close(self) -> None:
        """End it."""
        self._process.kill()
        if self._requests is not None and not self._requests.is_closing():
            self._requests.abort()  # closed with something unwritten it would stay in the loop, by a number others get
        if self._reply_transport is not None:
            self._reply_transport.close()
        for pipe in self._files:
            pipe.close()
        threading.Thread(target=self._process.wait, daemon=True).start()

    async def _connected(self) -> asyncio.WriteTransport:
        """Hand both pipes to the loop, which closes them from then on."""
        loop, replies = asyncio.get_running_loop(), asyncio.StreamReaderProtocol(self._replies)
        for pipe in self._files:
            if hasattr(fcntl, "F_SETPIPE_SZ"):
                with contextlib.suppress(OSError):  # a limit of the system's: then it takes several goes
                    fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self._reply_transport, _ = await loop.connect_read_pipe(lambda: replies, self._files.pop())
        self._requests, _ = await loop.connect_write_pipe(asyncio.Protocol, self._files.pop())
        return self._requests


_DECODER: Final = msgspec.msgpack.Decoder(DecodedBatch)
