from __future__ import annotations

import os
import signal
import threading
from datetime import timedelta
from pathlib import Path

import psutil
import pytest

from agentgym_tui.sessions.bus_session import BusSession
from agentgym_tui.sessions.session import FileSession
from runner.client.node_client import ControlRequestError
from runner.client.node_folder import LaunchOptions, StateLocation, StateLocator, read_node_file
from runner.events.subjects import LIVE_STREAM
from runner.node.state_lock import is_node_alive
from tests.support.console.running_session import node_session, running
from tests.support.episodes import new_id, record_episodes
from tests.support.nats_server import Bus, NatsServer
from tests.support.node_process import NodeProcess, clean_environ

pytestmark = pytest.mark.timeout(120)


def pid_of(data_dir: Path) -> int:
    node_file = read_node_file(data_dir)
    assert node_file is not None
    return node_file.pid


@pytest.fixture
def open_data_dir(data_dir: Path) -> Path:
    data_dir.mkdir()
    data_dir.chmod(0o777)
    return data_dir


@pytest.mark.long
async def test_a_node_is_started_and_keeps_running_after_the_console(open_data_dir: Path) -> None:
    data_dir = open_data_dir
    async with running(node_session(data_dir)) as console:
        await console.wait_until_connected()
        reported = f"{data_dir} can be changed by every user of this machine"
        await console.wait_until(lambda: any(each.text.startswith(reported) for each in console.store.notices))
        assert (console.session.data_dir, console.session.title) == (data_dir, "node n1")
        assert console.store.link.address.startswith("nats://127.0.0.1:")
        assert console.store.envs["Wordle"].tier == "lightweight"
        assert not console.store.nodes["n1"].lost
        batch_id = await console.start("Wordle", repeat=2)
        await console.wait_until(lambda: len(console.finished(batch_id)) == 2)
        await console.wait_until(lambda: console.store.batches[batch_id].status == "completed")
        episode = console.finished(batch_id)[0]
        await console.wait_until(lambda: len(episode.steps) == episode.rounds and not episode.n_missing)
        assert episode.outcome == "success"
        assert console.session.library is not None
        loaded, _ = console.session.library.load(episode.episode_id)
        assert [step.index for step in loaded.steps] == [step.index for step in episode.steps]
    assert is_node_alive(data_dir)
    assert (data_dir / "logs" / "node-start.log").stat().st_mode & 0o777 == 0o600
    assert os.getsid(pid_of(data_dir)) != os.getsid(0)


@pytest.mark.long
@pytest.mark.parametrize("live_items", ["kept", "lost"])
async def test_launching_again_shows_the_running_batch_with_all_its_steps(data_dir: Path, live_items: str) -> None:
    with NodeProcess(data_dir) as node:
        async with running(node_session(data_dir)) as first:
            await first.wait_until_connected()
            batch_id = await first.start("Maze", repeat=4000)
            paused = await first.pause_mid_episode(batch_id)
        if live_items == "lost":
            async with await node.connect() as connection:
                await connection.client.jetstream().purge_stream(LIVE_STREAM)
        async with running(node_session(data_dir)) as second:
            await second.wait_until(lambda: paused.episode_id in second.store.episodes)
            restored = second.store.episodes[paused.episode_id]
            await second.wait_until(lambda: len(restored.steps) >= len(paused.steps) and not restored.n_missing)
            assert restored.running and restored.reset_observation == paused.reset_observation
            assert [step.action.text for step in restored.steps] == [step.action.text for step in paused.steps]
            batch = second.store.batch_registry.active()
            assert batch is not None and batch.batch_id == batch_id
            await second.control.command("resume", batch_id=batch_id)
            await second.wait_until(lambda: not restored.running)
            assert [step.index for step in restored.steps] == sorted({step.index for step in restored.steps})
            await second.control.command("cancel", batch_id=batch_id)


