"""Two consoles on one real node show the same order, states and counts, whichever of them sends the commands."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from textual.pilot import Pilot

from agentgym_tui.app import Console
from agentgym_tui.sessions.bus_session import NodeSession
from agentgym_tui.widgets.lists import LineList
from runner.client.node_folder import LaunchOptions
from runner.events.control import StartArgs
from runner.util.clock import new_ulid
from tests.support.console.launch import NODE, node_cleanup
from tests.support.console.pilot import screen_text, wait_for_no_text, wait_for_text, wait_until
from tests.support.node_process import COMMAND, clean_environ

pytestmark = [pytest.mark.long, pytest.mark.timeout(180)]

SIZE = (200, 50)
SHARED_COLUMNS = 5
"""Run, state, done, success and errors; time left and rate pass between two messages."""


@asynccontextmanager
async def console_on(data_dir: Path) -> AsyncIterator[Pilot[None]]:
    """Yield the pilot of a console that shows the runs of the node, which it starts if there is none."""
    app = Console(NodeSession(LaunchOptions(data_dir=str(data_dir), node=NODE), "N"))
    app.animation_level = "none"
    async with app.run_test(size=SIZE, notifications=True) as pilot:
        await wait_until(pilot, lambda: bool(app.session.store.agents), "the node")
        await pilot.press("6")
        await wait_for_text(pilot, "Runs")
        yield pilot


def rows(pilot: Pilot[None]) -> list[tuple[str, ...]]:
    """Return the key and the shared columns of each row."""
    source = pilot.app.screen.query_one("#runs", LineList).source
    lines = [(source.key(index), source.line(index, SIZE[0])) for index in range(len(source))]
    return [(key, *(cell.text for cell in line[:SHARED_COLUMNS])) for key, line in lines]


def order(pilot: Pilot[None]) -> list[str]:
    return [row[0] for row in rows(pilot)]


async def wait_until_equal(one: Pilot[None], other: Pilot[None], *texts: str) -> None:
    """Wait until both consoles show the same rows, and the texts."""

    def are_equal() -> bool:
        shown = "\n".join(" ".join(row) for row in rows(one))
        return rows(one) == rows(other) and all(text in shown for text in texts)

    try:
        await wait_until(other, are_equal, f"the same rows with {texts}")
    except AssertionError as exc:
        exc.add_note(screen_text(one.app))
        raise


async def start(pilot: Pilot[None], *envs: str, repeat: int) -> str:
    app = pilot.app
    assert isinstance(app, Console)
    args = StartArgs(batch_id=new_ulid(), envs=list(envs), agent="oracle", repeat=repeat)
    await app.commands.start(args)
    return args.batch_id


async def select(pilot: Pilot[None], key: str) -> None:
    table = pilot.app.screen.query_one("#runs", LineList)
    assert table.select(key)
    await pilot.pause()


async def test_two_consoles_agree_while_each_of_them_sends_commands(tmp_path: Path) -> None:
    with node_cleanup(tmp_path / "data"):
        async with console_on(tmp_path / "data") as one, console_on(tmp_path / "data") as other:
            battery = await start(one, "BabyAI", "Maze", repeat=3_000)
            second = await start(one, "TextCraft", repeat=4)
            third = await start(other, "Wordle", repeat=4)
            await wait_until_equal(one, other, "running", "queued #2", "queued #3")

            await select(one, f"battery {battery}")
            await one.press("space")
            await wait_until_equal(one, other, "‖ paused")

            await select(one, f"batch {third}")
            await one.press("shift+up")
            moved = [f"battery {battery}", f"batch {third}", f"batch {second}"]
            await wait_until(other, lambda: order(one) == order(other) == moved, "the new order")

            await select(other, f"batch {second}")
            await other.press("space")
            await wait_until_equal(one, other, "‖ queued")

            await select(other, f"battery {battery}")
            await other.press("x")
            await wait_until_equal(one, other, "cancelled", "completed 4/4 100%", "‖ queued #1")

            await select(one, f"batch {second}")
            await one.press("space")
            ended = ("cancelled", "TextCraft ✓ completed 4/4 100%", "Wordle ✓ completed 4/4 100%")
            await wait_until_equal(one, other, *ended)

            await one.press("a")
            await wait_until(other, lambda: len(rows(other)) == 4, "the run that is played again")
            await wait_until(other, lambda: "waiting" not in screen_text(one.app), "the end of the replayed run")
            await wait_until_equal(one, other, *ended)

            async with console_on(tmp_path / "data") as late:
                await wait_until_equal(other, late, *ended)


async def test_a_battery_of_the_command_is_not_offered_to_be_played_again(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    with node_cleanup(data_dir):
        async with console_on(data_dir) as pilot:
            own = await start(pilot, "Maze", repeat=2)
            await wait_for_text(pilot, "Maze", "completed", "a Again")
            options = ["--battery", "lightweight", "--agent", "oracle", "--data-dir", str(data_dir), "--node", NODE]
            command = await asyncio.create_subprocess_exec(COMMAND, *options, env=clean_environ(), cwd=tmp_path)
            assert await command.wait() == 0
            await wait_for_text(pilot, "battery of 4")
            (key,) = (key for key in order(pilot) if key.startswith("battery "))
            await select(pilot, key)
            await wait_for_no_text(pilot, "a Again")
            await pilot.press("a")
            await wait_for_text(pilot, "the node has not started this run", "R starts one like it")
            assert len(order(pilot)) == 2
            await select(pilot, f"batch {own}")
            await wait_for_text(pilot, "a Again")
