"""Why an episode failed, as a template without the literals of its task, so that like failures are found together."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, lru_cache
from typing import Any, Final, Literal, TypeAlias

import msgspec

from runner.store.flags import (
    EndedEpisode,
    PlayedStep,
    StepOutline,
    find_flags,
    invalid_start,
    loop_start,
    messages,
    played_steps,
    refused_start,
    step_keys,
)
from runner.types import Action, Outcome, TimeStep, ToolCall
from runner.util.display_text import is_unsafe
from runner.util.json_accessors import as_dict, content_text

Cause: TypeAlias = Literal["error", "invalid", "refused", "loop", "limit", "wrong"]

CAUSES: Final[dict[Cause, str]] = {
    "error": "an error ended it",
    "invalid": "invalid actions until the end",
    "refused": "actions that the environment refused until the end",
    "loop": "the same steps again and again until the end",
    "limit": "stopped at a limit",
    "wrong": "the environment ended it without success",
}
FOUND_COLUMNS: Final = ("flags", "failure", "failed_step")
MAX_WORDS: Final = 12
MAX_TEXT: Final = 2_000
MAX_LINE: Final = 300
MAX_COMMAND: Final = 8
"""Maximum number of words of an invalid action that is taken for a command, and not for prose."""
GAP: Final = "\N{HORIZONTAL ELLIPSIS}"
"""Stands for the literals of a task in a template."""

_SENTENCE_END = re.compile(r"[\r\n]|\[SEP\]|[.!?](?=\s|$)")
_QUOTED = re.compile(r""""[^"]*"|(?<!\w)'[^']*'|`[^`]*`""")
# words before a colon that is followed by an explanation
_EXPLAINED = re.compile(r"error|exception|fail|invalid|warning|cannot|could not", re.IGNORECASE)
_NUMBERED = re.compile(r"\b(the|an?) [^\W\d_]+ \d+\b", re.IGNORECASE)
_TOKEN = re.compile(r"\S+")
_PUNCTUATION = "\"'`.,;:!?()[]{}<>|"


class Failure(msgspec.Struct, frozen=True):
    """The failure of an episode; ``action`` is the template of the action that failed, ``step`` its index."""

    cause: Cause
    action: str = ""
    observation: str = ""
    step: int | None = None

    @property
    def line(self) -> str:
        """Cause and templates in one line, such as ``loop: move … -> The move into the wall``; at most ``MAX_LINE``."""
        text = " -> ".join(" ".join(part.split()) for part in (self.action, self.observation) if part)
        return f"{self.cause}: {text}"[:MAX_LINE] if text else self.cause


def parse_line(line: str) -> tuple[str, str, str]:
    cause, _, text = line.partition(": ")
    if cause in ("error", "limit"):
        return cause, "", text
    action, _, observation = text.partition(" -> ")
    return cause, action, observation


def row_findings(episode: EndedEpisode, steps: Iterable[TimeStep | msgspec.Raw | StepOutline]) -> dict[str, Any]:
    """Return the columns ``flags``, ``failure`` and ``failed_step``; None if the steps are damaged."""
    try:
        played = played_steps(steps)
        keys = step_keys(played)
        names, failure = [flag.name for flag in find_flags(episode, played, keys)], find_failure(episode, played, keys)
    except (ValueError, RecursionError):
        return dict.fromkeys(FOUND_COLUMNS)
    line = None if failure is None else shared_text(failure.line)
    return dict(zip(FOUND_COLUMNS, (",".join(names), line, None if failure is None else failure.step), strict=True))


@lru_cache(maxsize=4_096)
def shared_text(text: str) -> str:
    """Return the string object that equal texts share: many episodes have the same failure."""
    return text


def flag_names(flags: str | None) -> tuple[str, ...]:
    return tuple(flags.split(",")) if flags else ()


