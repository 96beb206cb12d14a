"""Time limits of one request to a model: for its first delta, for silence after a delta, and for the whole answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from runner.config.profile import AgentSettings
from runner.inference.errors import EndpointFailure

REST = "the rest of episode.max_duration_sec, or of are.judge_timeout_sec for a judge"


class AnswerLimits:
    """The limits of one request; one timer waits for the next of them. See ``limit_answer``.

    Only deltas with text, reasoning or a part of a tool call are signs of an answer: some servers send comments and
    empty deltas for as long as a request waits.
    """

    def __init__(self, settings: AgentSettings, time_left_s: float) -> None:
        self._settings = settings
        self._now = asyncio.get_running_loop().time
        self._whole_s = time_left_s if settings.timeout_sec is None else min(settings.timeout_sec, time_left_s)
        self._end = self._now() + self._whole_s
        self._n_deltas: int | None = None
        self.timer = asyncio.timeout_at(min(self._now() + settings.first_token_timeout_sec, self._end))

    def expect_first(self) -> None:
        self.timer.reschedule(min(self._now() + self._settings.first_token_timeout_sec, self._end))

    def expect_next(self, n_deltas: int) -> None:
        """Wait for the delta after the first ``n_deltas``, or for the end of the stream, from now."""
        self._n_deltas = n_deltas
        self.timer.reschedule(min(self._now() + self._settings.idle_timeout_sec, self._end))

    def expect_whole(self) -> None:
        """Nothing shows whether the model is at work, as the answer is not streamed."""
        if self.timer.when() != self._end:
            self.timer.reschedule(self._end)

    def describe(self) -> str:
        settings = self._settings
        if self.timer.when() == self._end:
            key = "agent.timeout_sec" if self._whole_s == settings.timeout_sec else REST
            return f"no complete answer within {self._whole_s:.3g} s ({key})"
        if self._n_deltas is None:
            return f"no first token within {settings.first_token_timeout_sec:g} s (agent.first_token_timeout_sec)"
        parts = f"{self._n_deltas} part{'s' * (self._n_deltas != 1)} of its answer"
        return f"silent for {settings.idle_timeout_sec:g} s after {parts} (agent.idle_timeout_sec)"


@asynccontextmanager
async def limit_answer(settings: AgentSettings, time_left_s: float) -> AsyncIterator[AnswerLimits]:
    """Limit the time of the ``with`` block, first as that of a stream's first delta.

    Raises:
        EndpointFailure: if a limit is exceeded; the message names its key in the profile.
    """
    limits = AnswerLimits(settings, time_left_s)
    try:
        async with limits.timer:
            yield limits
    except TimeoutError:
        raise EndpointFailure("timeout", limits.describe()) from None
