"""Replies in the dialects of models, from a file of samples; compat mode and unlisted forms keep AgentGym's rules."""

from __future__ import annotations

import json
import re
import warnings
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.agents.model.dialects import CALL_DIALECTS, END_TOKENS, THINKING, CallDialect, read_dialect, tool_parameters
from runner.agents.model.react import Conversation, strip_thinking
from runner.agents.model.reply_parsing import ActionStyle, parse_action, parse_reply
from runner.types import Action, InvalidAction, Message, Mode, ToolCall, ToolSchema
from tests.support.examples import examples

STYLES: tuple[ActionStyle, ...] = get_args(ActionStyle)
SAMPLES: list[dict[str, Any]] = [
    json.loads(line)
    for line in Path(__file__).with_name("dialect_samples.jsonl").read_text(encoding="utf-8").splitlines()
]


def make_tool(name: str, **parameters: object) -> ToolSchema:
    properties = {key: {"type": kind} for key, kind in parameters.items()}
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": properties}}}


TOOLS = [
    make_tool("move", direction="string"),
    make_tool("look"),
    make_tool("get", count="integer", item="string"),
    make_tool("search", keywords="string"),
]


def make_message(text: str | None, *calls: tuple[str, str]) -> Message:
    message: Message = {"role": "assistant", "content": text}
    if calls:
        message["tool_calls"] = [
            {"id": "c", "type": "function", "function": {"name": name, "arguments": arguments}}
            for name, arguments in calls
        ]
    return message


def parse(message: Message, style: ActionStyle = "last", mode: Mode = "strict") -> Action | InvalidAction:
    return parse_reply(strip_thinking(message, mode), style, TOOLS, as_calls=True, mode=mode)


def message_of(sample: dict[str, Any]) -> Message:
    return make_message(sample["text"], *([tuple(sample["native"])] if "native" in sample else []))


@pytest.mark.parametrize("sample", SAMPLES, ids=[f"{n}-{sample['family']}" for n, sample in enumerate(SAMPLES)])
def test_a_sample_is_read_as_what_the_model_meant(sample: dict[str, Any]) -> None:
    message = message_of(sample)
    answer = parse(message, sample.get("style", "last"))
    if "call" in sample:
        assert isinstance(answer, Action)
        (call,) = answer.tool_calls
        assert [call.name, json.loads(call.arguments)] == sample["call"]
    elif sample["action"] is None:
        assert isinstance(answer, InvalidAction)
    else:
        assert answer == Action(text=sample["action"])
    assert strip_thinking(message).get("reasoning_content") == sample.get("thought")


def test_the_samples_cover_every_dialect() -> None:
    tools = tool_parameters(TOOLS)
    texts = [sample["text"] for sample in SAMPLES if sample.get("text") and "call" in sample]
    assert len(SAMPLES) > 100
    for dialect in CALL_DIALECTS[:6] + CALL_DIALECTS[7:]:
        assert any(read_dialect(dialect, text, tools) for text in texts), dialect.name


@pytest.mark.parametrize("dialect", CALL_DIALECTS, ids=lambda dialect: dialect.name)
def test_the_sample_of_the_table_is_in_its_dialect(dialect: CallDialect) -> None:
    call = read_dialect(dialect, dialect.sample, tool_parameters(TOOLS))
    assert call and (call.name, json.loads(call.arguments)) == ("move", {"direction": "right"})
    assert parse(make_message(dialect.sample)) == Action(tool_calls=[ToolCall("call_0", "move", call.arguments)])


@pytest.mark.parametrize(
    "sample", [sample for sample in SAMPLES if "native" in sample], ids=lambda sample: sample["native"][0]
)
def test_compat_mode_leaves_native_calls_as_they_are(sample: dict[str, Any]) -> None:
    name, arguments = sample["native"]
    answer = parse(message_of(sample), mode="compat")
    if arguments.startswith('"'):
        assert answer == InvalidAction(f"{name}({arguments})", f"the arguments of {name} as a JSON object")
    else:
        assert answer == Action(tool_calls=[ToolCall("c", name, arguments)])


