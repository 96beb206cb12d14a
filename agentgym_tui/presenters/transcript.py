"""The transcript: the blocks of a step, or of all steps of an episode in their order with some kinds folded.

A step has its input, thought, action and reply, or the answer that is being streamed. Messages and evaluations are
untrusted JSON of any shape. ``runner.envs.are`` starts each message of an observation with the tag of its kind; a tag
counts only at the start of a message, because the text after it is untrusted, and only in episodes of ARE. Evaluations
of ARE are shown by their parts, all others as JSON.
"""

from __future__ import annotations

import contextlib
import json
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from agentgym_tui.presenters.episode_facts import (
    FALLBACK_MARK,
    MARK,
    app_and_function,
    is_are,
    note_title,
    phases_text,
    tag_text,
    tokens_text,
)
from agentgym_tui.presenters.number_format import (
    format_cost,
    format_count,
    format_duration,
    format_rate,
    format_reward,
    pluralize,
)
from agentgym_tui.safe_text import MAX_TEXT_LINES, has_unsafe_chars, mask_secrets, sanitize_line, sanitize_lines
from agentgym_tui.state.episode import Episode, StepState, StreamingAnswer
from runner.types import is_unscored
from runner.types.data import is_answer, received_messages
from runner.types.notes import Note

MAX_TEXT: Final = 100_000  # characters of one text in a transcript; the JSON view shows the whole text
MAX_CHAT: Final = 500_000  # characters of one chat in a transcript, counted from the last message backward
MAX_NAME: Final = 80  # characters of untrusted text in a title
MAX_INLINE_ARGUMENTS: Final = 60  # characters of tool arguments on one line; longer arguments are indented
MAX_EVENTS: Final = 2_000  # events of an evaluation that are shown
MAX_ARGUMENTS: Final = 500  # characters shown of the arguments of an event
MIN_DATE_S: Final = 365 * 86_400
MAX_DATE_S: Final = 253_402_300_800
"""Simulated seconds from which an event's time is shown as a date, and those of the year 10000."""
OWN_VALIDATION: Final = "scenario"  # name of the judge if the scenario's own validation rated, which uses no model
_OVERLAP: Final = 1_000  # characters before a hidden end of a text in which words that go on in it may start
_OVERHEAD: Final = 40  # characters by which each block and each line counts more than its text
MAX_STREAMING_CHARS: Final = 6 * 1024  # shown of one streaming line: more than a large pane holds, and fast to wrap
MAX_STREAMING_LINES: Final = 4_000  # shown of a streaming text; below the limit of a block, to leave room for notes
_STRIDE: Final = 2 * 1024  # characters hidden at a time; between two such steps the remaining rows do not move
_WORD: Final = 80  # characters by which the start of a shortened line may move to a word boundary

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
TOOL_CALL_TITLE: Final = "tool call "  # start of the title of a tool call, before the name of the tool

_ROLES: Final[dict[object, tuple[BlockKind, str]]] = {
    "system": ("system", "system"),
    "developer": ("system", "developer"),
    "user": ("observation", OBSERVATION_TITLE),
    "assistant": ("action", "assistant"),
    "tool": ("tool", TOOL_RESULT_TITLE),
    "function": ("tool", TOOL_RESULT_TITLE),
}
_ARE_KINDS: Final[dict[str, tuple[BlockKind, str]]] = {
    "[result] ": ("result", "result"),
    "[error] ": ("failed", "error"),
    "[user] ": ("user", "message from the user"),
    "[notification] ": ("notification", "notification"),
    "[environment] ": ("system", "environment"),
}
"""Kind and title of the blocks of ARE's messages, by tag."""
_APP: Final = re.compile(r"([A-Za-z0-9_ ]{1,40}): ")

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


class Block(NamedTuple):
    """A titled text in a transcript; ``raw`` is the original, untrusted text of the sanitized ``lines``."""

    kind: BlockKind
    title: str
    lines: list[str]
    has_unsafe: bool = False
    raw: str = ""
    n_hidden: int = 0  # characters at the end of ``raw`` that ``lines`` lack because there are too many

    def matches_hidden(self, expression: re.Pattern[str]) -> Iterator[re.Match[str]]:
        """Yield the matches that end in the part of the text that is not shown; they may start shortly before it."""
        if self.n_hidden:
            start = len(self.raw) - self.n_hidden
            matches = expression.finditer(self.raw, max(start - _OVERLAP, 0))
            yield from (match for match in matches if match.end() > start)


