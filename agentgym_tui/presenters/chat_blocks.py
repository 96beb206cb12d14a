"""Convert chat messages to blocks of safe text. Messages are untrusted JSON of any shape."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from agentgym_tui.safe_text import SafeText, has_unsafe_chars, join, sanitize_line, sanitize_lines, trusted

MAX_TEXT: Final = 100_000
"""Characters of one text that a transcript shows; the JSON view has the rest."""

MAX_CHAT: Final = 500_000
"""Characters of one chat that a transcript shows, counted from its last message."""

MAX_NAME: Final = 80
"""Characters of untrusted text in a title."""

MAX_INLINE_ARGUMENTS: Final = 60
"""Characters up to which tool arguments stay on one line."""

_OVERHEAD: Final = 40
"""Characters that each block and each line counts in addition to its text."""

BlockKind: TypeAlias = Literal[
    "system", "observation", "thought", "action", "tool", "reply", "streaming", "warning", "error", "note", "earlier"
]
"""``note`` is a text of the console; ``earlier`` is a note about earlier messages that can be shown on request."""

_ROLES: Final[dict[object, tuple[BlockKind, SafeText]]] = {
    "system": ("system", trusted("system")),
    "developer": ("system", trusted("developer")),
    "user": ("observation", trusted("observation")),
    "assistant": ("action", trusted("assistant")),
    "tool": ("tool", trusted("tool result")),
    "function": ("tool", trusted("tool result")),
}


class Block(NamedTuple):
    """A titled text in a transcript.

    Attributes:
        kind: selects the color.
        title: the heading.
        lines: the sanitized text.
        has_unsafe: the raw text contains unsafe characters.
        raw: the original text.
    """

    kind: BlockKind
    title: SafeText
    lines: list[SafeText]
    has_unsafe: bool = False
    raw: str = ""


def text_block(
    kind: BlockKind,
    title: SafeText,
    text: str,
    *,
    title_text: str = "",
    full_length: object = None,
    shown_text: str | None = None,
) -> Block:
    """Return a block of untrusted text.

    Args:
        kind: the kind of block.
        title: the heading.
        text: the original text.
        title_text: untrusted text that is part of the title.
        full_length: characters of the text before the node clipped it; anything but an int means it was not clipped.
        shown_text: the part of ``text`` to show; None for all of it.
    """
    laid_out = (text if shown_text is None else shown_text)[:MAX_TEXT]
    shown, has_unsafe = sanitize_lines(laid_out, MAX_TEXT) if text else ([], False)
    if type(full_length) is int:
        shown = [*shown, trusted(f"… clipped in transit, {full_length} characters in all")]
    elif len(text) > MAX_TEXT:
        shown = [*shown, trusted(f"… (+{len(text) - MAX_TEXT} characters)")]
    if has_unsafe_chars(title_text[:MAX_NAME]):
        return Block(kind, title, shown, True, f"{title_text}\n{text}")
    return Block(kind, title, shown, has_unsafe, text)


def note_block(text: str, kind: Literal["note", "earlier"] = "note") -> Block:
    """Return a block with a note of the console itself."""
    return Block(kind, trusted(text), [])


def last_message_blocks(messages: Sequence[object]) -> tuple[list[Block], int]:
    """Return blocks of the last messages that fit into ``MAX_CHAT``, and the number of messages left out."""
    room, blocks_by_message = MAX_CHAT, list[list[Block]]()
    for message in reversed(messages):
        if room <= 0:
            break
        blocks_by_message.append(list(message_blocks(message)))
        room -= sum(
            min(len(block.raw), MAX_TEXT) + _OVERHEAD * (1 + len(block.lines)) for block in blocks_by_message[-1]
        )
    return [block for blocks in reversed(blocks_by_message) for block in blocks], len(messages) - len(blocks_by_message)


def message_blocks(message: object) -> Iterator[Block]:
    """Yield the reasoning, text and tool calls of a message."""
    fields = message_fields(message)
    role = fields.get("role")
    known = _ROLES.get(role) if isinstance(role, str) else None
    kind, title = known or ("observation", sanitize_line(content_text(role) or "?", MAX_NAME))
    title_text = "" if known else content_text(role)
    cut = message_fields(fields.get("full_length", {}))
    yield from _reasoning(fields, cut)
    thought, rest = (
        split_thought(content_text(fields.get("content"))) if kind == "action" else ("", message_content(fields))
    )
    if thought:
        yield text_block("thought", trusted("thought"), thought)
    calls = fields.get("tool_calls")
    if rest or not (thought or calls):
        yield text_block(kind, title, rest, title_text=title_text, full_length=cut.get("content"))
    yield from (_tool_call(call) for call in (calls if isinstance(calls, list) else ()))


def reasoning_blocks(message: object) -> Iterator[Block]:
    """Yield the reasoning that a model returned beside its answer."""
    fields = message_fields(message)
    yield from _reasoning(fields, message_fields(fields.get("full_length", {})))


def tool_call_block(name: str, arguments: str, *, full_length: object = None) -> Block:
    """Return a block of a tool call with indented arguments."""
    title = join([trusted("tool call "), sanitize_line(name, MAX_NAME)])
    return text_block("tool", title, _indented_json(arguments), title_text=name, full_length=full_length)


def message_fields(value: object) -> Mapping[str, Any]:
    """Return the fields of a message; any other value becomes the content of one."""
    return value if isinstance(value, dict) else {"content": value}


def message_content(message: object) -> str:
    """Return the text of a message."""
    return content_text(message_fields(message).get("content"))


def content_text(value: object) -> str:
    """Return a text unchanged, the texts of a list of content parts, or any other value as JSON."""
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, list):
        return "\n".join(part if isinstance(part, str) else _part_text(part) for part in value)
    return _as_json(value)


def split_thought(text: str) -> tuple[str, str]:
    """Split a text into thought and action, marked by ``<think>…</think>`` or ``Thought: … Action: …``."""
    head, mark, rest = text.partition("</think>")
    if mark or head.lstrip().startswith("<think>"):
        return head.strip().removeprefix("<think>").strip(), rest.strip()
    head, mark, rest = text.rpartition("\nAction:")
    if mark and head.lstrip().startswith("Thought:"):
        return head.strip().removeprefix("Thought:").strip(), rest.strip()
    return "", text


def _reasoning(fields: Mapping[str, Any], cut: Mapping[str, Any]) -> Iterator[Block]:
    for name in ("reasoning_content", "reasoning"):
        if text := content_text(fields.get(name)):
            yield text_block("thought", trusted("thought"), text, full_length=cut.get(name))
            return


def _tool_call(call: object) -> Block:
    function = message_fields(message_fields(call).get("function", call))
    return tool_call_block(content_text(function.get("name")), content_text(function.get("arguments")))


def _part_text(part: object) -> str:
    text = part.get("text") if isinstance(part, dict) else None
    return text if isinstance(text, str) else _as_json(part)


def _as_json(value: object) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, default=lambda other: f"<{type(other).__name__}>")
    except (RecursionError, ValueError, TypeError):
        return "(cannot be encoded as JSON)"


def _indented_json(text: str) -> str:
    """Indent JSON that is too long for one line; return other text, and very long text, unchanged."""
    if not MAX_INLINE_ARGUMENTS < len(text) <= MAX_TEXT:
        return text
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except (RecursionError, ValueError):
        return text
