"""A step of an episode as blocks of text: what the agent was given, what it thought and did, and what came back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from agentgym_tui.presenters.chat_blocks import (
    MAX_NAME,
    Block,
    last_message_blocks,
    message_content,
    message_fields,
    note_block,
    reasoning_blocks,
    split_thought,
    text_block,
    tool_call_block,
)
from agentgym_tui.presenters.model_answer import FALLBACK_MARK, tokens_text
from agentgym_tui.presenters.number_format import format_cost, format_count, format_duration, format_rate
from agentgym_tui.safe_text import SafeText, has_unsafe_chars, join, sanitize_line, trusted
from agentgym_tui.state.models import Episode, StepState, StreamingAnswer
from runner.util.text import mask


def step_blocks(episode: Episode, step_index: int, *, full: bool = False) -> list[Block]:
    """What was said in one step.

    Args:
        episode: which one.
        step_index: the ``index`` of the step; one that is not there (yet) is shown as what is known of it.
        full: with the messages before the last answer of the agent, which earlier steps show.
    """
    before, step = _find_steps(episode, step_index)
    is_last = step is None or step is episode.steps[-1]
    found = (
        [*_input_blocks(step, before, episode, full), *_action_blocks(step), *_reply_blocks(step)]
        if step
        else _unplayed_blocks(episode, step_index, before)
    )
    return [*found, *_end_blocks(episode)] if is_last else found


def _find_steps(episode: Episode, step_index: int) -> tuple[StepState | None, StepState | None]:
    """The step before and the step itself."""
    by_index = {step.index: step for step in episode.steps}
    return by_index.get(step_index - 1), by_index.get(step_index)


def _unplayed_blocks(episode: Episode, step_index: int, before: StepState | None) -> list[Block]:
    """What the agent answers just now, where the step is the next one; else that it is missing."""
    following = episode.steps[-1].index + 1 if episode.steps else 0
    if step_index != following or (episode.streaming is None and step_index > 0):
        return [note_block(f"step {step_index} is not here")]
    return _observation_blocks(before.observation if before else episode.reset_observation)


def _input_blocks(step: StepState, before: StepState | None, episode: Episode, full: bool) -> Iterator[Block]:
    """What the agent saw; of agents without chats, what the environment said before."""
    if step.left_out:
        yield note_block(f"… {step.left_out} messages were not sent here; the episode file has them")
    if not (chats := step.chats):
        yield from _observation_blocks(
            before.observation if before else [] if step.index else episode.reset_observation
        )
    for number, chat in enumerate(chats, 1):
        if len(chats) > 1:
            yield note_block(f"chat {number} of {len(chats)}")
        is_answer = bool(chat) and number == len(chats) and _role(chat[-1]) == "assistant"
        yield from _chat_blocks(chat[:-1] if is_answer else chat, full)


def _chat_blocks(messages: Sequence[object], full: bool) -> Iterator[Block]:
    """The messages after the answer before the last message, or all there is room for."""
    answers = [number for number, message in enumerate(messages[:-1]) if _role(message) == "assistant"]
    n_earlier = answers[-1] + 1 if answers and not full else 0
    shown, n_without_room = last_message_blocks(messages[n_earlier:])
    if n_hidden := n_earlier + n_without_room:
        what = "1 earlier message" if n_hidden == 1 else f"{n_hidden} earlier messages"
        yield note_block(f"… {what}" + ", for which there is no room; the JSON has them" * full, "earlier")
    yield from shown


def _action_blocks(step: StepState) -> Iterator[Block]:
    """Thought, text and tool calls of the agent."""
    answer = chats[-1][-1] if (chats := step.chats) and chats[-1] else None
    if _role(answer) != "assistant":
        answer = None
    yield from reasoning_blocks(answer or {})
    said, text = message_content(answer or {}), step.action.text or ""
    cut = step.action.full_length
    if said and text and said != text and "text" not in cut:
        yield text_block("action", trusted("assistant"), said)
    thought, act = split_thought(text or said)
    if thought:
        yield text_block("thought", trusted("thought"), thought)
    yield text_block("action", trusted(_action_title(step)), act, full_length=cut.get("text"))
    for number, call in enumerate(step.action.tool_calls):
        yield tool_call_block(call.name, call.arguments, full_length=cut.get(f"tool_calls/{number}/arguments"))
    yield from _answer_blocks(step)
    if step.warnings:
        yield text_block("warning", trusted("otherwise than configured"), mask("\n".join(step.warnings)))


def _answer_blocks(step: StepState) -> Iterator[Block]:
    """Who answered, how fast, and what it took."""
    named = [mask(name) for name in (step.endpoint, step.model) if name]
    told = [sanitize_line(name, MAX_NAME) for name in named]
    if step.ttft_s is not None:
        told.append(join([trusted("first token "), format_duration(step.ttft_s)]))
    if step.tokens_per_s is not None:
        told.append(trusted(f"{format_rate(step.tokens_per_s)} tokens/s"))
    if step.cost is not None:
        told.append(trusted(f"cost {format_cost(step.cost)}"))
    if told:
        took = [tokens_text(step.tokens)] if step.tokens is not None else []
        raw = " ".join(named)
        title = _answer_title(step) if named else trusted("took")
        yield Block("note", title, [join(told, " · "), *took], has_unsafe_chars(raw), raw)


def _answer_title(step: StepState) -> SafeText:
    failed = sanitize_line(mask(", ".join(step.skipped_endpoints)), MAX_NAME)
    return (
        join([FALLBACK_MARK, trusted(" answered in the place of "), failed, trusted(" by")])
        if failed
        else trusted("answered by")
    )


def _action_title(step: StepState) -> str:
    marks = ["action", *["by a human"] * (step.actor == "human"), *["✗ not valid"] * (not step.valid)]
    return " · ".join(marks)


def _reply_blocks(step: StepState) -> list[Block]:
    """The environment's answer, with the reward."""
    title = trusted(f"reply · reward {step.reward:g}" + " · done" * step.done)
    found = [shown._replace(kind="reply") for shown in last_message_blocks(step.observation)[0]]
    if not found:
        return [Block("reply", title, [])]
    return [found[0]._replace(title=title), *found[1:]]


