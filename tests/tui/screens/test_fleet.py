"""The Fleet screen: its keys and filter, a node that is lost while it is shown, and orders that name their node."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from agentgym_tui.app import Console
from agentgym_tui.screens.machine import MachineScreen
from agentgym_tui.sessions.bus_session import BusSession, NodeSession
from runner import __version__
from runner.bus.address import address_of_node
from runner.client.node_folder import LaunchOptions
from tests.support.console.fake_session import FakeSession, busy_session, fleet_session
from tests.support.console.pilot import (
    by_name,
    console_app,
    filter_by,
    row_keys,
    screen_text,
    wait_for_no_text,
    wait_for_text,
    wait_until,
)
from tests.support.console.samples import (
    HOSTILE,
    NODE,
    FakeClock,
    batch_id,
    heartbeat,
    hostile_store,
    live,
    progress,
    started,
)
from tests.support.nats_server import NatsAccount
from tests.support.node_process import NodeProcess, clean_environ

SIZE = (120, 40)


async def test_a_node_that_falls_silent_is_lost_and_comes_back_with_its_next_heartbeat() -> None:
    clock = FakeClock()
    session = busy_session(clock)
    app = console_app(session)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("8")
        await wait_for_text(pilot, "Fleet · 1 node", "▶ running", "now")
        session.store.apply_events([live(heartbeat(), node="gpu-2")])
        await wait_for_text(pilot, "2 nodes", "● up")
        clock.at += 4
        session.store.apply_events([live(heartbeat(), node="gpu-2")])
        clock.at += 2
        session.store.tick()
        await wait_for_text(pilot, "1 lost", "✗ lost", "✗ silent since")
        assert row_keys(app, "#fleet") == [NODE, "gpu-2"]
        session.store.apply_events([live(heartbeat())])
        await wait_for_no_text(pilot, "lost")
        assert row_keys(app, "#fleet") == ["gpu-2", NODE]


async def test_enter_shows_the_machine_of_a_node_above_the_others() -> None:
    app = console_app(fleet_session())
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("8", "G", "k", "k", "enter")
        await wait_until(pilot, lambda: isinstance(app.screen, MachineScreen), "the machine")
        await wait_for_text(pilot, "▸Machine of gpu-1", "Machine of gpu-2")
        assert next(line for line in screen_text(app).split("\n") if "Machine of" in line).startswith(
            "▸Machine of gpu-1"
        )


async def test_the_filter_shows_only_matching_nodes_and_escape_shows_all() -> None:
    app = console_app(fleet_session())
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("8")
        await filter_by(pilot, "status:lost")
        await wait_for_text(pilot, "1 match status:lost")
        assert row_keys(app, "#fleet") == ["gpu-2"]
        await pilot.press("escape")
        await wait_for_no_text(pilot, "match status")
        assert len(row_keys(app, "#fleet")) == 5


async def test_hostile_names_are_shown_as_bytes() -> None:
    session = FakeSession(hostile_store())
    session.store.apply_events([live(heartbeat(profile=HOSTILE, version=HOSTILE), node=HOSTILE)])
    async with console_app(session).run_test(size=SIZE) as pilot:
        await pilot.press("8")
        await wait_for_text(pilot, "Fleet", "␛", "⚠")
        assert "\x1b" not in screen_text(pilot.app)


async def test_the_questions_count_only_what_the_named_node_plays() -> None:
    session = fleet_session()
    session.read_only, session.node = "", "gpu-1"
    session.store.apply_events([live(heartbeat(), started(7, batch_id=batch_id(7)), progress(7), node="older")])
    app = Console(session)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("8", *by_name("node.stop"))
        await wait_for_text(pilot, "Stop the node gpu-1?", "1 episode running, 7 remaining")
        await pilot.press("escape", "q")
        await wait_for_text(pilot, "Leave the console?", "1 episode running, 7 remaining")
        await pilot.press("escape", "6", *by_name("runs.cancel_all"))
        await wait_for_text(pilot, "2 batches that run or wait on gpu-1")


async def test_stop_and_restart_name_the_node_of_the_console_where_the_bus_has_several() -> None:
    session = fleet_session()
    session.read_only, session.node = "", "gpu-3"
    app = Console(session)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("8")
        await wait_for_text(pilot, "5 nodes")
        for command, title in (("node.stop", "Stop the node gpu-3?"), ("node.restart", "Restart the node gpu-3?")):
            await pilot.press(*by_name(command))
            await wait_for_text(pilot, title)
            await pilot.press("escape")
            await wait_for_no_text(pilot, title)
        await pilot.press(*by_name("node.stop"), "y")
        await wait_until(pilot, lambda: session.stops == [False], "the stop")


async def wait_long_for(pilot: Pilot[Any], *texts: str) -> None:
    """Wait until all texts are on the screen, where real nodes need more than a few seconds to bring them there."""
    async with asyncio.timeout(60):
        while not all(text in screen_text(pilot.app) for text in texts):
            await pilot.pause(0.05)


@pytest.mark.long
@pytest.mark.timeout(180)
async def test_of_two_real_nodes_on_one_bus_the_one_that_is_killed_is_lost_and_the_other_plays_on(
    bus: NatsAccount, tmp_path: Path
) -> None:
    environ = clean_environ(NATS_URL=bus.url)
    app = Console(BusSession(LaunchOptions(data_dir=str(tmp_path / "none")), url=bus.url))
    with (
        NodeProcess(tmp_path / "a", env=environ, name="gpu-a") as kept,
        NodeProcess(tmp_path / "b", env=environ, name="gpu-b") as killed,
    ):
        async with app.run_test(size=SIZE, notifications=True) as pilot:
            await pilot.press("8")
            await wait_long_for(pilot, "2 nodes", "gpu-a", "gpu-b", "● idle", "field-runner-4090")
            nodes = app.session.store.nodes.values()
            await wait_until(pilot, lambda: all(node.version == __version__ for node in nodes), "the versions")
            killed.kill()
            async with await kept.connect() as connection:
                await kept.start_batch(connection, "Wordle", repeat=100_000)
                await wait_long_for(pilot, "1 lost", "✗ lost", "▶ running", "Wordle")
            assert row_keys(app, "#fleet") == ["gpu-b", "gpu-a"], "the lost node comes first"
            await pilot.press("g")
            await wait_for_text(pilot, "✗ silent since")
            killed.start()
            await wait_long_for(pilot, "2 nodes", "● idle")
            assert row_keys(app, "#fleet") == ["gpu-a", "gpu-b"]


@pytest.mark.long
@pytest.mark.timeout(180)
async def test_an_order_to_stop_names_the_own_node_and_reaches_it_alone(tmp_path: Path) -> None:
    app = Console(NodeSession(LaunchOptions(data_dir=str(tmp_path / "own"), node="own"), "N"))
    with NodeProcess(tmp_path / "own", name="own") as own:
        address = address_of_node(tmp_path / "own")
        assert address is not None
        environ = clean_environ(
            NATS_URL=address.url, NATS_USER=address.user or "", NATS_PASSWORD=address.password or ""
        )
        with NodeProcess(tmp_path / "other", env=environ, name="other") as other:
            async with app.run_test(size=SIZE, notifications=True) as pilot:
                await pilot.press("8")
                await wait_long_for(pilot, "2 nodes", "other", "own")
                await pilot.press("g", *by_name("node.stop"))
                await wait_for_text(pilot, "Stop the node own?")
                await pilot.press("y")
                assert own.process is not None and other.process is not None
                assert await asyncio.to_thread(own.process.wait, 60) == 0
                assert other.process.poll() is None
