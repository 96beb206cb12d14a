"""Limits of an answer's silence: a server on a thread streams, and lets the time of the client pass."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from typing import Any

import pytest

from runner.errors import InferenceFault
from runner.types import Inference, StreamDelta
from tests.support.inference import TOOLS, infer, inference_manager
from tests.support.rude_model import (
    FINISH_CHUNK,
    USAGE,
    PendingRequest,
    RudeModel,
    chat_completion,
    delta_chunk,
    http_response,
    sse_event,
    stream_response,
    streamed_answer,
)

PATIENCE_S = 30.0
"""Seconds in which a thread of a busy machine does its next step."""
IDLE, FIRST = "(agent.idle_timeout_sec)", "(agent.first_token_timeout_sec)"
HEAD = stream_response(b"")


class Client:
    """A client whose event loop has a clock that a server puts forward.

    The loop goes on in real time, too, which no limit of these tests is short enough to notice.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._loop = asyncio.get_running_loop()
        self._passed_s = 0.0
        self._deltas = threading.Semaphore(0)
        time = self._loop.time
        monkeypatch.setattr(self._loop, "time", lambda: time() + self._passed_s)

    async def infer(self, url: str, *, time_left_s: float = 100_000.0, **agent: Any) -> Inference:  # noqa: ANN401
        manager = inference_manager(url, **({"stream": True} | agent))
        return await infer(manager, tools=TOOLS, time_left_s=time_left_s, on_delta=self._on_delta)

    def _on_delta(self, delta: StreamDelta) -> None:
        if delta.n:
            self._deltas.release()

    def wait_for_delta(self) -> None:
        """Wait on a server's thread until the client has received one more part of its answer."""
        assert self._deltas.acquire(timeout=PATIENCE_S)

    def let_pass(self, seconds: float) -> None:
        """Let time pass on a server's thread, after the client has read what was sent."""
        asyncio.run_coroutine_threadsafe(self._let_pass(seconds), self._loop).result(PATIENCE_S)

    async def _let_pass(self, seconds: float) -> None:
        for _ in range(5):
            await asyncio.sleep(0)
        self._passed_s += seconds
        for _ in range(5):
            await asyncio.sleep(0)


@pytest.fixture
async def client(monkeypatch: pytest.MonkeyPatch) -> Client:
    return Client(monkeypatch)


def stream_slowly(client: Client, *deltas: dict[str, Any], pause_s: float) -> Callable[[PendingRequest], None]:
    """Return the behavior of a server that streams parts of an answer with pauses and ends with ``up``."""

    def behave(pending: PendingRequest) -> None:
        pending.send(HEAD)
        for delta in deltas:
            pending.send(sse_event(delta_chunk(**delta)))
            client.wait_for_delta()
            client.let_pass(pause_s)
        pending.send(streamed_answer(["up"]))

    return behave


def call_delta(**function: str) -> dict[str, Any]:
    return {"tool_calls": [{"index": 0, "function": function}]}


@pytest.mark.parametrize(
    "delta",
    [
        {"content": "word "},
        {"reasoning_content": "word "},
        {"reasoning": "word ", "content": ""},
        {"tensorzero_extra_content": [{"type": "thought", "text": "word "}]},
        call_delta(name="up"),
        call_delta(name="up", arguments="  "),
    ],
    ids=["text", "reasoning_content", "reasoning", "thought", "name of a call", "arguments of a call"],
)
async def test_an_answer_that_goes_on_is_read_to_its_end(client: Client, delta: dict[str, Any]) -> None:
    with RudeModel(stream_slowly(client, *[delta] * 12, pause_s=55)) as model:
        inference = await client.infer(model.url)
    assert (inference.message["content"] or "").endswith("up")
    assert (inference.usage.endpoint, inference.usage.warnings) == ("a", ())


KEEP_ALIVES = {
    "nothing": b"",
    "comments": b": OPENROUTER PROCESSING\n\n",
    "events without data": b"event: ping\n\n",
    "roles": sse_event(delta_chunk(role="assistant", content="")),
    "empty deltas": sse_event(delta_chunk(content=None, reasoning_content="", tool_calls=[])),
    "empty calls": sse_event(delta_chunk(**call_delta(arguments=""))),
    "usage": sse_event({"choices": [], "usage": USAGE}),
    "another choice": sse_event({"choices": [{"index": 1, "delta": {"content": "other"}}]}),
}


@pytest.fixture(params=list(KEEP_ALIVES))
def keep_alive(request: pytest.FixtureRequest) -> bytes:
    return KEEP_ALIVES[request.param]