def _end_blocks(episode: Episode) -> Iterator[Block]:
    """What comes after the last step."""
    if episode.streaming is not None:
        yield from _streaming_blocks(episode.streaming)
    if episode.error_type or episode.error_message:
        texts = [episode.error_message or "", episode.error_traceback or ""]
        name = episode.error_type or "error"
        title = join([trusted("✗ "), sanitize_line(name, MAX_NAME)])
        yield text_block("error", title, mask("\n\n".join(text for text in texts if text)), title_text=name)


def _streaming_blocks(answer: StreamingAnswer) -> Iterator[Block]:
    """What there is so far of the answer for the next step."""
    if answer.failures:
        yield text_block("warning", join([FALLBACK_MARK, trusted(" no answer from")]), mask("\n".join(answer.failures)))
    thought, text = split_thought(answer.text)
    for thinking, n_gone in ((answer.reasoning, answer.n_reasoning_dropped), (thought, answer.n_text_dropped)):
        if thinking:
            yield text_block(
                "thought", trusted("thought · streaming …"), thinking, shown_text=streaming_tail(thinking, n_gone)
            )
    if text:
        part = streaming_tail(text, 0 if thought else answer.n_text_dropped)
        yield text_block("streaming", trusted("streaming …"), text, shown_text=part)
    for call in answer.calls:
        title = join([trusted("tool call "), sanitize_line(call.tool, MAX_NAME), trusted(" · streaming …")])
        part = streaming_tail(call.arguments, call.n_dropped)
        yield text_block("tool", title, call.arguments, title_text=call.tool, shown_text=part)
    yield from _streaming_note(answer)


def _streaming_note(answer: StreamingAnswer) -> Iterator[Block]:
    """Who is asked, or about how fast it comes; one line, as it stands below what comes."""
    named = [mask(name) for name in (answer.model if answer.n_tokens else answer.endpoint, answer.model) if name]
    told = [sanitize_line(name, MAX_NAME) for name in dict.fromkeys(named)]
    if answer.n_tokens:
        rate = answer.tokens_per_s
        pieces = trusted(
            f"≈ {format_count(answer.n_tokens)} tokens" if rate is None else f"≈ {format_rate(rate)} tokens/s"
        )
        first = [] if answer.ttft_s is None else [join([trusted("first token "), format_duration(answer.ttft_s)])]
        told = [pieces, *first, *told]
    elif told:
        told[0] = join([trusted("asking "), told[0]])
    if told:
        raw = " ".join(named)
        yield Block("note", join(told, " · "), [], has_unsafe_chars(raw), raw)


def _observation_blocks(observation: Sequence[object]) -> list[Block]:
    return last_message_blocks(observation)[0]


def _role(message: object) -> object:
    return message_fields(message).get("role")


def failure_blocks(reason: str) -> list[Block]:
    """Why an episode cannot be shown; ``reason`` is hostile text, "" while it is only on its way."""
    return [text_block("error", trusted("✗ this episode cannot be shown"), mask(reason))] if reason else []


def missing_file_text(lacking: str) -> str:
    """In the place of a file; ``lacking`` says why it is not here, hostile text, "" for an episode that runs."""
    if not lacking:
        return "This episode is being played; its file is written when it ends."
    return f"The file of this episode is not here, only what was sent live:\n{mask(lacking)}"


def transcript_text(blocks: Iterable[Block]) -> str:
    """Blocks with their headings, their texts as they came."""
    return "\n\n".join(f"■ {shown.title}\n{shown.raw}".rstrip("\n") for shown in blocks)


MAX_STREAMING_CHARS: Final = 6 * 1024
"""Characters of one line, the last ones: more than a large pane has room for, and few enough to be broken each time."""


MAX_STREAMING_LINES: Final = 4_000
"""Lines, the last ones: fewer than are laid out, as some say what was left out."""


_STRIDE: Final = 2 * 1024
"""Characters that go at once, so that the rows of the others stay as they are in between."""


_WORD: Final = 80
"""Characters among which a line that lacks its beginning is begun with a word."""


def streaming_tail(text: str, before: int = 0) -> str:
    """The part of a text that is shown while more of it comes; what is left out says so.

    Args:
        text: as far as it came.
        before: characters that came before it and were not kept.
    """
    if not before and len(text) <= MAX_STREAMING_CHARS:
        return text
    first, *others = text.rsplit("\n", MAX_STREAMING_LINES)
    if len(others) == MAX_STREAMING_LINES:
        before += len(first) + 1
        first, *others = others
    return "\n".join(_line_tails([first, *others], before))


def _line_tails(lines: list[str], before: int) -> Iterator[str]:
    """The ends of the lines, each below what is said of its beginning."""
    at, missing = before, before
    for line in lines:
        start = _tail_start(line, at)
        if missing + start:
            yield f"… ({missing + start} characters before this are left out while it comes)"
        yield line[start:]
        at, missing = at + len(line) + 1, 0


def _tail_start(line: str, at: int) -> int:
    """Where the end of a line begins that begins ``at`` in the whole text."""
    if len(line) <= MAX_STREAMING_CHARS:
        return 0
    start = -(-(at + len(line) - MAX_STREAMING_CHARS) // _STRIDE) * _STRIDE - at
    return line.find(" ", start, start + _WORD) + 1 or start
