"""A step of an episode as blocks of text: what the agent was given, what it thought and did, and what came back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from agentgym_tui.presenters.chat_blocks import (
    MAX_NAME,
    Block,
    Kind,
    block,
    call_block,
    content_of,
    fields_of,
    last_messages,
    note,
    reasoning_blocks,
    split_thought,
)
from agentgym_tui.presenters.model_answer import FELL, tokens_text
from agentgym_tui.presenters.number_format import cost, duration, pace, quantity
from agentgym_tui.presenters.span_rows import SpanRows
from agentgym_tui.presenters.streaming_tail import newest
from agentgym_tui.presenters.text_rows import TextRows, json_text
from agentgym_tui.safe_text import Safe, is_hostile, join, line, own
from agentgym_tui.state.models import Episode, Step, Streaming
from runner.util.text import mask

__all__ = ["Block", "Kind", "SpanRows", "TextRows", "blocks", "json_text"]


def blocks(episode: Episode, step_index: int, *, full: bool = False) -> list[Block]:
    """What was said in one step.

    Args:
        episode: which one.
        step_index: the ``index`` of the step; one that is not there (yet) is shown as what is known of it.
        full: with the messages before the last answer of the agent, which earlier steps show.
    """
    before, step = _find(episode, step_index)
    is_last = step is None or step is episode.steps[-1]
    found = (
        [*_given(step, before, episode, full), *_done(step), *_replied(step)]
        if step
        else _not_played(episode, step_index, before)
    )
    return [*found, *_end(episode)] if is_last else found


def _find(episode: Episode, step_index: int) -> tuple[Step | None, Step | None]:
    """The step before and the step itself."""
    by_index = {step.index: step for step in episode.steps}
    return by_index.get(step_index - 1), by_index.get(step_index)


def _not_played(episode: Episode, step_index: int, before: Step | None) -> list[Block]:
    """What the agent answers just now, where the step is the next one; else that it is missing."""
    following = episode.steps[-1].index + 1 if episode.steps else 0
    if step_index != following or (episode.streaming is None and step_index > 0):
        return [note(f"step {step_index} is not here")]
    return _as_given(before.observation if before else episode.reset_observation)


def _given(step: Step, before: Step | None, episode: Episode, full: bool) -> Iterator[Block]:
    """What the agent saw; of agents without chats, what the environment said before."""
    if step.left_out:
        yield note(f"… {step.left_out} messages were not sent here; the episode file has them")
    if not (chats := step.chats):
        yield from _as_given(before.observation if before else [] if step.index else episode.reset_observation)
    for number, chat in enumerate(chats, 1):
        if len(chats) > 1:
            yield note(f"chat {number} of {len(chats)}")
        is_answer = bool(chat) and number == len(chats) and _role(chat[-1]) == "assistant"
        yield from _chat(chat[:-1] if is_answer else chat, full)


def _chat(messages: Sequence[object], full: bool) -> Iterator[Block]:
    """The messages after the answer before the last message, or all there is room for."""
    answers = [number for number, message in enumerate(messages[:-1]) if _role(message) == "assistant"]
    n_earlier = answers[-1] + 1 if answers and not full else 0
    shown, n_without_room = last_messages(messages[n_earlier:])
    if n_hidden := n_earlier + n_without_room:
        what = "1 earlier message" if n_hidden == 1 else f"{n_hidden} earlier messages"
        yield note(f"… {what}" + ", for which there is no room; the JSON has them" * full, "earlier")
    yield from shown


def _done(step: Step) -> Iterator[Block]:
    """Thought, text and tool calls of the agent."""
    answer = chats[-1][-1] if (chats := step.chats) and chats[-1] else None
    if _role(answer) != "assistant":
        answer = None
    yield from reasoning_blocks(answer or {})
    said, text = content_of(answer or {}), step.action.text or ""
    cut = step.action.full_length
    if said and text and said != text and "text" not in cut:
        yield block("action", own("assistant"), said)
    thought, act = split_thought(text or said)
    if thought:
        yield block("thought", own("thought"), thought)
    yield block("action", own(_action_title(step)), act, whole=cut.get("text"))
    for number, call in enumerate(step.action.tool_calls):
        yield call_block(call.name, call.arguments, whole=cut.get(f"tool_calls/{number}/arguments"))
    yield from _answered(step)
    if step.warnings:
        yield block("warning", own("otherwise than configured"), mask("\n".join(step.warnings)))


def _answered(step: Step) -> Iterator[Block]:
    """Who answered, how fast, and what it took."""
    named = [mask(name) for name in (step.endpoint, step.model) if name]
    told = [line(name, MAX_NAME) for name in named]
    if step.ttft_s is not None:
        told.append(join([own("first token "), duration(step.ttft_s)]))
    if step.tokens_per_s is not None:
        told.append(own(f"{pace(step.tokens_per_s)} tokens/s"))
    if step.cost is not None:
        told.append(own(f"cost {cost(step.cost)}"))
    if told:
        took = [tokens_text(step.tokens)] if step.tokens is not None else []
        raw = " ".join(named)
        title = _answered_title(step) if named else own("took")
        yield Block("note", title, [join(told, " · "), *took], is_hostile(raw), raw)


def _answered_title(step: Step) -> Safe:
    failed = line(mask(", ".join(step.passed_over)), MAX_NAME)
    return join([FELL, own(" answered in the place of "), failed, own(" by")]) if failed else own("answered by")


def _action_title(step: Step) -> str:
    marks = ["action", *["by a human"] * (step.actor == "human"), *["✗ not valid"] * (not step.valid)]
    return " · ".join(marks)


def _replied(step: Step) -> list[Block]:
    """The environment's answer, with the reward."""
    title = own(f"reply · reward {step.reward:g}" + " · done" * step.done)
    found = [shown._replace(kind="reply") for shown in last_messages(step.observation)[0]]
    if not found:
        return [Block("reply", title, [])]
    return [found[0]._replace(title=title), *found[1:]]