@pytest.mark.long
async def test_a_killed_node_is_reported_lost_and_can_be_started_again(data_dir: Path) -> None:
    async with running(node_session(data_dir, lost_after_s=1.0)) as console:
        await console.wait_until_connected()
        batch_id = await console.start("Maze", repeat=4000)
        paused = await console.pause_mid_episode(batch_id)
        playing = console.store.episodes[paused.episode_id]
        os.kill(pid_of(data_dir), signal.SIGKILL)
        await console.wait_until(lambda: playing.node_lost and "press N" in console.store.link.cause, 15)
        assert console.store.link.status == "disconnected" and console.store.nodes["n1"].lost
        with pytest.raises(ControlRequestError, match="not connected"):
            await console.control.fetch_list()
        await console.session.start_node()
        await console.wait_until(
            lambda: not console.store.nodes["n1"].lost and console.store.link.status == "connected"
        )
        await console.wait_until(lambda: playing.outcome == "interrupted")
        assert len(playing.steps) >= 2
        await console.wait_until(lambda: console.store.batches[batch_id].status == "interrupted")


@pytest.mark.long
async def test_the_live_feed_continues_without_duplicates_after_the_broker_was_killed(data_dir: Path) -> None:
    async with running(node_session(data_dir)) as console:
        await console.wait_until_connected()
        batch_id = await console.start("Maze", repeat=4000)
        await console.wait_until(lambda: len(console.finished(batch_id)) > 2)
        broker = next(p for p in psutil.Process(pid_of(data_dir)).children() if p.name() == "nats-server")
        broker.kill()
        await console.wait_until(lambda: console.store.link.status != "connected")
        await console.wait_until(lambda: console.store.link.status == "connected")
        before = set(console.store.episodes)
        await console.wait_until(lambda: len(set(console.store.episodes) - before) > 5)
        await console.control.command("cancel", batch_id=batch_id)
        for episode in console.finished(batch_id):
            indices = [step.index for step in episode.steps]
            assert indices == sorted(set(indices)) and len(indices) <= episode.rounds


async def test_a_node_that_cannot_start_reports_the_reason_and_is_retried(data_dir: Path, tmp_path: Path) -> None:
    profile = tmp_path / "broken.yaml"
    profile.write_text("id: [")
    async with running(node_session(data_dir, config=str(profile))) as console:
        await console.wait_until(lambda: console.store.link.status == "failed")
        assert "broken.yaml" in console.store.link.cause and "press N" in console.store.link.cause
        profile.write_text("id: repaired\nenvironments: {lightweight: [{name: Wordle}]}\n")
        await console.session.start_node()
        await console.wait_until_connected()
        assert console.store.nodes["n1"].profile == "repaired"


@pytest.mark.long
async def test_a_running_node_is_not_shown_with_an_invalid_profile(data_dir: Path, tmp_path: Path) -> None:
    profile = tmp_path / "broken.yaml"
    profile.write_text("id: [")
    with NodeProcess(data_dir):
        async with running(node_session(data_dir, config=str(profile))) as console:
            await console.wait_until(lambda: console.store.link.status == "failed")
            assert "broken.yaml" in console.store.link.cause
            with pytest.raises(ControlRequestError, match="not connected"):
                await console.control.fetch_list()
            profile.write_text("id: repaired\nenvironments: {lightweight: [{name: Wordle}]}\n")
            await console.session.start_node()
            await console.wait_until(lambda: console.store.link.status == "connected")
            await console.wait_until(lambda: console.store.envs["Wordle"].tier == "lightweight")