def text_block(
    kind: BlockKind, title: str, text: str, *, title_text: str = "", full_length: object = None, shown_text: str = ""
) -> Block:
    """Return a block of untrusted text, or of its part ``shown_text``.

    ``title_text`` is the untrusted text from which the title was made, if any, ``full_length`` the length of the text
    before the node clipped it; any value but an int if it was not clipped.
    """
    title, n_hidden = sanitize_line(title), 0
    shown, has_unsafe = sanitize_lines((shown_text or text)[:MAX_TEXT], MAX_TEXT) if text else ([], False)
    if not shown_text:
        too_many = len(shown) > MAX_TEXT_LINES
        n_hidden = len(text.split("\n", MAX_TEXT_LINES)[-1]) if too_many else max(len(text) - MAX_TEXT, 0)
    if type(full_length) is int:
        shown = [*shown, f"… cut on the way, {full_length} characters in all"]
    elif len(text) > MAX_TEXT:
        shown = [*shown, f"… (+{len(text) - MAX_TEXT} characters, see the JSON)"]
    elif len(shown) > MAX_TEXT_LINES:
        shown = [*shown[:-1], f"{shown[-1]}, see the JSON"]
    if has_unsafe_chars(title_text[:MAX_NAME]):
        return Block(kind, title, shown, True, f"{title_text}\n{text}", n_hidden)
    return Block(kind, title, shown, has_unsafe, text, n_hidden)


def note_block(title: str, lines: Sequence[str] = (), raw: str = "", kind: BlockKind = "note") -> Block:
    """Return a block whose title and lines the console wrote, with the untrusted text ``raw`` that they quote."""
    shown = [sanitize_line(line, MAX_TEXT) for line in lines]
    return Block(kind, sanitize_line(title), shown, has_unsafe_chars(raw[:MAX_TEXT]), raw)


def last_message_blocks(messages: Sequence[object]) -> list[Block]:
    """Return blocks of the last messages that fit into ``MAX_CHAT`` characters, after a note about those left out."""
    room, shown = MAX_CHAT, list[list[Block]]()
    for message in reversed(messages):
        if room <= 0:
            break
        shown.append(list(message_blocks(message)))
        room -= sum(min(len(block.raw), MAX_TEXT) + _OVERHEAD * (1 + len(block.lines)) for block in shown[-1])
    blocks = [block for each in reversed(shown) for block in each]
    if not (left_out := messages[: len(messages) - len(shown)]):
        return blocks
    raw = "\n".join(map(message_content, left_out))
    note = note_block(f"… {pluralize(len(left_out), 'earlier message')}, too long to show; see the JSON", raw=raw)
    return [note._replace(n_hidden=len(raw)), *blocks]


def message_blocks(message: object) -> Iterator[Block]:
    """Yield blocks of the reasoning, refusal, text and tool calls of a message; the JSON shows its other fields."""
    fields = message_fields(message)
    role = fields.get("role")
    known = _ROLES.get(role) if isinstance(role, str) else None
    title_text = "" if known else content_text(role)
    kind, title = known or ("observation", title_text or "?")
    cut = message_fields(fields.get("full_length", {}))
    yield from reasoning_blocks(fields)
    thought, rest = split_thought(message_content(fields)) if kind == "action" else ("", message_content(fields))
    if thought:
        yield text_block("thought", "thought", thought)
    calls = fields.get("tool_calls")
    if refusal := content_text(fields.get("refusal")) if kind == "action" else "":
        yield text_block("warning", "refusal", refusal, full_length=cut.get("refusal"))
    if rest or not (thought or calls or refusal):
        yield text_block(kind, title, rest, title_text=title_text, full_length=cut.get("content"))
    for call in calls if isinstance(calls, list) else ():
        function = message_fields(message_fields(call).get("function", call))
        yield tool_call_block(content_text(function.get("name")), content_text(function.get("arguments")))


def reasoning_blocks(message: object) -> Iterator[Block]:
    """Yield a block of the reasoning that a model returned beside its answer, if there is any."""
    fields = message_fields(message)
    for name in ("reasoning_content", "reasoning"):
        if text := content_text(fields.get(name)):
            cut = message_fields(fields.get("full_length", {}))
            yield text_block("thought", "thought", text, full_length=cut.get(name))
            return


