"""The transcript: the blocks of a step, or of all steps of an episode in their order with some kinds folded.

A step has its input, thought, action and reply, or the answer that is being streamed. Also the texts shown when an
episode or its file is missing, and the transcript as plain text.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Final, Literal, NamedTuple, TypeAlias

from agentgym_tui.presenters.chat_blocks import (
    Block,
    BlockKind,
    earlier_messages,
    is_are,
    label_blocks,
    last_message_blocks,
    message_content,
    message_fields,
    note_block,
    reasoning_blocks,
    split_thought,
    text_block,
    tool_call_block,
)
from agentgym_tui.presenters.episode_facts import FALLBACK_MARK, MARK, note_title, phases_text, tag_text, tokens_text
from agentgym_tui.presenters.number_format import (
    format_cost,
    format_count,
    format_duration,
    format_rate,
    format_reward,
    pluralize,
)
from agentgym_tui.safe_text import mask_secrets
from agentgym_tui.state.episode import Episode, StepState, StreamingAnswer
from runner.types.notes import Note

MAX_STREAMING_CHARS: Final = 6 * 1024
"""Maximum number of characters shown of one streaming line: more than a large pane holds, and fast to wrap."""
MAX_STREAMING_LINES: Final = 4_000
"""Maximum number of lines shown of a streaming text; below the limit of a block, to leave room for notes."""
_STRIDE: Final = 2 * 1024
"""Number of characters hidden at a time; between two such steps the remaining rows do not move."""
_WORD: Final = 80
"""Maximum distance, in characters, by which the start of a shortened line moves to a word boundary."""

FOLDS: Final[dict[str, tuple[BlockKind, ...]]] = {
    "system": ("system",),
    "observations": ("observation", "reply", "result", "user", "notification", "failed"),
    "thoughts": ("thought",),
    "tool calls": ("tool",),
    "answers": ("action", "streaming"),
    "notes": ("note", "warning"),
}
"""Kinds of blocks that can be folded together, by name."""

Jump: TypeAlias = Literal["step", "reward", "error", "invalid"]
JUMPS: Final[dict[Jump, str]] = {
    "step": "step",
    "reward": "step with another reward",
    "error": "step with an error",
    "invalid": "step with an action that is not valid or was refused",
}
"""What a key can jump to, in words."""


def step_blocks(episode: Episode, step_index: int, *, full: bool = False, with_end: bool = True) -> list[Block]:
    """Return the blocks that show one step; of one that has not been received, its input and its streaming answer.

    ``full`` includes the messages that earlier steps show, too, ``with_end`` what follows the last received step.
    """
    at = bisect_left(episode.steps, step_index - 1, key=attrgetter("index"))
    near = {step.index: step for step in episode.steps[at : at + 2]}
    before, step = near.get(step_index - 1), near.get(step_index)
    observed = before.observation if before else [] if step_index else episode.reset_observation
    played: list[Block] = []
    if step is not None:
        received = list(_input_blocks(step, observed, full))
        played = [*_action_blocks(step, episode.currency), *_reply_blocks(step)]
    elif step_index == episode.last_step_index + 1 and (episode.streaming is not None or step_index == 0):
        received = last_message_blocks(observed)
    else:
        received = [note_block(f"step {step_index} not received")]
    if is_are(episode.env):
        received, played = label_blocks(received, before), label_blocks(played, step)
    is_last = step is None or step is episode.steps[-1]
    end = _end_blocks(episode) if is_last and with_end else ()
    return [*_annotation_blocks(episode.notes, step_index), *received, *played, *end]


def _annotation_blocks(notes: Sequence[Note], step: int) -> Iterator[Block]:
    """Yield the tags and notes of a step; before the first step, those of the episode, too."""
    for place, where in ((step, "step"),) if step else ((None, "episode"), (step, "step")):
        own = [note for note in notes if note.step == place]
        if tags := [note.text for note in own if note.kind == "tag"]:
            yield text_block("annotation", f"{MARK} tags of the {where}", tag_text(tags))
        for note in own:
            if note.kind == "note":
                title = note_title(note, f" note on the {where}")
                yield text_block("annotation", title, note.text, title_text=note.author or "")


def _input_blocks(step: StepState, observed: Sequence[object], full: bool) -> Iterator[Block]:
    """Yield the messages that the agent received, of a chat those since its previous answer unless ``full``.

    For an agent without chats, these are the previous observation.
    """
    if step.left_out:
        yield note_block(f"… {step.left_out} messages not sent live; see the episode file")
    if not (chats := step.chats):
        yield from last_message_blocks(observed)
    for number, chat in enumerate(chats, 1):
        if len(chats) > 1:
            yield note_block(f"chat {number} of {len(chats)}")
        is_answer = bool(chat) and number == len(chats) and _is_assistant(chat[-1])
        messages = chat[:-1] if is_answer else chat
        answers = [number for number, message in enumerate(messages[:-1]) if _is_assistant(message)]
        n_earlier = answers[-1] + 1 if answers and not full else 0
        if n_earlier:
            yield note_block(f"… {earlier_messages(n_earlier)}", kind="earlier")
        yield from last_message_blocks(messages[n_earlier:])


def _action_blocks(step: StepState, currency: str) -> Iterator[Block]:
    """Yield the agent's thought, text and tool calls, and the measurements of its answer."""
    answer = chats[-1][-1] if (chats := step.chats) and chats[-1] and _is_assistant(chats[-1][-1]) else {}
    yield from reasoning_blocks(answer)
    answer_text, text = message_content(answer), step.action.text or ""
    clipped = step.action.full_length
    if answer_text and text and answer_text != text and "text" not in clipped:
        yield text_block("action", "assistant", answer_text)
    thought, action = split_thought(text or answer_text)
    if thought:
        yield text_block("thought", "thought", thought)
    refused = "✗ not valid" if not step.valid else "✗ refused" if step.refused else ""
    title = " · ".join(filter(None, ["action", "by a human" if step.actor == "human" else "", refused]))
    yield text_block("action", title, action, full_length=clipped.get("text"))
    for number, call in enumerate(step.action.tool_calls):
        yield tool_call_block(call.name, call.arguments, full_length=clipped.get(f"tool_calls/{number}/arguments"))
    yield from _answer_note(step, currency)
    if step.warnings:
        yield text_block("warning", "differs from configuration", mask_secrets("\n".join(step.warnings)))


