"""Lifecycle of one NATS client: first connect, reconnects and retirement, reported as ``BusState``s."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

import nats.errors

from runner.bus.address import BusAddress
from runner.bus.backoff import Backoff
from runner.bus.errors import BusError, BusState, bus_error
from runner.bus.hardened_client import HardenedNatsClient, connect_options
from runner.errors import catch_foreign

logger = logging.getLogger(__name__)

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
        attempt = asyncio.create_task(self.client.connect(name=name, **self._callbacks(), **options))
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

    def _callbacks(self) -> dict[str, Any]:
        return {
            "error_cb": self._on_error,
            "disconnected_cb": self._on_disconnected,
            "reconnected_cb": self._on_reconnected,
            "closed_cb": self._on_closed,
        }

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
