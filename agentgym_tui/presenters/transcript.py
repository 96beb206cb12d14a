"""Convert a step of an episode to blocks of text: input, thought, action and reply, or the answer being streamed.

Also the texts shown when an episode or its file is missing, and the transcript as plain text.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Final

from agentgym_tui.presenters.annotations import annotation_blocks
from agentgym_tui.presenters.answering_endpoint import FALLBACK_MARK, phases_text, tokens_text
from agentgym_tui.presenters.are_blocks import is_are, label_blocks
from agentgym_tui.presenters.chat_blocks import (
    Block,
    earlier_messages,
    last_message_blocks,
    message_content,
    message_fields,
    note_block,
    reasoning_blocks,
    split_thought,
    text_block,
    tool_call_block,
)
from agentgym_tui.presenters.number_format import format_cost, format_count, format_duration, format_rate
from agentgym_tui.safe_text import mask_secrets
from agentgym_tui.state.episode import Episode, StepState, StreamingAnswer

MAX_STREAMING_CHARS: Final = 6 * 1024
"""Maximum number of characters shown of one streaming line: more than a large pane holds, and fast to wrap."""

MAX_STREAMING_LINES: Final = 4_000
"""Maximum number of lines shown of a streaming text; below the limit of a block, to leave room for notes."""

_STRIDE: Final = 2 * 1024
"""Number of characters hidden at a time; between two such steps the remaining rows do not move."""

_WORD: Final = 80
"""Maximum distance, in characters, by which the start of a shortened line moves to a word boundary."""


def step_blocks(episode: Episode, step_index: int, *, full: bool = False, with_end: bool = True) -> list[Block]:
    """Return the blocks that show one step.

    Args:
        episode: the episode.
        step_index: index of the step. For a step that has not been received, its input and its streaming answer are
            shown if they are known.
        full: whether to include the messages that earlier steps also show.
        with_end: whether to include what follows the last step that has been received.
    """
    before, step = _find_steps(episode, step_index)
    is_last = step is None or step is episode.steps[-1]
    received = _input_blocks(step, before, episode, full) if step else _pending_step_blocks(episode, step_index, before)
    played = [*_action_blocks(step, episode.currency), *_reply_blocks(step)] if step else []
    if is_are(episode.env):
        received, played = label_blocks(received, before), label_blocks(played, step)
    written = annotation_blocks(episode.notes, step_index, is_first=step_index == 0)
    return [*written, *received, *played, *(_end_blocks(episode) if is_last and with_end else ())]


def _find_steps(episode: Episode, step_index: int) -> tuple[StepState | None, StepState | None]:
    at = bisect_left(episode.steps, step_index - 1, key=attrgetter("index"))
    near = {step.index: step for step in episode.steps[at : at + 2]}
    return near.get(step_index - 1), near.get(step_index)


def _pending_step_blocks(episode: Episode, step_index: int, before: StepState | None) -> list[Block]:
    next_index = episode.steps[-1].index + 1 if episode.steps else 0
    if step_index != next_index or (episode.streaming is None and step_index > 0):
        return [note_block(f"step {step_index} not received")]
    return last_message_blocks(before.observation if before else episode.reset_observation)


def _input_blocks(step: StepState, before: StepState | None, episode: Episode, full: bool) -> Iterator[Block]:
    """Yield the messages that the agent received; for an agent without chats, the previous observation."""
    if step.left_out:
        yield note_block(f"… {step.left_out} messages not sent live; see the episode file")
    if not (chats := step.chats):
        observed = before.observation if before else [] if step.index else episode.reset_observation
        yield from last_message_blocks(observed)
    for number, chat in enumerate(chats, 1):
        if len(chats) > 1:
            yield note_block(f"chat {number} of {len(chats)}")
        is_answer = bool(chat) and number == len(chats) and _role(chat[-1]) == "assistant"
        yield from _chat_blocks(chat[:-1] if is_answer else chat, full)


def _chat_blocks(messages: Sequence[object], full: bool) -> Iterator[Block]:
    """Yield the messages of a chat since the agent's previous answer; if ``full``, all messages that fit."""
    answers = [number for number, message in enumerate(messages[:-1]) if _role(message) == "assistant"]
    n_earlier = answers[-1] + 1 if answers and not full else 0
    if n_earlier:
        yield note_block(f"… {earlier_messages(n_earlier)}", kind="earlier")
    yield from last_message_blocks(messages[n_earlier:])


