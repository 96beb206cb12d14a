"""A model server whose rules are data: what it refuses in which words, what it wants back, how it streams and fails.

Its answers count up (``tests.support.fakes.Counter``), by a tool call where the request has tools, and each bears its
number and the name of its server, so that the server knows its own turns in a chat again.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec

from tests.support.rude_model import (
    USAGE,
    Behavior,
    Request,
    RudeModel,
    chat_completion,
    delta_chunk,
    http_response,
    sse_event,
)
from tests.support.server_wordings import Part, Wording

Form: TypeAlias = Literal["error", "string", "detail", "message", "list", "plain", "problems"]
"""The body of a refusal; ``problems`` is FastAPI's list, which quotes the request."""
Streaming: TypeAlias = Literal["whole", "streamed", "pieces"]
Reasoning: TypeAlias = Literal["", "reasoning_content", "reasoning", "<think>"]
Json: TypeAlias = dict[str, Any]

SHARED_FIELDS = {"role", "content", "tool_calls", "tool_call_id"}
CALL_FIELDS = {"id", "type", "function"}
REASONING_FIELDS = ("reasoning_content", "reasoning")
SIGNED_FIELDS = ("reasoning_details", "signature")
TRANSIENT = Wording("any", 500, "The server had an error while processing your request. Sorry about that!")
_MARK = re.compile(r"turn (\d+) of (\w+)")
_NINE = re.compile(r"[A-Za-z0-9]{9}")


class Refusal(NamedTuple):
    part: Part
    wording: Wording


class Context(NamedTuple):
    tokens: int
    chars_per_token: float
    wording: Wording


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """The rules of a server.

    Attributes:
        refusals: what it refuses, in the order in which it looks at a request.
        form: the body of its refusals.
        quotes_key: whether refusals quote the key of the request.
        streaming: how it answers a request for a stream: in one body, in one chunk, or in many pieces.
        reasoning: field of its reasoning; ``<think>``: in the text.
        signs: whether its messages and calls have fields of its own that have to come back.
        ids: its ids of calls: ``nine`` and ``none``: it takes no ids but those of nine letters and digits.
        has_bare_calls: whether its tool calls come without a text.
        failing: numbers of the requests, from 1, that fail, and would not if they were sent again.
        end: number of answers after which it refuses all, and how.
    """

    refusals: tuple[Refusal, ...] = ()
    form: Form = "error"
    quotes_key: bool = False
    streaming: Streaming = "streamed"
    reasoning: Reasoning = ""
    signs: bool = False
    ids: Literal["long", "nine", "none"] = "long"
    has_bare_calls: bool = False
    context: Context | None = None
    failing: frozenset[int] = frozenset()
    end: tuple[int, Wording] | None = None

    @property
    def parts(self) -> set[Part]:
        return {refusal.part for refusal in self.refusals}


class Received(NamedTuple):
    """A request; ``cause`` of its refusal: a part, ``failing``, ``context`` or ``end``; "" if it was answered."""

    body: Json
    headers: dict[str, str]
    cause: str

    @property
    def chat(self) -> list[Json]:
        chat: list[Json] = self.body["messages"]
        return chat


