"""The texts of an episode as passages: observations, prompts, thoughts, answers, tool calls and errors."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from runner.errors import StoreError
from runner.util.json_accessors import as_dict
from runner.util.safe_values import escape_surrogates

PassageKind: TypeAlias = Literal["observation", "prompt", "thought", "answer", "action", "tool call", "error"]


class Passage(msgspec.Struct, frozen=True):
    """All texts of one kind in one step (None: of the reset), separated by line feeds; untrusted."""

    step: int | None
    kind: PassageKind
    text: str


class TextPattern(msgspec.Struct, frozen=True):
    """Words that follow one another, ignoring case, punctuation and space; ``is_prefix``: the last may go on."""

    text: str
    is_prefix: bool = False

    @property
    def match_expression(self) -> str:
        """The words as a string of FTS5, in which nothing has a meaning of its own."""
        words = escape_surrogates(self.text).replace('"', " ").replace("\0", " ")
        return f'"{words}"{" *" if self.is_prefix else ""}'

    def compiled(self) -> re.Pattern[str] | None:
        words = [re.escape(word) for word in _WORD.findall(self.text)]
        if not words:
            return None
        end = r"[^\W_]*" if self.is_prefix else ""
        phrase = r"[\W_]+".join(words)
        return re.compile(rf"(?<![^\W_]){phrase}{end}(?![^\W_])", re.IGNORECASE)


class Hit(msgspec.Struct, frozen=True):
    """A line of a passage with words that were searched for; ``start`` and ``end`` are their place in ``line``."""

    step: int | None
    kind: PassageKind
    line: str
    start: int
    end: int


class _Step(msgspec.Struct):
    chats: list[list[Any]]
    action: dict[str, Any]
    observation: list[Any]


class _Spoken(msgspec.Struct):
    """The part of an episode file that has texts; decoding the rest would take twice as long."""

    reset_observation: list[Any]
    timesteps: list[_Step]
    error: dict[str, Any] | None = None


_WORD = re.compile(r"[^\W_]+")
_DECODER = msgspec.json.Decoder(_Spoken)


def read_passages(data: bytes) -> list[Passage]:
    """Return the passages of an episode file in their order; raises ``StoreError`` if it is no episode."""
    try:
        spoken = _DECODER.decode(data)
    except (ValueError, RecursionError) as exc:
        raise StoreError(f"it is not an episode: {exc}") from exc
    return list(_passages(spoken))


def _passages(spoken: _Spoken) -> Iterator[Passage]:
    seen: set[str] = set()  # every chat repeats the messages of earlier steps
    yield from _joined(None, "observation", _contents(spoken.reset_observation, seen))
    for number, step in enumerate(spoken.timesteps):
        yield from _step_passages(number, step, seen)
        yield from _joined(number, "observation", _contents(step.observation, seen))
    if spoken.error is not None:
        last = len(spoken.timesteps) - 1 if spoken.timesteps else None
        yield from _joined(last, "error", [_text(spoken.error.get(name)) for name in ("type", "message", "traceback")])


def _step_passages(number: int, step: _Step, seen: set[str]) -> Iterator[Passage]:
    prompts, thoughts, answers = [], [], []
    for chat in step.chats:
        for position, message in enumerate(map(as_dict, chat)):
            text = _text(message.get("content"))
            if message.get("role") != "assistant":
                if text not in seen:
                    prompts.append(text)
                    seen.add(text)
            elif position == len(chat) - 1:
                thoughts.append(_text(message.get("reasoning_content")))
                answers.append(text)
    action = _text(step.action.get("text"))
    found = [call for call in step.action.get("tool_calls") or () if isinstance(call, dict)]
    calls = [f"{_text(call.get('name'))} {_text(call.get('arguments'))}" for call in found]
    yield from _joined(number, "prompt", prompts)
    yield from _joined(number, "thought", thoughts)
    yield from _joined(number, "answer", answers)
    yield from _joined(number, "action", [] if action in answers else [action])
    yield from _joined(number, "tool call", calls)


def _contents(messages: list[Any], seen: set[str]) -> list[str]:
    texts = [_text(as_dict(message).get("content")) for message in messages]
    seen.update(texts)
    return texts


def _text(content: object) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(_text(as_dict(part).get("text")) for part in content)
    return ""


def _joined(step: int | None, kind: PassageKind, texts: list[str]) -> Iterator[Passage]:
    if text := "\n".join(filter(None, texts)):
        yield Passage(step, kind, text)


def find_hits(data: bytes, patterns: Sequence[TextPattern]) -> Iterator[Hit]:
    """Yield the lines of an episode file with one of the patterns, in their order; raises like ``read_passages``.

    Words that go on in the next line are a hit in the line of the first of them.
    """
    compiled = list(filter(None, (each.compiled() for each in patterns)))
    for passage in read_passages(data):
        found: dict[int, tuple[int, int]] = {}
        for pattern in compiled:
            for match in pattern.finditer(passage.text):
                found.setdefault(passage.text.rfind("\n", 0, match.start()) + 1, match.span())
        for line_start, (start, end) in sorted(found.items()):
            line = passage.text[line_start:].partition("\n")[0]
            yield Hit(passage.step, passage.kind, line, start - line_start, min(end - line_start, len(line)))
