from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import psutil
import pytest

from agentgym_tui.sessions.bus_session import BusSession
from agentgym_tui.sessions.episode_library import StateDirLibrary
from agentgym_tui.sessions.file_session import FileSession
from agentgym_tui.sessions.node_launcher import LaunchOptions, read_node_file
from agentgym_tui.sessions.node_session import NodeSession
from agentgym_tui.sessions.protocols import Control, ControlRequestError, Session
from agentgym_tui.state import run_store
from agentgym_tui.state.models import Episode
from runner.events.control import StartArgs
from runner.events.subjects import LIVE_STREAM
from runner.node.state_lock import is_node_alive
from tests.support.episodes import new_id
from tests.support.nats_server import NatsServer
from tests.support.node_process import NodeProcess, clean_environ
from tests.tui.sessions.test_episode_library import played

pytestmark = pytest.mark.timeout(120)


class Running:
    """A session that runs; ``until`` waits for something in its store."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.store = session.store
        self._changed = asyncio.Event()
        self.store.on_change = self._changed.set

    @property
    def control(self) -> Control:
        assert self.session.control is not None
        return self.session.control

    async def until(self, what: Callable[[], bool], timeout_s: float = 40.0) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                while not what():
                    await self._news()
                    self.store.tick()
        except TimeoutError:
            newest = [*self.store.episodes.values()][-5:]
            seen = [(e.episode_id, e.outcome, e.rounds, len(e.steps), e.n_missing) for e in newest]
            raise AssertionError(f"{self.store.link} {self.store.nodes} {self.store.batches} {seen}") from None

    async def until_answered(self) -> None:
        await self.until(lambda: self.store.link.status == "connected" and bool(self.store.agents))

    async def start(self, *envs: str, repeat: int = 1) -> str:
        batch_id = new_id()
        await self.control.start(StartArgs(batch_id=batch_id, envs=list(envs), agent="oracle", repeat=repeat))
        return batch_id

    async def pause_within(self, batch_id: str, n_steps: int = 2) -> Episode:
        """Pause a batch in the middle of an episode; returns that episode as its journal has it."""
        async with asyncio.timeout(40):
            while not await self._paused(batch_id):  # noqa: ASYNC110 - it is in another process
                await asyncio.sleep(0.02)
            while True:
                before = self._recorded(batch_id)
                await asyncio.sleep(0.3)  # longer than a step takes: whoever is still at one is not paused yet
                after = self._recorded(batch_id)
                if after is None or before is None or len(before.steps) != len(after.steps):
                    continue
                if before.episode_id == after.episode_id and len(after.steps) >= n_steps:
                    return after
                await self.control.command("step", batch_id=batch_id)

    async def _paused(self, batch_id: str) -> bool:
        """Whether it could be; it may still be about to start."""
        with contextlib.suppress(ControlRequestError):
            await self.control.command("pause", batch_id=batch_id)
            return True
        return False

    def _recorded(self, batch_id: str) -> Episode | None:
        assert self.session.data_dir is not None
        data_dir = self.session.data_dir
        library = StateDirLibrary(lambda: data_dir)
        found = library.read_journals([batch_id])
        library.close()
        return found[0] if found else None

    async def _news(self) -> None:
        self._changed.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.2):
                await self._changed.wait()

    def episodes(self, batch_id: str) -> list[Episode]:
        return [episode for episode in self.store.episodes.values() if episode.batch_id == batch_id]

    def over(self, batch_id: str) -> list[Episode]:
        return [episode for episode in self.episodes(batch_id) if episode.outcome is not None]


@asynccontextmanager
async def running(session: Session) -> AsyncIterator[Running]:
    task = asyncio.create_task(session.run())
    try:
        yield Running(session)
    finally:
        if task.done():
            task.result()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await session.close()


@pytest.fixture
def data_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A state directory; a node that a console started there is killed at the end."""
    for name in ("AGENTGYM_DATA_DIR", "AGENTGYM_NODE", "NATS_URL"):
        monkeypatch.delenv(name, raising=False)
    place = tmp_path / "state"
    yield place
    while is_node_alive(place) and (known := read_node_file(place)) is not None:
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(known.pid)
            process.kill()
            process.wait(20)


def node_session(data_dir: Path, **more: str) -> NodeSession:
    return NodeSession(LaunchOptions(**{"data_dir": str(data_dir), "node": "n1", **more}))


def pid_of(data_dir: Path) -> int:
    known = read_node_file(data_dir)
    assert known is not None
    return known.pid


