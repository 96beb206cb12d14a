"""What the agents' own requests to a model endpoint show: how many, how fast, and why some fail."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from agentgym_tui.state.normalize import MAX_CAUSE_CHARS

if TYPE_CHECKING:
    from agentgym_tui.state.run_store import RunStore
    from agentgym_tui.state.slowness import RecentStep

MIN_ANSWERS: Final = 2
"""Number of answers from which there is a rate."""
MAX_REASONS: Final = 3
LIMIT_REACHED: Final = 0.95
"""Used part of the requests per minute from which the rate limit counts as reached."""


class Spread(NamedTuple):
    """Median and 95th percentile of durations, in seconds."""

    median_s: float
    p95_s: float


class EndpointUse(NamedTuple):
    """Use of an endpoint by the running episodes, from their newest steps.

    Attributes:
        n_in_flight: requests that wait for an answer or receive one.
        answers_per_min: answers per minute; None if there are too few.
        answer: time from the request to the end of the answer, with failed attempts before it; None without answers.
        first_token: time from the request to the first token; None where no answer was streamed.
        failures: why requests failed, the most frequent reason first, and how often each. The texts are untrusted.
    """

    n_in_flight: int = 0
    answers_per_min: float | None = None
    answer: Spread | None = None
    first_token: Spread | None = None
    failures: Sequence[tuple[str, int]] = ()


def endpoint_use(store: RunStore, endpoint: str) -> EndpointUse:
    """Return the use of an endpoint by the running episodes."""
    steps, seconds = store.endpoint_registry.recent_steps.newest()
    answers = [step for step in steps if step.endpoint == endpoint]
    requests = (episode.streaming for episode in store.running_episodes())
    return EndpointUse(
        sum(request is not None and request.endpoint == endpoint for request in requests),
        60.0 * len(answers) / seconds if len(answers) >= MIN_ANSWERS and seconds > 0.0 else None,
        _spread([step.model_s for step in answers]),
        _spread([step.ttft_s for step in answers if step.ttft_s is not None]),
        Counter(reason for step in steps for reason in _failures(step, endpoint)).most_common(MAX_REASONS),
    )


def _failures(step: RecentStep, endpoint: str) -> Iterator[str]:
    for warning in step.warnings:
        name, separator, reason = warning.partition(": ")
        if separator and name == endpoint:
            yield reason[:MAX_CAUSE_CHARS]


def _spread(durations_s: Sequence[float]) -> Spread | None:
    if not durations_s:
        return None
    ordered = sorted(durations_s)
    return Spread(*(ordered[math.ceil(share * len(ordered)) - 1] for share in (0.5, 0.95)))