def _answer_note(step: StepState, currency: str) -> Iterator[Block]:
    """Yield a note with endpoint, model, speed, cost and token usage of an answer."""
    names = [mask_secrets(name) for name in (step.endpoint, step.model) if name]
    measured = [
        f"first token {format_duration(step.ttft_s)}" if step.ttft_s is not None else "",
        f"{format_rate(step.tokens_per_s)} tokens/s" if step.tokens_per_s is not None else "",
        f"cost {format_cost(step.cost, currency)}" if step.cost is not None else "",
    ]
    if parts := [*names, *filter(None, measured)]:
        usage = [tokens_text(step.tokens)] if step.tokens is not None else []
        usage += [phases_text(step.phases)] if step.phases is not None else []
        failed = mask_secrets(", ".join(step.skipped_endpoints))
        title = f"{FALLBACK_MARK} answered instead of {failed} by" if failed else "answered by"
        yield note_block(title if names else "usage", [" · ".join(parts), *usage], " ".join(names))


def _reply_blocks(step: StepState) -> list[Block]:
    title = f"reply · reward {step.reward:g}" + " · done" * step.done
    blocks = last_message_blocks(step.observation)
    if not blocks or blocks[0].kind == "note":  # about messages that are left out
        blocks.insert(0, Block("reply", title, []))
    blocks = [block if block.kind == "note" else block._replace(kind="reply") for block in blocks]
    return [blocks[0]._replace(title=title), *blocks[1:]]


def _end_blocks(episode: Episode) -> Iterator[Block]:
    """Yield the blocks after an episode's last step: the streaming answer, and the error that ended the episode."""
    if (answer := episode.streaming) is not None:
        yield from _streaming_blocks(answer)
    if episode.error_type or episode.error_message:
        texts = [episode.error_message or "", episode.error_traceback or ""]
        name = episode.error_type or "error"
        yield text_block("error", f"✗ {name}", mask_secrets("\n\n".join(filter(None, texts))), title_text=name)


