"""The dialects in which models write tool calls, actions and reasoning: one table, and one reader for the calls.

Servers pass a model's own form on as plain text where they do not know it. ``CALL_DIALECTS`` lists the forms of calls,
``LABEL_KINDS`` those of ``Action:``, ``END_TOKENS`` what chat templates put at the end of a turn, and ``THINKING``
the marks around reasoning. A form that is not listed is not understood. Nothing here applies in compat mode.

The text is hostile: every pattern is bounded or consumes what it has passed, at most ``MAX_MARKS`` places are tried per
dialect, and Python calls are read as literals, never evaluated.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from runner.inference.chat_format import THINK_TAG, ThinkingMark
from runner.types import ToolCall, ToolSchema
from runner.util.json_accessors import as_dict, as_list, as_text, decode_json

Tools: TypeAlias = Mapping[str, Mapping[str, dict[str, Any]]]
"""The parameters of each tool by its name, each with its JSON schema, in the order of the schema."""

MAX_MARKS: Final = 50
"""Number of places of a text at which a call is looked for, per dialect."""
MAX_PYTHON_CHARS: Final = 20_000
"""Maximum length of a call in Python's syntax."""


class FoundCall(NamedTuple):
    """A call in a text, from ``start`` to ``end``; ``arguments`` is a JSON object as text."""

    name: str
    arguments: str
    start: int
    end: int


class _Place(NamedTuple):
    """Where a dialect's mark was found; ``name`` is the tool named there, or empty if none is."""

    text: str
    mark: re.Match[str]
    name: str
    tools: Tools


Reading: TypeAlias = tuple[str, object, int] | int | None
"""Name, arguments and end of a call; the end of what is no call; or None, then the search goes on behind the mark."""


class CallDialect(NamedTuple):
    """One form of a written call.

    Attributes:
        hint: what any text in this form contains; ``NAME`` stands for a tool. It saves the search in most texts.
        mark: pattern of its beginning, with the group ``name`` unless the name is part of what is read.
        sample: a call of the tool ``move`` with the argument ``direction``.
    """

    name: str
    families: str
    hint: str
    mark: re.Pattern[str]
    read: Callable[[_Place], Reading]
    sample: str


def tool_parameters(schemas: Sequence[ToolSchema]) -> dict[str, dict[str, dict[str, Any]]]:
    """What is malformed counts as missing."""
    tools: dict[str, dict[str, dict[str, Any]]] = {}
    for function in (as_dict(schema.get("function")) for schema in schemas):
        properties = as_dict(as_dict(function.get("parameters")).get("properties"))
        tools[as_text(function.get("name"))] = {str(key): as_dict(value) for key, value in properties.items()}
    return tools


_DECORATED = re.compile(
    r"\s*(?:(?:functions?|tools?)\.|default_api[.:])?([^\s<:]{1,100}?)(?::\d{1,9})?\s*(?:<\|.*)?", re.DOTALL
)


def clean_name(name: str, tools: Tools) -> str | None:
    """Return the tool that a name means: the name, or what is in ``functions.move:0<|channel|>…``; None if no tool."""
    if name in tools:
        return name
    inner = _DECORATED.fullmatch(name)
    return inner[1] if inner and inner[1] in tools else None


def clean_call(call: ToolCall, tools: Tools) -> ToolCall:
    """Return a call with the name of the tool that it means, and with arguments that are encoded only once."""
    return ToolCall(call.id, clean_name(call.name, tools) or call.name, _encoded_once(call.arguments))


def _encoded_once(arguments: str) -> str:
    if not arguments.lstrip().startswith('"'):
        return arguments
    inner = decode_json(arguments.encode("utf-8", "replace"))
    return inner if isinstance(inner, str) and is_json_object(inner) else arguments


def is_json_object(text: str) -> bool:
    return isinstance(decode_json(text.encode("utf-8", "replace")), dict)


def find_call(text: str, tools: Tools) -> FoundCall | None:
    """Return the first call of one of the tools that no later ``Action:`` replaces; None if there is none."""
    if not _BRACKET.search(text) or not any(name in text for name in tools):
        return None
    text = without_end_tokens(text)
    labels = action_labels(text)
    after = labels[-1].start if labels else -1
    found = [call for dialect in CALL_DIALECTS if (call := read_dialect(dialect, text, tools, after))]
    return min(found, key=lambda call: call.start, default=None)


