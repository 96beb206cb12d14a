"""One consumer of a stream on the server: asks for messages part by part and notices when something is wrong with it.

``PullSubscription.fetch`` of the client does the same job, but an answer that says the consumer is gone looks there
like no messages, and what comes in one by one waits in it for the rest of its part.
"""

from __future__ import annotations

import asyncio
from typing import Final, Self

import msgspec
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription as NatsSubscription

from runner.subscribe.buffer import DedupBuffer, FetchLimit, RawMessage
from runner.subscribe.messages import Notice
from runner.subscribe.position import Position
from runner.subscribe.subject_patterns import covered_by_any

EXPIRES_S: Final = 5.0
HEARTBEAT_S: Final = 0.4
SILENCE_S: Final = 1.0
"""Without messages and heartbeats for so long the consumer, or the way to it, is in doubt."""

_PART_OVER = ("404", "408")
_PART_FULL = "batch completed"
_TOO_LARGE = "message size exceeds maxbytes"
_NANO = 1_000_000_000


class SequenceGap(msgspec.Struct, frozen=True):
    """Sequences that were not delivered although the consumer delivered all it had: those between the two."""

    before: int
    after: int


class PullConsumer:
    """Fills a buffer from a consumer that starts after the cursor of a position.

    Attributes:
        jumps: where sequences were missing, if the consumer has a filter; without one they are told as notices.
    """

    def __init__(
        self, client: Client, stream: str, consumer: str, position: Position, patterns: list[str], buffer: DedupBuffer
    ) -> None:
        """``position`` is kept up to date; ``patterns``: what is wanted where the stream has more, empty for all."""
        self.jumps: list[SequenceGap] = []
        self._client = client
        self._stream = stream
        self._consumer = consumer
        self._position = position
        self._patterns = patterns
        self._buffer = buffer
        self._inbox = client.new_inbox()
        self._subscription: NatsSubscription | None = None
        self._delivered = 0
        self._n_asked = 0
        self._reply = ""
        self._wanted = 0
        self._is_large = False
        self._in_doubt = False
        self._over = asyncio.Event()
        self._clock = asyncio.get_running_loop().time
        self._heard = 0.0

    async def __aenter__(self) -> Self:
        """Listen for what the consumer sends."""
        self._subscription = await self._client.subscribe(f"{self._inbox}.*", cb=self._on_message)
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Give the consumer up; where the server is away it does so by itself later."""
        self._in_doubt = True  # what still comes of it is for the next one, which starts after the cursor
        if self._client.is_connected:
            if self._subscription is not None:
                await self._subscription.unsubscribe()
            await self._client.publish(f"$JS.API.CONSUMER.DELETE.{self._stream}.{self._consumer}")

    @property
    def subjects(self) -> tuple[str, str]:
        """What has to be allowed for this: to publish to the first, to subscribe to the second."""
        return (f"$JS.API.CONSUMER.MSG.NEXT.{self._stream}.{self._consumer}", f"{self._inbox}.*")

    async def pull(self) -> bool:
        """Ask for a part and wait until it is over; False when the consumer is in doubt.

        Raises:
            nats.errors.Error, OSError: when it cannot be asked.
        """
        self._over.clear()
        part = self._part()
        self._wanted = part.count
        self._n_asked += 1
        self._reply = f"{self._inbox}.{self._n_asked}"
        self._heard = self._clock()
        await self._client.publish(self.subjects[0], self._request(part), reply=self._reply)
        while not self._over.is_set():
            try:
                async with asyncio.timeout(SILENCE_S / 2):  # wait_for may swallow a cancellation
                    await self._over.wait()
            except TimeoutError:
                if not self._client.is_connected or self._clock() - self._heard > SILENCE_S:
                    return False
        return not self._in_doubt

    def _part(self) -> FetchLimit:
        """What to ask for: a message that did not fit into the last part comes alone."""
        if self._is_large:
            self._is_large = False
            return FetchLimit(1, 2 * self._client.max_payload)
        return self._buffer.fetch_limit(self._stream)

    def _request(self, part: FetchLimit) -> bytes:
        request = {
            "batch": part.count,
            "max_bytes": part.size,
            "expires": int(EXPIRES_S * _NANO),
            "idle_heartbeat": int(HEARTBEAT_S * _NANO),
        }
        return msgspec.json.encode(request)

    async def _on_message(self, message: Msg) -> None:
        self._heard = self._clock()
        if self._in_doubt:
            return
        if message.reply.startswith("$JS.ACK."):
            self._keep(message)
        elif message.headers and message.subject == self._reply:  # not of a part that is over already
            self._obey(message.headers)

    def _keep(self, message: Msg) -> None:
        metadata = message.metadata
        sequence = metadata.sequence.stream
        if metadata.sequence.consumer != self._delivered + 1:
            self._doubt()
            return
        self._delivered += 1
        before, self._position.cursor = self._position.cursor or 0, sequence
        if sequence > before + 1:
            self._missing(SequenceGap(before, sequence))
        if not self._patterns or covered_by_any(self._patterns, message.subject):
            self._buffer.put(
                RawMessage(
                    message.subject,
                    message.headers or {},
                    message.data,
                    self._stream,
                    sequence,
                    metadata.timestamp,
                    metadata.num_pending,
                )
            )
        else:
            self._buffer.update_pending(self._stream, metadata.num_pending)
        self._wanted -= 1
        if not self._wanted:
            self._over.set()

    def _missing(self, jump: SequenceGap) -> None:
        if self._patterns:  # most of them are simply not wanted
            self.jumps.append(jump)
            return
        self._buffer.notify(removed_unread_notice(self._stream, jump.after - jump.before - 1), self._stream)

    def _obey(self, headers: dict[str, str]) -> None:
        """What the server says of the request itself."""
        status, said = headers.get("Status", ""), headers.get("Description", "").lower()
        if status == "100":
            if headers.get("Nats-Last-Consumer", str(self._delivered)) != str(self._delivered):
                self._doubt()
        elif status in _PART_OVER or said.startswith((_PART_FULL, _TOO_LARGE)):
            self._is_large = said.startswith(_TOO_LARGE)
            self._over.set()
        else:
            self._doubt()

    def _doubt(self) -> None:
        self._in_doubt = True
        self._over.set()


def removed_unread_notice(stream: str, count: int, *, at_most: bool = False) -> Notice:
    """Says that messages left their stream before they were read."""
    number = f"up to {count}" if at_most else f"{count}"
    return Notice(kind="gap", text=f"{number} messages left stream {stream} before they were read", count=count)