@pytest.mark.parametrize(
    ("style", "text", "action"),
    [
        ("last", "**Action:** move right", "** move right"),
        ("last", "Action: move right\nObservation: x", "move right\nObservation: x"),
        ("last", "Action: move right<|im_end|>", "move right<|im_end|>"),
        ("last", "Action: `move right`", "`move right`"),
        ("last", 'Action: move(direction="right")', 'move(direction="right")'),
        ("once", "Action: move right<|im_end|>", "move rightimend"),
        ("last", "Action：move right", None),
        ("last", "**Action**: move right", None),
        ("last", "<function=move>\n<parameter=direction>right</parameter>\n</function>", None),
        ("last", "[THINK]Action: a[/THINK]Action: b", "b"),
        ("first", "[THINK]Action: a[/THINK]", "a[/THINK]"),
    ],
)
def test_compat_mode_has_only_the_rules_of_agentgym(style: ActionStyle, text: str, action: str | None) -> None:
    message = make_message(text)
    assert strip_thinking(message, "compat") == message
    answer = parse(message, style, "compat")
    assert (answer.text if isinstance(answer, Action) else None) == action == parse_action(text, style)
    assert not isinstance(answer, Action) or not answer.tool_calls


def test_the_stored_reply_stays_what_the_model_sent() -> None:
    text = "**Action:** move right<|im_end|>"
    reply = strip_thinking(make_message(text))
    conversation = Conversation()
    conversation.add_reply(reply, parse(make_message(text)))
    assert reply["content"] == text == conversation.turns[0][0]["content"]


def test_a_name_with_decorations_that_is_a_tool_itself_is_kept() -> None:
    tools = [make_tool("move"), make_tool("functions.move"), make_tool("move:0")]
    for name in ("functions.move", "move:0", "move"):
        answer = parse_reply(make_message(None, (name, "{}")), "last", tools, as_calls=True)
        assert answer == Action(tool_calls=[ToolCall("c", name, "{}")])


def test_arguments_are_decoded_only_once_more() -> None:
    thrice = json.dumps(json.dumps(json.dumps({"direction": "right"})))
    assert isinstance(parse(make_message(None, ("move", thrice))), InvalidAction)
    assert isinstance(parse(make_message(None, ("move", json.dumps("right")))), InvalidAction)


@pytest.mark.parametrize(
    ("source", "arguments"),
    [
        ("count=2, item='oak logs'", {"count": 2, "item": "oak logs"}),
        ("2, 'oak logs'", {"count": 2, "item": "oak logs"}),
        ('2,\n    item="a (b",\n', {"count": 2, "item": "a (b"}),
        (r"item='\d\'\n'", {"item": "\\d'\n"}),
        ("item=[1, -2.5, None, True, {'a': ('b',)}]", {"item": [1, -2.5, None, True, {"a": ["b"]}]}),
        ("1, 2, 3", None),
        ("item=item", None),
        ("item=f'{1}'", None),
        ("item=b'x'", None),
        ("item=1if 1 else 2", None),
        ("item=().__class__", None),
        ("item=__import__('os')", None),
        ("**{'item': 1}", None),
        ("item=1e999", None),
        ("item=1, item=2", None),
        ("item=" + "9" * 5000, None),
        ("item=" + "[" * 5000 + "]" * 5000, None),
        ("item=" + "-" * 5000 + "1", None),
        ("item='\0'", None),
    ],
)
def test_python_calls_have_literal_arguments(source: str, arguments: object) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        answer = parse(make_message(f"[get({source})]"))
    if arguments is None:
        assert isinstance(answer, InvalidAction)
    else:
        assert isinstance(answer, Action)
        assert json.loads(answer.tool_calls[0].arguments) == arguments


WORDS = st.from_regex(r"[a-z][a-z0-9_]{0,11}", fullmatch=True)
TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), max_size=20).filter(
    lambda text: not any(mark in text for mark in ("<", "Action", "：")) and text == text.strip()
)
SCALARS = TEXTS | st.integers(-(2**53), 2**53) | st.booleans() | st.floats(allow_nan=False, allow_infinity=False)
TYPES = {str: "string", int: "integer", bool: "boolean", float: "number"}


