"""Messages of a chat as blocks of text; they are JSON from outside and may be of any shape."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from agentgym_tui.safe_text import Safe, is_hostile, join, line, lines, own

MAX_TEXT: Final = 100_000
"""Characters of one text that a transcript lays out; the JSON has the rest."""

MAX_CHAT: Final = 500_000
"""Characters of the messages of one chat that a transcript lays out, the last ones."""

MAX_NAME: Final = 80
"""Characters of outside text in a title."""

SHORT: Final = 60
"""Characters of arguments that stay in one line."""

_OVERHEAD: Final = 40
"""Characters that a block and a line count as beside their text."""

Kind: TypeAlias = Literal[
    "system", "observation", "thought", "action", "tool", "reply", "streaming", "warning", "error", "note", "earlier"
]
"""``note`` is of the console itself, and says what was left out; ``earlier`` are messages that can be shown as well."""

_ROLES: Final[dict[object, tuple[Kind, Safe]]] = {
    "system": ("system", own("system")),
    "developer": ("system", own("developer")),
    "user": ("observation", own("observation")),
    "assistant": ("action", own("assistant")),
    "tool": ("tool", own("tool result")),
    "function": ("tool", own("tool result")),
}


class Block(NamedTuple):
    """A text and what it is.

    Attributes:
        title: its heading.
        lines: the text, cleaned.
        changed: cleaning changed something.
        raw: the text as it came.
    """

    kind: Kind
    title: Safe
    lines: list[Safe]
    changed: bool = False
    raw: str = ""


def block(
    kind: Kind, title: Safe, text: str, *, named: str = "", whole: object = None, part: str | None = None
) -> Block:
    """A block of outside text.

    Args:
        kind: what it is.
        title: its heading.
        text: as it came.
        named: outside text that became part of the title.
        whole: how many characters the text had before it was cut on its way here.
        part: what is shown of the text, where that is not all of it.
    """
    laid_out = (text if part is None else part)[:MAX_TEXT]
    shown, changed = lines(laid_out, MAX_TEXT) if text else ([], False)
    if type(whole) is int:
        shown = [*shown, own(f"… cut on its way here, {whole} characters in all")]
    elif len(text) > MAX_TEXT:
        shown = [*shown, own(f"… (+{len(text) - MAX_TEXT} characters)")]
    if is_hostile(named[:MAX_NAME]):
        return Block(kind, title, shown, True, f"{named}\n{text}")
    return Block(kind, title, shown, changed, text)


def note(text: str, kind: Literal["note", "earlier"] = "note") -> Block:
    """What the console itself has to say."""
    return Block(kind, own(text), [])


def last_messages(messages: Sequence[object]) -> tuple[list[Block], int]:
    """Blocks of the last messages as far as there is room, and how many messages there was none for."""
    room, found = MAX_CHAT, list[list[Block]]()
    for message in reversed(messages):
        if room <= 0:
            break
        found.append(list(message_blocks(message)))
        room -= sum(min(len(block.raw), MAX_TEXT) + _OVERHEAD * (1 + len(block.lines)) for block in found[-1])
    return [block for blocks in reversed(found) for block in blocks], len(messages) - len(found)


def message_blocks(message: object) -> Iterator[Block]:
    """What a message says: reasoning, text, tool calls."""
    fields = fields_of(message)
    role = fields.get("role")
    known = _ROLES.get(role) if isinstance(role, str) else None
    kind, title = known or ("observation", line(text_of(role) or "?", MAX_NAME))
    named = "" if known else text_of(role)
    cut = fields_of(fields.get("full_length", {}))
    yield from _reasoning(fields, cut)
    thought, rest = split_thought(text_of(fields.get("content"))) if kind == "action" else ("", content_of(fields))
    if thought:
        yield block("thought", own("thought"), thought)
    calls = fields.get("tool_calls")
    if rest or not (thought or calls):
        yield block(kind, title, rest, named=named, whole=cut.get("content"))
    yield from (_call_block(call) for call in (calls if isinstance(calls, list) else ()))


def reasoning_blocks(message: object) -> Iterator[Block]:
    """What a model reasoned beside its answer."""
    fields = fields_of(message)
    yield from _reasoning(fields, fields_of(fields.get("full_length", {})))


def call_block(name: str, arguments: str, *, whole: object = None) -> Block:
    """A call of a tool, its arguments indented."""
    title = join([own("tool call "), line(name, MAX_NAME)])
    return block("tool", title, _pretty(arguments), named=name, whole=whole)


def fields_of(value: object) -> Mapping[str, Any]:
    """A message by its fields; what is no message counts as the content of one."""
    return value if isinstance(value, dict) else {"content": value}


def content_of(message: object) -> str:
    """The text of a message."""
    return text_of(fields_of(message).get("content"))


def text_of(value: object) -> str:
    """A text as it is, the texts of a list of parts, anything else as JSON."""
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, list):
        return "\n".join(part if isinstance(part, str) else _text_of_part(part) for part in value)
    return _json(value)


def split_thought(text: str) -> tuple[str, str]:
    """What precedes an action as thought, and the rest: ``<think>…</think>``, or ``Thought: … Action: …``."""
    head, mark, rest = text.partition("</think>")
    if mark or head.lstrip().startswith("<think>"):
        return head.strip().removeprefix("<think>").strip(), rest.strip()
    head, mark, rest = text.rpartition("\nAction:")
    if mark and head.lstrip().startswith("Thought:"):
        return head.strip().removeprefix("Thought:").strip(), rest.strip()
    return "", text


def _reasoning(fields: Mapping[str, Any], cut: Mapping[str, Any]) -> Iterator[Block]:
    for name in ("reasoning_content", "reasoning"):
        if text := text_of(fields.get(name)):
            yield block("thought", own("thought"), text, whole=cut.get(name))
            return


def _call_block(call: object) -> Block:
    function = fields_of(fields_of(call).get("function", call))
    return call_block(text_of(function.get("name")), text_of(function.get("arguments")))


def _text_of_part(part: object) -> str:
    text = part.get("text") if isinstance(part, dict) else None
    return text if isinstance(text, str) else _json(part)


def _json(value: object) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, default=lambda other: f"<{type(other).__name__}>")
    except (RecursionError, ValueError, TypeError):
        return "(cannot be written as JSON)"


def _pretty(text: str) -> str:
    """JSON that is too long for a line with indentation; what is very long, or no JSON, as it is."""
    if not SHORT < len(text) <= MAX_TEXT:
        return text
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except (RecursionError, ValueError):
        return text
