"""What is known of an episode, in words: who answered, how fast, at which cost, where the time went; flags, notes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from agentgym_tui.presenters.cells import Cell, Line, Tone, cost_part
from agentgym_tui.presenters.number_format import (
    format_count,
    format_duration,
    format_rate,
    format_time,
    format_time_left,
)
from agentgym_tui.presenters.text_width import cut
from agentgym_tui.safe_text import masked_line
from agentgym_tui.state.episode import Episode, StepState, StreamingAnswer
from agentgym_tui.state.episode_list import ListedEpisode
from agentgym_tui.state.servers import EndpointState, Failover
from runner.results.bottleneck import Bottleneck
from runner.types import Phases, Tokens
from runner.types.notes import Note
from runner.types.time_shares import time_shares

FALLBACK_MARK: Final = "\N{CLOCKWISE TOP SEMICIRCLE ARROW}"
"""Marks an answer that did not come from the first endpoint of the chain."""
MARK: Final = "✎"
"""Mark of what has a note or a tag."""
FLAG_MARK: Final = "⚑"
MAX_TAGS: Final = 20
"""Largest number of tags of an episode that are shown."""
MIN_SILENCE_S: Final = 2.0
"""Seconds without a token from which on they are counted; between two tokens fewer are usual."""
MIN_SHOWN_S: Final = 0.001
"""Seconds from which on a part of a step is shown, unless it is a part of the answer."""
_MAX_SENTENCE: Final = 300
_MAX_NAME: Final = 40
_MAX_REASON: Final = 120


def streaming_parts(answer: StreamingAnswer, waiting_s: float | None = None) -> list[Line]:
    """Describe an answer while it is streamed; ``waiting_s``: for how long the endpoint has sent nothing, if known."""
    seconds = "" if waiting_s is None or waiting_s < MIN_SILENCE_S else format_time_left(waiting_s)
    silence: Line = [Cell(f"silent {seconds}", "warn")] if seconds else []
    if not answer.n_tokens:
        silence = [Cell(f"waiting {seconds}" if seconds else "no answer yet", "dim")]
    rate = answer.tokens_per_s
    return [
        _endpoint_part(answer.endpoint, answer.skipped_endpoints),
        silence,
        [Cell(f"≈ {format_rate(rate)} tokens/s", "accent")] if rate is not None else [],
        _first_token(answer.ttft_s),
    ]


def answer_parts(episode: Episode, index: int, waiting_s: float | None = None) -> list[Line]:
    """Describe the answer of the step with this index; for an unfinished step, the streaming answer if there is one."""
    step = next((step for step in reversed(episode.steps) if step.index == index), None)
    if step is None:
        return streaming_parts(episode.streaming, waiting_s) if episode.streaming is not None else []
    return [
        _endpoint_part(step.endpoint, step.skipped_endpoints) if step.endpoint else [],
        [Cell(f"{format_rate(step.tokens_per_s)} tokens/s")] if step.tokens_per_s is not None else [],
        _first_token(step.ttft_s),
        cost_part(step.cost, episode.currency),
    ]


def fallback_note(episode: Episode) -> Line:
    """Return which endpoint answers instead of failed ones, now or in the newest step; empty if the first one does."""
    answer = episode.streaming
    if answer is not None and answer.failures:
        if answer.endpoint is None:
            return _endpoint_part(None, ["failed"])
        endpoint, failed = answer.endpoint, answer.skipped_endpoints
    elif answer is None and episode.steps and (answered := episode.steps[-1].endpoint) is not None:
        endpoint, failed = answered, episode.steps[-1].skipped_endpoints
    else:
        return []
    return [Cell(f"{FALLBACK_MARK} {_names([endpoint])} instead of {_names(failed)}", "warn")] if failed else []


def failover_text(failover: Failover) -> str:
    """Describe a switch from failed endpoints to the next one, or the return to the first endpoint of the chain."""
    env, endpoint = failover.env or "?", _names([failover.endpoint])
    if not failover.failed:
        return f"{env}: {endpoint} responds again"
    reason = f" ({masked_line(failover.reason, _MAX_REASON)})" if failover.reason else ""
    return f"{env}: {_names(failover.failed)} failed{reason}; using {endpoint}"


def endpoint_state(endpoint: EndpointState) -> str:
    """Return the state of an endpoint in one or two words, such as ``cooling down``."""
    if endpoint.status in ("down", "wrong") or endpoint.is_answering:
        return endpoint.status
    return "cooling down" if endpoint.rest_s is not None else "failed" if endpoint.failure is not None else "unknown"


def tokens_text(tokens: Tokens) -> str:
    cached = f" ({format_count(tokens.cached)} cached)" if tokens.cached else ""
    reasoning = f" ({format_count(tokens.reasoning)} reasoning)" if tokens.reasoning else ""
    return (
        f"{format_count(tokens.prompt)} prompt{cached} + {format_count(tokens.completion)} completion{reasoning} tokens"
    )


def bottleneck_line(bottleneck: Bottleneck, width: int) -> Line:
    if not bottleneck.sentence:
        return []
    tone: Tone = "warn" if bottleneck.cause in ("queue", "endpoint") else "dim"
    return [Cell(cut(masked_line(bottleneck.sentence, _MAX_SENTENCE), width), tone)]


def phases_text(phases: Phases) -> str:
    """Describe the split of a step's time, e.g. ``queue about 1.2s · decode 3.0s · environment 4ms``."""
    about = "about " if phases.about else ""
    answer = (("queue", phases.queue), ("prefill", phases.prefill), ("decode", phases.decode))
    parts = [f"{name} {about}{format_duration(seconds)}" for name, seconds in answer if seconds is not None]
    unsplit = "before the first token" if parts else "model, not split"
    rest = [("environment", phases.env), ("own", phases.own)]
    before = [f"{unsplit} {format_duration(phases.unsplit)}"] if phases.unsplit >= MIN_SHOWN_S else []
    after = [f"{name} {format_duration(seconds)}" for name, seconds in rest if seconds >= MIN_SHOWN_S]
    return " · ".join([*before, *parts, *after])