@pytest.mark.long
async def test_a_running_node_is_shown_before_its_profile_is_read(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_read, read = threading.Event(), StateLocator.find

    def wait_and_read(locator: StateLocator) -> StateLocation:
        assert may_read.wait(60)
        return read(locator)

    monkeypatch.setattr(StateLocator, "find", wait_and_read)
    with NodeProcess(data_dir, name="other") as node:
        async with running(node_session(data_dir)) as console:
            await console.wait_until_connected()
            assert console.session.title == "node other" and list(console.store.nodes) == ["other"]
            assert console.store.envs["Wordle"].tier == ""
            may_read.set()
            await console.wait_until(lambda: console.store.envs["Wordle"].tier == "lightweight")
            batch_id = await console.start("Wordle", repeat=2)
            await console.wait_until(lambda: len(console.finished(batch_id)) == 2)
        assert pid_of(data_dir) == node.pid


async def test_a_node_that_cannot_be_located_or_found_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for session, cause in (
        (node_session(tmp_path / "file" / "state"), "another folder with --data-dir"),
        (node_session(tmp_path, node="a.b"), "--node"),
        (BusSession(LaunchOptions(data_dir=str(tmp_path / "none"))), "--nats"),
    ):
        async with running(session) as console:
            await console.wait_until(lambda: console.store.link.status == "failed")
            assert cause in console.store.link.cause
    assert not (tmp_path / "none").exists()


@pytest.mark.long
async def test_watching_a_bus_changes_nothing_on_it(data_dir: Path, tmp_path: Path, bus: Bus) -> None:
    with NodeProcess(data_dir, env=clean_environ(NATS_URL=bus.url)) as node:
        async with (
            running(node_session(data_dir)) as attached,
            running(BusSession(LaunchOptions(data_dir=str(tmp_path / "none")), url=bus.url)) as console,
        ):
            await attached.wait_until_connected()
            await console.wait_until(lambda: "n1" in console.store.nodes)
            assert console.session.read_only and console.session.library is None
            batch_id = await attached.start("Wordle")
            await console.wait_until(lambda: bool(console.finished(batch_id)))
            with pytest.raises(ControlRequestError, match="watching"):
                await console.start("Wordle")
            with pytest.raises(ControlRequestError, match="watching"):
                await console.session.start_node()
        assert not (tmp_path / "none").exists()
        assert node.process is not None and node.process.poll() is None


@pytest.mark.long
async def test_watching_a_node_reads_history_and_fetches_episodes_over_the_bus(data_dir: Path) -> None:
    with NodeProcess(data_dir):
        async with running(node_session(data_dir)) as attached:
            await attached.wait_until_connected()
            batch_id = await attached.start("Wordle")
            await attached.wait_until(lambda: bool(attached.finished(batch_id)))
        async with running(BusSession(LaunchOptions(data_dir=str(data_dir)), since=timedelta(hours=1))) as console:
            await console.wait_until(lambda: bool(console.finished(batch_id)))
            [episode] = console.finished(batch_id)
            data = await console.control.fetch_episode(episode.episode_id)
            assert data == (data_dir / "runs" / batch_id / f"{episode.episode_id}.json").read_bytes()
            with pytest.raises(ControlRequestError, match="the node that ran it is not known"):
                await console.control.fetch_episode(new_id())


async def test_an_unreachable_bus_is_retried_until_it_is_up(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NATS_PASSWORD", "very-secret")
    monkeypatch.setenv("NATS_USER", "me")
    nats_server.stop()
    async with running(BusSession(LaunchOptions(), url=nats_server.url)) as console:
        await console.wait_until(lambda: console.store.link.status == "disconnected")
        assert "reached" in console.store.link.cause and "very-secret" not in repr(console.store.link)
        nats_server.start()
        await console.wait_until(lambda: console.store.link.status == "connected")


@pytest.mark.parametrize("url", ["http://x", "nats://user:hunter22@", "\x1b[2J"])
async def test_an_invalid_url_is_reported_without_its_password(tmp_path: Path, url: str) -> None:
    async with running(BusSession(LaunchOptions(), url=url)) as console:
        await console.wait_until(lambda: console.store.link.status == "failed")
        assert "bus URL" in console.store.link.cause and "hunter22" not in console.store.link.cause


@pytest.mark.parametrize("currency", ["EUR", None])
async def test_files_are_shown_without_a_bus_in_the_currency_of_the_newest_one(
    tmp_path: Path, currency: str | None
) -> None:
    records = record_episodes(tmp_path, 3, currency=currency)
    async with running(FileSession([tmp_path])) as console:
        await console.wait_until(lambda: console.store.link.cause == "files")
        assert console.session.read_only and console.session.control is None
        assert console.session.library is not None and len(console.session.library.rows()) == 3
        assert len(console.store.rewards["Maze"]) == len(records)
        assert console.store.currency == (currency or "")
        with pytest.raises(ControlRequestError):
            await console.session.start_node()
