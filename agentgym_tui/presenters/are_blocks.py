"""Label the blocks of an ARE episode: results of apps, notifications and the user's messages, by the tags of ARE.

``runner.envs.are`` starts each message of an observation with the tag of its kind. A tag counts only at the start of a
message, because the text after it is untrusted, and only in episodes of ARE.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from agentgym_tui.presenters.chat_blocks import (
    MAX_NAME,
    OBSERVATION_TITLE,
    TOOL_CALL_TITLE,
    TOOL_RESULT_TITLE,
    Block,
    BlockKind,
    last_message_blocks,
    message_content,
)
from agentgym_tui.safe_text import has_unsafe_chars, sanitize_line
from agentgym_tui.state.episode import StepState

_FAMILY: Final = "are:"
_KINDS: Final[dict[str, tuple[BlockKind, str]]] = {
    "[result] ": ("result", "result"),
    "[error] ": ("failed", "error"),
    "[user] ": ("user", "message from the user"),
    "[notification] ": ("notification", "notification"),
    "[environment] ": ("system", "environment"),
}
"""Kind and title of the blocks of messages, by tag."""

_ANSWERS: Final = frozenset({"result", "failed"})
_ROLE_TITLES: Final = frozenset({OBSERVATION_TITLE, TOOL_RESULT_TITLE})
_APP: Final = re.compile(r"([A-Za-z0-9_ ]{1,40}): ")
_SEPARATOR: Final = " · "


def is_are(env: str) -> bool:
    """Return whether the name of an environment is one of ARE."""
    return env[: len(_FAMILY)].lower() == _FAMILY


def label_blocks(blocks: Iterable[Block], answered: StepState | None) -> list[Block]:
    """Return the blocks of an ARE episode with the kind, app and function of each message in its title.

    An agent that calls tools joins the messages of an observation to one answer; if a block is exactly that, the blocks
    of the messages replace it.

    Args:
        blocks: blocks of messages and tool calls.
        answered: the step whose tool call the messages answer; None if it is not known.
    """
    call = answered.action.tool_calls[0].name if answered is not None and answered.action.tool_calls else ""
    messages = answered.observation if answered is not None else []
    joined = "\n".join(map(message_content, messages)) if len(messages) > 1 else None
    return [
        _label(part, call)
        for block in blocks
        for part in (last_message_blocks(messages) if block.raw == joined else [block])
    ]


def app_and_function(name: str) -> str:
    """Return the name of a tool, ``App__function``, as text (untrusted): ``App · function``; any other name as is."""
    app, separator, function = name[: 2 * MAX_NAME].partition("__")
    parts = [app, function] if separator and app and function else [name]
    return " · ".join(parts)


def _label(block: Block, call: str) -> Block:
    if block.kind == "tool" and block.title.startswith(TOOL_CALL_TITLE):
        name = block.title[len(TOOL_CALL_TITLE) : len(block.title)]
        return block._replace(title=f"{TOOL_CALL_TITLE}{app_and_function(name)}")
    tag = next((tag for tag in _KINDS if block.raw.startswith(tag)), "")
    has_role_title = block.title in _ROLE_TITLES
    if (
        not tag
        or not (has_role_title or block.kind == "reply")
        or not block.lines
        or not block.lines[0].startswith(tag)
    ):
        return block
    kind, title = _KINDS[tag]
    first, *others = block.lines
    text = first[len(tag) : len(first)]
    before = [] if has_role_title else [block.title]
    title = _SEPARATOR.join([*before, title, *_origin(kind, text, call)])
    has_unsafe = block.has_unsafe or (kind in _ANSWERS and has_unsafe_chars(call))
    return block._replace(kind=kind, title=sanitize_line(title), lines=[text, *others], has_unsafe=has_unsafe)


def _origin(kind: BlockKind, text: str, call: str) -> Iterator[str]:
    """Yield the app, and the function if the message answers a tool call."""
    if kind in _ANSWERS and call:
        yield app_and_function(call)
    if kind == "notification" and (app := _APP.match(text)) is not None:
        yield text[0 : app.end(1)]
