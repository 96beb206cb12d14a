"""Hostile replies, the same for environments and models: what each client reports, and how often it sends a request.

A step is never sent again, because the server may have executed it. A model call is retried, or goes to the next model.
"""

from __future__ import annotations

import asyncio
import gzip
import re
import threading
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple, TypeAlias

import pytest

from runner.envs.http.client import DEFAULT_TIMINGS, HttpTimings
from runner.envs.http.environment import HttpEnvironment
from runner.envs.http.server import ServerAddress
from runner.envs.maze import Maze
from runner.errors import EnvironmentFault, InferenceFault, ServerGone
from runner.types import Action, StreamDelta
from tests.support.http_replies import (
    CHUNKED,
    CHUNKED_EVENTS,
    GOOD,
    HEAD,
    LAST_CHUNK,
    STEP_ANSWER,
    End,
    Reply,
    answer_with,
    chats,
    chunk,
    end_reply,
    operations,
    whole,
)
from tests.support.inference import VirtualTime, describe_delta, episode_header, infer, inference_manager
from tests.support.rude_env_server import EnvironmentHandler, Handler, ReceivedRequest, RudeServer, run_rude_server
from tests.support.rude_model import FINISH_CHUNK, delta_chunk, sse_event

pytestmark = pytest.mark.long

UP = Action(text="move up")
STEP = '{"id": 0, "action": "move up"} '
PERHAPS_EXECUTED = "It is not retried because the server may have executed it"
BROKE = "the connection broke"


@pytest.fixture
def server() -> Iterator[RudeServer]:
    with run_rude_server() as server:
        yield server


@pytest.fixture
def fallback() -> Iterator[RudeServer]:
    with run_rude_server() as server:
        server.handler = answer_with(GOOD)
        yield server


def remote_maze(server: RudeServer, timeout_s: float = 20, timings: HttpTimings = DEFAULT_TIMINGS) -> HttpEnvironment:
    return HttpEnvironment(env="maze", address=ServerAddress(server.url, timeout_s), timings=timings)


class Case(NamedTuple):
    """A reply without a usable answer.

    Attributes:
        env: whether the client of an environment takes its server for gone, or for one that sends nonsense.
        env_text: what its error contains.
        model_text: what the warning about the model contains.
    """

    reply: Reply
    env: Literal["gone", "nonsense"]
    env_text: str = f"got no complete reply: {BROKE}"
    model_text: str = BROKE


def with_headers(n: int, size: int) -> Callable[[bytes], bytes]:
    return lambda body: whole(body, b"".join(b"X-%d: %s\r\n" % (number, b"x" * size) for number in range(n)))


