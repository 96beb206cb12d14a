"""Subjects that no stream keeps: taken as they pass."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from typing import Final

from nats.aio.msg import Msg
from nats.aio.subscription import Subscription as NatsSubscription

from runner.bus.connection import NatsConnection
from runner.subscribe.buffer import DedupBuffer, RawMessage
from runner.subscribe.stream_reader import BUS_ERRORS
from runner.subscribe.subject_patterns import covered_by_any, covers

FLUSH_S: Final = 2
_DELIVERED: Final = "$JS.ACK."
"""Begins the reply subject of what a stream hands to somebody else, which passed before, when it was said."""

_INTERNAL: Final = ("$", "_INBOX.")


class CoreListener:
    """Subscriptions that put what passes into a buffer."""

    def __init__(self, connection: NatsConnection, buffer: DedupBuffer) -> None:
        """Listen to nothing yet."""
        self.patterns: list[str] = []
        self._connection = connection
        self._buffer = buffer
        self._held: list[str] = []
        self._generation = 0
        self._subscriptions: dict[str, NatsSubscription] = {}

    async def listen(self, patterns: list[str], held: list[str]) -> None:
        """Listen to these patterns and no others, but for the subjects ``held`` by streams.

        Raises:
            nats.errors.Error, OSError: when the bus is away.
        """
        self._held = held
        self.patterns = patterns
        if self._generation != self._connection.generation:
            self._generation = self._connection.generation
            self._subscriptions.clear()
        client = self._connection.client
        for pattern in [known for known in self._subscriptions if known not in patterns]:
            await self._subscriptions.pop(pattern).unsubscribe()
        for pattern in patterns:
            if pattern not in self._subscriptions:
                self._subscriptions[pattern] = await client.subscribe(pattern, cb=self._taking(pattern))
        if patterns:  # with the answer the server listens, and a refusal has come
            await client.flush(FLUSH_S)

    async def close(self) -> None:
        """Stop to listen."""
        with contextlib.suppress(*BUS_ERRORS):
            if not self._connection.connected:
                return
            for subscription in self._subscriptions.values():
                await subscription.unsubscribe()

    def _taking(self, pattern: str) -> Callable[[Msg], Awaitable[None]]:
        internal = pattern.startswith(_INTERNAL)

        async def take(message: Msg) -> None:
            subject = message.subject
            if message.reply.startswith(_DELIVERED) and not internal:
                return
            if (subject.startswith(_INTERNAL) and not internal) or covered_by_any(self._held, subject):
                return
            if len(self.patterns) > 1 and next((p for p in self.patterns if covers(p, subject)), pattern) != pattern:
                return  # it comes by an overlapping pattern, too
            self._buffer.offer(RawMessage(subject, message.headers or {}, message.data))

        return take
