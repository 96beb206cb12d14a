"""One self-contained page that shows episodes like the console's viewer, without a network.

All of an episode is hostile, so it is in the page only as one block of JSON, as text that ``display_text`` has made
visible, with secrets masked; the page's own script, which its policy allows by hash alone, shows it as text.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import IO, Final, TypeAlias

from runner.formats.format import Format, LeftOut
from runner.store.episode_file import EpisodeRecord
from runner.types import UNKNOWN_OUTCOME, Cells, Limits, Span, TimeStep, is_result_unknown, join_models, unpack_cells
from runner.types.data import is_answer, received_messages
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
_ESCAPES: Final = {ord(char): f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"}
_OUTCOMES: Final = {
    "success": ("✓", "good"),
    "failure": ("✗", "bad"),
    "error": ("!", "bad"),
    UNKNOWN_OUTCOME: ("?", "dim"),
}
_KINDS: Final = {"system": "system", "developer": "system", "assistant": "action", "tool": "tool", "function": "tool"}


class PageWriter:
    """Writes a page with all episodes, one of which is shown at a time."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._mask, self._n_bytes = file, masker(), 0
        template, style, script = (
            Path(__file__).with_suffix(end).read_text("utf-8") for end in (".html", ".css", ".js")
        )
        head, _, tail = template.partition("{data}")
        for name, text in ("style", style), ("script", script):
            digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
            head = head.replace(f"{{{name}_hash}}", f"sha256-{digest}")
        file.write(head.replace("{style}", style).encode())
        self._tail = tail.replace("{script}", script).encode()

    def write(self, episode: EpisodeRecord) -> None:
        if self._n_bytes >= MAX_PAGE:
            raise LeftOut(f"the page has {MAX_PAGE >> 20} MiB of episodes already")
        data = encode(self._safe(page_data(episode))).decode().translate(_ESCAPES).encode()
        self._file.write(b",\n" + data if self._n_bytes else b"\n" + data)
        self._n_bytes += len(data)

    def finish(self) -> Mapping[str, int]:
        self._file.write(self._tail)
        return {}

    def _safe(self, value: object) -> object:
        match value:
            case str():
                return sanitize(self._mask(value).replace("\r\n", "\n"), limit=MAX_TEXT)
            case Cells():
                return self._safe(value.rows)
            case list() | tuple():
                return [self._safe(each) for each in value]
            case dict():
                return {name: self._safe(each) for name, each in value.items()}
        return value


def page_data(episode: EpisodeRecord) -> dict[str, object]:
    """Return what the script of the page shows of an episode, in texts that are still hostile."""
    is_unknown = is_result_unknown(episode.transport, episode.outcome, unscored=episode.unscored)
    outcome = UNKNOWN_OUTCOME if is_unknown else episode.outcome.value
    mark, tone = _OUTCOMES.get(outcome, ("…", "warn"))
    spans = sorted(episode.spans, key=lambda span: (span.start_ns, -span.end_ns, span.id))[:MAX_SPANS]
    by_id = {span.id: span for span in spans}
    observed = [episode.reset_observation, *(step.observation for step in episode.timesteps)]
    return {
        "title": f"{episode.env} task {episode.task_index}",
        "outcome": f"{mark} {outcome}{', unscored' if episode.unscored else ''}",
        "tone": tone,
        "reward": episode.reward,
        "rounds": pluralize(episode.rounds, "round"),
        "duration_s": episode.duration_s,
        "facts": _facts(episode),
        "world": unpack_cells(episode.reset_world),
        "steps": [_step(step, seen) for step, seen in zip(episode.timesteps, observed, strict=False)],
        "end": [*([] if episode.timesteps else _messages(observed[0])), *_end_blocks(episode)],
        "spans": [_span(span, by_id, spans[0].start_ns) for span in spans],
        "n_spans": len(episode.spans),
    }


def _facts(episode: EpisodeRecord) -> list[tuple[str, str]]:
    origin, limits = episode.origin, episode.limits or f"{Limits().max_rounds} rounds {Limits().max_duration_s:g} s"
    facts = {
        "agent": episode.agent,
        "model": join_models(episode.model, episode.models) or "",
        "fallback": episode.fallback or "",
        "limits": "" if origin else limits,
        "tokens": f"{episode.tokens.total:,}" if episode.tokens.total else "",
        "cost": "" if episode.cost is None else format_amount(episode.cost, episode.currency or ""),
        "data": episode.data_label,
        "rules": "AgentGym's (compat)" if episode.mode == "compat" else "",
        "attempt": str(episode.attempt + 1),
        "seed": "" if episode.seed is None else str(episode.seed),
        "started": f"{episode.started_at:%Y-%m-%d %H:%M:%S %Z}",
        "episode": episode.episode_id,
        "imported": f"from {origin.format} without {', '.join(origin.missing) or 'gaps'}" if origin else "",
    }
    return [(name, text) for name, text in facts.items() if text]