def shares_line(steps: Iterable[StepState]) -> Line:
    """Describe which shares of the steps' time went where; an empty line for steps without a split."""
    text = time_shares(steps).text()
    return [Cell(f"time: {text}", "dim")] if text else []


def _endpoint_part(endpoint: str | None, skipped: Sequence[str]) -> Line:
    mark = [Cell(f"{FALLBACK_MARK} ", "warn")] if skipped else []
    if endpoint:
        return [*mark, Cell(_names([endpoint]))]
    return [Cell(f"{FALLBACK_MARK} no endpoint has answered", "warn")] if mark else []


def _first_token(seconds: float | None) -> Line:
    return [Cell(f"first token {format_duration(seconds)}", "dim")] if seconds is not None else []


def _names(endpoints: Sequence[str | None]) -> str:
    return masked_line(", ".join(dict.fromkeys(name[:200] for name in endpoints[:5] if name)), _MAX_NAME)


def note_title(note: Note, what: str = "") -> str:
    return " · ".join([f"{MARK}{what}", format_time(note.at), *([note.author] if note.author else [])])


def note_line(note: Note) -> Line:
    return [Cell(f"{note_title(note)}  ", "dim"), Cell(note.text)]


def tag_text(tags: Sequence[str]) -> str:
    return " ".join(f"#{tag}" for tag in tags[:MAX_TAGS])


def annotation_count(notes: Sequence[Note]) -> str:
    """Return how many notes an episode and its steps have; an empty text without any."""
    n = sum(note.kind == "note" for note in notes)
    return f"{MARK} {n:,} note{'s' * (n != 1)}" if n else ""


def episode_flags(episode: ListedEpisode) -> Sequence[tuple[str, int | None]]:
    """Return the flags of an episode, each with the step where it begins if that is known."""
    if isinstance(episode, Episode):
        return episode.found_flags
    return [(name, None) for name in episode.flags.split(",")] if episode.flags else []
