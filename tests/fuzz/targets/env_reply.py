"""Replies of an environment's server, from its greeting to the end of an episode.

The input is a line with the environment and the mode, then one line ``STATUS CONTENT-TYPE BODY`` per reply.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from unittest.mock import patch

import msgspec

from runner.envs.http.client import RemoteInstance
from runner.envs.http.dialects import dialect_for, http_names
from runner.envs.http.environment import HttpEnvironment
from runner.envs.http.response import ServerRequest, ServerResponse
from runner.envs.http.server import ServerAddress, identify_server
from runner.errors import EnvironmentFault
from runner.types import Action, Chat
from tests.fuzz.oracles import SECRET, check_displayable, check_masked, event_loop, secret_environment

TOKENS = (
    *(name.encode() for name in http_names()),
    b"createEnv",
    b"\n200 application/json {}",
    b"\n500 text/plain ",
    b'"error":',
    b'"detail":[{"loc":["body"],"msg":"m"}]',
    b'"available_actions":["a"]',
    b'"has_search_bar":true,"clickables":["a"]',
    b'"truncated":true',
)
MAX_REPLIES = 12


def check(data: bytes) -> None:
    head, *lines = data.split(b"\n")
    env, _, mode = head.decode("ascii", "replace").partition(" ")
    replies = [_response(line) for line in lines[:MAX_REPLIES]]
    if replies and replies[0].body:
        _check_identity(env, replies[0].body)
    if dialect_for(env) is None and not (mode == "createEnv" and env.isprintable()):
        return
    with secret_environment(), patch.object(RemoteInstance, "_exchange", _Server(replies).exchange):
        event_loop().run_until_complete(_play(env, mode))


def _response(line: bytes) -> ServerResponse:
    status, _, rest = line.partition(b" ")
    content_type, _, body = rest.partition(b" ")
    number = int(status) if status.isdigit() and len(status) == 3 else 200
    return ServerResponse(number, content_type.decode("latin-1"), body)


class _Server:
    """Replies in place of the network: a socket would make each input a hundred times slower.

    ``/observation`` repeats the latest reply.
    """

    def __init__(self, replies: list[ServerResponse]) -> None:
        self._replies: Iterator[ServerResponse] = iter(replies)
        self._latest = ServerResponse(404, "", b"")

    async def exchange(self, request: ServerRequest) -> ServerResponse:
        assert request.body is None or msgspec.json.decode(request.body) is not None
        if "/observation?" not in request.url:
            self._latest = next(self._replies, ServerResponse(404, "", b""))
        return self._latest


async def _play(env: str, mode: str) -> None:
    address = ServerAddress(
        f"http://user:{SECRET}@127.0.0.1:1",
        lists_actions=mode == "admissible",
        dialect="createEnv" if mode == "createEnv" else "env",
    )
    environment = HttpEnvironment(env=env, address=address, mode="compat" if mode == "compat" else "strict")
    try:
        _check_chat(await environment.reset(task_index=3))
        while True:
            actions = environment.admissible_actions()
            listed = actions if isinstance(actions, list) or actions is None else await actions
            assert listed is None or all(isinstance(each, str) for each in listed)
            chat, reward, done = await environment.step(Action((listed or ["look"])[0]))
            _check_chat(chat)
            assert math.isfinite(reward) and isinstance(done, bool)
            assert isinstance(environment.truncated, bool) and environment.get_episode_id()
    except EnvironmentFault as fault:
        check_masked(str(fault))
        check_displayable(str(fault))
    finally:
        await environment.cleanup()


def _check_chat(chat: Chat) -> None:
    for message in chat:
        assert message["role"] in ("user", "tool") and isinstance(message["content"], str)


def _check_identity(env: str, body: bytes) -> None:
    try:
        greeting = msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        greeting = None
    identity = identify_server(env, greeting)
    check_displayable(identity.env)
    check_displayable(identity.label)
