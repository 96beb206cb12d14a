"""Core NATS subscriptions for subjects that no stream keeps."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from typing import Final

from nats.aio.msg import Msg
from nats.aio.subscription import Subscription as NatsSubscription

from runner.bus.connection import NatsConnection
from runner.bus.streams import BUS_ERRORS
from runner.subscribe.buffer import DedupBuffer, RawMessage
from runner.subscribe.subject_patterns import covered_by_any, covers

FLUSH_TIMEOUT_S: Final = 2
_DELIVERED: Final = "$JS.ACK."
"""Reply subject prefix of a message that a stream delivers to another consumer: a copy, which is ignored."""

_INTERNAL: Final = ("$", "_INBOX.")


class CoreListener:
    def __init__(self, connection: NatsConnection, buffer: DedupBuffer) -> None:
        self.patterns: list[str] = []
        self._connection = connection
        self._buffer = buffer
        self._stream_subjects: list[str] = []
        self._generation = 0
        self._subscriptions: dict[str, NatsSubscription] = {}

    async def listen(self, patterns: list[str], stream_subjects: list[str]) -> None:
        """Subscribe to ``patterns`` and end all other subscriptions; ignore messages on ``stream_subjects``.

        Raises:
            nats.errors.Error, OSError: the bus is not connected.
        """
        self._stream_subjects = stream_subjects
        self.patterns = patterns
        if self._generation != self._connection.generation:
            self._generation = self._connection.generation
            self._subscriptions.clear()
        client = self._connection.client
        for pattern in [known for known in self._subscriptions if known not in patterns]:
            await self._subscriptions.pop(pattern).unsubscribe()
        for pattern in patterns:
            if pattern not in self._subscriptions:
                self._subscriptions[pattern] = await client.subscribe(pattern, cb=self._handler(pattern))
        if patterns:  # after the answer, the subscription is active or its denial has arrived
            await client.flush(FLUSH_TIMEOUT_S)

    async def close(self) -> None:
        with contextlib.suppress(*BUS_ERRORS):
            if not self._connection.connected:
                return
            for subscription in self._subscriptions.values():
                await subscription.unsubscribe()

    def _handler(self, pattern: str) -> Callable[[Msg], Awaitable[None]]:
        is_internal = pattern.startswith(_INTERNAL)

        async def handle(message: Msg) -> None:
            subject = message.subject
            if message.reply.startswith(_DELIVERED) and not is_internal:
                return
            if (subject.startswith(_INTERNAL) and not is_internal) or covered_by_any(self._stream_subjects, subject):
                return
            if len(self.patterns) > 1 and next((p for p in self.patterns if covers(p, subject)), pattern) != pattern:
                return  # an overlapping pattern delivers it as well
            self._buffer.offer(RawMessage(subject, message.headers or {}, message.data))

        return handle
