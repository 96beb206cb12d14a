"""Requests to the test model's server, whose replies our client has to understand; the input is the body."""

from __future__ import annotations

from functools import cache

import msgspec
from starlette.types import ASGIApp

from runner.inference.chat_format import ModelReply, parse_reply
from runner.inference.errors import EndpointFailure, response_failure
from runner.inference.sse import EventParser, StreamAccumulator
from runner.serve.mock_llm.app import ModelApp
from tests.fuzz import asgi
from tests.fuzz.oracles import check_displayable, event_loop, outcome
from tests.fuzz.targets.chat_reply import check_reply

TOKENS = (
    b'{"model":"agentgym-test-model","messages":[{"role":"user","content":"a"}]}',
    b'"model":"test-echo"',
    b'"stream":true',
    b'"stream_options":{"include_usage":true}',
    b'"tools":[{"function":{"name":"move"}}]',
    b'"tool_choice":"none"',
    b'"model":"oracle/Maze/3"',
)
FAULT_FIELD = b"agentgym_test_fault"
"""Selects delays and broken replies, which are no errors here."""


def check(data: bytes) -> None:
    if FAULT_FIELD in data:
        return
    status, body = event_loop().run_until_complete(asgi.send(_app(), "POST", b"/v1/chat/completions", data))
    assert status in (200, 400, 404, 415), (status, body)
    if status != 200:
        assert msgspec.json.decode(body) and response_failure(status, body, str).status == status
        check_displayable(str(response_failure(status, body, str)))
        return
    reply = outcome(lambda: _read(body), EndpointFailure)
    if isinstance(reply, ModelReply):
        check_reply(reply)
    else:
        assert str(reply) == "the reply is empty", reply


@cache
def _app() -> ASGIApp:
    return ModelApp().asgi_app()


def _read(body: bytes) -> ModelReply:
    if not body.startswith(b"data:"):
        return parse_reply(body)
    accumulator = StreamAccumulator(lambda: 1.0)
    for event in EventParser().feed(body):
        accumulator.add(event)
    return accumulator.result()
