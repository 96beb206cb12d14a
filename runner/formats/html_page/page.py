"""One self-contained page that shows episodes like the console's viewer, without a network.

All of an episode is hostile, so it is in the page only as one block of JSON, as text that ``display_text`` has made
visible, with secrets masked; the page's own script, which its policy allows by hash alone, shows it as text.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final, TypeAlias

from runner.formats.format import Format, LeftOut
from runner.store.episode_file import EpisodeRecord
from runner.types import IMPORTED, Limits, Outcome, Span, TimeStep, is_result_unknown, join_models, unpack_cells
from runner.util.amounts import format_amount
from runner.util.display_text import masker, pluralize, sanitize
from runner.util.json_accessors import as_dict, as_list, as_text, content_text
from runner.util.safe_values import encode

Block: TypeAlias = tuple[str, str, str]
"""Kind, title and text of a part of a transcript."""

MAX_TEXT: Final = 100_000
"""Largest number of characters of one text; the rest is counted."""
MAX_SPANS: Final = 5_000
MAX_PAGE: Final = 64 << 20
"""Bytes of data from which on a page takes no further episode."""
_MAX_INDENT: Final = 12
_FOLDER: Final = Path(__file__).parent
_ESCAPES: Final = {ord(char): f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"}
_KINDS: Final = {"system": "system", "developer": "system", "assistant": "action", "tool": "tool", "function": "tool"}
_OUTCOMES: Final = {
    Outcome.SUCCESS: ("✓ success", "good"),
    Outcome.FAILURE: ("✗ failure", "bad"),
    Outcome.TRUNCATED: ("… stopped at limit", "warn"),
    Outcome.TIMEOUT: ("◔ timeout", "warn"),
    Outcome.CANCELLED: ("○ cancelled", "dim"),
    Outcome.ERROR: ("! error", "bad"),
    Outcome.INTERRUPTED: ("! interrupted", "warn"),
}
_HEAD: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src '{script_hash}'; \
style-src '{style_hash}'; base-uri 'none'; form-action 'none'">
<meta name="referrer" content="no-referrer">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>AgentGym episode</title>
<style>{style}</style>
</head>
<body>
<noscript>This page shows its episode with a script of its own; allow JavaScript to see it.</noscript>
<script type="application/json" id="data">["""
_TAIL: Final = """]</script>
<script>{script}</script>
</body>
</html>
"""


