"""A batch without end whose agent streams a text in each step, in real worker processes or in this process."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections import Counter as Tally
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from runner.batch.batch import Batch
from runner.batch.observers import BatchItem, Kind, LiveItems, Observer, ObserverHub, SelectiveObserver
from runner.batch.result import BatchResult
from runner.batch.workspace import Workspace
from runner.pool.choose import open_pool
from runner.types import Action, Chat, EpisodeInfo, Limits, StreamDelta, ToolSchema
from tests.support.batches import resolved_batch
from tests.support.fakes import Counter, UpAgent
from tests.support.waiting_batch import DEADLINE_S, wait_until

ENVS = {"Endless": f"{__name__}:Endless", "Counter": "tests.support.fakes:Counter"}
AGENTS = {"streaming": f"{__name__}:StreamingAgent", "up": "tests.support.fakes:UpAgent"}
STEP_S = 0.11
"""More than the interval in which the runner merges streamed texts."""


class Endless(Counter):
    """Counts without end."""

    def __init__(self, *, mode: str = "strict") -> None:
        super().__init__(goal=1 << 30, mode=mode)


class StreamingAgent(UpAgent):
    """Streams the endpoint and a text in each step."""

    def enter(self, episode: EpisodeInfo) -> None:
        self._stream = episode.stream

    async def act(self, observation: Chat, tool_schemas: list[ToolSchema]) -> tuple[list[Chat], Action]:  # type: ignore[override]
        await asyncio.sleep(STEP_S)
        self._stream(StreamDelta(endpoint="model"))
        self._stream(StreamDelta(text="word", n=1))
        return super().act(observation, tool_schemas)


class StreamingBatch:
    """The batch, and the kinds of items that were emitted, in their order."""

    def __init__(
        self,
        workspace: Workspace,
        workers: int,
        monkeypatch: pytest.MonkeyPatch,
        observers: Sequence[Observer | SelectiveObserver],
    ) -> None:
        limits = Limits(max_rounds=1_000_000, max_duration_s=600)
        spec = resolved_batch(env="Endless", agent="streaming", repeat=2, concurrency=2, limits=limits)
        self.emitted: list[Kind] = []
        emit = ObserverHub.emit

        def note(hub: ObserverHub, item: BatchItem) -> None:
            self.emitted.append(item.kind if isinstance(item, LiveItems) else type(item))
            emit(hub, item)

        monkeypatch.setattr(ObserverHub, "emit", note)
        pool = open_pool(workers, spec.spec, spec.setup, None, workspace.store.runs, print)
        self.batch = Batch(spec, workspace, observers=observers, pool=pool, step_grace_s=0.1)
        self._results: queue.SimpleQueue[BatchResult] = queue.SimpleQueue()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run the batch on a thread of its own, and cancel it at the end."""
        threading.Thread(target=lambda: self._results.put(self.batch.run()), daemon=True).start()
        try:
            yield
        finally:
            self.batch.command("cancel")
            assert self._results.get(timeout=DEADLINE_S).status == "cancelled"

    def wait_for_latest(self, n: int, *, wanted: Kind, absent: Kind | None = None) -> None:
        """Wait until ``n`` items of a kind were emitted in a row, from now on, without one of another kind."""
        start = len(self.emitted)

        def is_met() -> bool:
            nonlocal start
            latest = self.emitted[start:]
            if absent in latest:
                start += len(latest)
            return Tally(latest)[wanted] >= n and absent not in latest

        wait_until(is_met)