def _action_blocks(step: StepState, currency: str) -> Iterator[Block]:
    """Yield the agent's thought, text and tool calls, and the measurements of its answer."""
    answer = chats[-1][-1] if (chats := step.chats) and chats[-1] else None
    if _role(answer) != "assistant":
        answer = None
    yield from reasoning_blocks(answer or {})
    answer_text, text = message_content(answer or {}), step.action.text or ""
    clipped = step.action.full_length
    if answer_text and text and answer_text != text and "text" not in clipped:
        yield text_block("action", "assistant", answer_text)
    thought, action = split_thought(text or answer_text)
    if thought:
        yield text_block("thought", "thought", thought)
    yield text_block("action", _action_title(step), action, full_length=clipped.get("text"))
    for number, call in enumerate(step.action.tool_calls):
        yield tool_call_block(call.name, call.arguments, full_length=clipped.get(f"tool_calls/{number}/arguments"))
    yield from _answer_blocks(step, currency)
    if step.warnings:
        yield text_block("warning", "differs from configuration", mask_secrets("\n".join(step.warnings)))


def _answer_blocks(step: StepState, currency: str) -> Iterator[Block]:
    """Yield a note with endpoint, model, speed, cost and token usage of an answer."""
    names = [mask_secrets(name) for name in (step.endpoint, step.model) if name]
    parts = names
    if step.ttft_s is not None:
        parts.append(f"first token {format_duration(step.ttft_s)}")
    if step.tokens_per_s is not None:
        parts.append(f"{format_rate(step.tokens_per_s)} tokens/s")
    if step.cost is not None:
        parts.append(f"cost {format_cost(step.cost, currency)}")
    if parts:
        usage = [tokens_text(step.tokens)] if step.tokens is not None else []
        usage += [phases_text(step.phases)] if step.phases is not None else []
        raw = " ".join(names)
        title = _answer_title(step) if names else "usage"
        yield note_block(title, [" · ".join(parts), *usage], raw)


def _answer_title(step: StepState) -> str:
    failed = mask_secrets(", ".join(step.skipped_endpoints))
    return f"{FALLBACK_MARK} answered instead of {failed} by" if failed else "answered by"


def _action_title(step: StepState) -> str:
    marks = ["action", *["by a human"] * (step.actor == "human"), *["✗ not valid"] * (not step.valid)]
    return " · ".join([*marks, *["✗ refused"] * (step.valid and step.refused)])


def _reply_blocks(step: StepState) -> list[Block]:
    title = f"reply · reward {step.reward:g}" + " · done" * step.done
    blocks = last_message_blocks(step.observation)
    if not blocks or blocks[0].kind == "note":  # about messages that are left out
        blocks.insert(0, Block("reply", title, []))
    blocks = [block if block.kind == "note" else block._replace(kind="reply") for block in blocks]
    return [blocks[0]._replace(title=title), *blocks[1:]]


def _end_blocks(episode: Episode) -> Iterator[Block]:
    """Yield the blocks after an episode's last step: the streaming answer, and the error that ended the episode."""
    if episode.streaming is not None:
        yield from _streaming_blocks(episode.streaming)
    if episode.error_type or episode.error_message:
        texts = [episode.error_message or "", episode.error_traceback or ""]
        name = episode.error_type or "error"
        title = f"✗ {name}"
        yield text_block("error", title, mask_secrets("\n\n".join(text for text in texts if text)), title_text=name)


