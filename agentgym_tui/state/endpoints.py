"""Endpoints of models: how they are, who answers, and when another one had to."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from agentgym_tui.state.item_batches import PastRun, TextRun
from agentgym_tui.state.limits import MAX_CAUSE, name, optional
from agentgym_tui.state.models import Endpoint, Episode, Step, Streaming
from agentgym_tui.state.steps import aware
from agentgym_tui.state.streaming_answer import MAX_FAILURES
from runner.events.live import ModelHealth, TokenText
from runner.types import passed_over

MAX_ENDPOINTS: Final = 50
MAX_FALLS: Final = 50
SAME_AGAIN: Final = timedelta(seconds=60)
"""How long the same is not told again: each step says it anyway."""


class Fall(NamedTuple):
    """Another endpoint is asked than the one that comes first; hostile text, all of it.

    Attributes:
        failed: who gave no answer, and ``why`` the first of them did not; none where all is as configured again.
        endpoint: who is asked instead.
    """

    env: str
    failed: tuple[str, ...]
    why: str
    endpoint: str
    at: datetime


class EndpointBook:
    """Endpoints by name, in the order they are asked.

    Attributes:
        falls: from one endpoint to the next and back again, the newest last.
        n_falls: how many there were so far.
    """

    def __init__(self) -> None:
        """Start empty."""
        self.endpoints: dict[str, Endpoint] = {}
        self.falls: deque[Fall] = deque(maxlen=MAX_FALLS)
        self.n_falls = 0
        self._told: dict[tuple[tuple[str, ...], str], datetime] = {}

    def take_health(self, item: ModelHealth) -> None:
        """Whether it answers."""
        if (endpoint := self._get(item.endpoint)) is not None:
            endpoint.status, endpoint.cause = item.status, optional(item.cause, MAX_CAUSE)
            endpoint.model, endpoint.rest_s = optional(item.model), item.rest_s
            if item.rest_s is None:
                endpoint.failure = None

    def take_answer(self, told: PastRun | TextRun | TokenText, before: Streaming | None, episode: Episode) -> None:
        """Who is asked in an episode, who failed, and who answers; ``before``: its answer before that."""
        if isinstance(told, TokenText):
            self._take_failures(told, before, episode)
        elif isinstance(told, PastRun) and before is not None and before.failures:
            for asked in told.asked:
                if asked.step == before.step:
                    self._take_asked(asked.step, asked.endpoint, before.failures, episode, told.at)
        answer = episode.streaming
        if answer is None or answer is before or answer.endpoint is None or answer.first_at is None:
            return
        if before is None or answer.first_at is not before.first_at or answer.endpoint != before.endpoint:
            self._answered(answer.endpoint)

    def _take_failures(self, item: TokenText, before: Streaming | None, episode: Episode) -> None:
        failures = before.failures if before is not None and before.step == item.step else ()
        if item.failure is not None:
            failures = (*failures, item.failure[:MAX_CAUSE])[-MAX_FAILURES:]
            who, _, why = item.failure.partition(": ")
            if (endpoint := self._get(who)) is not None:
                endpoint.failure = why[:MAX_CAUSE]
        if item.endpoint is not None:
            self._take_asked(item.step, item.endpoint, failures, episode, item.at)

    def _take_asked(self, step: int, endpoint: str, failures: Sequence[str], episode: Episode, at: datetime) -> None:
        if failures and step > episode.newest and episode.running:
            self._fell(episode.env, failures, endpoint, at)

    def take_steps(self, steps: Sequence[Step], episode: Episode, at: datetime) -> None:
        """Who has answered in the newest steps."""
        for step in steps:
            if step.endpoint is None or not (step.warnings or step is steps[-1]):
                continue  # the newest says the same
            self._answered(step.endpoint)
            if step.passed_over:
                self._fell(episode.env, step.warnings, step.endpoint, at)
            elif self.falls and self.falls[-1].failed:
                self._note(Fall(episode.env, (), "", step.endpoint, aware(at)))

    def _answered(self, endpoint: str) -> None:
        if (known := self._get(endpoint)) is not None:
            known.failure = known.rest_s = None
            known.status = "up" if known.status == "unknown" else known.status

    def _fell(self, env: str, failures: Sequence[str], endpoint: str, at: datetime) -> None:
        if failed := passed_over(endpoint, failures):
            why = failures[0].partition(": ")[2][:MAX_CAUSE]
            self._note(Fall(env, tuple(map(name, failed)), why, name(endpoint), aware(at)))

    def _note(self, fall: Fall) -> None:
        known = fall.failed, fall.endpoint
        if known in self._told and fall.at - self._told[known] < SAME_AGAIN:  # what is told late is no news either
            return
        if len(self._told) >= MAX_FALLS:
            self._told.clear()
        self._told[known] = fall.at
        self.falls.append(fall)
        self.n_falls += 1

    def _get(self, endpoint: str) -> Endpoint | None:
        known = name(endpoint)
        if known not in self.endpoints and known and len(self.endpoints) < MAX_ENDPOINTS:
            self.endpoints[known] = Endpoint()
        return self.endpoints.get(known)
