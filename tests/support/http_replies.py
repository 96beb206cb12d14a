"""Replies of a rude server as data, for every HTTP client of ours: the bytes around a good answer, and what follows."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal, NamedTuple

from tests.support.rude_env_server import Handler, ReceivedRequest, RudeServer
from tests.support.rude_model import USAGE, chat_completion

STEP_ANSWER = json.dumps(
    {"observation": "on", "reward": 0, "done": False, "info": {"ground_truth": "SELECT gold"}}
).encode()
MODEL_ANSWER = json.dumps(chat_completion({"role": "assistant", "content": "up"}, usage=USAGE)).encode()
CHAT_PATH = "/chat/completions"

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
CHUNKED_EVENTS = CHUNKED.replace(b"application/json", b"text/event-stream")
LAST_CHUNK = b"0\r\n\r\n"

End = Literal["keep", "close", "reset"]


class Reply(NamedTuple):
    """What a server sends, given the JSON of a good answer, and what it does with the connection then."""

    write: Callable[[bytes], bytes]
    end: End = "close"


def whole(body: bytes, headers: bytes = b"") -> bytes:
    return HEAD + headers + b"Content-Length: %d\r\n\r\n" % len(body) + body


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


GOOD = Reply(whole, "keep")


def answer_with(*replies: Reply) -> Handler:
    """Return a handler of an environment's steps, or of a model's chats, with one reply each; the last one repeats."""
    script = list(replies)

    async def answer(request: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        reply = script.pop(0) if len(script) > 1 else script[0]
        writer.write(reply.write(MODEL_ANSWER if request.path.endswith(CHAT_PATH) else STEP_ANSWER))
        await end_reply(writer, reply.end)

    return answer


async def end_reply(writer: asyncio.StreamWriter, end: End) -> None:
    """End a connection, by ``reset`` as the kernel of a killed server may: with RST in place of FIN."""
    await writer.drain()
    if end == "close":
        writer.close()
    elif end == "reset":
        linger = (1).to_bytes(4, "little") + (0).to_bytes(4, "little")
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.transport.abort()


def chats(server: RudeServer) -> int:
    """Return how often a model was asked."""
    return sum(request.path.endswith(CHAT_PATH) for request in server.requests)


def operations(server: RudeServer) -> list[str]:
    """Return the requests to an environment except the checks before its steps."""
    return [each.path.rpartition("/")[2] for each in server.requests if "/observation?" not in each.path]


@contextmanager
def refusing_port() -> Iterator[int]:
    """Yield a port that refuses connections and that no other program gets meanwhile."""
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))
        port: int = unheard.getsockname()[1]
        yield port