def read_dialect(dialect: CallDialect, text: str, tools: Tools, after: int = -1) -> FoundCall | None:
    """Return the first call of a tool in one dialect that ends behind the position ``after``."""
    hints = [dialect.hint.replace("NAME", name) for name in tools] if "NAME" in dialect.hint else [dialect.hint]
    if not any(hint in text for hint in hints):
        return None
    position = 0
    for _ in range(MAX_MARKS):
        if not (mark := dialect.mark.search(text, position)):
            return None
        position = mark.end()
        name = ""
        if "name" in dialect.mark.groupindex and not (name := clean_name(mark["name"], tools) or ""):
            continue
        match dialect.read(_Place(text, mark, name, tools)):
            case str(name), arguments, int(end):
                if end > after and (encoded := _encode_arguments(arguments)):
                    return FoundCall(name, encoded, mark.start(), end)
                position = max(position, end)
            case int(end):
                position = max(position, end)
    return None


def _encode_arguments(arguments: object) -> str | None:
    if isinstance(arguments, str):
        arguments = _encoded_once(arguments)
        return arguments if is_json_object(arguments) else None
    try:
        return json.dumps(arguments, allow_nan=False) if isinstance(arguments, dict) else None
    except (TypeError, ValueError, RecursionError):  # literals that JSON does not have
        return None


_DECODER = json.JSONDecoder(strict=False)
NAME_KEYS: Final = ("name", "function_name", "tool_name", "tool", "action", "recipient_name", "function")
ARGUMENT_KEYS: Final = ("arguments", "parameters", "args", "input", "action_input", "tool_input")
WRAPPER_KEYS: Final = ("action", "function_call", "function_calls", "tool_call", "tool_calls")


def _decode(text: str, start: int) -> tuple[object, int] | None:
    try:
        return _DECODER.raw_decode(text, start)
    except (ValueError, RecursionError):
        return None


def _read_json(place: _Place) -> Reading:
    """Read the call that a JSON value is, or the first one in its lists and under ``WRAPPER_KEYS``."""
    if not (decoded := _decode(place.text, place.mark.start())):
        return None
    values, end = [decoded[0]], decoded[1]
    while values:
        value = values.pop()
        if isinstance(value, list):
            values += reversed(value)
        elif isinstance(value, dict):
            name, arguments = _call_parts(as_dict(value.get("function")) or value)
            if not name:
                values += [value[key] for key in WRAPPER_KEYS if key in value]
            elif tool := clean_name(name, place.tools):
                return tool, arguments, end
    return end


def _call_parts(value: dict[str, Any]) -> tuple[str, object]:
    name = next(filter(None, (as_text(value.get(key)) for key in NAME_KEYS)), "")
    arguments = next((value[key] for key in ARGUMENT_KEYS if isinstance(value.get(key), dict | str)), None)
    return ("", None) if arguments is None else (name, arguments)


def _read_named_json(place: _Place) -> Reading:
    if not (decoded := _decode(place.text, place.mark.end())):
        return None
    return place.name, *decoded


_NAME_BEFORE = re.compile(r"[\w.:-]{1,100}\Z")


def _read_prefixed_json(place: _Place) -> Reading:
    start = place.mark.start()
    name = _NAME_BEFORE.search(place.text[max(0, start - 100) : start])
    tool = clean_name(name[0], place.tools) if name else None
    return _read_named_json(place._replace(name=tool)) if tool else None


def _read_tags(parameter: str, close: str) -> Callable[[_Place], Reading]:
    """Return a reader of parameters in tags.

    Nothing else may stand between the parameters. The closing tag may be missing, since some servers cut it off as a
    stop word, but then the last parameter has to be whole.
    """
    parameters, closing = re.compile(rf"\s*+{parameter}", re.DOTALL), re.compile(close)

    def read(place: _Place) -> Reading:
        text, position = place.text, place.mark.end()
        closed = closing.search(text, position)
        end = closed.start() if closed else len(text)
        arguments = {}
        while found := parameters.match(text, position, end):
            if not (closed or found["whole"]):
                return None
            key, position = found["key"].strip(), found.end()
            value = found["value"].removeprefix("\n").removesuffix("\n")
            arguments[key] = _typed(value, place.tools[place.name].get(key, {}))
        if text[position:end].strip() or not (closed or arguments):
            return None
        return place.name, arguments, closed.end() if closed else end

    return read


