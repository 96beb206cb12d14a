"""Reader of one stream: history and new messages by the same pull mechanism, with a cursor of its own.

The cursor is the sequence in the stream. A consumer that fails is replaced by a new one that starts after the cursor.
The consumer's own numbering distinguishes lost deliveries from sequences that the stream no longer has.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

import msgspec
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy, StreamInfo
from nats.js.errors import NotFoundError

from runner.bus.connection import NatsConnection
from runner.bus.streams import BUS_ERRORS, checked_reply, stream_info
from runner.subscribe.buffer import DedupBuffer
from runner.subscribe.messages import Notice
from runner.subscribe.position import Position
from runner.subscribe.pull_consumer import PullConsumer, removed_unread_notice
from runner.subscribe.subject_patterns import are_disjoint, covered_by_any, intersections

API_TIMEOUT_S: Final = 1.5
POLL_S: Final = 0.1
RETRY_PAUSES_S: Final = (0.1, 0.3, 1.0)
"""Pauses in seconds after consecutive failures; the last pause is repeated."""

CONSUMER_IDLE_TIMEOUT_S: Final = 30.0
"""Seconds after which the server deletes a consumer without fetch requests."""


class StreamReader:
    def __init__(
        self, connection: NatsConnection, info: StreamInfo, patterns: list[str], position: Position, buffer: DedupBuffer
    ) -> None:
        """Create the reader, which advances ``position`` for a later reader of the same stream."""
        self._stream = info.config.name or ""
        self.subjects = list(info.config.subjects or [])
        self._connection = connection
        self._position = position
        self._buffer = buffer
        self._is_silent = False
        is_unfiltered = all(covered_by_any(patterns, subject) for subject in self.subjects)
        self._patterns = [] if is_unfiltered else intersections(patterns, self.subjects)

    async def run(self) -> None:
        """Read until the stream is deleted.

        Raises:
            BusError: the permission to read the stream is missing.
        """
        failures = 0
        while True:
            try:
                progress = await self._read()
            except NotFoundError:
                return
            except BUS_ERRORS:
                progress = False
            self._check_allowed(f"$JS.API.STREAM.INFO.{self._stream}", f"$JS.API.CONSUMER.CREATE.{self._stream}")
            failures = 0 if progress else min(failures + 1, len(RETRY_PAUSES_S))
            self._report_silence(failures)
            await asyncio.sleep(RETRY_PAUSES_S[max(failures - 1, 0)])
            await self._connection.wait_connected()

    def _report_silence(self, failures: int) -> None:
        is_silent = failures == len(RETRY_PAUSES_S) and self._connection.connected
        if is_silent and not self._is_silent:
            self._notify(Notice(kind="lost_server", text=f"stream {self._stream} does not answer"))
        self._is_silent = is_silent

    async def _read(self) -> bool:
        """Return whether the consumer delivered messages."""
        client, position = self._connection.client, self._position
        js = client.jetstream(timeout=API_TIMEOUT_S)
        info = await stream_info(js, self._stream)
        self._compare(info)
        name, before, pending = await checked_reply(self._add_consumer(js))
        if self._patterns and not pending:  # no existing message matches the filter
            before = max(before, info.state.last_seq)
        position.cursor = before
        self._buffer.update_pending(self._stream, pending)
        async with PullConsumer(client, self._stream, name, position, self._patterns, self._buffer) as consumer:
            while await consumer.fetch():
                await self._report_removed(js, consumer)
                await self._buffer.wait_for_space(self._stream)
            self._check_allowed(*consumer.subjects)
        return position.cursor > before

    async def _add_consumer(self, js: JetStreamContext) -> tuple[str, int, int]:
        # Returns the name, the sequence it starts after, and the number of messages after it.
        info = await js.add_consumer(self._stream, self._consumer_config())
        start = info.delivered.stream_seq if info.delivered else 0
        cursor = start if self._position.cursor is None else self._position.cursor
        return msgspec.convert((info.name, cursor, info.num_pending or 0), tuple[str, int, int])

    def _consumer_config(self) -> ConsumerConfig:
        config = ConsumerConfig(
            deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
            ack_policy=AckPolicy.NONE,
            inactive_threshold=CONSUMER_IDLE_TIMEOUT_S,
            mem_storage=True,
            num_replicas=1,
        )
        if self._position.cursor is None:
            config.deliver_policy = DeliverPolicy.BY_START_TIME
            config.opt_start_time = self._position.start
        else:
            config.opt_start_seq = self._position.cursor + 1
        if are_disjoint(self._patterns):  # the server rejects overlapping filters; then the client filters
            config.filter_subjects = self._patterns or None
        return config

    def _compare(self, info: StreamInfo) -> None:
        position, state = self._position, info.state
        cursor, first = position.cursor, max(state.first_seq, 1)
        if position.created != info.created:
            text = f"stream {self._stream} was recreated; reading it from its beginning"
            self._notify(Notice(kind="recreated", text=text))
            position.created, position.cursor = info.created, first - 1
        elif cursor is not None and cursor > state.last_seq:
            lost = cursor - state.last_seq
            self._notify(Notice(kind="gap", text=f"stream {self._stream} lost its newest {lost} messages"))
            position.cursor = state.last_seq
        elif cursor is not None and first > cursor + 1:
            self._notify(removed_unread_notice(self._stream, first - cursor - 1, at_most=bool(self._patterns)))
            position.cursor = first - 1

    async def _report_removed(self, js: JetStreamContext, consumer: PullConsumer) -> None:
        """Report missing sequences that the stream has removed; other missing sequences did not match the filter."""
        gaps = consumer.gaps[:]
        consumer.gaps.clear()
        if not gaps:
            return
        with contextlib.suppress(*BUS_ERRORS):
            first = (await stream_info(js, self._stream)).state.first_seq
            if count := sum(max(min(gap.after, first) - gap.before - 1, 0) for gap in gaps):
                self._notify(removed_unread_notice(self._stream, count, at_most=True))

    def _notify(self, notice: Notice) -> None:
        self._buffer.notify(notice, self._stream)

    def _check_allowed(self, *subjects: str) -> None:
        for subject in subjects:
            if (error := self._connection.permission_error(subject)) is not None:
                raise error