class PageWriter:
    """Writes a page with all episodes, one of which is shown at a time."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._mask, self._n_bytes = file, masker(), 0
        style, self._script = ((_FOLDER / name).read_text("utf-8") for name in ("page.css", "page.js"))
        hashes = {"style_hash": _policy_hash(style), "script_hash": _policy_hash(self._script)}
        file.write(_HEAD.format(style=style, **hashes).encode())

    def write(self, episode: EpisodeRecord) -> None:
        if self._n_bytes >= MAX_PAGE:
            raise LeftOut(f"the page has {MAX_PAGE >> 20} MiB of episodes already")
        data = encode(self._safe(page_data(episode))).decode().translate(_ESCAPES).encode()
        self._file.write(b",\n" + data if self._n_bytes else b"\n" + data)
        self._n_bytes += len(data)

    def finish(self) -> Mapping[str, int]:
        self._file.write(_TAIL.format(script=self._script).encode())
        return {}

    def _safe(self, value: Any) -> Any:  # noqa: ANN401 - data for JSON
        match value:
            case str():
                return sanitize(self._mask(value).replace("\r\n", "\n"), limit=MAX_TEXT)
            case list() | tuple():
                return [self._safe(each) for each in value]
            case dict():
                return {name: self._safe(each) for name, each in value.items()}
        return value


def _policy_hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def page_data(episode: EpisodeRecord) -> dict[str, Any]:
    """Return what the script of the page shows of an episode, in texts that are still hostile."""
    outcome, tone = _OUTCOMES[episode.outcome]
    if is_result_unknown(episode.transport, episode.outcome, unscored=episode.unscored):
        outcome, tone = "? unknown", "dim"
    observed = [episode.reset_observation, *(step.observation for step in episode.timesteps)]
    return {
        "title": f"{episode.env} task {episode.task_index}",
        "outcome": f"{outcome}{', unscored' if episode.unscored else ''}",
        "tone": tone,
        "reward": episode.reward,
        "rounds": pluralize(episode.rounds, "round"),
        "duration_s": episode.duration_s,
        "facts": [fact for fact in _facts(episode) if fact[1]],
        "world": _picture(episode.reset_world),
        "steps": [_step(step, seen) for step, seen in zip(episode.timesteps, observed, strict=False)],
        "end": [*([] if episode.timesteps else _messages(observed[0])), *_end_blocks(episode)],
        "spans": _span_rows(episode.spans[:MAX_SPANS]),
        "n_spans": len(episode.spans),
    }


def _facts(episode: EpisodeRecord) -> Iterator[tuple[str, str]]:
    usual = f"{Limits().max_rounds} rounds {Limits().max_duration_s:g} s"
    yield "agent", episode.agent
    yield "model", join_models(episode.model, episode.models) or ""
    yield "answered by", episode.fallback or ""
    yield "requests", episode.shape
    yield "limits", "" if episode.transport == IMPORTED else episode.limits or usual
    yield "tokens", f"{episode.tokens.total:,}" if episode.tokens.total else ""
    yield "cost", "" if episode.cost is None else format_amount(episode.cost, episode.currency or "")
    yield "data", episode.data_label
    yield "rules", "AgentGym's (compat)" if episode.mode == "compat" else ""
    yield "attempt", str(episode.attempt + 1)
    yield "seed", "" if episode.seed is None else str(episode.seed)
    yield "started", f"{episode.started_at:%Y-%m-%d %H:%M:%S %Z}"
    yield "episode", episode.episode_id
    if origin := episode.origin:
        yield "imported from", f"{origin.format} {origin.id}".strip()
        yield "without", ", ".join(origin.missing)


def _picture(packed: object) -> object:
    cells = unpack_cells(packed)
    return None if cells is None else cells.rows


def _step(step: TimeStep, observed: Sequence[object]) -> dict[str, Any]:
    calls = ", ".join(f"{call.name} {call.arguments}" for call in step.action.tool_calls)
    return {
        "index": step.index,
        "action": ((step.action.text or "").strip() or calls)[:200],
        "problem": "invalid" if not step.valid else "refused" if step.refused else "",
        "n_warnings": len(step.warnings),
        "reward": step.reward,
        "done": step.done,
        "model_s": step.model_s,
        "env_s": step.env_s,
        "world": _picture(step.world),
        "blocks": [*_received(step, observed), *_played(step), *_replied(step)],
    }


def _received(step: TimeStep, observed: Sequence[object]) -> Iterator[Block]:
    """Yield the messages that the agent received since its previous answer; before the first step, all of them."""
    for number, chat in enumerate(step.chats or [[*observed]], 1):
        if number > 1:
            yield "note", f"chat {number} of {len(step.chats)}", ""
        messages = chat[:-1] if chat and number == len(step.chats) and _is_answer(chat[-1]) else chat
        answers = [place for place, message in enumerate(messages[:-1]) if _is_answer(message)]
        n_earlier = answers[-1] + 1 if answers and step.index else 0
        if n_earlier:
            yield "note", f"… {pluralize(n_earlier, 'earlier message')}", ""
        yield from _messages(messages[n_earlier:])


def _played(step: TimeStep) -> Iterator[Block]:
    answer = as_dict(step.chats[-1][-1]) if step.chats and step.chats[-1] and _is_answer(step.chats[-1][-1]) else {}
    written, text = _content(answer), step.action.text or ""
    if text and written not in ("", text):
        yield from _message({**answer, "tool_calls": []})
        yield "action", _action_title(step), text
    else:
        yield from _message({**answer, "content": written or text, "tool_calls": []}, _action_title(step))
    for call in step.action.tool_calls:
        yield _tool_call(call.name, call.arguments)
    names = [step.endpoint, step.model]
    tokens = [f"{step.tokens.prompt:,} prompt + {step.tokens.completion:,} completion tokens"] if step.tokens else []
    speed = [] if step.tokens_per_s is None else [f"{step.tokens_per_s:.1f} tokens/s"]
    if parts := [*filter(None, names), *tokens, *speed]:
        yield "note", "answered by" if any(names) else "usage", " · ".join(parts)
    if step.warnings:
        yield "warn", "differs from configuration", "\n".join(step.warnings)


def _action_title(step: TimeStep) -> str:
    problem = "" if step.valid and not step.refused else " · ✗ refused" if step.valid else " · ✗ not valid"
    return f"action{' · by a human' if step.actor == 'human' else ''}{problem}"


def _replied(step: TimeStep) -> list[Block]:
    blocks = list(_messages(step.observation)) or [("reply", "", "")]
    title = f"reply · reward {step.reward:g}{' · done' * step.done}"
    return [("reply", title if number == 0 else block[1], block[2]) for number, block in enumerate(blocks)]


def _end_blocks(episode: EpisodeRecord) -> Iterator[Block]:
    if error := episode.error:
        yield "bad", f"✗ {error.type}", "\n\n".join(filter(None, (error.message, error.traceback)))
    if episode.evaluation is not None:
        yield "system", "evaluation", json.dumps(episode.evaluation, indent=2, ensure_ascii=False)


def _is_answer(message: object) -> bool:
    return as_dict(message).get("role") == "assistant"


def _messages(messages: Sequence[object]) -> Iterator[Block]:
    for message in messages:
        yield from _message(message if isinstance(message, dict) else {"content": message})


def _message(message: Mapping[str, Any], title: str = "") -> Iterator[Block]:
    """Yield thought, text and tool calls of a message of any shape; ``title`` is that of its text."""
    from runner.inference.chat_format import split_thought  # slow to import

    role = as_text(message.get("role"))
    kind = "action" if title else _KINDS.get(role, "observation")
    calls = [as_dict(call) for call in as_list(message.get("tool_calls"))]
    thought, text = split_thought(_content(message)) if kind == "action" else ("", _content(message))
    for each in (as_text(message.get("reasoning_content")), thought):
        if each:
            yield "thought", "thought", each
    if text or title or not calls:
        yield kind, title or {"user": "observation", "tool": "tool result"}.get(role, role or "observation"), text
    for call in calls:
        function = as_dict(call.get("function")) or call
        yield _tool_call(as_text(function.get("name")), as_text(function.get("arguments")))


def _tool_call(name: str, arguments: str) -> Block:
    return "tool", f"tool call {name}", arguments


def _content(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    return content_text(content) or ("" if content in (None, "", []) else encode(content).decode())


def _span_rows(spans: Sequence[Span]) -> list[Any]:
    """Return name, category, depth, step, start and length in milliseconds of each span, a parent before its children.

    A span whose parents are a circle has the largest depth.
    """
    by_id, rows = {span.id: span for span in spans}, []
    start = min((span.start_ns for span in spans), default=0)
    for span in sorted(spans, key=lambda each: (each.start_ns, -each.end_ns, each.id)):
        above: list[Span] = [span]
        while len(above) <= _MAX_INDENT and (parent := by_id.get(-1 if above[-1].parent is None else above[-1].parent)):
            above.append(parent)
        numbers = (each.attributes.get(name) for each in above for name in ("timestep_idx", "index"))
        step = next((number for number in numbers if type(number) is int), None)
        times = (span.start_ns - start) / 1e6, (span.end_ns - span.start_ns) / 1e6
        rows.append([span.name, span.category, len(above) - 1, step, *times])
    return rows


FORMAT = Format(name="html", title="Web page", suffix=".html", open_writer=PageWriter)