def _value_until(tag: str) -> str:
    """Return a pattern of text up to a tag, given without its ``<``; it never goes back."""
    return rf"(?P<value>[^<]*+(?:<(?!{tag})[^<]*+)*+)"


def _typed(text: str, schema: dict[str, Any]) -> object:
    """Return the value of a parameter in a tag: as JSON where its schema has types other than strings."""
    types = {
        kind
        for each in (schema, *map(as_dict, as_list(schema.get("anyOf"))))
        for kind in (each["type"] if isinstance(each.get("type"), list) else [each.get("type")])
        if isinstance(kind, str)
    }
    if not types or "string" in types:
        return text
    value = decode_json(text.strip().encode("utf-8", "replace"))
    return _CONSTANTS.get(text.strip(), text) if value is None else value


_CONSTANTS: Final = {"True": True, "False": False, "None": None, "null": None}
_GEMMA_QUOTE, _GEMMA_END = re.compile(r'<\|"\|>|<escape>'), re.compile(r"<tool_call\|>|<end_function_call>|\Z")
_BARE_KEY = re.compile(r"([{,]\s*+)([\w.-]++)(?=\s*+:)")


def _read_gemma(place: _Place) -> Reading:
    """Read an object with bare keys, whose texts stand between quotation tokens."""
    if not (closed := _GEMMA_END.search(place.text, place.mark.end())):
        return None
    parts = _GEMMA_QUOTE.split(place.text[place.mark.end() : closed.start()])
    parts[::2] = [_BARE_KEY.sub(r'\1"\2"', part) for part in parts[::2]]
    parts[1::2] = map(json.dumps, parts[1::2])
    return place.name, decode_json("".join(parts).encode("utf-8", "replace")), closed.end()


_STRING = r""""(?:[^"\\]|\\.)*+"?|'(?:[^'\\]|\\.)*+'?"""
_STRING_OR_BRACKET = re.compile(rf"{_STRING}|[()\[\]{{}}]", re.DOTALL)
_LITERALS = re.compile(
    rf"""(?:\s|{_STRING}|-?\d[\d_.eE+-]*+(?!\w)|[^\W\d][\w.]*+(?!["'])|[(),:=\[\]{{}}])*+""", re.DOTALL
)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_KNOWN_ESCAPES: Final = frozenset("\n\\'\"abfnrtvx0123uUN")
_BEHIND_PYTHON = re.compile(r"[ \t]{0,9}[)\].`*]{0,4}[ \t]{0,9}(?:$|[<,;])", re.MULTILINE)


