"""Blocks of safe text: chat messages, those of ARE with their kinds, and the environment's evaluation.

Messages and evaluations are untrusted JSON of any shape. ``runner.envs.are`` starts each message of an observation with
the tag of its kind; a tag counts only at the start of a message, because the text after it is untrusted, and only in
episodes of ARE. Evaluations of ARE are shown by their parts, all others as JSON.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from agentgym_tui.presenters.number_format import format_count, pluralize
from agentgym_tui.safe_text import MAX_TEXT_LINES, has_unsafe_chars, mask_secrets, sanitize_line, sanitize_lines
from agentgym_tui.state.episode import StepState
from runner.types import is_unscored

MAX_TEXT: Final = 100_000
"""Maximum number of characters of one text in a transcript; the JSON view shows the whole text."""
MAX_CHAT: Final = 500_000
"""Maximum number of characters of one chat in a transcript, counted from the last message backward."""
MAX_NAME: Final = 80
"""Maximum number of characters of untrusted text in a title."""
MAX_INLINE_ARGUMENTS: Final = 60
"""Maximum number of characters of tool arguments on one line; longer arguments are indented."""
MAX_EVENTS: Final = 2_000
"""Maximum number of events of an evaluation that are shown."""
MAX_ARGUMENTS: Final = 500
"""Maximum number of characters shown of the arguments of an event."""
MIN_DATE_S: Final = 365 * 86_400
MAX_DATE_S: Final = 253_402_300_800
"""Simulated seconds from which an event's time is shown as a date, and those of the year 10000."""
OWN_VALIDATION: Final = "scenario"
"""Name of the judge if the scenario's own validation rated, which uses no model."""
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
_ARE_KINDS: Final[dict[str, tuple[BlockKind, str]]] = {
    "[result] ": ("result", "result"),
    "[error] ": ("failed", "error"),
    "[user] ": ("user", "message from the user"),
    "[notification] ": ("notification", "notification"),
    "[environment] ": ("system", "environment"),
}
"""Kind and title of the blocks of ARE's messages, by tag."""
_APP: Final = re.compile(r"([A-Za-z0-9_ ]{1,40}): ")


class Block(NamedTuple):
    """A titled text in a transcript.

    Attributes:
        kind: selects the color of the block.
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
        full_length: length of the text before the node clipped it; any value but an int if it was not clipped.
        shown_text: the part of ``text`` to show; None for the whole text.
    """
    title, n_hidden = sanitize_line(title), 0
    laid_out = (text if shown_text is None else shown_text)[:MAX_TEXT]
    shown, has_unsafe = sanitize_lines(laid_out, MAX_TEXT) if text else ([], False)
    if shown_text is None:
        too_many = len(shown) > MAX_TEXT_LINES
        n_hidden = len(text.split("\n", MAX_TEXT_LINES)[-1]) if too_many else max(len(text) - MAX_TEXT, 0)
    if type(full_length) is int:
        shown = [*shown, f"… clipped in transit, {full_length} characters in all"]
    elif len(text) > MAX_TEXT:
        shown = [*shown, f"… (+{len(text) - MAX_TEXT} characters, see the JSON)"]
    elif len(shown) > MAX_TEXT_LINES:
        shown = [*shown[:-1], f"{shown[-1]}, see the JSON"]
    if has_unsafe_chars(title_text[:MAX_NAME]):
        return Block(kind, title, shown, True, f"{title_text}\n{text}", n_hidden)
    return Block(kind, title, shown, has_unsafe, text, n_hidden)


def note_block(
    title: str, lines: Sequence[str] = (), raw: str = "", kind: Literal["note", "earlier"] = "note"
) -> Block:
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
    note = note_block(f"… {earlier_messages(len(left_out))}, too long to show; see the JSON", raw=raw)
    return [note._replace(n_hidden=len(raw)), *blocks]


def earlier_messages(n: int) -> str:
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
    thought, rest = split_thought(message_content(fields)) if kind == "action" else ("", message_content(fields))
    if thought:
        yield text_block("thought", "thought", thought)
    calls = fields.get("tool_calls")
    refusal = content_text(fields.get("refusal")) if kind == "action" else ""
    if refusal:
        yield text_block("warning", "refusal", refusal, full_length=cut.get("refusal"))
    if rest or not (thought or calls or refusal):
        yield text_block(kind, title, rest, title_text=title_text, full_length=cut.get("content"))
    for call in calls if isinstance(calls, list) else ():
        function = message_fields(message_fields(call).get("function", call))
        yield tool_call_block(content_text(function.get("name")), content_text(function.get("arguments")))


