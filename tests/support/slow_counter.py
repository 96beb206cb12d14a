"""An environment whose steps take time, so that a batch is still running when a test interferes."""

from __future__ import annotations

import asyncio

from runner.types import Action, StepResult
from tests.support.fakes import Counter, user


class SlowCounter(Counter):
    """Counts to 5; each step waits for 0.1 s."""

    def __init__(self, **settings: str) -> None:
        super().__init__(goal=5, mode=settings.get("mode", "strict"))

    async def step(self, action: Action) -> StepResult:  # type: ignore[override]
        await asyncio.sleep(0.1)
        return super().step(action)


class Stuck(Counter):
    """Its first step blocks the thread for an hour; no cancellation reaches it."""

    def step(self, action: Action) -> StepResult:
        import time

        time.sleep(3600)
        return [user("?")], 0.0, True
