"""Write screenshots of the console, connected to a real node that runs oracle episodes.

    python -m scripts.build_screenshots [FOLDER]

Ids, times and loads differ between runs; the episodes are the same.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import psutil
from textual.pilot import Pilot
from ulid import ULID

from agentgym_tui.app import Console
from agentgym_tui.services import screenshot_svg
from agentgym_tui.sessions.bus_session import NodeSession
from agentgym_tui.sessions.node import LaunchOptions, NodeControl, read_node_file
from runner.events.control import StartArgs

PICTURES: Final = Path(__file__).resolve().parent.parent / "docs" / "pictures"
NODE: Final = "field-runner"
SIZE: Final = (120, 36)
WAIT_S: Final = 60.0
POLL_S: Final = 0.02
SHOWN_FOLDER: Final = "/home/you/agent-gym"
"""Path shown instead of the temporary folder's path, cut to the same length."""

ENVS: Final = ("TextCraft", "Maze", "Wordle", "BabyAI")
N_EPISODES, N_SHOWN = 60, 34
"""Episodes per environment, and finished episodes of the last environment at the time of the screenshots."""

N_STEPS: Final = 3
N_TASKS, N_ATTEMPTS = 24, 8


def main(folder: Path = PICTURES) -> None:
    """Write all screenshots into ``folder``, each as an SVG file."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, svg in asyncio.run(pictures()).items():
        (folder / f"{name}.svg").write_text(svg, "utf-8")


async def pictures() -> dict[str, str]:
    """Run the console and return its screenshots: name -> SVG."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="agent-") as folder:
        session = NodeSession(LaunchOptions(data_dir=f"{folder}/data", node=NODE), "N")
        app = Console(session)
        screenshots: dict[str, str] = {}
        async with app.run_test(size=SIZE) as pilot:
            await _wait_until(pilot, lambda: bool(session.store.agents and session.store.envs))
            await _wait_until(pilot, lambda: all(env.status for env in session.store.envs.values()))
            await _capture_all(pilot, session, screenshots)
        await asyncio.to_thread(_stop_node, Path(folder, "data"))
        return {name: svg.replace(folder, f"{SHOWN_FOLDER:.{len(folder)}}") for name, svg in screenshots.items()}


def _stop_node(data_dir: Path) -> None:
    if (known := read_node_file(data_dir)) is not None:
        node = psutil.Process(known.pid)
        node.terminate()
        node.wait(WAIT_S)


def _control(session: NodeSession) -> NodeControl:
    if session.control is None:
        raise RuntimeError("a node session always has a control connection")
    return session.control


async def _capture_all(pilot: Pilot[None], session: NodeSession, screenshots: dict[str, str]) -> None:
    async def capture(name: str, *keys: str) -> None:
        for key in keys:
            await pilot.press(key)
            await pilot.pause(0.5)
        screenshots[name] = screenshot_svg(pilot.app, "agentgym-tui launch")

    await pilot.pause(1.0)
    await capture("empty")
    await capture("model", "ctrl+o")
    await pilot.press("escape")
    await _run_episodes(pilot, session)
    await capture("live")
    await capture("machine", "5")
    await capture("restart", "1", "ctrl+e")
    await capture("form", "escape", "R")
    await capture("runs", "escape", "6", "enter", "G", "enter")
    await capture("episodes", "1", "x", "2")
    await capture("episode", "j", "enter")
    await capture("transcript", "f", "right_parenthesis", "slash", *"right", "enter")
    await capture("trace", "escape", "w")
    await capture("events", "3", "k", "k")
    await capture("summary", "1", "M")
    await _run_attempts(pilot, session)
    await capture("results", "escape", "7", "v", "j", "j")
    await capture("tasks", "t", "j", "right", "right")
    await capture("comparison", "escape", "j", "m", "k", "m")


async def _run_episodes(pilot: Pilot[None], session: NodeSession) -> None:
    """Run episodes of all environments, and pause in the middle of an episode of the last environment."""
    args = StartArgs(batch_id=str(ULID()), envs=list(ENVS), agent="oracle", repeat=N_EPISODES)
    last = (await _control(session).start(args))[-1].batch_id
    await _wait_until(pilot, lambda: last in session.store.batches and session.store.batches[last].n_done >= N_SHOWN)
    await _control(session).command("pause", batch_id=last)
    await _wait_until(pilot, lambda: any(episode.paused for episode in session.store.running_episodes()))
    while max((len(episode.steps) for episode in session.store.running_episodes()), default=0) < N_STEPS:
        await pilot.press("s")
        await pilot.pause(1.0)


async def _run_attempts(pilot: Pilot[None], session: NodeSession) -> None:
    """Run two batches of random play with several attempts of each task."""
    for seed in (1, 2):
        args = StartArgs(
            batch_id=str(ULID()), envs=["Maze"], agent="random", repeat=N_TASKS, attempts=N_ATTEMPTS, seed=seed
        )
        (batch,) = await _control(session).start(args)
        await _wait_until(pilot, partial(_has_ended, session, batch.batch_id))


def _has_ended(session: NodeSession, batch_id: str) -> bool:
    batch = session.store.batches.get(batch_id)
    return batch is not None and batch.status == "completed"


async def _wait_until(pilot: Pilot[None], condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():
            await pilot.pause(POLL_S)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:2]))