async def test_keep_alives_do_not_end_the_silence_after_a_part(client: Client, keep_alive: bytes) -> None:
    def fall_silent(pending: PendingRequest) -> None:
        pending.send(HEAD)
        for word in ("go ", "on "):
            pending.send(sse_event(delta_chunk(content=word)))
            client.wait_for_delta()
        for _ in range(4):
            pending.send(keep_alive)
            client.let_pass(16)
        pending.send(streamed_answer(["up"]))

    with RudeModel(fall_silent) as model, pytest.raises(InferenceFault) as raised:
        await client.infer(model.url)
    assert f": silent for 60 s after 2 parts of its answer {IDLE}." in str(raised.value)


async def test_keep_alives_do_not_begin_an_answer(client: Client, keep_alive: bytes) -> None:
    def keep_waiting(pending: PendingRequest) -> None:
        pending.send(HEAD)
        for _ in range(4):
            pending.send(keep_alive)
            client.let_pass(46)
        pending.send(streamed_answer(["up"]))

    with RudeModel(keep_waiting) as model, pytest.raises(InferenceFault) as raised:
        await client.infer(model.url)
    assert f": no first token within 180 s {FIRST}." in str(raised.value)


async def test_the_wait_for_headers_is_part_of_that_for_the_first_token(client: Client) -> None:
    def wait_twice(pending: PendingRequest) -> None:
        client.let_pass(100)
        pending.send(HEAD)
        client.let_pass(100)
        pending.send(streamed_answer(["up"]))

    with RudeModel(wait_twice) as model, pytest.raises(InferenceFault, match="no first token within 180 s"):
        await client.infer(model.url)


async def test_a_first_token_may_take_longer_than_the_next_one(client: Client) -> None:
    def start_cold(pending: PendingRequest) -> None:
        client.let_pass(80)
        pending.send(HEAD + KEEP_ALIVES["comments"])
        client.let_pass(80)
        pending.send(streamed_answer(["up"]))

    with RudeModel(start_cold) as model:
        inference = await client.infer(model.url)
    assert (inference.message["content"], inference.usage.warnings) == ("up", ())


async def test_the_end_of_a_stream_may_not_be_missing_forever(client: Client) -> None:
    def never_end(pending: PendingRequest) -> None:
        pending.send(HEAD + sse_event(delta_chunk(content="up")))
        client.wait_for_delta()
        client.let_pass(61)
        pending.send(sse_event(FINISH_CHUNK) + sse_event(b"[DONE]"))

    with RudeModel(never_end) as model, pytest.raises(InferenceFault) as raised:
        await client.infer(model.url)
    assert f"silent for 60 s after 1 part of its answer {IDLE}" in str(raised.value)


@pytest.mark.parametrize("stream", [True, False], ids=["a stream is requested", "no stream is requested"])
async def test_a_whole_body_may_be_slower_than_a_stream(client: Client, stream: bool) -> None:
    head, body = http_response(200, json.dumps(chat_completion({"content": "up"})).encode()).split(b"\r\n\r\n")

    def send_slowly(pending: PendingRequest) -> None:
        client.let_pass(170 if stream else 1000)
        pending.send(head + b"\r\n\r\n")
        for piece in (body[:20], body[20:]):
            client.let_pass(1000)
            pending.send(piece)
        pending.stopping.wait(PATIENCE_S)

    with RudeModel(send_slowly) as model:
        inference = await client.infer(model.url, stream=stream)
    assert (inference.message["content"], inference.usage.warnings) == ("up", ())


@pytest.mark.parametrize("stream", [True, False])
async def test_a_limit_of_the_whole_answer_holds_where_the_profile_sets_it(client: Client, stream: bool) -> None:
    words = [{"content": "word "}] * 4
    with (
        RudeModel(stream_slowly(client, *words, pause_s=50)) as model,
        pytest.raises(InferenceFault, match=r"no complete answer within 170 s \(agent\.timeout_sec\)"),
    ):
        await client.infer(model.url, stream=stream, timeout_sec=170)


@pytest.mark.parametrize("timeout_sec", [None, 1000])
async def test_the_rest_of_the_episode_limits_an_answer_that_goes_on(client: Client, timeout_sec: float | None) -> None:
    words = [{"content": "word "}] * 4
    with (
        RudeModel(stream_slowly(client, *words, pause_s=50)) as model,
        pytest.raises(InferenceFault, match=r"no complete answer within 1[67]\d s \(the rest of episode\.max_duration"),
    ):
        await client.infer(model.url, time_left_s=170, timeout_sec=timeout_sec)


async def test_the_keys_of_the_profile_set_the_limits(client: Client) -> None:
    limits = {"idle_timeout_sec": 500, "first_token_timeout_sec": 2000}
    with RudeModel(stream_slowly(client, {"content": "go "}, {"content": "on "}, pause_s=450)) as model:
        assert (await client.infer(model.url, **limits)).message["content"] == "go on up"
    with (
        RudeModel(stream_slowly(client, {"content": "go "}, pause_s=501)) as model,
        pytest.raises(InferenceFault, match="silent for 500 s after 1 part of"),
    ):
        await client.infer(model.url, **limits)
