"""What an answer costs."""

from __future__ import annotations

from runner.config.profile import Price
from runner.types import Tokens

MILLION = 1_000_000


def cost_of(tokens: Tokens | None, price: Price | None) -> float | None:
    """The price of these tokens, None where either is not known.

    Cached tokens are part of the prompt and reasoning tokens part of the completion; each costs as what it is a part of
    where it has no price of its own.
    """
    if tokens is None or price is None:
        return None
    cached, reasoning = min(tokens.cached, tokens.prompt), min(tokens.reasoning, tokens.completion)
    per_cached = price.prompt_per_mtok if price.cached_per_mtok is None else price.cached_per_mtok
    per_reasoning = price.completion_per_mtok if price.reasoning_per_mtok is None else price.reasoning_per_mtok
    total = (tokens.prompt - cached) * price.prompt_per_mtok + cached * per_cached
    total += (tokens.completion - reasoning) * price.completion_per_mtok + reasoning * per_reasoning
    return total / MILLION
