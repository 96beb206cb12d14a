"""Environments that misbehave towards the process they are played in."""

from __future__ import annotations

import asyncio
import os
import resource
import subprocess
import time
from typing import Any

from runner.types import Action, Chat, StepResult
from tests.support.fakes import Counter

print("printed by an import")  # noqa: T201 - what it is there for


class Printing(Counter):
    """Says things on standard output in every way there is."""

    def step(self, action: Action) -> StepResult:
        print("printed by a step")  # noqa: T201 - what it is there for
        os.write(1, b"written by a step\n")
        subprocess.run(["echo", "echoed by a child"], check=True)
        return super().step(action)


class Lingering(Counter):
    """Leaves a thread of the executor busy."""

    async def step(self, action: Action) -> StepResult:  # type: ignore[override]
        await asyncio.to_thread(time.sleep, 60)
        return super().step(action)


class Blocking(Counter):
    """Keeps its slot."""

    def step(self, action: Action) -> StepResult:
        time.sleep(60)
        return super().step(action)


class Hostile(Counter):
    def reset(self, **kwargs: Any) -> Chat:  # noqa: ANN401
        raise RuntimeError("\x9b2J \x7f \u202e \ud800 \u00b7")


class FullDisk(Counter):
    """From its first step on no file can be written any more."""

    def step(self, action: Action) -> StepResult:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
        return super().step(action)