COMPRESSED = "returned a body that is compressed ({}), which was not requested"
CASES: dict[str, Case] = {
    "closed without a reply": Case(Reply(lambda body: b""), "gone"),
    "reset without a reply": Case(Reply(lambda body: b"", "reset"), "gone"),
    "half a status line": Case(Reply(lambda body: b"HTTP/1.1 2"), "gone"),
    "half of the headers": Case(Reply(lambda body: HEAD), "gone"),
    "headers alone": Case(Reply(lambda body: whole(body).removesuffix(body)), "gone"),
    "all but the last byte": Case(Reply(lambda body: whole(body)[:-1]), "gone"),
    "reset before the last byte": Case(Reply(lambda body: whole(body)[:-1], "reset"), "gone"),
    "half a chunk": Case(Reply(lambda body: CHUNKED + chunk(body)[:-9]), "gone"),
    "no last chunk": Case(Reply(lambda body: CHUNKED + chunk(body)), "gone"),
    "a broken chunk early": Case(Reply(lambda body: CHUNKED + b"zz\r\n" + body, "keep"), "nonsense"),
    "a broken chunk late": Case(Reply(lambda body: CHUNKED + chunk(body) + b"zz\r\n", "keep"), "nonsense"),
    "a broken chunk after 1 MiB": Case(
        Reply(lambda body: CHUNKED + chunk(body) + chunk(b" " * (1 << 20)) + b"zz\r\n", "keep"), "nonsense"
    ),
    "a chunk longer than its size": Case(
        Reply(lambda body: CHUNKED + b"2\r\n" + body + b"\r\n" + LAST_CHUNK, "keep"), "nonsense"
    ),
    "a negative chunk": Case(Reply(lambda body: CHUNKED + b"-5\r\n" + body, "keep"), "nonsense"),
    "another protocol": Case(Reply(lambda body: b"SSH-2.0-OpenSSH_9.6\r\n", "keep"), "nonsense"),
    "a body alone": Case(Reply(lambda body: body), "nonsense"),
    "no status": Case(Reply(lambda body: whole(body).replace(b"200 OK", b"OK"), "keep"), "nonsense"),
    "a status of letters": Case(Reply(lambda body: whole(body).replace(b"200", b"2xx"), "keep"), "nonsense"),
    "a version of letters": Case(Reply(lambda body: whole(body).replace(b"HTTP/1.1", b"HTTP/x.y"), "keep"), "nonsense"),
    "a header without a value": Case(Reply(lambda body: whole(body, b"nonsense\r\n"), "keep"), "nonsense"),
    "two lengths": Case(Reply(lambda body: whole(body, b"Content-Length: 5\r\n"), "keep"), "nonsense"),
    "70 KB of headers": Case(Reply(with_headers(70, 1000), "keep"), "nonsense", "larger than 64 KiB", "than 64 KiB"),
    "a header of 70 KB": Case(Reply(with_headers(1, 70_000), "keep"), "nonsense"),
    "gzip": Case(
        Reply(lambda body: whole(gzip.compress(body), b"Content-Encoding: gzip\r\n"), "keep"),
        "nonsense",
        COMPRESSED.format("gzip"),
        "the reply is compressed (gzip), which was not requested",
    ),
    "another compression": Case(
        Reply(lambda body: whole(body, b"Content-Encoding: br\r\n"), "keep"),
        "nonsense",
        COMPRESSED.format("br"),
        "the reply is compressed (br), which was not requested",
    ),
}
_FROM_THE_LIBRARY = re.compile(r"<\w+|\b400\b|b['\"]|␊")


@pytest.mark.parametrize("name", CASES)
async def test_a_step_without_an_answer_is_sent_once_and_ends_the_episode(name: str, server: RudeServer) -> None:
    case = CASES[name]
    server.handler = EnvironmentHandler(Maze, answer_with(case.reply))
    env = remote_maze(server)
    await env.reset()
    with pytest.raises(EnvironmentFault) as raised:
        await env.step(UP)
    error = str(raised.value)
    assert type(raised.value) is (ServerGone if case.env == "gone" else EnvironmentFault)
    assert not getattr(raised.value, "timed_out", False)
    assert error.startswith(f"Maze: POST {server.url}/maze/step {STEP}")
    assert case.env_text in error
    assert (PERHAPS_EXECUTED in error) == ("compressed" not in case.env_text)
    assert error.isprintable()
    assert "gold" not in error
    with pytest.raises(EnvironmentFault, match="call reset first"):
        await env.step(UP)
    await env.cleanup()
    assert operations(server) == ["create", "reset", "step", "close"]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("name", CASES)
async def test_a_model_without_an_answer_is_asked_once_before_the_next_one(
    name: str, stream: bool, server: RudeServer, fallback: RudeServer
) -> None:
    case = CASES[name]
    server.handler = answer_with(case.reply)
    inference = await infer(inference_manager(server.url, fallback.url, stream=stream, timeout_sec=20))
    assert (inference.message["content"], inference.usage.endpoint) == ("up", "b")
    (warning,) = inference.usage.warnings
    assert warning.startswith("a: ")
    assert case.model_text in warning
    assert warning.isprintable()
    assert not _FROM_THE_LIBRARY.search(warning), warning
    assert (chats(server), chats(fallback)) == (1, 1)


