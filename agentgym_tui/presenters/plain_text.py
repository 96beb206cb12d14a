"""What the views of an episode say where there is no episode, and what they show as text to be copied."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from agentgym_tui.presenters.chat_blocks import Block, block
from agentgym_tui.presenters.span_rows import SpanRows
from agentgym_tui.safe_text import own
from runner.types import Span
from runner.util.text import mask


def failure_blocks(reason: str) -> list[Block]:
    """Why an episode cannot be shown; ``reason`` is hostile text, "" while it is only on its way."""
    return [block("error", own("✗ this episode cannot be shown"), mask(reason))] if reason else []


def no_file(lacking: str) -> str:
    """In the place of a file; ``lacking`` says why it is not here, hostile text, "" for an episode that runs."""
    if not lacking:
        return "This episode is being played; its file is written when it ends."
    return f"The file of this episode is not here, only what was sent live:\n{mask(lacking)}"


def transcript_text(blocks: Iterable[Block]) -> str:
    """Blocks with their headings, their texts as they came."""
    return "\n\n".join(f"■ {shown.title}\n{shown.raw}".rstrip("\n") for shown in blocks)


def spans_text(spans: Sequence[Span], *, raw: bool) -> str:
    """Spans as an indented tree with durations, or ``raw`` as JSON with everything they hold."""
    if raw:
        from runner.store.safe_json import encode

        return encode(spans).decode()
    rows = SpanRows(spans)
    return "\n".join(f"{rows.name(index).text}  {rows.duration(index).text}" for index in range(len(rows)))
