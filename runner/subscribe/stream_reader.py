"""One stream of a bus, its history and what comes after by the same mechanism: pulled, with a cursor of our own.

The cursor is the sequence in the stream; a consumer on the server is thrown away at the first doubt and made again
after the cursor. What a consumer failed to bring is known by the consumer's own numbering, so that it is told from
sequences that the stream itself no longer has.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

import msgspec
import nats.errors
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy, StreamInfo
from nats.js.errors import NotFoundError

from runner.bus.connection import NatsConnection
from runner.bus.streams import checked_reply, stream_info
from runner.subscribe.buffer import DedupBuffer
from runner.subscribe.messages import Notice
from runner.subscribe.position import Position
from runner.subscribe.pull_consumer import PullConsumer, removed_unread_notice
from runner.subscribe.subject_patterns import covered_by_any, disjoint, shared_with

BUS_ERRORS: Final = (nats.errors.Error, OSError)
"""What a client raises when the bus does not do what was asked; time-outs are among them."""

API_TIMEOUT_S: Final = 1.5
POLL_S: Final = 0.1
RETRY_S: Final = (0.1, 0.3, 1.0)
KEPT_S: Final = 30.0
"""How long the server keeps a consumer that asks for nothing."""


async def wait_until_connected(connection: NatsConnection) -> None:
    """Wait for the bus to be there and to answer."""
    while True:
        if connection.connected:
            return
        await asyncio.sleep(POLL_S)


class StreamReader:
    """Brings what a stream keeps of some subjects into a buffer, for as long as ``run`` runs."""

    def __init__(
        self, connection: NatsConnection, info: StreamInfo, patterns: list[str], position: Position, buffer: DedupBuffer
    ) -> None:
        """``position`` is kept up to date, for a reader that comes after this one."""
        self._stream = info.config.name or ""
        self.subjects = list(info.config.subjects or [])
        self._connection = connection
        self._position = position
        self._buffer = buffer
        self._silent = False
        whole = all(covered_by_any(patterns, subject) for subject in self.subjects)
        self._patterns = [] if whole else shared_with(patterns, self.subjects)

    async def run(self) -> None:
        """Read until the stream is gone.

        Raises:
            BusError: when reading it is not allowed.
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
            failures = 0 if progress else min(failures + 1, len(RETRY_S))
            self._tell_silence(failures)
            await asyncio.sleep(RETRY_S[max(failures - 1, 0)])
            await wait_until_connected(self._connection)

    def _tell_silence(self, failures: int) -> None:
        """Say once that there is a connection, but no stream to be heard on it."""
        silent = failures == len(RETRY_S) and self._connection.connected
        if silent and not self._silent:
            self._tell(Notice(kind="lost_server", text=f"stream {self._stream} does not answer"))
        self._silent = silent

    async def _read(self) -> bool:
        """Read with one consumer until it is in doubt; returns whether it brought anything."""
        client, position = self._connection.client, self._position
        js = client.jetstream(timeout=API_TIMEOUT_S)
        info = await stream_info(js, self._stream)
        self._compare(info)
        consumer, before, pending = await checked_reply(self._add_consumer(js))
        if self._patterns and not pending:  # of what was there nothing is wanted
            before = max(before, info.state.last_seq)
        position.cursor = before
        self._buffer.update_pending(self._stream, pending)
        async with PullConsumer(client, self._stream, consumer, position, self._patterns, self._buffer) as puller:
            while await puller.pull():
                await self._tell_removed(js, puller)
                await self._buffer.wait_for_room(self._stream)
            self._check_allowed(*puller.subjects)
        return position.cursor > before

    async def _add_consumer(self, js: JetStreamContext) -> tuple[str, int, int]:
        """Its name, the sequence it starts after, and how many messages there are after that."""
        made = await js.add_consumer(self._stream, self._consumer_config())
        start = made.delivered.stream_seq if made.delivered else 0
        cursor = start if self._position.cursor is None else self._position.cursor
        return msgspec.convert((made.name, cursor, made.num_pending or 0), tuple[str, int, int])

    def _consumer_config(self) -> ConsumerConfig:
        config = ConsumerConfig(
            deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
            ack_policy=AckPolicy.NONE,
            inactive_threshold=KEPT_S,
            mem_storage=True,
            num_replicas=1,
        )
        if self._position.cursor is None:
            config.deliver_policy = DeliverPolicy.BY_START_TIME
            config.opt_start_time = self._position.start
        else:
            config.opt_start_seq = self._position.cursor + 1
        if disjoint(self._patterns):  # the server refuses those that overlap; then all comes and the rest is dropped
            config.filter_subjects = self._patterns or None
        return config

    def _compare(self, info: StreamInfo) -> None:
        """Whether the stream is still the one that was read, and still has what comes next."""
        position, state = self._position, info.state
        cursor, first = position.cursor, max(state.first_seq, 1)
        if position.created != info.created:
            text = f"stream {self._stream} was recreated; it is read from its beginning"
            self._tell(Notice(kind="recreated", text=text))
            position.created, position.cursor = info.created, first - 1
        elif cursor is not None and cursor > state.last_seq:
            lost = cursor - state.last_seq
            self._tell(Notice(kind="gap", text=f"stream {self._stream} lost its newest {lost} messages"))
            position.cursor = state.last_seq
        elif cursor is not None and first > cursor + 1:
            self._tell(removed_unread_notice(self._stream, first - cursor - 1, at_most=bool(self._patterns)))
            position.cursor = first - 1

    async def _tell_removed(self, js: JetStreamContext, puller: PullConsumer) -> None:
        """Sequences that a filter passes over are no loss, unless the stream has none of them any more."""
        jumps = puller.jumps[:]
        puller.jumps.clear()
        if not jumps:
            return
        with contextlib.suppress(*BUS_ERRORS):
            first = (await stream_info(js, self._stream)).state.first_seq
            if count := sum(max(min(jump.after, first) - jump.before - 1, 0) for jump in jumps):
                self._tell(removed_unread_notice(self._stream, count, at_most=True))

    def _tell(self, notice: Notice) -> None:
        self._buffer.notify(notice, self._stream)

    def _check_allowed(self, *subjects: str) -> None:
        for subject in subjects:
            if (error := self._connection.permission_error(subject)) is not None:
                raise error