async def test_a_node_is_started_and_plays_and_goes_on_without_the_console(data_dir: Path) -> None:
    async with running(node_session(data_dir)) as console:
        await console.until_answered()
        assert (console.session.data_dir, console.session.title) == (data_dir, "node n1")
        assert console.store.link.address.startswith("nats://127.0.0.1:")
        assert console.store.envs["Wordle"].tier == "lightweight"
        assert not console.store.nodes["n1"].lost
        batch_id = await console.start("Wordle", repeat=2)
        await console.until(lambda: len(console.over(batch_id)) == 2)
        await console.until(lambda: console.store.batches[batch_id].status == "completed")
        episode = console.over(batch_id)[0]
        await console.until(lambda: len(episode.steps) == episode.rounds and not episode.n_missing)
        assert episode.outcome == "success"
        assert console.session.library is not None
        loaded, _ = console.session.library.load(episode.episode_id)
        assert [step.index for step in loaded.steps] == [step.index for step in episode.steps]
    assert is_node_alive(data_dir)
    assert (data_dir / "logs" / "node-start.log").stat().st_mode & 0o777 == 0o600
    assert os.getsid(pid_of(data_dir)) != os.getsid(0)


async def test_a_node_that_lives_is_attached_to_and_its_own_name_counts(data_dir: Path) -> None:
    with NodeProcess(data_dir, name="other") as node:
        async with running(node_session(data_dir)) as console:
            await console.until_answered()
            assert console.session.title == "node other" and list(console.store.nodes) == ["other"]
        assert pid_of(data_dir) == node.pid


@pytest.mark.long
@pytest.mark.parametrize("live_items", ["kept", "lost"])
async def test_launching_again_shows_the_running_batch_with_all_its_steps(data_dir: Path, live_items: str) -> None:
    with NodeProcess(data_dir) as node:
        async with running(node_session(data_dir)) as first:
            await first.until_answered()
            batch_id = await first.start("Maze", repeat=4000)
            playing = await first.pause_within(batch_id)
        if live_items == "lost":
            async with await node.connect() as connection:
                await connection.client.jetstream().purge_stream(LIVE_STREAM)
        async with running(node_session(data_dir)) as second:
            await second.until(lambda: playing.episode_id in second.store.episodes)
            known = second.store.episodes[playing.episode_id]
            await second.until(lambda: len(known.steps) >= len(playing.steps) and not known.n_missing)
            assert known.running and known.reset_observation == playing.reset_observation
            assert [step.action.text for step in known.steps] == [step.action.text for step in playing.steps]
            batch = second.store.active_batch()
            assert batch is not None and batch.batch_id == batch_id
            await second.control.command("resume", batch_id=batch_id)
            await second.until(lambda: not known.running)
            assert [step.index for step in known.steps] == sorted({step.index for step in known.steps})
            await second.control.command("cancel", batch_id=batch_id)


@pytest.mark.long
async def test_a_killed_node_is_missed_and_started_again_with_a_key(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_store, "LOST_AFTER_S", 1.0)
    async with running(node_session(data_dir)) as console:
        await console.until_answered()
        batch_id = await console.start("Maze", repeat=4000)
        paused = await console.pause_within(batch_id)
        playing = console.store.episodes[paused.episode_id]
        os.kill(pid_of(data_dir), signal.SIGKILL)
        await console.until(lambda: playing.node_lost and "press N" in console.store.link.cause, 15)
        assert console.store.link.status == "disconnected" and console.store.nodes["n1"].lost
        with pytest.raises(ControlRequestError, match="not connected"):
            await console.control.fetch_list()
        await console.session.start_node()
        await console.until(lambda: not console.store.nodes["n1"].lost and console.store.link.status == "connected")
        await console.until(lambda: playing.outcome == "interrupted")
        assert len(playing.steps) >= 2
        await console.until(lambda: console.store.batches[batch_id].status == "interrupted")


async def test_after_the_broker_was_killed_the_tail_goes_on_with_nothing_twice(data_dir: Path) -> None:
    async with running(node_session(data_dir)) as console:
        await console.until_answered()
        batch_id = await console.start("Maze", repeat=4000)
        await console.until(lambda: len(console.over(batch_id)) > 2)
        broker = next(p for p in psutil.Process(pid_of(data_dir)).children() if p.name() == "nats-server")
        broker.kill()
        await console.until(lambda: console.store.link.status != "connected")
        await console.until(lambda: console.store.link.status == "connected")
        before = set(console.store.episodes)
        await console.until(lambda: len(set(console.store.episodes) - before) > 5)
        await console.control.command("cancel", batch_id=batch_id)
        for episode in console.over(batch_id):
            indices = [step.index for step in episode.steps]
            assert indices == sorted(set(indices)) and len(indices) <= episode.rounds