def tool_call_block(name: str, arguments: str, *, full_length: object = None) -> Block:
    """Return a block of a tool call, with its arguments (usually JSON) indented if they are too long for one line."""
    shown = arguments
    if MAX_INLINE_ARGUMENTS < len(arguments) <= MAX_TEXT:
        with contextlib.suppress(RecursionError, ValueError):  # then it is shown as it is
            shown = json.dumps(json.loads(arguments), indent=2, ensure_ascii=False)
    return text_block("tool", f"{TOOL_CALL_TITLE}{name}", shown, title_text=name, full_length=full_length)


def message_fields(value: object) -> Mapping[str, Any]:
    """Return the fields of a message; for a value that is not a JSON object, one field ``content`` with that value."""
    return value if isinstance(value, dict) else {"content": value}


def message_content(message: object) -> str:
    return content_text(message_fields(message).get("content"))


def content_text(value: object) -> str:
    """Convert message content to text: None to nothing, a list of parts to their joined texts, other values to JSON."""
    if value is None or isinstance(value, str):
        return value or ""
    if not isinstance(value, list):
        return as_json(value)
    texts = [part.get("text") if isinstance(part, dict) else part for part in value]
    return "\n".join(text if isinstance(text, str) else as_json(part) for text, part in zip(texts, value, strict=True))


def split_thought(text: str) -> tuple[str, str]:
    from runner.inference import chat_format  # slow to import

    return chat_format.split_thought(text)


def as_json(value: object, *, indent: int | None = None) -> str:
    """Return a value as JSON; what JSON does not have is replaced by the name of its type."""
    try:
        return json.dumps(value, indent=indent, ensure_ascii=False, default=lambda other: f"<{type(other).__name__}>")
    except (RecursionError, ValueError, TypeError):
        return "(cannot be encoded as JSON)"


def label_blocks(blocks: Iterable[Block], answered: StepState | None) -> list[Block]:
    """Return the blocks of an ARE episode with the kind, app and function of each message in its title.

    An agent that calls tools joins the messages of an observation to one answer; if a block is exactly that, the blocks
    of the messages replace it. ``answered`` is the step whose tool call the messages answer, if it is known.
    """
    call = answered.action.tool_calls[0].name if answered is not None and answered.action.tool_calls else ""
    messages = answered.observation if answered is not None else []
    joined = "\n".join(map(message_content, messages)) if len(messages) > 1 else None
    return [
        _label(part, call)
        for block in blocks
        for part in (last_message_blocks(messages) if block.raw == joined else [block])
    ]


def _label(block: Block, call: str) -> Block:
    if block.kind == "tool" and block.title.startswith(TOOL_CALL_TITLE):
        return block._replace(title=TOOL_CALL_TITLE + app_and_function(block.title.removeprefix(TOOL_CALL_TITLE)))
    tag = next((tag for tag in _ARE_KINDS if block.raw.startswith(tag)), "")
    has_role_title = block.title in (OBSERVATION_TITLE, TOOL_RESULT_TITLE)
    is_message = has_role_title or block.kind == "reply"
    if not (tag and is_message and block.lines and block.lines[0].startswith(tag)):
        return block
    kind, title = _ARE_KINDS[tag]
    text = block.lines[0].removeprefix(tag)
    answers_call = kind in ("result", "failed") and bool(call)
    app = _APP.match(text) if kind == "notification" else None
    origin = app_and_function(call) if answers_call else app[1] if app else ""
    title = " · ".join(filter(None, ["" if has_role_title else block.title, title, origin]))
    has_unsafe = block.has_unsafe or (answers_call and has_unsafe_chars(call))
    return block._replace(kind=kind, title=sanitize_line(title), lines=[text, *block.lines[1:]], has_unsafe=has_unsafe)


_SHOWN_KEYS: Final = frozenset((
    "success", "rationale", "exception", "judge", "judge_calls", "rated", "scenario", "duration", "simulated_s",
    "memory_mib", "memory_limit_mib", "n_oracle_events", "missed", "missed_dropped", "events", "events_dropped",
))  # fmt: skip
_VERDICTS: Final[dict[bool | None, tuple[BlockKind, str]]] = {
    True: ("passed", "✓ success"),
    False: ("failed", "✗ not solved"),
    None: ("warning", "? not rated: the judge failed"),
}