class RuledModel(RudeModel):
    """Answers by its rules; ``violations`` lists what no request may have.

    Args:
        rules: the rules.
        name: name of the endpoint, one letter.
        key: the key that requests must have; None: none.
    """

    def __init__(self, rules: Rules, name: str = "a", key: str | None = None) -> None:
        super().__init__(b"")
        self.rules = rules
        self.received: list[Received] = []
        self.violations: list[str] = []
        self.answers: list[Json] = []
        self._name = name
        self._key = key
        self._lock = threading.Lock()

    def next_behavior(self, request: Request) -> Behavior:
        if request.method == "GET":
            return http_response(200, b'{"data": [{"id": "m"}]}')
        body = request.json()
        if not body.get("messages"):  # of a health check
            return http_response(400, b'{"error": {"message": "messages must not be empty"}}')
        with self._lock:
            cause, refused = self._refusal(body)
            self.received.append(Received(body, request.headers, cause))
            self.violations += self._violations(body, request.headers)
            if refused is not None:
                return self._refuse(refused, body)
            self.answers.append(answer := self._answer(bool(body.get("tools"))))
            return self._send(answer, streams=bool(body.get("stream")))

    @property
    def n_refused(self) -> int:
        return sum(each.cause != "" for each in self.received)

    def _refusal(self, body: Json) -> tuple[str, Wording | None]:
        rules = self.rules
        if rules.end is not None and len(self.answers) >= rules.end[0]:
            return "end", rules.end[1]
        if len(self.received) + 1 in rules.failing:
            return "failing", TRANSIENT
        present = set(self._present(body))
        for refusal in rules.refusals:
            if refusal.part in present:
                return refusal.part, refusal.wording
        if rules.context is not None and (given := _tokens(body, rules.context)) > rules.context.tokens:
            server, status, text = rules.context.wording
            return "context", Wording(server, status, text.format(limit=rules.context.tokens, given=given))
        return "", None

    def _present(self, body: Json) -> Iterator[Part]:
        """Yield what a request has, or lacks."""
        fields: tuple[Part, ...] = ("tools", "stream", "stream_options", "temperature")
        yield from (name for name in fields if body.get(name))
        if body.get("tools") and body.get("stream"):
            yield "stream with tools"
        if body.keys() & {"max_tokens", "max_completion_tokens"}:
            yield "max_tokens"
        if "max_tokens" in body:
            yield "old max_tokens"
        for message in body["messages"]:
            if message["role"] == "system":
                yield "system"
            if message["role"] != "assistant":
                continue
            if any(message.get(name) for name in REASONING_FIELDS):
                yield "reasoning"
            elif not message.get("reasoning_details") and self._own_answer(message) is not None:
                yield "missing reasoning"
                if message.get("tool_calls"):
                    yield "missing reasoning of calls"

    def _own_answer(self, message: Json) -> Json | None:
        """Return the answer of this server that a message of the chat was; None if another one wrote it."""
        ids = {call["id"] for call in message.get("tool_calls", ())}
        for answer in self.answers:
            mark = _MARK.search(answer["content"] or "")
            if mark is not None and mark[0] in (message["content"] or ""):
                return answer
            if ids & {call.get("id") for call in answer.get("tool_calls", ())}:
                return answer
        return None

    def _violations(self, body: Json, headers: dict[str, str]) -> Iterator[str]:
        if headers.get("authorization") != (f"Bearer {self._key}" if self._key else None):
            yield f"the key is {headers.get('authorization')}"
        chat = body["messages"]
        roles = [message["role"] for message in chat]
        yield from (f"two {one} in a row" for one, two in pairwise(roles) if one == two != "tool")
        for message in chat:
            if message.get("content") is None:
                yield "content is null"
            ids = [call["id"] for call in message.get("tool_calls", ())]
            if self.rules.ids != "long" and not all(map(_NINE.fullmatch, ids)):
                yield f"ids {ids}"
            if message["role"] != "assistant":
                continue
            own = self._own_answer(message)
            yield from _foreign_fields(message) if own is None else self._losses(own, message)

    def _losses(self, own: Json, message: Json) -> Iterator[str]:
        """Yield what is missing or wrong in a message that this server wrote."""
        if own.get("tool_calls") and not message.get("tool_calls"):
            return  # as text
        for call, sent in zip(message.get("tool_calls", ()), own.get("tool_calls", ()), strict=True):
            if call.get("extra_content") != sent.get("extra_content"):
                yield f"{call} lacks its signature"
            if "id" in sent and call["id"] != sent["id"]:
                yield f"{call} has another id than {sent['id']}"
        yield from (f"{message} lacks {name}" for name in SIGNED_FIELDS if message.get(name) != own.get(name))
        for name in REASONING_FIELDS:
            if message.get(name) not in (None, own.get(name)):
                yield f"{name} is {message[name]}"

    def _refuse(self, wording: Wording, body: Json) -> bytes:
        text = wording.text + f" Request with {self._key}." * self.rules.quotes_key
        return http_response(wording.status, error_body(self.rules.form, wording.status, text, body))

    def _answer(self, has_tools: bool) -> Json:
        rules, number = self.rules, len(self.answers)
        mark, thought = f"turn {number} of {self._name}", f"reasoning {number} of {self._name}"
        answer: Json = {"role": "assistant", "content": f"Thought: {mark}.\nAction: up"}
        if has_tools:
            call: Json = {"type": "function", "function": {"name": "up", "arguments": "{ }"}}
            if rules.ids != "none":
                call["id"] = f"{self._name}{number:08}" if rules.ids == "nine" else f"call_{self._name}_{number:08}"
            if rules.signs:
                call["extra_content"] = {"google": {"thought_signature": f"signature {number} of {self._name}"}}
            is_bare = rules.has_bare_calls and rules.ids != "none" and rules.reasoning != "<think>"
            answer |= {"content": None if is_bare else f"{mark}.", "tool_calls": [call]}
        if rules.reasoning == "<think>":
            answer["content"] = f"<think>{thought}</think>{answer['content']}"
        elif rules.reasoning:
            answer[rules.reasoning] = thought
        if rules.signs and rules.reasoning == "reasoning":  # as OpenRouter, which has the text there, too
            answer["reasoning_details"] = [{"type": "reasoning.text", "text": thought, "signature": f"for {mark}"}]
        elif rules.signs:
            answer["signature"] = f"signature of {mark}"
        return answer

    def _send(self, answer: Json, *, streams: bool) -> bytes:
        finish = "tool_calls" if "tool_calls" in answer else "stop"
        if not streams or self.rules.streaming == "whole":
            return http_response(200, json.dumps(chat_completion(answer, finish, usage=USAGE)).encode())
        chunks = [delta_chunk(**delta) for delta in _deltas(answer, in_pieces=self.rules.streaming == "pieces")]
        chunks += [{"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]}, {"choices": [], "usage": USAGE}]
        events = b"".join(map(sse_event, chunks)) + sse_event(b"[DONE]")
        return http_response(200, events, "text/event-stream")


def _deltas(answer: Json, *, in_pieces: bool) -> Iterator[Json]:
    calls = [{"index": index, **call} for index, call in enumerate(answer.get("tool_calls", ()))]
    if not in_pieces:
        yield {**answer, **({"tool_calls": calls} if calls else {})}
        return
    yield {"role": "assistant", "content": ""}
    for name in ("reasoning_content", "reasoning", "content"):
        text = answer.get(name) or ""
        yield from ({name: text[start : start + 7]} for start in range(0, len(text), 7))
    yield from ({name: answer[name]} for name in SIGNED_FIELDS if name in answer)
    for call in calls:
        yield {"tool_calls": [{**call, "function": {**call["function"], "arguments": ""}}]}
        for character in call["function"]["arguments"]:
            yield {"tool_calls": [{"index": call["index"], "function": {"arguments": character}}]}


def _foreign_fields(message: Json) -> Iterator[str]:
    """Yield what a message from another server has besides the fields that every server takes."""
    if foreign := message.keys() - SHARED_FIELDS:
        yield f"foreign fields {sorted(foreign)}"
    for call in message.get("tool_calls", ()):
        if foreign := call.keys() - CALL_FIELDS or call["function"].keys() - {"name", "arguments"}:
            yield f"foreign fields of a call {sorted(foreign)}"


def _tokens(body: Json, context: Context) -> int:
    return int(len(json.dumps([body["messages"], body.get("tools")])) / context.chars_per_token)


def error_body(form: Form, status: int, text: str, request: Json) -> bytes:
    bodies: dict[Form, object] = {
        "error": {"error": {"message": text, "type": "invalid_request_error", "param": None, "code": None}},
        "string": {"error": text},
        "detail": {"detail": text},
        "message": {"object": "error", "message": text, "type": "BadRequestError", "code": status},
        "list": [{"error": {"code": status, "message": text, "status": "INVALID_ARGUMENT"}}],
        "problems": {"detail": [{"type": "value_error", "loc": ["body"], "msg": text, "input": request}]},
    }
    return text.encode() if form == "plain" else json.dumps(bodies[form]).encode()
