"""Model replies parse into actions or invalid actions; no text breaks the parser."""

from __future__ import annotations

import json
from typing import Any, get_args

import pytest

from runner.agents.model.react import strip_thinking
from runner.agents.model.reply_parsing import ActionStyle, action_style, parse_action, parse_reply
from runner.types import Action, InvalidAction, Message, ToolCall, ToolSchema

STYLES: tuple[ActionStyle, ...] = get_args(ActionStyle)
TOOLS: list[ToolSchema] = [
    {"type": "function", "function": {"name": name, "description": "", "parameters": {"type": "object"}}}
    for name in ("move", "look")
]
LEFT = '{"to": "left"}'


def make_message(text: str | None, *calls: tuple[str, str]) -> Message:
    functions = [
        {"id": f"c{number}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for number, (name, arguments) in enumerate(calls)
    ]
    message: Message = {"role": "assistant", "content": text}
    if functions:
        message["tool_calls"] = functions
    return message


def parse(text: str | None, *calls: tuple[str, str], style: ActionStyle = "last") -> Action | InvalidAction:
    return parse_reply(make_message(text, *calls), style, TOOLS, as_calls=False)


@pytest.mark.parametrize(
    ("env", "style"),
    [
        ("BabyAI", "once"),
        ("TextCraft", "once"),
        ("Maze", "first"),
        ("Wordle", "first"),
        ("ALFWorld", "last"),
        ("SciWorld", "last"),
        ("WebShop", "last"),
        ("SQLGym", "sql"),
        ("webarena", "fence"),
        ("SearchQA", "raw"),
        ("movie", "raw"),
        ("gymnasium:Taxi-v3", "last"),
    ],
)
def test_each_environment_has_its_action_style(env: str, style: ActionStyle) -> None:
    assert action_style(env) == style


@pytest.mark.parametrize(
    ("style", "text", "action"),
    [
        ("once", "Thought:\nI do it.\n\nAction:\ngo to red ball 1", "go to red ball 1"),
        ("once", 'Action: "get 9 emerald".\nAs I need it.', "get 9 emerald"),
        ("once", "Action: get 9 emerald</s>", "get 9 emerald"),
        ("once", "Action: up\nAction: down", None),
        ("once", "Action:", None),
        ("once", "Action: !?", None),
        ("once", "up", None),
        ("first", "Thought: x\nAction:\nmove up\n", "move up"),
        ("first", "Action: move up</s>", "move up"),
        ("first", "Action: a\nAction: b", "a\nAction: b"),
        ("first", "move up", None),
        ("last", "Thought: Action: is due\nAction: search[red shoe]</s>", "search[red shoe]"),
        ("last", "no idea", None),
        ("last", "Action: \n", None),
        ("sql", "Action: ```sql\nSELECT 1\n```", "SELECT 1"),
        ("sql", "```sql\nSELECT 1\n```\nno:\n```SQL\nSELECT 2", "SELECT 2"),
        ("sql", "```sqlite\nSELECT 1\n```", "SELECT 1"),
        ("sql", "```sql\n\n```", None),
        ("sql", "SELECT 1", None),
        ("fence", "In summary ```click [12]``` or ```stop```", "```click [12]```"),
        ("fence", "``````", None),
        ("fence", "```click [12]", None),
        ("raw", " <search>x</search> ", "<search>x</search>"),
        ("raw", "\n", None),
    ],
)
def test_an_action_is_parsed_by_its_style(style: ActionStyle, text: str, action: str | None) -> None:
    assert parse_action(text, style) == action


@pytest.mark.parametrize(
    "text",
    [
        '{"thought": "go", "function_name": "move", "arguments": {"to": "left"}}',
        '{"name": "move", "arguments": {"to": "left"}}',
        '{"name": "move", "parameters": {"to": "left"}}',
        '{"name": "move", "arguments": "{\\"to\\": \\"left\\"}"}',
        '{"type": "function", "function": {"name": "move", "arguments": {"to": "left"}}}',
        'I go.\n```json\n{"name": "move",\n "arguments": {"to": "left"}}\n```\nDone.',
        '<tool_call>\n{"name": "move", "arguments": {"to": "left"}}\n</tool_call>',
        'Thought: not {this}\nAction: {"name": "move", "arguments": {"to": "left"}}',
        'Thought: go\nAction: move({"to": "left"})',
        'go\nmove({"to": "left"})',
        '{"thought": "two\nlines", "name": "move", "arguments": {"to": "left"}}',
    ],
)
def test_a_call_written_as_text_is_parsed(text: str) -> None:
    for style in STYLES:
        if style != "raw":
            assert parse(text, style=style) == Action(tool_calls=[ToolCall("call_0", "move", LEFT)]), style


@pytest.mark.parametrize(
    "text", ['{"to": "left"}', '{"name": "x"}', "{", '{"name": 1, "arguments": {}}', "[]", '{"function": "move"}', "{}"]
)
def test_other_json_is_not_a_call(text: str) -> None:
    assert isinstance(parse(text), InvalidAction)


def test_a_raw_action_is_not_searched_for_calls() -> None:
    text = '{"name": "move", "arguments": {"to": "left"}}'
    assert parse(text, style="raw") == Action(text=text)


def test_without_tools_there_are_no_calls() -> None:
    text = 'Action: {"name": "move", "arguments": {}}'
    assert parse_reply(make_message(text), "last", [], as_calls=False) == Action(
        text='{"name": "move", "arguments": {}}'
    )


def test_native_calls_take_precedence_over_text() -> None:
    answer = parse("Action: look", ("move", LEFT), ("look", "{}"))
    assert answer == Action(tool_calls=[ToolCall("c0", "move", LEFT), ToolCall("c1", "look", "{}")])


def test_an_unknown_tool_is_left_to_the_environment() -> None:
    assert parse(None, ("fly", "{}")) == Action(tool_calls=[ToolCall("c0", "fly", "{}")])
    assert parse('{"name": "fly", "arguments": {}}') == Action(tool_calls=[ToolCall("call_0", "fly", "{}")])


@pytest.mark.parametrize("arguments", ["{to: left", "[1]", "null", '"left"', "{" * 5000])
def test_unparsable_arguments_are_an_invalid_action(arguments: str) -> None:
    answer = parse(None, ("move", arguments))
    assert isinstance(answer, InvalidAction)
    assert answer == InvalidAction(f"move({arguments})", "the arguments of move as a JSON object")
    assert isinstance(parse(json.dumps({"name": "move", "arguments": arguments})), InvalidAction)


def test_later_calls_count_only_with_readable_arguments() -> None:
    answer = parse(None, ("move", LEFT), ("look", "{"), ("look", "{}"))
    assert answer == Action(tool_calls=[ToolCall("c0", "move", LEFT), ToolCall("c2", "look", "{}")])


def test_invalid_actions_name_the_expected_form() -> None:
    assert parse("hm") == InvalidAction("hm", 'a line "Action: <action>"')
    without_call = parse_reply(make_message(None), "once", TOOLS, as_calls=True)
    assert without_call == InvalidAction("", 'one tool call, or exactly one line "Action: <action>"')


@pytest.mark.parametrize(
    ("message", "content", "reasoning"),
    [
        ({"content": "<think>hm</think>\nAction: up"}, "Action: up", "hm"),
        ({"content": "<think>Action: down"}, "", "Action: down"),
        ({"content": "Action: down</think>Action: up"}, "Action: up", "Action: down"),
        ({"content": "a <THINK>x</Think> b <thinking>y</thinking> c"}, "a  b  c", "x\ny"),
        ({"content": "up", "reasoning_content": "hm"}, "up", "hm"),
        ({"content": "<think>b</think>up", "reasoning_content": "a"}, "up", "a\nb"),
        ({"content": None, "tool_calls": [{"id": "c"}]}, "", None),
        ({"content": "<think>a</think>", "tool_calls": [{"id": "c"}]}, "", "a"),
        ({"content": None}, "", None),
    ],
)
def test_thinking_is_separated_from_the_answer(message: Any, content: str | None, reasoning: str | None) -> None:  # noqa: ANN401
    reply = strip_thinking(message | {"role": "assistant"})
    assert (reply["content"], reply.get("reasoning_content")) == (content, reasoning)
    assert reply.get("tool_calls") == message.get("tool_calls")