def _streaming_blocks(answer: StreamingAnswer) -> Iterator[Block]:
    """Yield the received part of the answer, and its token rate, or before the first token, the awaited endpoint."""
    if answer.failures:
        yield text_block("warning", f"{FALLBACK_MARK} no answer from", mask_secrets("\n".join(answer.failures)))
    thought, text = split_thought(answer.text)
    for thinking, n_dropped in ((answer.reasoning, answer.n_reasoning_dropped), (thought, answer.n_text_dropped)):
        if thinking:
            part = streaming_tail(thinking, n_dropped)
            yield text_block("thought", "thought · streaming …", thinking, shown_text=part)
    if text:
        part = streaming_tail(text, 0 if thought else answer.n_text_dropped)
        yield text_block("streaming", "streaming …", text, shown_text=part)
    for call in answer.calls:
        part = streaming_tail(call.arguments, call.n_dropped)
        title = f"tool call {call.tool} · streaming …"
        yield text_block("tool", title, call.arguments, title_text=call.tool, shown_text=part)
    first_name = answer.model if answer.n_tokens else answer.endpoint
    names = [mask_secrets(name) for name in (first_name, answer.model) if name]
    parts = list(dict.fromkeys(names))
    if answer.n_tokens:
        rate = answer.tokens_per_s
        speed = f"≈ {format_count(answer.n_tokens)} tokens" if rate is None else f"≈ {format_rate(rate)} tokens/s"
        first = [] if answer.ttft_s is None else [f"first token {format_duration(answer.ttft_s)}"]
        parts = [speed, *first, *parts]
    elif parts:
        parts[0] = f"waiting for {parts[0]}"
    if parts:
        yield note_block(" · ".join(parts), raw=" ".join(names))


def _is_assistant(message: object) -> bool:
    return message_fields(message).get("role") == "assistant"


def failure_blocks(reason: str) -> list[Block]:
    """Return a block with the reason why an episode cannot be shown (untrusted text); no block if it is empty."""
    return [text_block("error", "✗ this episode cannot be shown", mask_secrets(reason))] if reason else []


def missing_file_text(reason: str) -> str:
    """Return the text in place of an episode's file; without a reason (untrusted text), the episode is running."""
    if not reason:
        return "This episode is still running; its file is written when it ends."
    return f"The episode file is not available, only its live data:\n{mask_secrets(reason)}"


def transcript_text(blocks: Iterable[Block]) -> str:
    """Return the headings and original texts of blocks as plain text, which is untrusted."""
    return "\n\n".join(f"■ {shown.title}\n{shown.raw}".rstrip("\n") for shown in blocks)


def streaming_tail(text: str, n_dropped: int = 0) -> str:
    """Return the end of each line of a streaming text, after a note that counts the hidden characters, if any.

    ``n_dropped`` characters were received before ``text``, but are not stored.
    """
    if not n_dropped and len(text) <= MAX_STREAMING_CHARS:
        return text
    lines = text.rsplit("\n", MAX_STREAMING_LINES)
    if len(lines) > MAX_STREAMING_LINES:
        n_dropped += len(lines[0]) + 1
        lines = lines[1:]
    shown: list[str] = []
    offset = n_hidden = n_dropped
    for line in lines:
        start = _tail_start(line, offset)
        if n_hidden + start:
            shown.append(f"… ({n_hidden + start} earlier characters hidden while streaming)")
        shown.append(line[start:])
        offset, n_hidden = offset + len(line) + 1, 0
    return "\n".join(shown)