def _step(step: TimeStep, observed: Sequence[object]) -> dict[str, object]:
    calls = ", ".join(f"{call.name} {call.arguments}" for call in step.action.tool_calls)
    problem = "refused" if step.refused else "" if step.valid else "not valid"
    return {
        "index": step.index,
        "action": (step.action.text or "").strip() or calls,
        "problem": problem,
        "n_warnings": len(step.warnings),
        "reward": step.reward,
        "done": step.done,
        "model_s": step.model_s,
        "env_s": step.env_s,
        "world": unpack_cells(step.world),
        "blocks": [*_received(step, observed), *_played(step, problem), *_replied(step)],
    }


def _received(step: TimeStep, observed: Sequence[object]) -> Iterator[Block]:
    """Yield the messages that the agent received since its previous answer; before the first step, all of them."""
    for n_earlier, messages in received_messages(step.chats, full=not step.index) if step.chats else [(0, observed)]:
        if n_earlier:
            yield "note", f"… {pluralize(n_earlier, 'earlier message')}", ""
        yield from _messages(messages)


def _played(step: TimeStep, problem: str) -> Iterator[Block]:
    *thoughts, (_, _, action) = _message({"role": "assistant", "content": step.action.text})
    last = step.chats[-1][-1:] if step.chats else []
    said = _message({**last[0], "tool_calls": []}) if last and is_answer(last[0]) else thoughts
    yield from (block for block in said if block[0] == "thought" or block[2] not in ("", action))
    if action or problem or not step.action.tool_calls:
        yield "action", f"action{' · by a human' * (step.actor == 'human')}{f' · ✗ {problem}' * bool(problem)}", action
    for call in step.action.tool_calls:
        yield "tool", f"tool call {call.name}", call.arguments
    names = " · ".join(filter(None, (step.endpoint, step.model)))
    tokens = f"{step.tokens.prompt:,} prompt + {step.tokens.completion:,} completion tokens" if step.tokens else ""
    if names or tokens:
        yield "note", f"answered by {names}" if names else "usage", tokens
    if step.warnings:
        yield "warn", "differs from configuration", "\n".join(step.warnings)


def _replied(step: TimeStep) -> list[Block]:
    (_, _, text), *others = [*_messages(step.observation)] or [("", "", "")]
    return [("reply", f"reply · reward {step.reward:g}{' · done' * step.done}", text), *others]


def _end_blocks(episode: EpisodeRecord) -> Iterator[Block]:
    if error := episode.error:
        yield "bad", f"✗ {error.type}", "\n\n".join(filter(None, (error.message, error.traceback)))
    if episode.evaluation is not None:
        yield "system", "evaluation", json.dumps(episode.evaluation, indent=2, ensure_ascii=False)


def _messages(messages: Iterable[object]) -> Iterator[Block]:
    return chain.from_iterable(map(_message, messages))


def _message(value: object) -> Iterator[Block]:
    """Yield thought, text and tool calls of a message of any shape."""
    from runner.inference.chat_format import split_thought  # slow to import

    message = value if isinstance(value, dict) else {"content": value}
    role, content, thought = as_text(message.get("role")), message.get("content"), ""
    text = content_text(content) or ("" if content in (None, "", []) else encode(content).decode())
    kind = _KINDS.get(role, "observation")
    if kind == "action":
        thought, text = split_thought(text)
    for each in filter(None, (as_text(message.get("reasoning_content")), thought)):
        yield "thought", "thought", each
    calls = [as_dict(call) for call in as_list(message.get("tool_calls"))]
    if text or not calls:
        yield kind, "observation" if role in ("", "user") else role, text
    for call in calls:
        function = as_dict(call.get("function")) or call
        yield "tool", f"tool call {as_text(function.get('name'))}", as_text(function.get("arguments"))


def _span(span: Span, by_id: Mapping[int, Span], origin_ns: int) -> dict[str, object]:
    above = [span]
    while len(above) <= _MAX_INDENT and (parent := above[-1].parent) is not None and parent in by_id:
        above.append(by_id[parent])
    numbers = (each.attributes.get(name) for each in above for name in ("timestep_idx", "index"))
    return {
        "name": span.name,
        "category": span.category,
        "depth": len(above) - 1,
        "step": next((number for number in numbers if type(number) is int), None),
        "start_ms": (span.start_ns - origin_ns) / 1e6,
        "length_ms": (span.end_ns - span.start_ns) / 1e6,
    }


FORMAT = Format(name="html", title="Web page", suffix=".html", open_writer=PageWriter)
