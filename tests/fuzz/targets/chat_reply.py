"""A whole model reply, OpenAI-shaped, and the action that an agent finds in it."""

from __future__ import annotations

import itertools
import json
from typing import get_args

import msgspec

from runner.agents.model.react import Conversation, strip_thinking
from runner.agents.model.reply_parsing import ActionStyle
from runner.agents.model.reply_parsing import parse_reply as parse_action
from runner.config.profile import Capabilities
from runner.inference import chat_format
from runner.inference.chat_format import InferenceQuestion, ModelReply, flatten_tool_calls, request_body, sent_chat
from runner.inference.endpoints import Target
from runner.inference.errors import EndpointFailure
from runner.inference.tool_calls import MAX_TOOL_CALLS
from runner.types import Action, InvalidAction, Mode, ToolSchema
from runner.util.json_accessors import decode_json
from tests.fuzz.oracles import outcome

TOKENS = (
    b'{"choices":[{"message":{"role":"assistant","content":"',
    b'"tool_calls":[{"id":"c","function":{"name":"move","arguments":"{}"}}]',
    b'"reasoning_content":"',
    b"<think>",
    b"</think>",
    b"Action: ",
    b"```sql",
    b"```",
    b'move({\\"to\\": \\"left\\"})',
    b'{\\"function_name\\": \\"move\\", \\"arguments\\": {}}',
    b"\\ud800",
    b"[TOOL_CALLS]move[ARGS]",
    b"<function=move>",
    b"<parameter=to>",
    b"</function>",
    b"<tool_call>move",
    b"</tool_call>",
    b"<arg_key>to</arg_key><arg_value>",
    b"<|channel|>analysis<|message|>",
    b"to=functions.move",
    b"<|tool_call>call:move{to:",
    b"[move(to='left')]",
    b"**Action:**",
    b"<|im_end|>",
    b"Observation:",
)
STYLES: tuple[ActionStyle, ...] = ("once", "first", "last", "sql", "fence", "raw")
TOOLS: list[ToolSchema] = [{"type": "function", "function": {"name": "move", "parameters": {}}}]
TARGET = Target(kind="openai", url="http://127.0.0.1:1/v1/chat/completions", model="m")


def check(data: bytes) -> None:
    reply = outcome(lambda: chat_format.parse_reply(data), EndpointFailure)
    if isinstance(reply, ModelReply):
        check_reply(reply)


def check_reply(reply: ModelReply) -> None:
    """Check a parsed reply, the action in it, and that it can be sent again as part of a chat."""
    message = reply.message("a m")
    assert msgspec.json.decode(msgspec.json.encode(reply), type=ModelReply) == reply
    ids = [call["id"] for call in reply.tool_calls]
    assert len(set(ids)) == len(ids) <= MAX_TOOL_CALLS and all(ids)
    thought_through = strip_thinking(message)
    for style, mode in itertools.product(STYLES, get_args(Mode)):
        _check_action(parse_action(thought_through, style, TOOLS, as_calls=style == "last", mode=mode))
    conversation = Conversation()
    conversation.add_observation([{"role": "user", "content": "o"}])
    conversation.add_reply(thought_through, parse_action(thought_through, "last", TOOLS, as_calls=True))
    chat = [message, *conversation.opening, *(each for turn in conversation.turns for each in turn)]
    question = InferenceQuestion(messages=chat, tools=TOOLS)
    for capabilities in (Capabilities(), Capabilities(tools="text", system="folded", reasoning="all")):
        body = json.loads(request_body(question, TARGET, capabilities, sent_chat(question, capabilities, "a m")))
        assert [each["role"] for each in body["messages"]]
    assert not any("tool_calls" in each for each in flatten_tool_calls(chat))


def _check_action(action: Action | InvalidAction) -> None:
    if isinstance(action, InvalidAction):
        assert action.expected
        return
    assert bool(action.text) != bool(action.tool_calls)
    for call in action.tool_calls:
        assert isinstance(decode_json(call.arguments.encode()), dict)
    assert msgspec.json.decode(msgspec.json.encode(action), type=Action) == action
