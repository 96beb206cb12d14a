"""A session with its node, and waiting for a condition of its store."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from agentgym_tui.sessions.bus_session import NodeSession
from agentgym_tui.sessions.library import StateDirLibrary
from agentgym_tui.sessions.session import Session
from agentgym_tui.state.episode import Episode
from agentgym_tui.state.run_store import LOST_AFTER_S
from runner.client.node_client import NodeClient
from runner.client.node_folder import LaunchOptions
from runner.events.control import StartArgs
from tests.support.episodes import new_id


class RunningSession:
    """A running session; ``wait_until`` waits for a condition of its store."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.store = session.store
        self._changed = asyncio.Event()
        self.store.on_change = self._changed.set

    @property
    def control(self) -> NodeClient:
        assert self.session.control is not None
        return self.session.control

    async def wait_until(self, condition: Callable[[], bool], timeout_s: float = 40.0) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                while not condition():
                    await self._wait_for_change()
                    self.store.tick()
        except TimeoutError:
            newest = [*self.store.episodes.values()][-5:]
            states = [(e.episode_id, e.outcome, e.rounds, len(e.steps), e.n_missing) for e in newest]
            raise AssertionError(f"{self.store.link} {self.store.nodes} {self.store.batches} {states}") from None

    async def wait_until_connected(self) -> None:
        await self.wait_until(lambda: self.store.link.status == "connected" and bool(self.store.agents))

    async def start(self, *envs: str, repeat: int = 1) -> str:
        batch_id = new_id()
        await self.control.start(StartArgs(batch_id=batch_id, envs=list(envs), agent="oracle", repeat=repeat))
        return batch_id

    async def pause_mid_episode(self, batch_id: str, n_steps: int = 2) -> Episode:
        """Pause a batch in the middle of an episode and return that episode from its journal."""
        async with asyncio.timeout(40):
            while not await self._try_pause(batch_id):  # noqa: ASYNC110 - the node is another process
                await asyncio.sleep(0.02)
            while True:
                before = self._read_journal(batch_id)
                await asyncio.sleep(0.3)  # longer than a step: a worker in the middle of one is not paused yet
                after = self._read_journal(batch_id)
                if after is None or before is None or len(before.steps) != len(after.steps):
                    continue
                if before.episode_id == after.episode_id and len(after.steps) >= n_steps:
                    return after
                await self.control.command("step", batch_id=batch_id)

    async def _try_pause(self, batch_id: str) -> bool:
        """Return False while the batch is not running yet."""
        listed = {batch.batch_id: batch.status for batch in (await self.control.fetch_list()).batches}
        if listed.get(batch_id) == "running":
            await self.control.command("pause", batch_id=batch_id)
        return listed.get(batch_id) == "running"

    def _read_journal(self, batch_id: str) -> Episode | None:
        assert self.session.data_dir is not None
        data_dir = self.session.data_dir
        library = StateDirLibrary(lambda: data_dir)
        episodes = library.read_journals([batch_id])
        library.close()
        return episodes[0] if episodes else None

    async def _wait_for_change(self) -> None:
        self._changed.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.2):
                await self._changed.wait()

    def episodes(self, batch_id: str) -> list[Episode]:
        return [episode for episode in self.store.episodes.values() if episode.batch_id == batch_id]

    def finished(self, batch_id: str) -> list[Episode]:
        return [episode for episode in self.episodes(batch_id) if episode.outcome is not None]


@asynccontextmanager
async def running(session: Session) -> AsyncIterator[RunningSession]:
    task = asyncio.create_task(session.run())
    try:
        yield RunningSession(session)
    finally:
        if task.done():
            task.result()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await session.close()


def node_session(data_dir: Path, *, lost_after_s: float = LOST_AFTER_S, **options: str) -> NodeSession:
    launch_options = LaunchOptions(**{"data_dir": str(data_dir), "node": "n1", **options})
    return NodeSession(launch_options, "N", lost_after_s=lost_after_s)
