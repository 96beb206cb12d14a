"""Connection to a bus; raises the first error of the first attempt, and reconnects forever after a success."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self

import nats.errors
from nats.aio.client import Client

from runner.bus.address import BusAddress, TlsSettings, address_from_environ, address_of_node
from runner.bus.backoff import Backoff
from runner.bus.errors import BusError, BusErrorKind, BusState, bus_error
from runner.bus.hardened_client import HardenedNatsClient, connect_options
from runner.errors import RunnerError, catch_foreign, log_failure

__all__ = [
    "BusAddress",
    "BusError",
    "BusErrorKind",
    "BusState",
    "NatsConnection",
    "TlsSettings",
    "address_from_environ",
    "address_of_node",
]

logger = logging.getLogger(__name__)

PROBE_INTERVAL_S = 1.0
PROBE_TIMEOUT_S = 2
MAX_BACKOFF_S = 2.0
CLOSE_TIMEOUT_S = 2.0
RECONNECT_SILENCE_S = 10.0
"""Seconds without a reported attempt after which a reconnecting client counts as stuck and is replaced."""
MAX_DENIED_SUBJECTS = 100


class ClientLifecycle:
    """One client of the bus. Close and replace it when ``is_retired``: a closed nats-py client cannot be reused.

    Args:
        on_state: called when a connection is lost or restored, and for each failed reconnect attempt.

    Attributes:
        denied: errors about the subjects denied since the last connect; nats-py lowercases these subjects.
    """

    def __init__(
        self, address: BusAddress, on_state: Callable[[BusState], None], on_retire: Callable[[], None]
    ) -> None:
        self.client = HardenedNatsClient(tls_required=address.tls_required)
        self.is_retired = False
        self._address = address
        self._on_state = on_state
        self._on_retire = on_retire
        self.denied: dict[str, BusError] = {}
        self._connects = 0
        self._down = False
        self._backoff = Backoff(0.5)
        self._last_activity = time.monotonic()
        self._n_messages = 0
        self._first_errors: list[BusError] = []
        self._opening: asyncio.Future[None] | None = None

    async def open(self, name: str, timeout_s: float) -> None:
        """Connect, trying each server once within ``timeout_s`` seconds.

        Raises:
            BusError: the first error of the attempt; the client is closed.
            ConfigError: the address is invalid.
        """
        options = connect_options(self._address)
        self._opening = asyncio.get_running_loop().create_future()
        connecting = self.client.connect(
            name=name,
            error_cb=self._on_error,
            disconnected_cb=self._on_disconnected,
            reconnected_cb=self._on_reconnected,
            closed_cb=self._on_closed,
            **options,
        )
        attempt = asyncio.create_task(connecting)
        try:
            await asyncio.wait({attempt, self._opening}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if not self._succeeded(attempt):
                raise self._first_errors[0] if self._first_errors else self._error(TimeoutError())
            self._connects = 1
        finally:
            self._opening.cancel()
            self._opening = None
            if not self._connects:
                attempt.cancel()
                await asyncio.wait({attempt}, timeout=CLOSE_TIMEOUT_S)
                await self.close()

    async def close(self) -> None:
        """Close the client; waits at most ``CLOSE_TIMEOUT_S`` for a hanging server."""
        self.is_retired = True
        # In its own task: a future it awaits may be cancelled, which must not look like a cancellation of this one.
        closing = asyncio.create_task(self.client.close())
        await asyncio.wait({closing}, timeout=CLOSE_TIMEOUT_S)
        self.client.drop_socket()
        if not closing.cancel() and not closing.cancelled() and (exc := closing.exception()) is not None:
            logger.debug("closing a client: %s", exc)

    def retire(self) -> None:
        if not self.is_retired:
            self.is_retired = True
            self._on_retire()

    async def is_responsive(self, timeout_s: int) -> bool:
        """Whether the server answers a ping within ``timeout_s`` seconds; True while disconnected.

        A message since the last call counts as an answer, so that a busy or idle subscriber sends no pings.
        """
        if not self.client.is_connected:
            if time.monotonic() - self._last_activity > RECONNECT_SILENCE_S:
                self.retire()
            return True
        if not self.client.is_reading:
            self.retire()
            return True
        before, self._n_messages = self._n_messages, self.client.stats["in_msgs"]
        if self._n_messages != before:
            return True
        connects = self._connects
        try:
            await self.client.flush(timeout=timeout_s)
        except nats.errors.TimeoutError:
            # A reconnect in the meantime discards the answer.
            return not self.client.is_connected or self._connects != connects
        except (nats.errors.Error, OSError):
            return True
        return True

    def _succeeded(self, attempt: asyncio.Task[None]) -> bool:
        succeeded: list[None] = []  # a foreign server may send any greeting, so any exception may be raised
        if attempt.done():
            with catch_foreign(lambda exc: self._first_errors.append(self._error(exc))):
                succeeded.append(attempt.result())
        if succeeded and not self.client.is_connected:  # nats-py accepts any reply as a greeting
            self._first_errors.append(self._rejected())
        return self.client.is_connected

    async def _on_error(self, exc: Exception) -> None:
        error = self._error(exc)
        if self._opening is not None:
            self._first_errors.append(error)
            if len(self._first_errors) >= len(self._address.servers) and not self._opening.done():
                self._opening.set_result(None)
        elif error.kind == "permission":
            if len(self.denied) < MAX_DENIED_SUBJECTS:
                self.denied[error.subject.lower()] = error
        elif self._down:
            await self._attempt_failed(error)
        elif not self.is_retired:
            logger.debug("%s: %s", self._address.display_url, type(exc).__name__)  # such as a slow consumer

    async def _attempt_failed(self, error: BusError) -> None:
        self._last_activity = time.monotonic()
        self.client.drop_socket()
        self._on_state(_disconnected(error))
        # Only a new client reads keys and certificates, which may have been replaced.
        if error.kind in ("auth", "tls"):
            self.retire()
        await asyncio.sleep(self._backoff.next())

    async def _on_disconnected(self) -> None:
        self._down = True
        self._last_activity = time.monotonic()
        if not self.is_retired:
            exc = self.client.last_error or self.client.disconnect_cause
            self._on_state(_disconnected(None if exc is None else self._error(exc)))

    async def _on_reconnected(self) -> None:
        self._connects += 1
        self._down = False
        self._backoff.reset()
        self.denied.clear()
        if not self.is_retired:
            self._on_state(BusState("connected"))

    async def _on_closed(self) -> None:
        self.retire()

    def _rejected(self) -> BusError:
        if self._address.tls_required:
            return BusError(
                "tls", f"{self._address.display_url} closed the connection; it may require NATS_CERT and NATS_KEY"
            )
        return BusError("other", f"{self._address.display_url} closed the connection; is it a NATS server?")

    def _error(self, exc: BaseException) -> BusError:
        if self._opening is not None and isinstance(exc, ConnectionResetError | BrokenPipeError):
            return self._rejected()
        return bus_error(exc, self._address.display_url)


def _disconnected(error: BusError | None) -> BusState:
    return BusState("disconnected") if error is None else BusState("disconnected", error.kind, str(error))


class NatsConnection:
    """Connection that replaces failed clients. Create it with ``open``; end it with ``async with`` or ``close``.

    ``client`` reconnects by itself and keeps its subscriptions. It is replaced after fatal errors, such as a revoked
    password, and when the bus address changes; ``generation`` then increases and subscriptions must be made again.

    Attributes:
        generation: number of clients connected so far.
        n_connects: number of connects and reconnects so far.
        last_loss: reason of the last disconnect, "" before the first one.
    """

    def __init__(
        self,
        address: BusAddress,
        *,
        name: str,
        on_state: Callable[[BusState], None] | None = None,
        read_address: Callable[[], BusAddress | None] | None = None,
        timeout_s: float = 3.0,
    ) -> None:
        self.address = address
        self.state = BusState("connecting")
        self.generation = self.n_connects = 0
        self.last_loss = ""
        self._name = name
        self._on_state = on_state
        self._read_address = read_address
        self._timeout_s = timeout_s
        self._lifecycle: ClientLifecycle | None = None
        self._closed = False
        self._wake = asyncio.Event()
        self._changed = asyncio.Event()
        self._backoff = Backoff(MAX_BACKOFF_S)
        self._tasks: list[asyncio.Task[None]] = []

    @classmethod
    async def open(
        cls,
        address: BusAddress,
        *,
        name: str,
        on_state: Callable[[BusState], None] | None = None,
        read_address: Callable[[], BusAddress | None] | None = None,
        timeout_s: float = 3.0,
        required: bool = True,
    ) -> Self:
        """Connect to a bus and stay connected.

        Args:
            name: client name shown by the server.
            on_state: called in the event loop at each change of state.
            read_address: called before each attempt, for a bus that may move; returns its address, None if unchanged.
            required: raise when the first attempt fails; otherwise retry in the background.

        Raises:
            BusError: the first error of the first attempt.
            ConfigError: the address is invalid.
        """
        connection = cls(address, name=name, on_state=on_state, read_address=read_address, timeout_s=timeout_s)
        try:
            await connection._connect()
        except RunnerError as exc:
            if required:
                raise
            connection._set_unreachable(exc)
        connection._tasks = [
            asyncio.create_task(connection._keep_connected()),
            asyncio.create_task(connection._probe()),
        ]
        return connection

    @property
    def client(self) -> Client:
        """Raises ``BusError`` while there has been no connection yet."""
        if self._lifecycle is None:
            raise BusError(self.state.kind or "other", self.state.reason or "not connected")
        return self._lifecycle.client

    @property
    def connected(self) -> bool:
        return self.state.status == "connected"

    def permission_error(self, subject: str) -> BusError | None:
        """Return the error when the server denied publishing or subscribing since the last connect, else None."""
        return None if self._lifecycle is None else self._lifecycle.denied.get(subject.lower())

    async def wait_connected(self) -> None:
        while not self.connected:
            await self.wait_changed()

    def wait_changed(self) -> Coroutine[Any, Any, object]:
        """Wait until the connection is lost, stalled or restored, or another attempt to connect has failed.

        The first change after this call counts, even if it comes before the coroutine runs.
        """
        return self._changed.wait()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Send pending data, then close permanently; waits at most twice ``CLOSE_TIMEOUT_S`` for a hanging server."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks, timeout=CLOSE_TIMEOUT_S)
        if self._lifecycle is not None:
            await self._lifecycle.close()
        self._set_state(BusState("closed"))

    async def _connect(self) -> None:
        lifecycle = ClientLifecycle(self.address, lambda state: self._apply(lifecycle, state), self._wake.set)
        await lifecycle.open(self._name, self._timeout_s)
        self._lifecycle = lifecycle
        self.generation += 1
        self._apply(lifecycle, BusState("connected"))

    async def _keep_connected(self) -> None:
        while True:
            if self._lifecycle is not None and not self._lifecycle.is_retired:
                await self._wake.wait()
            self._wake.clear()
            if self._lifecycle is None or self._lifecycle.is_retired:
                await self._replace()

    async def _replace(self) -> None:
        if self._lifecycle is not None:
            await self._lifecycle.close()
        self._refresh_address()
        try:
            await self._connect()
        except RunnerError as exc:
            self._set_unreachable(exc)
            await asyncio.sleep(self._backoff.next())

    async def _probe(self) -> None:
        """Detect a hanging server, which keeps its connections open."""
        while not self._closed:  # flushing may swallow a cancellation
            await asyncio.sleep(PROBE_INTERVAL_S)
            lifecycle = self._lifecycle
            if lifecycle is None or lifecycle.is_retired:
                continue
            answers = await lifecycle.is_responsive(PROBE_TIMEOUT_S)
            if lifecycle is not self._lifecycle or not lifecycle.client.is_connected:
                continue
            if not answers:
                self._set_state(BusState("stalled", "timeout", f"{self.address.display_url} does not answer"))
            elif self.state.status == "stalled":
                self._set_state(BusState("connected"))

    def _apply(self, lifecycle: ClientLifecycle, state: BusState) -> None:
        if lifecycle is not self._lifecycle:  # state of a replaced client
            return
        if state.status == "connected":
            self._backoff.reset()
            self.n_connects += 1
        self._set_state(state)
        if state.status == "disconnected" and self._refresh_address():
            lifecycle.retire()

    def _refresh_address(self) -> bool:
        before = self.address
        if self._read_address is not None:
            with contextlib.suppress(RunnerError):  # files may be damaged or half replaced; keep the old address
                self.address = self._read_address() or before
        return self.address != before

    def _set_unreachable(self, error: RunnerError) -> None:
        self._set_state(BusState("disconnected", error.kind if isinstance(error, BusError) else "other", str(error)))

    def _set_state(self, state: BusState) -> None:
        is_known = state == self.state or (state == BusState("disconnected") and self.state.status == "disconnected")
        if not is_known:  # a disconnect without a reason does not hide the known reason
            if state.status == "disconnected":
                self.last_loss = state.reason
            self.state = state
            if self._on_state is not None:
                with catch_foreign(log_failure(logger, "a state callback")):
                    self._on_state(state)
        self._changed.set()
        self._changed = asyncio.Event()
