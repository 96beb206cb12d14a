"""One inference request to one endpoint: send it and read the reply, streamed or whole, within size limits."""

from __future__ import annotations

import asyncio
import re
from codecs import BOM_UTF8
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import httpx
import msgspec

from runner.config import AgentSettings
from runner.inference.api_keys import DeltaFilter, is_secret, redact_key
from runner.inference.chat_format import ModelReply, parse_reply
from runner.inference.endpoints import Target
from runner.inference.errors import EndpointFailure, Mask, response_failure
from runner.inference.http import bearer_header, open_response, read_refusal, retry_after_s
from runner.inference.sse import MAX_EVENT, EventParser, StreamAccumulator
from runner.inference.token_capture import TokenCapture
from runner.types import StreamDelta
from runner.util.clock import Clock
from runner.util.display_text import one_line
from runner.util.http import read_body, reject_encoding

MAX_BODY = 4 << 20
"""Maximum bytes of a reply that is not streamed."""
MAX_STREAM = 64 << 20
"""Maximum bytes of a streamed reply, and of any reply or event with token ids; they need several hundred per token."""
COUNTS_TIMEOUT_S = 10.0
"""Maximum seconds to wait for the token counts that follow a finish reason."""
STREAM_END_TIMEOUT_S = 0.25
"""Maximum seconds to wait for the end of a stream after its final event."""
REST = "the rest of episode.max_duration_sec, or of are.judge_timeout_sec for a judge"

_FIELD = re.compile(rb"(?:\xef\xbb\xbf)?\s*(?:data|event|id|retry|error)?:")
"""The first line of server-sent events that is not blank."""


class InferenceCall(msgspec.Struct, frozen=True, kw_only=True):
    """A request to send; ``key`` goes only into its header, ``capture`` receives the token ids if it asks for them."""

    target: Target
    body: bytes
    key: str | None
    mask: Mask
    limits: AnswerLimits
    streams: bool
    on_delta: Callable[[StreamDelta], None] | None = None
    clock: Clock = Clock()
    capture: TokenCapture | None = None


async def send_call(call: InferenceCall) -> ModelReply:
    """Return the reply without the key, in case the server quotes it; the caller must enter ``call.limits``.

    Raises ``EndpointFailure`` if the endpoint gives no usable reply.
    """
    if call.on_delta is None or not is_secret(call.key):
        return redact_key(await _exchange(call, call.on_delta), call.key)
    keyless = DeltaFilter(call.key, call.on_delta)
    reply = await _exchange(call, keyless.add)
    keyless.flush()
    return redact_key(reply, call.key)


async def _exchange(call: InferenceCall, on_delta: Callable[[StreamDelta], None] | None) -> ModelReply:
    accumulator = StreamAccumulator(call.clock.monotonic, on_delta, call.capture)
    if call.streams:
        call.limits.expect_first()
    else:
        call.limits.expect_whole()
    headers = bearer_header(call.key)
    async with open_response("POST", call.target.url, call.body, headers, call.mask) as response:
        media_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if response.status_code != 200:
            wait_s = retry_after_s(response.headers.get("retry-after"), call.clock.now())
            body, via = await read_refusal(response), response.extensions.get("proxy", "")
            raise response_failure(response.status_code, body, call.mask, wait_s, via)
        if media_type == "text/event-stream":
            reject_encoding(response)
            return await _stream(response, accumulator, call)
        call.limits.expect_whole()
        body = await read_body(response, MAX_BODY if call.capture is None else MAX_STREAM)
        return _parse_body(body, accumulator, media_type, call.capture)


async def _stream(response: httpx.Response, accumulator: StreamAccumulator, call: InferenceCall) -> ModelReply:
    """Read a stream until its final event, its end, or a while after its finish reason, and return the reply."""
    parser, size = EventParser(MAX_EVENT if call.capture is None else MAX_STREAM), 0
    chunks = response.aiter_raw()
    async for chunk in chunks:
        size += len(chunk)
        n_deltas = accumulator.n_deltas
        if size > MAX_STREAM:
            raise EndpointFailure("reply", f"the stream is larger than {MAX_STREAM >> 20} MiB")
        try:
            for data in parser.feed(chunk):
                accumulator.add(data)
        except EndpointFailure as failure:
            if accumulator.n_deltas:  # nothing is learned after a part of an answer
                failure.refusal, failure.context_tokens = "", None
            raise
        if accumulator.n_deltas > n_deltas:
            call.limits.expect_next(accumulator.n_deltas)
        if accumulator.done or accumulator.has_finish_reason:
            await _read_end(chunks, parser, accumulator)
            break
    else:
        for data in parser.finish():
            accumulator.add(data)
    return accumulator.result()