def _streaming_blocks(answer: StreamingAnswer) -> Iterator[Block]:
    """Yield the received part of the answer that is being streamed."""
    if answer.failures:
        yield text_block("warning", f"{FALLBACK_MARK} no answer from", mask_secrets("\n".join(answer.failures)))
    thought, text = split_thought(answer.text)
    for thinking, n_dropped in ((answer.reasoning, answer.n_reasoning_dropped), (thought, answer.n_text_dropped)):
        if thinking:
            yield text_block(
                "thought", "thought · streaming …", thinking, shown_text=streaming_tail(thinking, n_dropped)
            )
    if text:
        part = streaming_tail(text, 0 if thought else answer.n_text_dropped)
        yield text_block("streaming", "streaming …", text, shown_text=part)
    for call in answer.calls:
        title = f"tool call {call.tool} · streaming …"
        part = streaming_tail(call.arguments, call.n_dropped)
        yield text_block("tool", title, call.arguments, title_text=call.tool, shown_text=part)
    yield from _streaming_note(answer)


def _streaming_note(answer: StreamingAnswer) -> Iterator[Block]:
    """Yield the note below a streaming answer: its token rate, or before the first token, the awaited endpoint."""
    names = [
        mask_secrets(name) for name in (answer.model if answer.n_tokens else answer.endpoint, answer.model) if name
    ]
    parts = list(dict.fromkeys(names))
    if answer.n_tokens:
        rate = answer.tokens_per_s
        speed = f"≈ {format_count(answer.n_tokens)} tokens" if rate is None else f"≈ {format_rate(rate)} tokens/s"
        first = [] if answer.ttft_s is None else [f"first token {format_duration(answer.ttft_s)}"]
        parts = [speed, *first, *parts]
    elif parts:
        parts[0] = f"waiting for {parts[0]}"
    if parts:
        raw = " ".join(names)
        yield note_block(" · ".join(parts), raw=raw)


def _role(message: object) -> object:
    return message_fields(message).get("role")


def failure_blocks(reason: str) -> list[Block]:
    """Return a block with the reason why an episode cannot be shown (untrusted text); no block if it is empty."""
    return [text_block("error", "✗ this episode cannot be shown", mask_secrets(reason))] if reason else []


def missing_file_text(reason: str) -> str:
    """Return the text shown instead of a missing episode file.

    Args:
        reason: why the file is missing (untrusted text); "" if the episode is still running.
    """
    if not reason:
        return "This episode is still running; its file is written when it ends."
    return f"The episode file is not available, only its live data:\n{mask_secrets(reason)}"


def transcript_text(blocks: Iterable[Block]) -> str:
    """Return the headings and original texts of blocks as plain text, which is untrusted."""
    return "\n\n".join(f"■ {shown.title}\n{shown.raw}".rstrip("\n") for shown in blocks)


def streaming_tail(text: str, n_dropped: int = 0) -> str:
    """Return the end of a streaming text, with notes that count the hidden characters.

    Args:
        text: the received text that is stored.
        n_dropped: number of characters that were received before ``text`` but not stored.
    """
    if not n_dropped and len(text) <= MAX_STREAMING_CHARS:
        return text
    first, *others = text.rsplit("\n", MAX_STREAMING_LINES)
    if len(others) == MAX_STREAMING_LINES:
        n_dropped += len(first) + 1
        first, *others = others
    return "\n".join(_line_tails([first, *others], n_dropped))


def _line_tails(lines: list[str], n_dropped: int) -> Iterator[str]:
    """Yield the end of each line; before it, yield a note with the number of hidden characters if there are any."""
    offset, n_hidden = n_dropped, n_dropped
    for line in lines:
        start = _tail_start(line, offset)
        if n_hidden + start:
            yield f"… ({n_hidden + start} earlier characters hidden while streaming)"
        yield line[start:]
        offset, n_hidden = offset + len(line) + 1, 0


def _tail_start(line: str, offset: int) -> int:
    # offset: position of the line in the whole text; the tail starts at a multiple of _STRIDE
    if len(line) <= MAX_STREAMING_CHARS:
        return 0
    start = -(-(offset + len(line) - MAX_STREAMING_CHARS) // _STRIDE) * _STRIDE - offset
    return line.find(" ", start, start + _WORD) + 1 or start
