"""Describe the endpoint that answers an agent: its name, speed, cost and failovers, and where the time goes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from agentgym_tui.presenters.cells import Cell, Line, Tone, cost_part
from agentgym_tui.presenters.number_format import (
    format_count,
    format_duration,
    format_rate,
    format_time_left,
)
from agentgym_tui.presenters.text_width import cut
from agentgym_tui.safe_text import masked_line
from agentgym_tui.state.episode import Episode, StepState, StreamingAnswer
from agentgym_tui.state.servers import EndpointState, Failover
from runner.results.bottleneck import Bottleneck
from runner.types import Phases, Tokens
from runner.types.time_shares import TimeShares, time_shares

FALLBACK_MARK: Final = "\N{CLOCKWISE TOP SEMICIRCLE ARROW}"
"""Marks an answer that did not come from the first endpoint of the chain."""

MIN_SILENCE_S: Final = 2.0
"""Seconds without a token from which on they are counted; between two tokens fewer are usual."""

MIN_SHOWN_S: Final = 0.001
"""Seconds from which on a part of a step is shown, unless it is a part of the answer."""

_MAX_SENTENCE: Final = 300
_MAX_NAME: Final = 40
_MAX_REASON: Final = 120


def streaming_parts(answer: StreamingAnswer, waiting_s: float | None = None) -> list[Line]:
    """Describe an answer while it is streamed: endpoint, estimated tokens per second and time to the first token.

    Args:
        answer: the received part of the answer.
        waiting_s: for how many seconds the endpoint has sent nothing; None if that is not known.
    """
    name = [Cell(_endpoint_names([answer.endpoint]))] if answer.endpoint else []
    mark = [Cell(f"{FALLBACK_MARK} ", "warn")] if answer.skipped_endpoints else []
    rate = answer.tokens_per_s
    return [
        [*mark, *name] if name else [*mark, Cell("no endpoint has answered", "warn")] if mark else [],
        _silence(answer, waiting_s),
        [Cell(f"≈ {format_rate(rate)} tokens/s", "accent")] if rate is not None else [],
        _first_token(answer.ttft_s),
    ]


def answer_parts(episode: Episode, index: int, waiting_s: float | None = None) -> list[Line]:
    """Describe the answer of the step with this index; for an unfinished step, the streaming answer if there is one.

    Args:
        episode: the episode.
        index: index of the step.
        waiting_s: for how many seconds the endpoint of the streaming answer has sent nothing; None if not known.
    """
    step = next((step for step in reversed(episode.steps) if step.index == index), None)
    if step is not None:
        return step_parts(step, episode.currency)
    return streaming_parts(episode.streaming, waiting_s) if episode.streaming is not None else []


def step_parts(step: StepState, currency: str) -> list[Line]:
    """Describe the answer of a finished step: endpoint, tokens per second, time to the first token and cost."""
    mark = [Cell(f"{FALLBACK_MARK} ", "warn")] if step.skipped_endpoints else []
    return [
        [*mark, Cell(_endpoint_names([step.endpoint]))] if step.endpoint else [],
        [Cell(f"{format_rate(step.tokens_per_s)} tokens/s")] if step.tokens_per_s is not None else [],
        _first_token(step.ttft_s),
        cost_part(step.cost, currency),
    ]


def fallback_note(episode: Episode) -> Line:
    """Return a note that names the answering endpoint and the endpoints that failed before it.

    The note describes the streaming answer, or else the answer of the newest step. It is empty if the first endpoint of
    the chain answers.
    """
    answer = episode.streaming
    if answer is not None and answer.failures:
        if answer.endpoint is None:
            return [Cell(f"{FALLBACK_MARK} no endpoint has answered", "warn")]
        return _instead_of(_endpoint_names([answer.endpoint]), answer.skipped_endpoints)
    step = episode.steps[-1] if episode.steps else None
    if step is None or answer is not None or step.endpoint is None:
        return []
    return _instead_of(_endpoint_names([step.endpoint]), step.skipped_endpoints)


def failover_text(failover: Failover) -> str:
    """Describe a switch from failed endpoints to the next one, or the return to the first endpoint of the chain."""
    env, endpoint = failover.env or "?", _endpoint_names([failover.endpoint])
    if not failover.failed:
        return f"{env}: {endpoint} responds again"
    reason = f" ({masked_line(failover.reason, _MAX_REASON)})" if failover.reason else ""
    return f"{env}: {_endpoint_names(failover.failed)} failed{reason}; using {endpoint}"


def endpoint_state(endpoint: EndpointState) -> str:
    """Return the state of an endpoint in one or two words, such as ``cooling down``."""
    if endpoint.status in ("down", "wrong") or endpoint.is_answering:
        return endpoint.status
    return "cooling down" if endpoint.rest_s is not None else "failed" if endpoint.failure is not None else "unknown"


def tokens_text(tokens: Tokens) -> str:
    """Describe token usage: prompt tokens, cached tokens, completion tokens and reasoning tokens."""
    cached = f" ({format_count(tokens.cached)} cached)" if tokens.cached else ""
    reasoning = f" ({format_count(tokens.reasoning)} reasoning)" if tokens.reasoning else ""
    return (
        f"{format_count(tokens.prompt)} prompt{cached} + {format_count(tokens.completion)} completion{reasoning} tokens"
    )


def bottleneck_line(bottleneck: Bottleneck, width: int) -> Line:
    """Return the sentence of a bottleneck on one line; an empty line if there is none."""
    if not bottleneck.sentence:
        return []
    tone: Tone = "warn" if bottleneck.cause in ("queue", "endpoint") else "dim"
    return [Cell(cut(masked_line(bottleneck.sentence, _MAX_SENTENCE), width), tone)]


def phases_text(phases: Phases) -> str:
    """Describe the split of a step's time, e.g. ``queue about 1.2s · decode 3.0s · environment 4ms``."""
    about = "about " if phases.about else ""
    answer = (("queue", phases.queue), ("prefill", phases.prefill), ("decode", phases.decode))
    parts = [_part(name, seconds, about) for name, seconds in answer if seconds is not None]
    if phases.unsplit >= MIN_SHOWN_S:
        name = "model, not split" if not parts else "before the first token"
        parts.insert(0, _part(name, phases.unsplit))
    rest = (("environment", phases.env), ("own", phases.own))
    parts += [_part(name, seconds) for name, seconds in rest if seconds >= MIN_SHOWN_S]
    return " · ".join(parts)