def evaluation_blocks(evaluation: Mapping[str, Any] | None, *, running: bool = False) -> list[Block]:
    """Return verdict, reason, event log and further details of an evaluation; None if there is none (yet)."""
    if evaluation is None:
        why = "the episode is evaluated when it ends" if running else "the environment gave no evaluation"
        return [note_block(why)]
    success = evaluation.get("success", "")
    if not (success is None or isinstance(success, bool)) or "judge" not in evaluation:
        return [_result_block("evaluation", as_json(evaluation, indent=2))]
    further = {key: value for key, value in evaluation.items() if key not in _SHOWN_KEYS}
    return [
        _verdict_block(evaluation),
        *_reason_blocks(evaluation),
        *_event_blocks(evaluation),
        *([_result_block("further details", as_json(further, indent=2))] if further else []),
    ]


def _result_block(title: str, text: str) -> Block:
    return text_block("result", title, _masked(text))


def _verdict_block(evaluation: Mapping[str, Any]) -> Block:
    kind, title = _VERDICTS[evaluation["success"]]
    judge = content_text(evaluation["judge"])
    judge = "the scenario's own validation, without a model" if judge == OWN_VALIDATION else judge
    lines = [f"{'judge:' if evaluation['success'] is None else 'rated by'} {judge}"]
    if is_unscored(evaluation):
        lines.append("unscored: without an oracle event, idle play can succeed; success rates leave this episode out")
    lines += filter(None, [" · ".join(_judge_costs(evaluation.get("judge_calls"))), " · ".join(_facts(evaluation))])
    return text_block(kind, title, _masked("\n".join(lines)))


def _judge_costs(calls: object) -> Iterator[str]:
    if not isinstance(calls, dict):
        return
    if (n_calls := _number(calls.get("calls"))) is not None:
        yield f"{n_calls} call{'' if n_calls == '1' else 's'} of the judge's model"
    tokens = calls.get("tokens")
    counts = [_number(tokens.get(key)) for key in ("prompt", "completion")] if isinstance(tokens, dict) else [None]
    if None not in counts:
        yield f"{' + '.join(filter(None, counts))} tokens"
    if isinstance(cost := calls.get("cost"), int | float) and _number(cost) is not None:
        yield f"cost {cost:.4g}"


def _facts(evaluation: Mapping[str, Any]) -> Iterator[str]:
    if name := content_text(evaluation.get("scenario")):
        yield f"scenario {name}"
    for key, text in (("duration", "took {} s"), ("simulated_s", "{} s simulated")):
        if (number := _number(evaluation.get(key))) is not None:
            yield text.format(number)
    if (used := _number(evaluation.get("memory_mib"))) is not None:
        limit = _number(evaluation.get("memory_limit_mib"))
        allowed = f", limit {limit} MiB above the loaded package" if limit else ""
        yield f"worker memory {used} MiB{allowed}"


def _reason_blocks(evaluation: Mapping[str, Any]) -> Iterator[Block]:
    """Yield the reason of the verdict: the rationale, else the exception, else the missed oracle events."""
    if rationale := content_text(evaluation.get("rationale")).strip():
        yield _result_block("rationale", rationale)
    elif exception := content_text(evaluation.get("exception")).strip():
        yield text_block("error", "exception", _masked(exception))
    elif isinstance(missed := evaluation.get("missed"), list) and missed:
        total = _number(evaluation.get("n_oracle_events"))
        n_missed = format_count(len(missed) + _count(evaluation.get("missed_dropped")))
        title = f"missed oracle events: {n_missed}{'' if total is None else f' of {total}'}"
        yield text_block("failed", title, _masked("\n".join(map(_missed_text, missed[:MAX_EVENTS]))))


def _event_blocks(evaluation: Mapping[str, Any]) -> Iterator[Block]:
    events = evaluation.get("events")
    if not isinstance(events, list):
        return
    n_omitted = max(len(events) - MAX_EVENTS, 0)
    n_dropped = n_omitted + _count(evaluation.get("events_dropped"))
    left_out = f" · {format_count(n_dropped)} left out" if n_dropped else ""
    title = f"event log · {pluralize(len(events) - n_omitted, 'event')}{left_out}"
    yield text_block("observation", title, _masked("\n".join(map(_event_text, events[:MAX_EVENTS]))))


