"""Convert chat messages to blocks of safe text. The messages are untrusted JSON of any shape."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from agentgym_tui.safe_text import (
    MAX_TEXT_LINES,
    has_unsafe_chars,
    sanitize_line,
    sanitize_lines,
)

MAX_TEXT: Final = 100_000
"""Maximum number of characters of one text in a transcript; the JSON view shows the whole text."""

MAX_CHAT: Final = 500_000
"""Maximum number of characters of one chat in a transcript, counted from the last message backward."""

MAX_NAME: Final = 80
"""Maximum number of characters of untrusted text in a title."""

MAX_INLINE_ARGUMENTS: Final = 60
"""Maximum number of characters of tool arguments on one line; longer arguments are indented."""

_OVERLAP: Final = 1_000
"""Number of characters before a hidden end of a text in which words that go on in it may start."""

_OVERHEAD: Final = 40
"""Number of characters by which each block and each line counts more than its text."""

BlockKind: TypeAlias = Literal[
    "system", "observation", "thought", "action", "tool", "reply", "streaming", "warning", "error", "note", "earlier",
    "result", "failed", "user", "notification", "passed", "annotation",
]  # fmt: skip
"""Kind of a block.

``note`` is a text by the console, ``annotation`` a tag or note of a person; ``earlier`` is a note about hidden earlier
messages. An environment that names the kinds of its messages has ``result``, ``failed``, ``user`` and ``notification``.
Verdicts are ``passed`` or ``failed``.
"""

OBSERVATION_TITLE: Final = "observation"
TOOL_RESULT_TITLE: Final = "tool result"
TOOL_CALL_TITLE: Final = "tool call "
"""Start of the title of a tool call, before the name of the tool."""

_ROLES: Final[dict[object, tuple[BlockKind, str]]] = {
    "system": ("system", "system"),
    "developer": ("system", "developer"),
    "user": ("observation", OBSERVATION_TITLE),
    "assistant": ("action", "assistant"),
    "tool": ("tool", TOOL_RESULT_TITLE),
    "function": ("tool", TOOL_RESULT_TITLE),
}


class Block(NamedTuple):
    """A titled text in a transcript.

    Attributes:
        kind: selects the color of the block.
        title: the heading.
        lines: the sanitized text.
        has_unsafe: whether the original text contains unsafe characters.
        raw: the original, untrusted text.
        n_hidden: number of characters at the end of ``raw`` that ``lines`` lack because there are too many.
    """

    kind: BlockKind
    title: str
    lines: list[str]
    has_unsafe: bool = False
    raw: str = ""
    n_hidden: int = 0

    def matches_hidden(self, expression: re.Pattern[str]) -> Iterator[re.Match[str]]:
        """Yield the matches that end in the part of the text that is not shown; they may start shortly before it."""
        if self.n_hidden:
            start = len(self.raw) - self.n_hidden
            matches = expression.finditer(self.raw, max(start - _OVERLAP, 0))
            yield from (match for match in matches if match.end() > start)


def text_block(
    kind: BlockKind,
    title: str,
    text: str,
    *,
    title_text: str = "",
    full_length: object = None,
    shown_text: str | None = None,
) -> Block:
    """Return a block of untrusted text.

    Args:
        kind: selects the color of the block.
        title: the heading.
        text: the original text.
        title_text: the untrusted text from which the title was made, if any.
        full_length: length of the text in characters before the node clipped it; any value but an int if it was not
            clipped.
        shown_text: the part of ``text`` to show; None for the whole text.
    """
    title = sanitize_line(title)
    laid_out = (text if shown_text is None else shown_text)[:MAX_TEXT]
    shown, has_unsafe = sanitize_lines(laid_out, MAX_TEXT) if text else ([], False)
    n_hidden = _n_hidden(text, len(shown)) if shown_text is None else 0
    if type(full_length) is int:
        shown = [*shown, f"… clipped in transit, {full_length} characters in all"]
    elif len(text) > MAX_TEXT:
        shown = [*shown, f"… (+{len(text) - MAX_TEXT} characters, see the JSON)"]
    elif len(shown) > MAX_TEXT_LINES:
        shown = [*shown[:-1], f"{shown[-1]}, see the JSON"]
    if has_unsafe_chars(title_text[:MAX_NAME]):
        return Block(kind, title, shown, True, f"{title_text}\n{text}", n_hidden)
    return Block(kind, title, shown, has_unsafe, text, n_hidden)


def _n_hidden(text: str, n_lines: int) -> int:
    return len(text.split("\n", MAX_TEXT_LINES)[-1]) if n_lines > MAX_TEXT_LINES else max(len(text) - MAX_TEXT, 0)


def note_block(
    title: str, lines: Sequence[str] = (), raw: str = "", kind: Literal["note", "earlier"] = "note"
) -> Block:
    """Return a block whose title and lines the console wrote, with the untrusted text ``raw`` that they quote."""
    shown = [sanitize_line(line, MAX_TEXT) for line in lines]
    return Block(kind, sanitize_line(title), shown, has_unsafe_chars(raw[:MAX_TEXT]), raw)


def last_message_blocks(messages: Sequence[object]) -> list[Block]:
    """Return blocks of the last messages that fit into ``MAX_CHAT`` characters, after a note about those left out."""
    room, blocks_by_message = MAX_CHAT, list[list[Block]]()
    for message in reversed(messages):
        if room <= 0:
            break
        blocks_by_message.append(list(message_blocks(message)))
        room -= sum(
            min(len(block.raw), MAX_TEXT) + _OVERHEAD * (1 + len(block.lines)) for block in blocks_by_message[-1]
        )
    left_out = messages[: len(messages) - len(blocks_by_message)]
    notes = [_left_out_note(left_out)] if left_out else []
    return [*notes, *(block for blocks in reversed(blocks_by_message) for block in blocks)]


def _left_out_note(messages: Sequence[object]) -> Block:
    raw = "\n".join(map(message_content, messages))
    title = f"… {earlier_messages(len(messages))}, too long to show; see the JSON"
    return note_block(title, raw=raw)._replace(n_hidden=len(raw))


def earlier_messages(n: int) -> str:
    """Return a number of earlier messages in words."""
    return "1 earlier message" if n == 1 else f"{n} earlier messages"


def message_blocks(message: object) -> Iterator[Block]:
    """Yield blocks of the reasoning, refusal, text and tool calls of a message; the JSON shows its other fields."""
    fields = message_fields(message)
    role = fields.get("role")
    known = _ROLES.get(role) if isinstance(role, str) else None
    kind, title = known or ("observation", content_text(role) or "?")
    title_text = "" if known else content_text(role)
    cut = message_fields(fields.get("full_length", {}))
    yield from reasoning_blocks(fields)
    thought, rest = (
        split_thought(content_text(fields.get("content"))) if kind == "action" else ("", message_content(fields))
    )
    if thought:
        yield text_block("thought", "thought", thought)
    calls = fields.get("tool_calls")
    refusal = content_text(fields.get("refusal")) if kind == "action" else ""
    if refusal:
        yield text_block("warning", "refusal", refusal, full_length=cut.get("refusal"))
    if rest or not (thought or calls or refusal):
        yield text_block(kind, title, rest, title_text=title_text, full_length=cut.get("content"))
    yield from (_tool_call(call) for call in (calls if isinstance(calls, list) else ()))


def reasoning_blocks(message: object) -> Iterator[Block]:
    """Yield a block of the reasoning that a model returned separately from its answer, if there is any."""
    fields = message_fields(message)
    for name in ("reasoning_content", "reasoning"):
        if text := content_text(fields.get(name)):
            cut = message_fields(fields.get("full_length", {}))
            yield text_block("thought", "thought", text, full_length=cut.get(name))
            return


def tool_call_block(name: str, arguments: str, *, full_length: object = None) -> Block:
    """Return a block that shows a tool call with its arguments, as indented JSON if they are long.

    Args:
        name: name of the tool (untrusted text).
        arguments: the arguments (untrusted text, usually JSON).
        full_length: length of the arguments as in ``text_block``.
    """
    title = f"{TOOL_CALL_TITLE}{name}"
    return text_block("tool", title, _indented_json(arguments), title_text=name, full_length=full_length)


def message_fields(value: object) -> Mapping[str, Any]:
    """Return the fields of a message; for a value that is not a JSON object, one field ``content`` with that value."""
    return value if isinstance(value, dict) else {"content": value}


def message_content(message: object) -> str:
    """Return the text of a message, without its reasoning and tool calls."""
    return content_text(message_fields(message).get("content"))


def content_text(value: object) -> str:
    """Convert message content to text: a list of content parts to their joined texts, any other value to JSON.

    A string is returned unchanged; None becomes an empty text.
    """
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, list):
        return "\n".join(part if isinstance(part, str) else _part_text(part) for part in value)
    return as_json(value)


def split_thought(text: str) -> tuple[str, str]:
    """Split a text into thought and action; without marks, the thought is empty.

    The marks are ``<think>…</think>`` or ``Thought: … Action: …``.
    """
    head, mark, rest = text.partition("</think>")
    if mark or head.lstrip().startswith("<think>"):
        return head.strip().removeprefix("<think>").strip(), rest.strip()
    head, mark, rest = text.rpartition("\nAction:")
    if mark and head.lstrip().startswith("Thought:"):
        return head.strip().removeprefix("Thought:").strip(), rest.strip()
    return "", text


def _tool_call(call: object) -> Block:
    function = message_fields(message_fields(call).get("function", call))
    return tool_call_block(content_text(function.get("name")), content_text(function.get("arguments")))


def _part_text(part: object) -> str:
    text = part.get("text") if isinstance(part, dict) else None
    return text if isinstance(text, str) else as_json(part)


def as_json(value: object, *, indent: int | None = None) -> str:
    """Return any value as JSON; a value that JSON does not have is replaced by the name of its type."""
    try:
        return json.dumps(value, indent=indent, ensure_ascii=False, default=lambda other: f"<{type(other).__name__}>")
    except (RecursionError, ValueError, TypeError):
        return "(cannot be encoded as JSON)"


def _indented_json(text: str) -> str:
    """Indent JSON that is too long for one line. Return text that is not JSON, or is very long, unchanged."""
    if not MAX_INLINE_ARGUMENTS < len(text) <= MAX_TEXT:
        return text
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except (RecursionError, ValueError):
        return text
