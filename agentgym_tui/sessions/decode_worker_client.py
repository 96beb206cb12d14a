"""Client of the decode worker, which decodes large live messages in another process to keep the screen responsive."""

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

from agentgym_tui.sessions import decode_worker
from agentgym_tui.state.merged_items import DecodedBatch
from runner.events.codec import is_live
from runner.events.subjects import DurableNames

if TYPE_CHECKING:
    from runner.subscribe.buffer import RawMessage

MIN_BYTES: Final = 64 * 1024
"""Smallest message sent to the worker, in bytes; it takes about a millisecond to decode. Few nodes reach this size."""

REPLY_TIMEOUT_S: Final = 2.0
"""Seconds to wait for a reply; no other message, not even a heartbeat, is applied during the wait."""

FIRST_REPLY_FACTOR: Final = 10
"""Factor by which the first reply may take longer, because no message waits for the first reply."""

MAX_GAP_S: Final = 1.0
"""Longest time in seconds between two large messages after which the worker is started."""

RESTART_DELAY_S: Final = 10.0
"""Seconds after the failure of a worker before another worker is started."""

IDLE_S: Final = 60.0
"""Seconds without a request after which the worker is stopped."""

PIPE_BYTES: Final = 1 << 20
"""Requested size of a pipe buffer in bytes; about the size of the largest message."""

_COMMAND: Final = (sys.executable, "-P", "-m", decode_worker.__name__)


class DecodeWorkerClient:
    """Runs the decode worker while large messages arrive.

    While no worker is ready, the caller decodes all messages.

    Args:
        names: subjects of the durable events.
        command: command line of the worker.
        timeout_s: seconds to wait for a reply.
        now: returns the time of a monotonic clock in seconds.

    Attributes:
        first_reply: task that waits for the reply to an empty request, which shows that the worker is ready. The result
            of the task is None if the worker failed. The attribute is None if no worker runs.
    """

    def __init__(
        self,
        names: DurableNames,
        command: tuple[str, ...] = _COMMAND,
        *,
        timeout_s: float = REPLY_TIMEOUT_S,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
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
        """Stop the worker."""
        if self._idle is not None:
            self._idle.cancel()
        if self.first_reply is not None:
            self.first_reply.cancel()
        if self._process is not None:
            self._process.close()
        self._process = self.first_reply = self._idle = None

    async def decode(self, message: RawMessage) -> DecodedBatch | None:
        """Decode a large live message in the worker; return None if the caller has to decode the message."""
        if len(message.payload) < MIN_BYTES or not is_live(message.subject, message.headers, self._names):
            return None
        before, self._large_at = self._large_at, self._now()
        if self._process is None and self._large_at - before <= MAX_GAP_S:
            self._start()
        if self._process is None or self.first_reply is None or not self.first_reply.done():
            return None
        reply = self.first_reply.result()
        if reply is not None:
            reply = await self._request(self._process, message.payload, self._timeout_s)
        with contextlib.suppress(msgspec.MsgspecError):  # the package may have been updated meanwhile
            if reply is not None:
                return _DECODER.decode(reply) if reply else None
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
        """Send a request to the worker and return its reply; None if the worker fails or does not reply in time."""
        if self._idle is not None:
            self._idle.cancel()
        self._idle = asyncio.get_running_loop().call_later(IDLE_S, self.close)
        try:
            async with asyncio.timeout(timeout_s):
                return await process.request(payload)
        except (TimeoutError, OSError, asyncio.IncompleteReadError):
            return None
        except asyncio.CancelledError:
            process.close()  # otherwise its reply would be read as the reply to the next request
            raise


class _WorkerProcess:
    """A running worker process. Creating the object starts the process, and raises ``OSError`` where that fails."""

    def __init__(self, command: tuple[str, ...]) -> None:
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd="/",  # the working directory of the console may be deleted
            start_new_session=True,
        )
        self._files = [pipe for pipe in (self._process.stdin, self._process.stdout) if pipe is not None]
        self._replies = asyncio.StreamReader(PIPE_BYTES)
        self._requests: asyncio.WriteTransport | None = None
        self._reply_transport: asyncio.ReadTransport | None = None

    async def request(self, payload: bytes) -> bytes:
        """Send a request and return the reply.

        Raises:
            OSError: the process had ended before the request.
            asyncio.IncompleteReadError: the process ended before its reply was complete.
        """
        requests = self._requests or await self._connect_pipes()
        requests.write(len(payload).to_bytes(decode_worker.LENGTH_BYTES))
        requests.write(payload)
        return await self._replies.readexactly(
            int.from_bytes(await self._replies.readexactly(decode_worker.LENGTH_BYTES))
        )

    def close(self) -> None:
        """Kill the process and close its pipes."""
        self._process.kill()
        if self._requests is not None and not self._requests.is_closing():
            self._requests.abort()  # ``close`` waits for unwritten data, and the descriptor number is reused meanwhile
        if self._reply_transport is not None:
            self._reply_transport.close()
        for pipe in self._files:
            pipe.close()
        threading.Thread(target=self._process.wait, daemon=True).start()

    async def _connect_pipes(self) -> asyncio.WriteTransport:
        """Connect both pipes to the event loop, which becomes responsible for closing them; return the request pipe."""
        loop, replies = asyncio.get_running_loop(), asyncio.StreamReaderProtocol(self._replies)
        for pipe in self._files:
            if hasattr(fcntl, "F_SETPIPE_SZ"):
                with contextlib.suppress(OSError):  # beyond the system's limit a message is written in several parts
                    fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self._reply_transport, _ = await loop.connect_read_pipe(lambda: replies, self._files.pop())
        self._requests, _ = await loop.connect_write_pipe(asyncio.Protocol, self._files.pop())
        return self._requests


_DECODER: Final = msgspec.msgpack.Decoder(DecodedBatch)