@pytest.mark.parametrize("name", CASES)
async def test_the_only_model_is_asked_three_times(name: str, server: RudeServer) -> None:
    case = CASES[name]
    server.handler = answer_with(case.reply)
    manager = inference_manager(server.url, virtual_time=VirtualTime(), model="small")
    with pytest.raises(InferenceFault) as raised:
        await infer(manager)
    assert str(raised.value).startswith(f"no model answered; a ({server.url}, model small): ")
    assert case.model_text in str(raised.value)
    assert chats(server) == 3
    server.handler = answer_with(case.reply, GOOD)
    manager = inference_manager(server.url, virtual_time=VirtualTime())
    assert (await infer(manager)).message["content"] == "up"
    assert chats(server) == 5


ACCEPTED: dict[str, Reply] = {
    "20 KB of headers": Reply(with_headers(20, 1000), "keep"),
    "a header of 20 KB": Reply(with_headers(1, 20_000), "keep"),
    "a header of 60 KB": Reply(with_headers(1, 60_000), "keep"),
    "headers that are no text": Reply(lambda body: whole(body, b"X: \xff\xfe\r\n"), "keep"),
    "no reason": Reply(lambda body: whole(body).replace(b" OK", b""), "keep"),
    "the encoding identity": Reply(lambda body: whole(body, b"Content-Encoding: Identity\r\n"), "keep"),
    "chunks of one byte": Reply(
        lambda body: CHUNKED + b"".join(chunk(body[at : at + 1]) for at in range(len(body))) + LAST_CHUNK, "keep"
    ),
    "an extension and a trailer": Reply(
        lambda body: CHUNKED + chunk(body).replace(b"\r\n", b";a=b\r\n", 1) + b"0\r\nX-T: 1\r\n\r\n", "keep"
    ),
    "a body that ends with its connection": Reply(lambda body: HEAD + b"\r\n" + body),
    "HTTP/1.0": Reply(lambda body: HEAD.replace(b"1.1", b"1.0") + b"\r\n" + body),
    "interim replies": Reply(
        lambda body: b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + whole(body), "keep"
    ),
}


@pytest.mark.parametrize("name", ACCEPTED)
async def test_an_unusual_reply_with_an_answer_is_accepted(name: str, server: RudeServer) -> None:
    server.handler = EnvironmentHandler(Maze, answer_with(ACCEPTED[name]))
    env = remote_maze(server)
    await env.reset()
    assert (await env.step(UP))[0][0]["content"] == "on"
    await env.cleanup()
    assert operations(server) == ["create", "reset", "step", "close"]
    server.reset(answer_with(ACCEPTED[name]))
    for stream in (False, True):
        inference = await infer(inference_manager(server.url, stream=stream))
        assert (inference.message["content"], inference.usage.warnings) == ("up", ())
    assert chats(server) == 2


REQUESTS = ["create", "reset", "observation", "step"]
"""The requests of an episode's start and first step, each on a connection of its own."""


@pytest.mark.parametrize("number", [1, 2, 4], ids=["create", "reset", "step"])
async def test_a_request_to_an_environment_that_was_not_read_is_not_sent_again(number: int, server: RudeServer) -> None:
    server.handler = EnvironmentHandler(Maze)
    server.unread = frozenset({number})
    env = remote_maze(server, timings=HttpTimings(keepalive_s=0.0))
    with pytest.raises(ServerGone, match=f"/{REQUESTS[number - 1]}.*{BROKE}.*{PERHAPS_EXECUTED}"):
        await env.reset()
        await env.step(UP)
    await env.cleanup()
    made = [request.path.rpartition("/")[2].partition("?")[0] for request in server.requests]
    assert made == [*REQUESTS[: number - 1], *["close"][: number - 1]]
    assert server.n_connections == number + (number > 1)


async def test_a_model_that_did_not_read_a_request_is_asked_again(server: RudeServer) -> None:
    server.handler = answer_with(GOOD)
    server.unread = frozenset({1})
    inference = await infer(inference_manager(server.url, virtual_time=VirtualTime()))
    assert (inference.message["content"], server.n_connections, chats(server)) == ("up", 2, 1)
    assert BROKE in inference.usage.warnings[0]