def _missed_text(event: object) -> str:
    if not isinstance(event, dict):
        return content_text(event)
    return ": ".join(filter(None, (_call_text(event), content_text(event.get("reason")))))


def _event_text(event: object) -> str:
    if not isinstance(event, dict):
        return content_text(event)[:MAX_ARGUMENTS]
    error = content_text(event.get("error"))
    kind = "nested" if event.get("nested") is True else content_text(event.get("type")).lower()
    failure = f"  ✗ {error[:MAX_ARGUMENTS]}" if error else ""
    return f"{_time_text(event.get('time')):>8}  {kind:<9}  {_call_text(event)}{failure}"


def _time_text(value: object) -> str:
    """Return simulated seconds, as date and time if they count from 1970, as in most own scenarios."""
    seconds = _number(value)
    if seconds and isinstance(value, int | float) and MIN_DATE_S <= value < MAX_DATE_S:
        return datetime.fromtimestamp(value, UTC).strftime("%Y-%m-%d %H:%M:%S")
    return f"{seconds} s" if seconds else ""


def _call_text(event: Mapping[str, Any]) -> str:
    app, function, arguments = (content_text(event.get(key)) for key in ("app", "function", "args"))
    name = " · ".join(filter(None, (app, function)))
    cut = "…" if len(arguments) > MAX_ARGUMENTS else ""
    return f"{name} {arguments[:MAX_ARGUMENTS]}{cut}" if arguments not in ("", "{}") else name


def _count(value: object) -> int:
    return value if type(value) is int and 0 < value < 1e15 else 0


def _number(value: object) -> str | None:
    """Format a number; None for any other JSON, and for a number that no clock or counter reaches."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e15:
        return None
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def _masked(text: str) -> str:
    return mask_secrets(text[: 2 * MAX_TEXT])


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
        received = [note_block(f"step {step_index} was not received; the episode file has it")]
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
    """Yield the messages that the agent received: of each chat those since its previous answer unless ``full``."""
    if step.left_out:
        yield note_block(f"… {step.left_out} messages not sent live; see the episode file")
    if not (chats := step.chats):
        yield from last_message_blocks(observed)
    for number, (n_earlier, messages) in enumerate(received_messages(chats, full=full), 1):
        if len(chats) > 1:
            yield note_block(f"chat {number} of {len(chats)}")
        if n_earlier:
            yield note_block(f"… {pluralize(n_earlier, 'earlier message')}", kind="earlier")
        yield from last_message_blocks(messages)


def _action_blocks(step: StepState, currency: str) -> Iterator[Block]:
    answer = chats[-1][-1] if (chats := step.chats) and chats[-1] and is_answer(chats[-1][-1]) else {}
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
    if (answer := episode.streaming) is not None:
        yield from _streaming_blocks(answer)
    if episode.error_type or episode.error_message:
        texts = [episode.error_message or "", episode.error_traceback or ""]
        name = episode.error_type or "error"
        yield text_block("error", f"✗ {name}", mask_secrets("\n\n".join(filter(None, texts))), title_text=name)


def _streaming_blocks(answer: StreamingAnswer) -> Iterator[Block]:
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
    parts = " · ".join(dict.fromkeys(names))
    if answer.n_tokens:
        rate = answer.tokens_per_s
        speed = f"≈ {format_count(answer.n_tokens)} tokens" if rate is None else f"≈ {format_rate(rate)} tokens/s"
        first = "" if answer.ttft_s is None else f"first token {format_duration(answer.ttft_s)}"
        yield note_block(" · ".join(filter(None, (speed, first, parts))), raw=" ".join(names))
    elif parts:
        yield note_block(f"waiting for {parts}", raw=" ".join(names))


def failure_blocks(reason: str) -> list[Block]:
    """Return a block with the reason why an episode cannot be shown (untrusted text); no block if it is empty."""
    return [text_block("error", "✗ this episode cannot be shown", mask_secrets(reason))] if reason else []


def missing_file_text(reason: str) -> str:
    """Return the text in place of an episode's file; without a reason (untrusted text), the episode is running."""
    if not reason:
        return "This episode is still running; its file is written when it ends."
    return f"The episode file is not available, only its live data:\n{mask_secrets(reason)}"