def _tail_start(line: str, offset: int) -> int:
    # offset: position of the line in the whole text; the tail starts at a multiple of _STRIDE
    if len(line) <= MAX_STREAMING_CHARS:
        return 0
    start = -(-(offset + len(line) - MAX_STREAMING_CHARS) // _STRIDE) * _STRIDE - offset
    return line.find(" ", start, start + _WORD) + 1 or start


class WholeEpisode(NamedTuple):
    """The blocks of an episode.

    Attributes:
        blocks: the blocks of all steps, each step after a block with its heading.
        starts: number of the block with the heading of a step, by index of the step.
        kinds: kinds of all blocks, also of hidden ones.
    """

    blocks: list[Block]
    starts: dict[int, int]
    kinds: set[BlockKind]

    def step_of(self, block: int) -> int | None:
        """Return the index of the step that a block belongs to; None where there is no step."""
        return next((step for step, start in reversed(self.starts.items()) if start <= block), None)


class StepBlocks:
    """Makes the blocks of an episode; those of steps that it has seen before are kept."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[StepState, list[Block]]] = {}
        self._notes: Sequence[Note] = ()

    def blocks(
        self, episode: Episode, folded: Iterable[str] = (), hidden: Iterable[str] = (), n_steps: int | None = None
    ) -> WholeEpisode:
        """Return the blocks of the first ``n_steps`` steps, by default of all.

        Of kinds in ``folded``, names of ``FOLDS``, there are only headings; those of ``hidden`` are left out.
        """
        if episode.notes is not self._notes:
            self._notes = episode.notes
            self._known.clear()
        kinds, left_out = ({kind for name in names for kind in FOLDS[name]} for names in (folded, hidden))
        whole = WholeEpisode([], {}, set())
        before: list[Block] = []
        for step in episode.steps[:n_steps]:
            blocks = self._of_step(episode, step)
            done = " · done" if step.done else ""
            whole.starts[step.index] = len(whole.blocks)
            whole.blocks.append(Block("action", f"step {step.index} · reward {format_reward(step.reward)}{done}", []))
            for each in _without_repeated(blocks, before):
                whole.kinds.add(each.kind)
                if each.kind not in left_out:
                    whole.blocks.append(_folded(each) if each.kind in kinds else each)
            before = blocks
        is_whole = n_steps is None or n_steps >= len(episode.steps)
        if is_whole and (episode.running or not episode.steps):
            next_index = episode.last_step_index + 1
            whole.starts[next_index] = len(whole.blocks)
            whole.blocks.append(Block("action", f"step {next_index}", []))
            whole.blocks.extend(_without_repeated(step_blocks(episode, next_index), before))
        return whole

    def _of_step(self, episode: Episode, step: StepState) -> list[Block]:
        known = self._known.get(step.index)
        is_last = step is episode.steps[-1]  # it has the blocks of the episode's end, which may come later
        if known is None or known[0] is not step or is_last:
            is_first = step is episode.steps[0]  # no other step shows the messages before its last answer
            blocks = step_blocks(episode, step.index, full=is_first, with_end=not episode.running)
            known = self._known[step.index] = step, blocks
        return known[1]


def _without_repeated(blocks: list[Block], before: list[Block]) -> Iterator[Block]:
    """Yield the blocks of a step without what the step before shows: its system prompt, and the reply to its action."""
    shown = [block.lines for block in before if block.kind in ("reply", "system")]
    is_start = True
    for block in blocks:
        is_start = is_start and block.kind not in ("thought", "action", "streaming")
        is_repeated = (block.kind == "earlier" and before) or (block.lines and block.lines in shown)
        if not (is_start and is_repeated):
            yield block


def _folded(block: Block) -> Block:
    if not block.lines:
        return block
    return block._replace(title=f"{block.title} · {pluralize(len(block.lines), 'line')} folded", lines=[])


def step_to_jump(episode: Episode, what: Jump, at: int, by: int) -> int | None:
    """Return the index of the next (1) or previous (-1) step of a kind after or before the step ``at``; None for none.

    A step with an error is one whose answer some endpoint failed to give, and the last one of an episode that ended
    with an error.
    """
    rewards = [0.0, *(step.reward for step in episode.steps)]
    found = [
        step.index
        for before, step in zip(rewards, episode.steps, strict=False)
        if what == "step"
        or (what == "reward" and step.reward != before)
        or (what == "invalid" and (not step.valid or step.refused))
        or (what == "error" and (step.skipped_endpoints or (step is episode.steps[-1] and episode.outcome == "error")))
    ]
    later = [index for index in found if (index > at if by > 0 else index < at)]
    return later[0 if by > 0 else -1] if later else None