def find_failure(
    episode: EndedEpisode, steps: Sequence[PlayedStep], keys: Sequence[int] | None = None
) -> Failure | None:
    """Return why an episode failed; None if it succeeded, was stopped, or does not count; see ``find_flags``."""
    error = episode.error
    if episode.success or episode.unscored or episode.outcome in (Outcome.CANCELLED, Outcome.INTERRUPTED):
        return None
    if episode.outcome is Outcome.ERROR:
        name, message = ("", "") if error is None else (error.type, error.message)
        template = " ".join(filter(None, (name, text_template(message))))
        return Failure("error", observation=template, step=steps[-1].index if steps else None)
    if (start := invalid_start(steps, at_end=True)) is not None:
        return _failure("invalid", steps, start)
    if (start := refused_start(steps, at_end=True)) is not None:
        return _failure("refused", steps, start)
    if (start := loop_start(step_keys(steps) if keys is None else keys, at_end=True)) is not None:
        return _failure("loop", steps, start)
    if episode.outcome is Outcome.FAILURE:
        return _failure("wrong", steps, len(steps) - 1)
    return Failure("limit", observation=str(episode.outcome))


def _failure(cause: Cause, steps: Sequence[PlayedStep], position: int) -> Failure:
    if not steps:
        return Failure(cause)
    step = steps[position]
    text = next((text for text in map(_text, messages(step)) if text), "")
    observation = text_template(text, literals=_literals(step.action))
    return Failure(cause, action_template(step.action), observation, step.index)


def action_template(action: Action) -> str:
    """Return the names of an action's tool calls, or the first word of its text, without what they apply to."""
    if action.tool_calls:
        return " + ".join(f"{_tool_name(call)} {GAP}" for call in action.tool_calls[:3])
    words = (action.text or "")[:MAX_TEXT].split()
    if not words:
        return "no text"
    return text_template(words[0]) + (f" {GAP}" if words[1:] else "") if len(words) <= MAX_COMMAND else "prose"


@cache
def _word() -> re.Pattern[str]:
    # Only on use: it takes 5 ms to compile, and a short run has no failure.
    return re.compile(r"[^\W\d_]{2,}(?:['\N{RIGHT SINGLE QUOTATION MARK}-][^\W\d_]+)*")


def text_template(text: str, literals: Iterable[str] = ()) -> str:
    """Return the words of the first sentence of a text; numbers, names, quotations and ``literals`` become a gap.

    A name is also what has a number, such as ``the sidetable 1``.
    """
    masked = frozenset(literals)
    sentence = next(filter(str.strip, _SENTENCE_END.split(_QUOTED.sub(" 0 ", text[:MAX_TEXT]))), "")
    head, _, _ = sentence.partition(": ")
    sentence = sentence if _EXPLAINED.search(head) else head  # other colons introduce things of the task
    parts: list[str] = []
    for part in _template_parts(_NUMBERED.sub(r"\1 0", sentence), masked):
        if part != GAP or parts[-1:] != [GAP]:
            parts.append(part)
        if len(parts) == MAX_WORDS:
            break
    return " ".join(parts)


def _template_parts(sentence: str, masked: frozenset[str]) -> Iterator[str]:
    for token in _TOKEN.findall(sentence):
        word = token.strip(_PUNCTUATION)
        if word:
            is_word = _word().fullmatch(word) and word.lower() not in masked and not is_unsafe(word)
            yield word if is_word else GAP


def _literals(action: Action) -> set[str]:
    texts = [call.arguments for call in action.tool_calls]
    texts += [] if texts else [" ".join((action.text or "").split()[1:])]
    return {word.lower() for text in texts for word in _word().findall(text[:MAX_TEXT])}


def _text(message: object) -> str:
    content: Any = as_dict(message).get("content")
    return content_text(content).strip()


def _tool_name(call: ToolCall) -> str:
    return "unknown tool" if is_unsafe(call.name) or not call.name.strip() else call.name[:40].replace(" ", "_")