def _read_python(place: _Place) -> Reading:
    """Read a call with literal arguments that stands alone in its line or list."""
    text, start, end, depth = place.text, place.mark.end(), 0, 0
    for bracket in _STRING_OR_BRACKET.finditer(text, start, start + MAX_PYTHON_CHARS):
        depth += {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(bracket[0], 0)
        if depth <= 0:
            end = bracket.end()
            break
    if not end or not _BEHIND_PYTHON.match(text, end):
        return None
    arguments = _literal_arguments(text[start:end], list(place.tools[place.name]))
    return None if arguments is None else (place.name, arguments, end)


def _literal_arguments(source: str, parameters: list[str]) -> dict[str, object] | None:
    """Return the arguments of a call, ``source`` being its brackets; None if they are no literals or too many.

    Only what can be part of literals reaches the parser, which warns of unknown escapes, and of numbers before names.
    """
    if not _LITERALS.fullmatch(source):
        return None
    source = _ESCAPE.sub(lambda escape: ("" if escape[1] in _KNOWN_ESCAPES else "\\") + escape[0], source)
    try:
        call = ast.parse(f"f{source}", mode="eval").body
        if not isinstance(call, ast.Call) or len(call.args) > len(parameters):
            return None
        named = [(keyword.arg, keyword.value) for keyword in call.keywords]
        pairs = [*zip(parameters, call.args, strict=False), *named]
        arguments = {key: ast.literal_eval(value) for key, value in pairs if key}
        return arguments if len(arguments) == len(pairs) else None
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        return None


_NAME = r"(?P<name>[\w.:-]{1,100})"
_JSON = r"\s{0,9}(?:```(?:json)?\s{0,9})?(?=[{\"])"
_SPACE_NAME = "(?:antml:|｜DSML｜)?"

CALL_DIALECTS: Final = (
    CallDialect(
        "JSON",
        "Hermes, Qwen, Mistral, Llama 3, Granite, Phi-4, Command R, InternLM, Hunyuan, Jamba, Nemotron, xLAM",
        "{",
        re.compile(r'\{(?=\s{0,99}")'),
        _read_json,
        '<tool_call>\n{"name": "move", "arguments": {"direction": "right"}}\n</tool_call>',
    ),
    CallDialect(
        "name, then JSON after [TOOL_CALLS]",
        "Mistral since Small 3.2, Magistral, Devstral",
        "[TOOL_CALLS]",
        re.compile(rf"\[TOOL_CALLS\]\s{{0,9}}{_NAME}(?:\[CALL_ID\]\w{{1,64}})?(?:\[ARGS\])?{_JSON}"),
        _read_named_json,
        '[TOOL_CALLS]move[ARGS]{"direction": "right"}',
    ),
    CallDialect(
        "JSON in <function=…>",
        "Llama 3.1, Functionary, Hermes 2",
        "<function=",
        re.compile(rf"<function={_NAME}>{_JSON}"),
        _read_named_json,
        '<function=move>{"direction": "right"}</function>',
    ),
    CallDialect(
        "tool▁call▁begin",
        "DeepSeek V3, R1, V3.1",
        "<｜tool▁call▁begin｜>",
        re.compile(rf"<｜tool▁call▁begin｜>(?:function<｜tool▁sep｜>)?{_NAME}(?:<｜tool▁sep｜>)?{_JSON}"),
        _read_named_json,
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>move<｜tool▁sep｜>{"direction": "right"}<｜tool▁call▁end｜>',
    ),
    CallDialect(
        "tool_call_begin",
        "Kimi K2",
        "<|tool_call_begin|>",
        re.compile(rf"<\|tool_call_begin\|>\s{{0,9}}{_NAME}\s{{0,9}}<\|tool_call_argument_begin\|>{_JSON}"),
        _read_named_json,
        '<|tool_call_begin|>functions.move:0<|tool_call_argument_begin|>{"direction": "right"}<|tool_call_end|>',
    ),
    CallDialect(
        "harmony, with or without its tokens",
        "gpt-oss",
        "to=",
        re.compile(
            r"\bto=(?P<name>[\w.:-]{1,100}?)(?:\s|<\|(?:channel|constrain|message)\|>|commentary|analysis|json|code){0,16}"
            r"(?=[{\"])"
        ),
        _read_named_json,
        '<|channel|>commentary to=functions.move <|constrain|>json<|message|>{"direction": "right"}<|call|>',
    ),
    CallDialect(
        "name({JSON})",
        "models that repeat the calls of a chat that is sent as text",
        "(",
        re.compile(r"\(\s{0,9}(?=\{)"),
        _read_prefixed_json,
        'move({"direction": "right"})',
    ),
    CallDialect(
        "name, then JSON in the next line",
        "GLM-4, ChatGLM, Functionary",
        "\n{",
        re.compile(rf"^(?:>>>)?{_NAME}[ \t]{{0,9}}\n(?=\{{)", re.MULTILINE),
        _read_named_json,
        'move\n{"direction": "right"}',
    ),
    CallDialect(
        "Action Input",
        "any model that has learnt LangChain's ReAct",
        "Action Input",
        re.compile(
            rf"Action[*]{{0,3}}[:：][*]{{0,3}}\s{{0,9}}[`*]{{0,3}}{_NAME}[`*]{{0,3}}[ \t]{{0,9}}\n\s{{0,9}}"
            rf"[*]{{0,3}}Action Input[*]{{0,3}}[:：][*`]{{0,3}}{_JSON}"
        ),
        _read_named_json,
        'Action: move\nAction Input: {"direction": "right"}',
    ),
    CallDialect(
        "<function=…> with <parameter=…>",
        "Qwen3-Coder, Qwen3.5, Seed-OSS, MiMo, Nemotron 3",
        "<function=",
        re.compile(rf"<function={_NAME}>(?!\s{{0,99}}\{{)"),
        _read_tags(
            rf"<parameter=(?P<key>[^>\n]{{1,100}})>{_value_until('(?:/parameter>|parameter=)')}"
            r"(?P<whole></parameter>|(?=<parameter=|\Z))",
            "</function>|</tool_call>|</seed:tool_call>",
        ),
        "<tool_call>\n<function=move>\n<parameter=direction>\nright\n</parameter>\n</function>\n</tool_call>",
    ),
    CallDialect(
        "<arg_key> and <arg_value>",
        "GLM-4.5, GLM-4.6, GLM-4.7",
        "<tool_call>",
        re.compile(rf"<tool_call>\s{{0,9}}{_NAME}\s{{0,9}}(?=<)"),
        _read_tags(
            rf"<arg_key>(?P<key>[^<]{{1,100}})</arg_key>\s*+<arg_value>{_value_until('/arg_value>')}(?P<whole></arg_value>)",
            "</tool_call>",
        ),
        "<tool_call>move\n<arg_key>direction</arg_key>\n<arg_value>right</arg_value>\n</tool_call>",
    ),
    CallDialect(
        "<invoke name=…>",
        "Claude, MiniMax M2, DeepSeek V3.2",
        "invoke name=",
        re.compile(rf'<{_SPACE_NAME}invoke name="{_NAME}">'),
        _read_tags(
            rf'<{_SPACE_NAME}parameter name="(?P<key>[^"\n]{{1,100}})"[^>\n]{{0,40}}>'
            rf"{_value_until(f'/{_SPACE_NAME}parameter>')}"
            rf"(?P<whole></{_SPACE_NAME}parameter>)",
            f"</{_SPACE_NAME}invoke>",
        ),
        '<minimax:tool_call>\n<invoke name="move">\n<parameter name="direction">right</parameter>\n</invoke>\n'
        "</minimax:tool_call>",
    ),
    CallDialect(
        "call:name{…}",
        "Gemma 4, FunctionGemma",
        "call:NAME{",
        re.compile(rf"<(?:\|tool_call|start_function_call)>\s{{0,9}}call:{_NAME}(?=\{{)"),
        _read_gemma,
        '<|tool_call>call:move{direction:<|"|>right<|"|>}<tool_call|>',
    ),
    CallDialect(
        "Python",
        "Llama 3.2, Llama 4, Gemma 3, Gemini, LFM2, Olmo 3",
        "NAME(",
        re.compile(
            r"(?:^|[:：>\[`|;])[ \t]{0,9}(?:print\()?(?P<name>[^\W\d][\w.-]{0,99})(?=\((?!\s{0,9}\{))", re.MULTILINE
        ),
        _read_python,
        '[move(direction="right")]',
    ),
)

EMPHASIS: Final = ("***", "**", "*", "__", "_", "`")
_BRACKET = re.compile(r"[({\[<]")
"""Every call has one."""
MAYBE_DECORATED: Final = re.compile(r"[*_`：<\[]|Observation")
"""What a text has where an action is announced or ended in a dialect; most texts do not."""
_LABEL = re.compile(r"Action(?:(?P<plain>:)|(?P<closed>\*{1,3}|_{1,2}|`) ?[:：]|(?P<wide>：))")
LABEL_KINDS: Final = ("plain", "closed", "wide")
"""Forms of ``Action:``; a later one counts only where the earlier ones do not occur.

The first is AgentGym's, also with bold or backticks around it, ``**Action:**`` or ```` `Action: …` ````; then come
``**Action**:`` and the full-width colon.
"""

END_TOKENS: Final = (
    *("<|im_end|>", "<|endoftext|>", "<|im_start|>"),  # ChatML: Qwen, Yi, Hermes, SmolLM
    *("<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|start_header_id|>"),  # Llama 3, Granite
    *("<|eot|>", "<|header_start|>"),  # Llama 4
    *("<|end|>", "<|return|>", "<|call|>", "<|start|>"),  # gpt-oss; Phi has the first
    *("<|user|>", "<|assistant|>", "<|observation|>"),  # GLM, Phi, Zephyr
    *("<end_of_turn>", "<start_of_turn>", "<eos>", "<turn|>", "<|turn>"),  # Gemma
    *("<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>"),  # DeepSeek
    *("<|END_OF_TURN_TOKEN|>", "<|END_RESPONSE|>"),  # Command
    *("<|end_of_role|>", "<|start_of_role|>"),  # Granite
    *("<|tool_calls_section_end|>", "[/INST]", "[EOS]", "</seed:eos>", "[e~["),  # Kimi, Mistral, Seed-OSS, MiniMax
)
"""Template tokens that end a turn or begin the next; ``</s>`` ends one only at the end of a text."""

_LAST_TOKENS: Final = (*END_TOKENS, "</s>")
_END_TOKEN = re.compile("|".join(map(re.escape, END_TOKENS)))
_ROLE = re.compile(
    r"\s*+(?:<\|im_start\|>assistant\s|<\|start_header_id\|>assistant<\|end_header_id\|>|assistantfinal|"
    r"(?:<\|start\|>assistant)?<\|channel\|>final\s?(?:<\|constrain\|>\w{1,20})?<\|message\|>|<\|START_RESPONSE\|>)"
)
_OBSERVATION = re.compile(r"^[ \t]{0,9}[*_`]{0,3}Observation[*_`]{0,3}[:：]|Observation:\s*+\Z", re.MULTILINE)
_WRAPPED = re.compile(r"(\*{1,3}|`{3}|`)([^`*\n]++)\1|```[ \t]*+\n([^`\n]++)\n[ \t]*+```")


class Label(NamedTuple):
    """An announcement of an action; ``emphasis`` began before it and has not ended in it."""

    start: int
    end: int
    emphasis: str


def action_labels(text: str) -> list[Label]:
    labels: dict[str | None, list[Label]] = {}
    for found in _LABEL.finditer(text):
        start, end = found.span()
        before = text[max(0, start - 3) : start]
        emphasis = next((mark for mark in EMPHASIS if before.endswith(mark)), "")
        if found["closed"]:
            if emphasis != found["closed"]:
                continue
            emphasis = ""
        elif emphasis:
            closed = next((mark for mark in (emphasis, f" {emphasis}") if text.startswith(mark, end)), "")
            end, emphasis = end + len(closed), "" if closed else emphasis
        labels.setdefault(found.lastgroup, []).append(Label(start, end, emphasis))
    return next((labels[kind] for kind in LABEL_KINDS if kind in labels), [])


def without_end_tokens(text: str) -> str:
    end = len(text)
    for _ in range(MAX_MARKS):
        while end and text[end - 1].isspace():
            end -= 1
        if not text.endswith(_LAST_TOKENS, 0, end):
            break
        end -= next(len(token) for token in _LAST_TOKENS if text.endswith(token, 0, end))
    return text[:end]


def without_tokens(text: str) -> str:
    role = _ROLE.match(text)
    return without_end_tokens(text[role.end() :] if role else text)


def clean_action(text: str, label: Label) -> str:
    """Return the action after a label, without what follows its turn and without emphasis around all of it."""
    action = text[label.end :]
    if ended := _END_TOKEN.search(action):
        action = action[: ended.start()]
    if "Observation" in action and (observed := _OBSERVATION.search(action)):
        action = action[: observed.start()]
    action = without_end_tokens(action).strip()
    if label.emphasis:
        action = action.removesuffix(label.emphasis).rstrip()
    wrapped = _WRAPPED.fullmatch(action)
    return (wrapped[2] or wrapped[3]).strip() if wrapped else action


THINKING: Final = (
    THINK_TAG,
    ThinkingMark("Magistral, Ministral", "THINK]", r"\[THINK\]", r"\[/THINK\]"),
    ThinkingMark("Seed-OSS", "seed:think>", "<seed:think>", "</seed:think>"),
    ThinkingMark("Kimi-VL", "think▷", "◁think▷", "◁/think▷"),
    ThinkingMark("Command A", "_THINKING|>", r"<\|START_THINKING\|>", r"<\|END_THINKING\|>"),
    ThinkingMark("EXAONE, InternVL", "thought>", "<thought>", "</thought>"),
    ThinkingMark("Gemma 4", "channel", r"<\|channel>thought", r"<channel\|>"),
    ThinkingMark(
        "gpt-oss",
        "channel|>analysis",
        r"(?:<\|start\|>assistant)?<\|channel\|>analysis(?!\s{1,9}to=)(?:\s{0,9}<\|message\|>)?",
        r"<\|end\|>|(?=<\|start\|>|<\|channel\|>)",
        alone=False,
    ),
    ThinkingMark(
        "gpt-oss without its tokens",
        "analysis",
        r"\A\s*+analysis(?=\S.*?assistant(?:final|commentary))",
        r"(?=assistant(?:final|commentary))",
        alone=False,
    ),
)
"""Marks around a model's reasoning."""