def in_tags(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def render(dialect: str, name: str, arguments: dict[str, Any]) -> str:
    encoded = json.dumps(arguments, ensure_ascii=False)
    match dialect:
        case "JSON":
            return f'<tool_call>\n{{"name": "{name}", "arguments": {encoded}}}\n</tool_call>'
        case "<function=…> with <parameter=…>":
            tags = [f"<parameter={key}>\n{in_tags(value)}\n</parameter>\n" for key, value in arguments.items()]
            return f"<tool_call>\n<function={name}>\n{''.join(tags)}</function>\n</tool_call>"
        case "<arg_key> and <arg_value>":
            tags = [
                f"<arg_key>{key}</arg_key>\n<arg_value>{in_tags(value)}</arg_value>\n"
                for key, value in arguments.items()
            ]
            return f"<tool_call>{name}\n{''.join(tags)}</tool_call>"
        case "<invoke name=…>":
            tags = [f'<parameter name="{key}">{in_tags(value)}</parameter>\n' for key, value in arguments.items()]
            return f'<invoke name="{name}">\n{"".join(tags)}</invoke>'
        case "call:name{…}":
            quoted = [
                f'{key}:<|"|>{value}<|"|>' if isinstance(value, str) else f"{key}:{json.dumps(value)}"
                for key, value in arguments.items()
            ]
            return f"<|tool_call>call:{name}{{{','.join(quoted)}}}<tool_call|>"
        case "Python":
            return f"[{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})]"
    sample = next(each.sample for each in CALL_DIALECTS if each.name == dialect)
    return sample.replace("move", name).replace('{"direction": "right"}', encoded)


@settings(max_examples=examples(200), deadline=None)
@given(
    st.sampled_from([dialect.name for dialect in CALL_DIALECTS]),
    WORDS,
    st.dictionaries(WORDS.map("a_{}".format), SCALARS, max_size=4),
    st.sampled_from(["", "I go on.\n", "{so}\n", "Thought: on\nAction: "]),
    st.sampled_from(["", *END_TOKENS]),
)
def test_a_rendered_call_is_read_back(
    dialect: str, name: str, arguments: dict[str, Any], before: str, after: str
) -> None:
    tool = make_tool(f"t_{name}", **{key: TYPES[type(value)] for key, value in arguments.items()})
    text = render(dialect, f"t_{name}", arguments)
    before = "" if dialect in ("Action Input", "name, then JSON in the next line") else before
    answer = parse_reply(make_message(before + text + after), "last", [tool], as_calls=True)
    assert isinstance(answer, Action), before + text
    (call,) = answer.tool_calls
    assert (call.name, json.loads(call.arguments)) == (f"t_{name}", arguments)


PLAIN = st.lists(
    st.sampled_from(["Action:", "Thought:", "action", "move", "right", "[x]", "\n", " ", '"', ".", "</s>", "```sql\n"])
    | st.text(st.characters(codec="utf-8", exclude_characters="`*_<：("), max_size=5),
    max_size=12,
).map("".join)


@settings(max_examples=examples(300), deadline=None)
@given(PLAIN, st.sampled_from(STYLES))
def test_a_text_without_a_dialect_is_parsed_by_the_rules_of_agentgym(text: str, style: ActionStyle) -> None:
    text = re.sub(r"</s>\s*(?=</s>)", "", text.replace("Observation", ""))
    expected = parse_action(text, style)
    for mode in get_args(Mode):
        answer = parse_reply(make_message(text), style, TOOLS, as_calls=False, mode=mode)
        assert (answer.text if isinstance(answer, Action) else None) == expected, mode


LENGTH = 1 << 17
CUT = [dialect.sample[: len(dialect.sample) * quarter // 4] for dialect in CALL_DIALECTS for quarter in (1, 2, 3)]
PARTS = [
    *CUT,
    *("<|im_end|>", "</s>", "<|", "**Action", "`Action: ", "Action：", "\nObservation", "Observation: "),
    *("analysis", "[THINK]", "<|channel|>analysis", "<|channel|>analysis<|end|>", "assistantfinal", "<think>[/THINK]"),
    *('{"x":[', '{"name": "move", "arguments": {', "{ ", '{"', "\\", '"', "'", '\\"', "[move(", "move('", "to="),
    *("to=json", "to=move json ", ":", "`", "*", "_", "\n", " ", "<function=move>{", "<tool_call>move<"),
    *(
        "<tool_call>move<arg_key>",
        "Action:",
        "Action:\n",
        "```sql\n",
        "{",
        '{"name":',
        "[",
        "move(",
        "a",
        "9",
        "\\u0041",
    ),
    *("<think>", "<think></think>", "</think>"),
]


@pytest.mark.long
@pytest.mark.timeout(60)  # far above linear time, far below quadratic time
@pytest.mark.parametrize("part", PARTS)
def test_long_texts_are_read_in_linear_time(part: str) -> None:
    long = part * (LENGTH // len(part))
    for text in (long, f'move("{long}', f'{{"x": [{long}', f'{{"name": "move", "arguments": {{"to": {long}'):
        parse(make_message(text))
    for style in STYLES:
        parse_action(long, style)
    parse(make_message(None, (long, long)))


def test_the_table_names_each_form_and_its_families() -> None:
    assert all(entry.families for entry in (*CALL_DIALECTS, *THINKING))
    assert len({dialect.name for dialect in CALL_DIALECTS}) == len(CALL_DIALECTS)