async def test_a_lost_question_about_an_instance_is_asked_once_more(server: RudeServer) -> None:
    served, n_checks = EnvironmentHandler(Maze), 0

    async def drop_first_check(request: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        nonlocal n_checks
        n_checks += "/observation?" in request.path
        if n_checks == 1 and "/observation?" in request.path:
            writer.close()
        else:
            await served(request, writer)

    server.handler = drop_first_check
    env = remote_maze(server)
    await env.reset()
    await env.step(UP)
    await env.cleanup()
    assert (n_checks, operations(server)) == (2, ["create", "reset", "step", "close"])


async def test_requests_forbid_compression_and_carry_no_cookie(server: RudeServer) -> None:
    with_cookie = Reply(lambda body: whole(body, b"Set-Cookie: id=7; Path=/\r\n"), "keep")
    server.handler = EnvironmentHandler(Maze, answer_with(with_cookie))
    env = remote_maze(server)
    await env.reset()
    for _ in range(2):
        await env.step(UP)
    await env.cleanup()
    steps = [request for request in server.requests if request.path.endswith("/step")]
    server.reset(answer_with(with_cookie))
    for _ in range(2):
        await infer(inference_manager(server.url))
    assert (len(steps), chats(server)) == (2, 2)
    for request in steps + server.requests:
        assert request.headers["accept-encoding"] == "identity"
        assert request.headers["content-type"] == "application/json"
        assert request.headers["host"] == server.url.removeprefix("http://")
        assert int(request.headers["content-length"]) == len(request.body) > 0
        assert not {"cookie", "transfer-encoding", "expect"} & request.headers.keys()


STALLS: dict[str, Callable[[bytes], bytes]] = {
    "no byte": lambda body: b"",
    "half of the headers": lambda body: HEAD,
    "all but the last byte": lambda body: whole(body)[:-1],
    "no last chunk": lambda body: CHUNKED + chunk(body),
}
LIMIT_S = 1.0


@pytest.mark.parametrize("name", STALLS)
async def test_a_step_whose_reply_stalls_ends_with_the_time_limit(name: str, server: RudeServer) -> None:
    server.handler = EnvironmentHandler(Maze, answer_with(Reply(STALLS[name], "keep")))
    env = remote_maze(server, LIMIT_S)
    await env.reset()
    with pytest.raises(ServerGone, match=f"{re.escape(STEP)}got no complete reply within 1 s") as raised:
        await env.step(UP)
    assert raised.value.timed_out
    await asyncio.to_thread(server.wait_closed, 1)
    await env.cleanup()
    assert operations(server) == ["create", "reset", "step", "close"]


@pytest.mark.parametrize("name", STALLS)
async def test_a_model_whose_reply_stalls_is_not_asked_again(name: str, server: RudeServer) -> None:
    server.handler = answer_with(Reply(STALLS[name], "keep"))
    with pytest.raises(InferenceFault, match=r"no complete answer within 1 s \(agent\.timeout_sec\)"):
        await infer(inference_manager(server.url, timeout_sec=LIMIT_S))
    await asyncio.to_thread(server.wait_closed, 1)
    assert (chats(server), server.n_connections) == (1, 1)


FIRST = chunk(sse_event(delta_chunk(content="half")))
FINISHED = chunk(sse_event(FINISH_CHUNK))
StreamEnd: TypeAlias = tuple[bytes, End]


def stream(end: StreamEnd, may_end: threading.Event) -> Handler:
    """Return a handler that streams one part of an answer, and its end once the client has shown that part."""

    async def answer(request: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(CHUNKED_EVENTS + FIRST)
        await asyncio.to_thread(may_end.wait, 20)
        writer.write(end[0])
        await end_reply(writer, end[1])

    return answer


class Viewer:
    """What a viewer sees; ``has_part`` is set by the first part of an answer."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.has_part = threading.Event()

    def show(self, delta: StreamDelta) -> None:
        self.seen.append(describe_delta(delta))
        if delta.text:
            self.has_part.set()


BROKEN_STREAMS: dict[str, tuple[StreamEnd, str]] = {
    "closed": ((b"", "close"), BROKE),
    "reset": ((b"", "reset"), BROKE),
    "half a chunk": ((FINISHED[:-9], "close"), BROKE),
    "a broken chunk": ((b"zz\r\n", "keep"), BROKE),
    "an end without a finish": ((LAST_CHUNK, "close"), "ended in the middle"),
    "silence": ((b"", "keep"), "silent for 1 s after 1 part of its answer (agent.idle_timeout_sec)"),
}


@pytest.mark.parametrize("name", BROKEN_STREAMS)
async def test_a_part_of_a_streamed_answer_is_discarded_for_the_next_model(
    name: str, server: RudeServer, fallback: RudeServer
) -> None:
    (end, cause), viewer = BROKEN_STREAMS[name], Viewer()
    server.handler = stream(end, viewer.has_part)
    manager = inference_manager(server.url, fallback.url, stream=True, idle_timeout_sec=LIMIT_S)
    inference = await infer(manager, on_delta=viewer.show)
    assert (inference.message["content"], inference.usage.endpoint) == ("up", "b")
    (warning,) = inference.usage.warnings
    assert warning.startswith("a: ")
    assert cause in warning
    assert viewer.seen[:2] == ["? a", "half"]
    assert viewer.seen[2].startswith("< a: ")
    assert viewer.seen[3] == "? b"
    assert (chats(server), chats(fallback)) == (1, 1)
    await asyncio.to_thread(server.wait_closed, 1)


@pytest.mark.parametrize("end", [(b"", "close"), (b"", "reset"), (b"zz\r\n", "keep"), (LAST_CHUNK, "keep")])
async def test_a_finished_answer_is_accepted_however_its_stream_ends(end: StreamEnd, server: RudeServer) -> None:
    viewer = Viewer()
    last = sse_event(b"[DONE]")
    server.handler = stream((FINISHED + chunk(last) + end[0], end[1]), viewer.has_part)
    inference = await infer(inference_manager(server.url, stream=True), on_delta=viewer.show)
    assert (inference.message["content"], inference.usage.warnings) == ("half", ())
    assert chats(server) == 1


CANCELLED: dict[str, Callable[[bytes], bytes]] = {
    "before the reply": lambda body: b"",
    "after the headers": lambda body: CHUNKED_EVENTS,
    "in the body": lambda body: CHUNKED_EVENTS + FIRST,
}


@pytest.mark.parametrize("when", CANCELLED)
async def test_a_cancelled_question_to_a_model_closes_its_connection(when: str, server: RudeServer) -> None:
    viewer, reached = Viewer(), threading.Event()
    first = answer_with(Reply(CANCELLED[when], "keep"), GOOD)

    async def answer(request: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        await first(request, writer)
        reached.set()

    server.handler = answer
    session = inference_manager(server.url, stream=True).session(episode_header())
    asking = asyncio.create_task(infer(session, on_delta=viewer.show))
    awaited = viewer.has_part if when == "in the body" else reached
    assert await asyncio.to_thread(awaited.wait, 20)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await asyncio.to_thread(server.wait_closed, 1)
    inference = await infer(session)
    assert (inference.message["content"], inference.usage.warnings) == ("up", ())
    assert (chats(server), server.n_connections) == (2, 2)


@pytest.mark.parametrize("sent", [b"", CHUNKED + chunk(STEP_ANSWER)], ids=["before the reply", "in the body"])
async def test_a_cancelled_step_closes_its_connection_and_is_not_sent_again(sent: bytes, server: RudeServer) -> None:
    reached = threading.Event()
    stalled = answer_with(Reply(lambda body: sent, "keep"))

    async def answer(request: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        await stalled(request, writer)
        reached.set()

    server.handler = EnvironmentHandler(Maze, answer)
    env = remote_maze(server)
    await env.reset()
    stepping = asyncio.create_task(env.step(UP))
    assert await asyncio.to_thread(reached.wait, 20)
    stepping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stepping
    await asyncio.to_thread(server.wait_closed, 1)
    with pytest.raises(EnvironmentFault, match="call reset first"):
        await env.step(UP)
    await env.cleanup()
    assert (operations(server), server.n_connections) == (["create", "reset", "step", "close"], 2)