def _end(episode: Episode) -> Iterator[Block]:
    """What comes after the last step."""
    if episode.streaming is not None:
        yield from _coming(episode.streaming)
    if episode.error_type or episode.error_message:
        texts = [episode.error_message or "", episode.error_traceback or ""]
        name = episode.error_type or "error"
        title = join([own("✗ "), line(name, MAX_NAME)])
        yield block("error", title, mask("\n\n".join(text for text in texts if text)), named=name)


def _coming(answer: Streaming) -> Iterator[Block]:
    """What there is so far of the answer for the next step."""
    if answer.failures:
        yield block("warning", join([FELL, own(" no answer from")]), mask("\n".join(answer.failures)))
    thought, text = split_thought(answer.text)
    for thinking, n_gone in ((answer.reasoning, answer.n_reasoning_gone), (thought, answer.n_text_gone)):
        if thinking:
            yield block("thought", own("thought · streaming …"), thinking, part=newest(thinking, n_gone))
    if text:
        part = newest(text, 0 if thought else answer.n_text_gone)
        yield block("streaming", own("streaming …"), text, part=part)
    for call in answer.calls:
        title = join([own("tool call "), line(call.tool, MAX_NAME), own(" · streaming …")])
        part = newest(call.arguments, call.n_gone)
        yield block("tool", title, call.arguments, named=call.tool, part=part)
    yield from _answering(answer)


def _answering(answer: Streaming) -> Iterator[Block]:
    """Who is asked, or about how fast it comes; one line, as it stands below what comes."""
    named = [mask(name) for name in (answer.model if answer.n else answer.endpoint, answer.model) if name]
    told = [line(name, MAX_NAME) for name in dict.fromkeys(named)]
    if answer.n:
        rate = answer.tokens_per_s
        pieces = own(f"≈ {quantity(answer.n)} tokens" if rate is None else f"≈ {pace(rate)} tokens/s")
        first = [] if answer.ttft_s is None else [join([own("first token "), duration(answer.ttft_s)])]
        told = [pieces, *first, *told]
    elif told:
        told[0] = join([own("asking "), told[0]])
    if told:
        raw = " ".join(named)
        yield Block("note", join(told, " · "), [], is_hostile(raw), raw)


def _as_given(observation: Sequence[object]) -> list[Block]:
    return last_messages(observation)[0]


def _role(message: object) -> object:
    return fields_of(message).get("role")