def shares_line(steps: Iterable[StepState]) -> Line:
    """Describe which shares of the steps' time went where; an empty line for steps without a split."""
    return _shares_cells(time_shares(steps))


def _instead_of(endpoint: str, failed: Sequence[str]) -> Line:
    if not failed:
        return []
    return [Cell(f"{FALLBACK_MARK} {endpoint} instead of {_endpoint_names(failed)}", "warn")]


def _silence(answer: StreamingAnswer, waiting_s: float | None) -> Line:
    seconds = None if waiting_s is None or waiting_s < MIN_SILENCE_S else format_time_left(waiting_s)
    if not answer.n_tokens:
        return [Cell("no answer yet" if seconds is None else f"waiting {seconds}", "dim")]
    return [] if seconds is None else [Cell(f"silent {seconds}", "warn")]


def _first_token(seconds: float | None) -> Line:
    return [Cell(f"first token {format_duration(seconds)}", "dim")] if seconds is not None else []


def _endpoint_names(endpoints: Sequence[str | None]) -> str:
    return masked_line(", ".join(dict.fromkeys(name[:200] for name in endpoints[:5] if name)), _MAX_NAME)


def _shares_cells(shares: TimeShares) -> Line:
    text = shares.text()
    return [Cell(f"time: {text}", "dim")] if text else []


def _part(name: str, seconds: float, about: str | None = None) -> str:
    return f"{name} {about or ''}{format_duration(seconds)}"