async def _read_end(chunks: AsyncIterator[bytes], parser: EventParser, accumulator: StreamAccumulator) -> None:
    """Read what follows a complete answer: token counts, and the end, after which its connection can be reused.

    Some servers never end a stream, and a broken end does not make the answer incomplete.
    """
    now = asyncio.get_running_loop().time
    with suppress(TimeoutError, httpx.TransportError, EndpointFailure):
        async with asyncio.timeout(STREAM_END_TIMEOUT_S if accumulator.done else COUNTS_TIMEOUT_S) as limit:
            async for chunk in chunks:
                events = [] if accumulator.done else parser.feed(chunk)
                for data in events:
                    accumulator.add(data)
                if events and accumulator.done:
                    limit.reschedule(now() + STREAM_END_TIMEOUT_S)


def _parse_body(
    body: bytes, accumulator: StreamAccumulator, media_type: str, capture: TokenCapture | None
) -> ModelReply:
    """Return the reply in a complete body; accept server-sent events even with the media type of JSON."""
    if _FIELD.match(body):
        parser = EventParser(MAX_EVENT if capture is None else MAX_STREAM)
        for data in [*parser.feed(body), *parser.finish()]:
            accumulator.add(data)
        return accumulator.result()
    try:
        return parse_reply(body.removeprefix(BOM_UTF8), capture)
    except EndpointFailure as failure:
        if "json" in media_type:
            raise
        raise EndpointFailure(
            failure.reason, f"{failure} (media type {one_line(media_type, 60) or 'missing'})"
        ) from None


class AnswerLimits:
    """The limits of one request; one timer waits for the next of them. See ``limit_answer``.

    Only deltas with text, reasoning or a part of a tool call are signs of an answer: some servers send comments and
    empty deltas for as long as a request waits.
    """

    def __init__(self, settings: AgentSettings, time_left_s: float) -> None:
        self._settings = settings
        self._now = asyncio.get_running_loop().time
        self._whole_s = time_left_s if settings.timeout_sec is None else min(settings.timeout_sec, time_left_s)
        self._end = self._now() + self._whole_s
        self._n_deltas: int | None = None
        self.timer = asyncio.timeout_at(min(self._now() + settings.first_token_timeout_sec, self._end))

    def expect_first(self) -> None:
        self.timer.reschedule(min(self._now() + self._settings.first_token_timeout_sec, self._end))

    def expect_next(self, n_deltas: int) -> None:
        """Wait for the delta after the first ``n_deltas``, or for the end of the stream, from now."""
        self._n_deltas = n_deltas
        self.timer.reschedule(min(self._now() + self._settings.idle_timeout_sec, self._end))

    def expect_whole(self) -> None:
        """Nothing shows whether the model is at work, as the answer is not streamed."""
        if self.timer.when() != self._end:
            self.timer.reschedule(self._end)

    def describe(self) -> str:
        settings = self._settings
        if self.timer.when() == self._end:
            key = "agent.timeout_sec" if self._whole_s == settings.timeout_sec else REST
            return f"no complete answer within {self._whole_s:.3g} s ({key})"
        if self._n_deltas is None:
            return f"no first token within {settings.first_token_timeout_sec:g} s (agent.first_token_timeout_sec)"
        parts = f"{self._n_deltas} part{'s' * (self._n_deltas != 1)} of its answer"
        return f"silent for {settings.idle_timeout_sec:g} s after {parts} (agent.idle_timeout_sec)"


@asynccontextmanager
async def limit_answer(settings: AgentSettings, time_left_s: float) -> AsyncIterator[AnswerLimits]:
    """Limit the time, first as that of a first delta; ``EndpointFailure`` names the key of an exceeded limit."""
    limits = AnswerLimits(settings, time_left_s)
    try:
        async with limits.timer:
            yield limits
    except TimeoutError:
        raise EndpointFailure("timeout", limits.describe()) from None