def transcript_text(blocks: Iterable[Block]) -> str:
    """Return the headings and original texts of blocks, which are untrusted."""
    return "\n\n".join(f"■ {shown.title}\n{shown.raw}".rstrip("\n") for shown in blocks)


def streaming_tail(text: str, n_dropped: int = 0) -> str:
    """Return the end of each line of a streaming text, after a note that counts the hidden characters, if any.

    ``n_dropped`` characters were received before ``text``, but are not stored.
    """
    if not n_dropped and len(text) <= MAX_STREAMING_CHARS:
        return text
    lines = text.rsplit("\n", MAX_STREAMING_LINES)
    if len(lines) > MAX_STREAMING_LINES:
        n_dropped += len(lines.pop(0)) + 1
    shown: list[str] = []
    offset = n_hidden = n_dropped  # offset: position of the line in the whole text
    for line in lines:
        start = 0
        if len(line) > MAX_STREAMING_CHARS:  # the tail starts at the word after a multiple of _STRIDE
            start = -(-(offset + len(line) - MAX_STREAMING_CHARS) // _STRIDE) * _STRIDE - offset
            start = line.find(" ", start, start + _WORD) + 1 or start
        if n_hidden + start:
            shown.append(f"… ({n_hidden + start} earlier characters hidden while streaming)")
        shown.append(line[start:])
        offset, n_hidden = offset + len(line) + 1, 0
    return "\n".join(shown)


class WholeEpisode(NamedTuple):
    """The blocks of all steps of an episode, each step after a block with its heading."""

    blocks: list[Block]
    starts: dict[int, int]  # number of the block with the heading of a step, by index of the step
    kinds: set[BlockKind]  # kinds of all blocks, also of hidden ones

    def step_of(self, block: int) -> int | None:
        """Return the index of the step that a block belongs to; None where there is no step."""
        return next((step for step, start in reversed(self.starts.items()) if start <= block), None)


class StepBlocks:
    """Makes the blocks of an episode; keeps those of the steps that it has seen."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[StepState, list[Block]]] = {}
        self._notes: Sequence[Note] = ()

    def blocks(
        self, episode: Episode, folded: Iterable[str] = (), hidden: Iterable[str] = (), n_steps: int | None = None
    ) -> WholeEpisode:
        """Return the blocks of the first ``n_steps`` steps, by default of all.

        Of the kinds ``folded``, names of ``FOLDS``, there are only headings; those ``hidden`` are left out.
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
                if each.lines and each.kind in kinds and each.kind not in left_out:
                    title = f"{each.title} · {pluralize(len(each.lines), 'line')} folded"
                    whole.blocks.append(each._replace(title=title, lines=[]))
                elif each.kind not in left_out:
                    whole.blocks.append(each)
            before = blocks
        is_whole = n_steps is None or n_steps >= len(episode.steps)
        if is_whole and (episode.running or not episode.steps):
            next_index = episode.last_step_index + 1
            whole.starts[next_index] = len(whole.blocks)
            whole.blocks.append(Block("action", f"step {next_index}", []))
            whole.blocks.extend(_without_repeated(step_blocks(episode, next_index), before))
        return whole

    def _of_step(self, episode: Episode, step: StepState) -> list[Block]:
        known, blocks = self._known.get(step.index, (None, []))
        is_last = step is episode.steps[-1]  # it has the blocks of the episode's end, which may come later
        if known is not step or is_last:
            is_first = step is episode.steps[0]  # no other step shows the messages before its last answer
            blocks = step_blocks(episode, step.index, full=is_first, with_end=not episode.running)
            self._known[step.index] = step, blocks
        return blocks


def _without_repeated(blocks: list[Block], before: list[Block]) -> Iterator[Block]:
    """Yield the blocks of a step without what the step before shows: its system prompt, and the reply to its action."""
    shown = [block.lines for block in before if block.kind in ("reply", "system")]
    is_start = True
    for block in blocks:
        is_start = is_start and block.kind not in ("thought", "action", "streaming")
        is_repeated = (block.kind == "earlier" and before) or (block.lines and block.lines in shown)
        if not (is_start and is_repeated):
            yield block


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