async def test_a_node_that_cannot_start_says_why_and_is_tried_again(data_dir: Path, tmp_path: Path) -> None:
    profile = tmp_path / "broken.yaml"
    profile.write_text("id: [")
    async with running(node_session(data_dir, config=str(profile))) as console:
        await console.until(lambda: console.store.link.status == "failed")
        assert "broken.yaml" in console.store.link.cause and "press N" in console.store.link.cause
        profile.write_text("id: mended\nenvironments: {lightweight: [{name: Wordle}]}\n")
        await console.session.start_node()
        await console.until_answered()
        assert console.store.nodes["n1"].profile == "mended"


async def test_a_state_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    async with running(node_session(tmp_path / "file" / "state")) as console:
        await console.until(lambda: console.store.link.status == "failed")
        assert "file" in console.store.link.cause


async def test_a_bad_name_is_refused_with_the_reason(tmp_path: Path) -> None:
    async with running(node_session(tmp_path, node="a.b")) as console:
        await console.until(lambda: console.store.link.status == "failed")
        assert "--node" in console.store.link.cause


async def test_a_bus_is_watched_without_touching_it(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        NatsServer(tmp_path / "bus") as bus,
        NodeProcess(data_dir, env=clean_environ(NATS_URL=bus.url)) as node,
    ):
        async with (
            running(node_session(data_dir)) as own,
            running(BusSession(LaunchOptions(data_dir=str(tmp_path / "none")), url=bus.url)) as console,
        ):
            await own.until_answered()
            await console.until(lambda: "n1" in console.store.nodes)
            assert console.session.read_only and console.session.library is None
            batch_id = await own.start("Wordle")
            await console.until(lambda: bool(console.over(batch_id)))
            with pytest.raises(ControlRequestError, match="watching"):
                await console.start("Wordle")
            with pytest.raises(ControlRequestError, match="watching"):
                await console.session.start_node()
        assert not (tmp_path / "none").exists()
        assert node.process is not None and node.process.poll() is None


async def test_watching_the_own_node_brings_history_and_episodes_over_the_bus(data_dir: Path) -> None:
    with NodeProcess(data_dir):
        async with running(node_session(data_dir)) as own:
            await own.until_answered()
            batch_id = await own.start("Wordle")
            await own.until(lambda: bool(own.over(batch_id)))
        async with running(BusSession(LaunchOptions(data_dir=str(data_dir)), since=timedelta(hours=1))) as console:
            await console.until(lambda: bool(console.over(batch_id)))
            [episode] = console.over(batch_id)
            data = await console.control.fetch_episode(episode.episode_id)
            assert data == (data_dir / "runs" / batch_id / f"{episode.episode_id}.json").read_bytes()
            with pytest.raises(ControlRequestError, match="the node that ran it is not known"):
                await console.control.fetch_episode(new_id())


async def test_a_bus_that_is_not_there_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NATS_PASSWORD", "very-secret")
    monkeypatch.setenv("NATS_USER", "me")
    with NatsServer(tmp_path) as server:
        server.stop()
        async with running(BusSession(LaunchOptions(), url=server.url)) as console:
            await console.until(lambda: console.store.link.status == "disconnected")
            assert "reached" in console.store.link.cause and "very-secret" not in repr(console.store.link)
            server.start()
            await console.until(lambda: console.store.link.status == "connected")


@pytest.mark.parametrize("url", ["http://x", "nats://user:hunter22@", "\x1b[2J"])
async def test_an_url_that_cannot_be_used_is_said_so(tmp_path: Path, url: str) -> None:
    async with running(BusSession(LaunchOptions(), url=url)) as console:
        await console.until(lambda: console.store.link.status == "failed")
        assert "bus URL" in console.store.link.cause and "hunter22" not in console.store.link.cause


async def test_without_a_node_there_is_nothing_to_watch(tmp_path: Path) -> None:
    async with running(BusSession(LaunchOptions(data_dir=str(tmp_path / "none")))) as console:
        await console.until(lambda: console.store.link.status == "failed")
        assert "--nats" in console.store.link.cause
    assert not (tmp_path / "none").exists()


async def test_files_are_shown_without_a_bus(tmp_path: Path) -> None:
    records = played(tmp_path, 3)
    async with running(FileSession([tmp_path])) as console:
        await console.until(lambda: console.store.link.cause == "files")
        assert console.session.read_only and console.session.control is None
        assert console.session.library is not None and len(console.session.library.rows()) == 3
        assert len(console.store.rewards["Maze"]) == len(records)
        with pytest.raises(ControlRequestError):
            await console.session.start_node()
