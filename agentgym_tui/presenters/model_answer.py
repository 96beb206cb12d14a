"""Who answers an agent, how fast and for how much: of an answer that comes, and of one that is there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from agentgym_tui.presenters.cells import Cell, Line
from agentgym_tui.presenters.number_format import cost, duration, pace, quantity
from agentgym_tui.presenters.segments import told
from agentgym_tui.safe_text import Safe, join, line, own
from agentgym_tui.state.endpoints import Fall
from agentgym_tui.state.models import Endpoint, Episode, Step, Streaming
from runner.types import Tokens

FELL: Final = own("\N{CLOCKWISE TOP SEMICIRCLE ARROW}")
"""Stands where another endpoint has answered, or is asked, than the one that comes first."""

_NAME: Final = 40
_WHY: Final = 120


def streaming_parts(answer: Streaming) -> list[Line]:
    """What is known so far of an answer that comes; how fast it comes is a guess."""
    who = [Cell(_names([answer.endpoint]))] if answer.endpoint else []
    fell = [Cell(join([FELL, own(" ")]), "warn")] if answer.passed_over else []
    rate = answer.tokens_per_s
    return [
        [*fell, *who] if who else [*fell, Cell(own("nobody answers yet"), "warn")] if fell else [],
        [] if answer.n else [Cell(own("no answer yet"), "dim")],
        [Cell(own(f"≈ {pace(rate)} tokens/s"), "accent")] if rate is not None else [],
        _first_token(answer.ttft_s),
    ]


def answer_parts(episode: Episode, index: int) -> list[Line]:
    """Of the answer for a step, whether it is there or comes."""
    step = next((step for step in reversed(episode.steps) if step.index == index), None)
    if step is not None:
        return step_parts(step)
    return streaming_parts(episode.streaming) if episode.streaming is not None else []


def step_parts(step: Step) -> list[Line]:
    """The same of the answer that a step has."""
    fell = [Cell(join([FELL, own(" ")]), "warn")] if step.passed_over else []
    return [
        [*fell, Cell(_names([step.endpoint]))] if step.endpoint else [],
        [Cell(own(f"{pace(step.tokens_per_s)} tokens/s"))] if step.tokens_per_s is not None else [],
        _first_token(step.ttft_s),
        [Cell(own(f"cost {cost(step.cost)}"))] if step.cost is not None else [],
    ]


def answered_by(episode: Episode) -> Line:
    """That another endpoint is asked, or has answered the newest step, than the one that comes first."""
    answer = episode.streaming
    if answer is not None and answer.failures:
        if answer.endpoint is None:
            return [Cell(join([FELL, own(" nobody answers yet")]), "warn")]
        return _instead(_names([answer.endpoint]), answer.passed_over)
    step = episode.steps[-1] if episode.steps else None
    if step is None or answer is not None or step.endpoint is None:
        return []
    return _instead(_names([step.endpoint]), step.passed_over)


def fall_text(fall: Fall) -> Safe:
    """That another endpoint is asked, or the first one again."""
    where, who = line(fall.env or "?", 60), _names([fall.endpoint])
    if not fall.failed:
        return join([where, own(": "), who, own(" answers again")])
    why = [own(" ("), told(fall.why, _WHY), own(")")] if fall.why else []
    return join([where, own(": "), _names(fall.failed), own(" did not answer"), *why, own(", "), who, own(" is asked")])


def endpoint_state(endpoint: Endpoint) -> Safe:
    """How it is, in a word."""
    if endpoint.status in ("down", "wrong") or endpoint.answers:
        return line(endpoint.status, 20)
    return own("rests" if endpoint.rest_s is not None else "failed" if endpoint.failure is not None else "unknown")


def tokens_text(tokens: Tokens) -> Safe:
    """What was read and written, and how much of it was cached and thought."""
    cached = f" ({quantity(tokens.cached)} cached)" if tokens.cached else ""
    thought = f" ({quantity(tokens.reasoning)} reasoning)" if tokens.reasoning else ""
    return own(f"{quantity(tokens.prompt)} prompt{cached} + {quantity(tokens.completion)} completion{thought} tokens")


def _instead(who: Safe, failed: Sequence[str]) -> Line:
    return [Cell(join([FELL, own(" "), who, own(" for "), _names(failed)]), "warn")] if failed else []


def _first_token(seconds: float | None) -> Line:
    return [Cell(own(f"first token {duration(seconds)}"), "dim")] if seconds is not None else []


def _names(endpoints: Sequence[str | None]) -> Safe:
    return told(", ".join(dict.fromkeys(name[:200] for name in endpoints[:5] if name)), _NAME)
