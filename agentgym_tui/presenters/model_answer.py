"""Who answers an agent, how fast and for how much: of an answer that comes, and of one that is there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from agentgym_tui.presenters.cells import Cell, Line, masked_line
from agentgym_tui.presenters.number_format import format_cost, format_count, format_duration, format_rate
from agentgym_tui.safe_text import SafeText, join, sanitize_line, trusted
from agentgym_tui.state.endpoints import Failover
from agentgym_tui.state.models import EndpointState, Episode, StepState, StreamingAnswer
from runner.types import Tokens

FALLBACK_MARK: Final = trusted("\N{CLOCKWISE TOP SEMICIRCLE ARROW}")
"""Stands where another endpoint has answered, or is asked, than the one that comes first."""

_MAX_NAME: Final = 40
_MAX_REASON: Final = 120


def streaming_parts(answer: StreamingAnswer) -> list[Line]:
    """What is known so far of an answer that comes; how fast it comes is a guess."""
    who = [Cell(_endpoint_names([answer.endpoint]))] if answer.endpoint else []
    fell = [Cell(join([FALLBACK_MARK, trusted(" ")]), "warn")] if answer.skipped_endpoints else []
    rate = answer.tokens_per_s
    return [
        [*fell, *who] if who else [*fell, Cell(trusted("nobody answers yet"), "warn")] if fell else [],
        [] if answer.n_tokens else [Cell(trusted("no answer yet"), "dim")],
        [Cell(trusted(f"≈ {format_rate(rate)} tokens/s"), "accent")] if rate is not None else [],
        _first_token(answer.ttft_s),
    ]


def answer_parts(episode: Episode, index: int) -> list[Line]:
    """Of the answer for a step, whether it is there or comes."""
    step = next((step for step in reversed(episode.steps) if step.index == index), None)
    if step is not None:
        return step_parts(step)
    return streaming_parts(episode.streaming) if episode.streaming is not None else []


def step_parts(step: StepState) -> list[Line]:
    """The same of the answer that a step has."""
    fell = [Cell(join([FALLBACK_MARK, trusted(" ")]), "warn")] if step.skipped_endpoints else []
    return [
        [*fell, Cell(_endpoint_names([step.endpoint]))] if step.endpoint else [],
        [Cell(trusted(f"{format_rate(step.tokens_per_s)} tokens/s"))] if step.tokens_per_s is not None else [],
        _first_token(step.ttft_s),
        [Cell(trusted(f"cost {format_cost(step.cost)}"))] if step.cost is not None else [],
    ]


def fallback_note(episode: Episode) -> Line:
    """That another endpoint is asked, or has answered the newest step, than the one that comes first."""
    answer = episode.streaming
    if answer is not None and answer.failures:
        if answer.endpoint is None:
            return [Cell(join([FALLBACK_MARK, trusted(" nobody answers yet")]), "warn")]
        return _instead_of(_endpoint_names([answer.endpoint]), answer.skipped_endpoints)
    step = episode.steps[-1] if episode.steps else None
    if step is None or answer is not None or step.endpoint is None:
        return []
    return _instead_of(_endpoint_names([step.endpoint]), step.skipped_endpoints)


def failover_text(fall: Failover) -> SafeText:
    """That another endpoint is asked, or the first one again."""
    where, who = sanitize_line(fall.env or "?", 60), _endpoint_names([fall.endpoint])
    if not fall.failed:
        return join([where, trusted(": "), who, trusted(" answers again")])
    why = [trusted(" ("), masked_line(fall.reason, _MAX_REASON), trusted(")")] if fall.reason else []
    return join(
        [
            where,
            trusted(": "),
            _endpoint_names(fall.failed),
            trusted(" did not answer"),
            *why,
            trusted(", "),
            who,
            trusted(" is asked"),
        ]
    )


def endpoint_state(endpoint: EndpointState) -> SafeText:
    """How it is, in a word."""
    if endpoint.status in ("down", "wrong") or endpoint.is_answering:
        return sanitize_line(endpoint.status, 20)
    return trusted("rests" if endpoint.rest_s is not None else "failed" if endpoint.failure is not None else "unknown")


def tokens_text(tokens: Tokens) -> SafeText:
    """What was read and written, and how much of it was cached and thought."""
    cached = f" ({format_count(tokens.cached)} cached)" if tokens.cached else ""
    thought = f" ({format_count(tokens.reasoning)} reasoning)" if tokens.reasoning else ""
    return trusted(
        f"{format_count(tokens.prompt)} prompt{cached} + {format_count(tokens.completion)} completion{thought} tokens"
    )


def _instead_of(who: SafeText, failed: Sequence[str]) -> Line:
    return (
        [Cell(join([FALLBACK_MARK, trusted(" "), who, trusted(" for "), _endpoint_names(failed)]), "warn")]
        if failed
        else []
    )


def _first_token(seconds: float | None) -> Line:
    return [Cell(trusted(f"first token {format_duration(seconds)}"), "dim")] if seconds is not None else []


def _endpoint_names(endpoints: Sequence[str | None]) -> SafeText:
    return masked_line(", ".join(dict.fromkeys(name[:200] for name in endpoints[:5] if name)), _MAX_NAME)