def reasoning_blocks(message: object) -> Iterator[Block]:
    """Yield a block of the reasoning that a model returned separately from its answer, if there is any."""
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
    """Return the text of a message, without its reasoning and tool calls."""
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
    """Split a text into thought and action by ``<think>…</think>`` or ``Thought: … Action: …``; else no thought."""
    head, mark, rest = text.partition("</think>")
    if mark or head.lstrip().startswith("<think>"):
        return head.strip().removeprefix("<think>").strip(), rest.strip()
    head, mark, rest = text.rpartition("\nAction:")
    if mark and head.lstrip().startswith("Thought:"):
        return head.strip().removeprefix("Thought:").strip(), rest.strip()
    return "", text


def as_json(value: object, *, indent: int | None = None) -> str:
    """Return a value as JSON; what JSON does not have is replaced by the name of its type."""
    try:
        return json.dumps(value, indent=indent, ensure_ascii=False, default=lambda other: f"<{type(other).__name__}>")
    except (RecursionError, ValueError, TypeError):
        return "(cannot be encoded as JSON)"


def is_are(env: str) -> bool:
    return env.lower().startswith("are:")


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


def app_and_function(name: str) -> str:
    """Return the name of a tool, ``App__function``, as ``App · function``; any other name as it is."""
    app, separator, function = name[: 2 * MAX_NAME].partition("__")
    return f"{app} · {function}" if separator and app and function else name


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


_SHOWN_KEYS: Final = frozenset(
    (
        *("success", "rationale", "exception", "judge", "judge_calls", "rated", "scenario", "duration", "simulated_s"),
        *("memory_mib", "memory_limit_mib", "n_oracle_events"),
        *("missed", "missed_dropped", "events", "events_dropped"),
    )
)
_VERDICTS: Final[dict[bool | None, tuple[BlockKind, str]]] = {
    True: ("passed", "✓ success"),
    False: ("failed", "✗ not solved"),
    None: ("warning", "? not rated: the judge failed"),
}


def evaluation_blocks(evaluation: Mapping[str, Any] | None, *, running: bool = False) -> list[Block]:
    """Return verdict, reason, event log and further details of an evaluation; None if there is none (yet)."""
    if evaluation is None:
        return [
            note_block("the episode is evaluated when it ends" if running else "the environment gave no evaluation")
        ]
    success = evaluation.get("success", "")
    if not (success is None or isinstance(success, bool)) or "judge" not in evaluation:
        return [text_block("result", "evaluation", _masked(as_json(evaluation, indent=2)))]
    further = {key: value for key, value in evaluation.items() if key not in _SHOWN_KEYS}
    return [
        _verdict_block(evaluation),
        *_reason_blocks(evaluation),
        *_event_blocks(evaluation),
        *([text_block("result", "further details", _masked(as_json(further, indent=2)))] if further else []),
    ]


def _verdict_block(evaluation: Mapping[str, Any]) -> Block:
    kind, title = _VERDICTS[evaluation["success"]]
    judge = content_text(evaluation["judge"])
    if judge == OWN_VALIDATION:
        judge = "the scenario's own validation, without a model"
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
        allowed = "" if limit is None else f", limit {limit} MiB above the loaded package"
        yield f"worker memory {used} MiB{allowed}"


def _reason_blocks(evaluation: Mapping[str, Any]) -> Iterator[Block]:
    """Yield the reason of the verdict: the rationale, else the exception, else the missed oracle events."""
    if rationale := content_text(evaluation.get("rationale")).strip():
        yield text_block("result", "rationale", _masked(rationale))
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
    left_out = [f"{format_count(n_dropped)} left out"] if n_dropped else []
    title = " · ".join(["event log", pluralize(len(events) - n_omitted, "event"), *left_out])
    yield text_block("observation", title, _masked("\n".join(map(_event_text, events[:MAX_EVENTS]))))


def _missed_text(event: object) -> str:
    if not isinstance(event, dict):
        return content_text(event)
    reason = content_text(event.get("reason"))
    return _call_text(event) + (f": {reason}" if reason else "")


def _event_text(event: object) -> str:
    if not isinstance(event, dict):
        return content_text(event)[:MAX_ARGUMENTS]
    error = content_text(event.get("error"))
    kind = "nested" if event.get("nested") is True else content_text(event.get("type")).lower()
    failure = f"  ✗ {error[:MAX_ARGUMENTS]}" if error else ""
    return f"{_time_text(event.get('time')):>8}  {kind:<9}  {_call_text(event)}{failure}"


def _time_text(value: object) -> str:
    """Return simulated seconds as such, and as date and time if they count from 1970, as in most own scenarios."""
    if (seconds := _number(value)) is None:
        return ""
    if isinstance(value, int | float) and MIN_DATE_S <= value < MAX_DATE_S:
        return datetime.fromtimestamp(value, UTC).strftime("%Y-%m-%d %H:%M:%S")
    return f"{seconds} s"


def _call_text(event: Mapping[str, Any]) -> str:
    app, function, arguments = (content_text(event.get(key)) for key in ("app", "function", "args"))
    name = " · ".join(part for part in (app, function) if part)
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
