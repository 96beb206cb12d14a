"""Write screenshots of the console, connected to a real node whose test model streams the actions of the oracle.

    python -m scripts.build_screenshots [FOLDER]

Ids, times and loads differ between runs; the episodes are the same.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import psutil
from msgspec.structs import replace
from textual.pilot import Pilot
from ulid import ULID

from agentgym_tui.app import Console
from agentgym_tui.services import screenshot_svg
from agentgym_tui.sessions.bus_session import NodeSession
from agentgym_tui.state.episode import Episode
from runner.client.node_client import NodeClient
from runner.client.node_folder import LaunchOptions, read_node_file
from runner.events.control import StartArgs
from runner.serve.mock_llm.completion import ChatRequest
from runner.serve.mock_llm.oracle import OracleResponder
from runner.serve.mock_llm.script import Behavior, ScriptedReply
from tests.support.model_server import ModelServer

PICTURES: Final = Path(__file__).resolve().parent.parent / "docs" / "pictures"
NODE: Final = "field-runner"
SIZE: Final = (120, 36)
WORLD_HEIGHT: Final = 46
WAIT_S: Final = 180.0
POLL_S: Final = 0.02
SHOWN_FOLDER: Final = "/home/you/agent-gym"
"""Path shown instead of the temporary folder's path, cut to the same length."""

ENVS: Final = ("TextCraft", "Wordle", "Maze", "BabyAI")
N_EPISODES, N_SHOWN = 24, 13
"""Tasks per environment, and finished episodes of the last environment at the time of the screenshots."""

UNSOLVED: Final = (("BabyAI", 6), ("BabyAI", 15))
"""Tasks that the oracle does not solve."""

MODEL, FALLBACK = "qwen35_9b", "qwen3:8b"
TOKEN_S: Final = 0.1
"""Seconds between two tokens of the fallback, whose answers the pictures show; the gateway waits for none."""

PROFILE: Final = """
id: field-runner-4090
episode: {{ world: true }}
agent: {{ api_endpoint: "{url}/v1/chat/completions", model: {model}, local_fallback: "{fallback}", format: tools }}
environments:
  lightweight: [{{ name: BabyAI }}, {{ name: TextCraft }}, {{ name: Maze }}, {{ name: Wordle }}]
"""
THOUGHT: Final = (
    "I compare the last observation with the goal. What has failed before is ruled out, so two moves are left; "
    "one of them leads back to where I came from."
)
TEXT: Final = "The other one brings me closer to the goal. I take it, and look again."
N_STEPS: Final = 4
N_TASKS, N_ATTEMPTS = 24, 8


def main(folder: Path = PICTURES) -> None:
    """Write all screenshots into ``folder``, each as an SVG file."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, svg in asyncio.run(pictures()).items():
        (folder / f"{name}.svg").write_text(svg, "utf-8")


class ThinkingOracle(OracleResponder):
    """The oracle with a thought and a text before each action; overloaded once, in the step ``fails_in``."""

    fails_in: int | None = None

    async def respond(self, request: ChatRequest) -> ScriptedReply:
        if sum(message.role == "assistant" for message in request.messages) == self.fails_in:
            self.fails_in = None
            return ScriptedReply(status=503, content="The server is overloaded.", headers={"retry-after": "120"})
        reply = await super().respond(request)
        return replace(reply, reasoning_content=THOUGHT, content=TEXT) if reply.tool_calls else reply


async def pictures() -> dict[str, str]:
    """Run the console and return its screenshots: name -> SVG."""
    oracle = ThinkingOracle()
    gateway = ModelServer(oracle, models=[MODEL])
    ollama = ModelServer(ThinkingOracle(), behavior=Behavior(token_latency_s=TOKEN_S), models=[FALLBACK])
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="agent-") as folder, gateway, ollama:
        os.environ["OLLAMA_HOST"] = ollama.url
        session = NodeSession(LaunchOptions(_write_profile(folder, gateway.url), f"{folder}/data", NODE), "N")
        app = Console(session)
        screenshots: dict[str, str] = {}
        try:
            async with app.run_test(size=SIZE) as pilot:
                await _wait_until(pilot, lambda: bool(session.store.agents and session.store.envs))
                await _wait_until(pilot, lambda: all(env.status for env in session.store.envs.values()))
                await _capture_all(pilot, session, oracle, screenshots)
        finally:
            await asyncio.to_thread(_stop_node, Path(folder, "data"))
        return {name: svg.replace(folder, f"{SHOWN_FOLDER:.{len(folder)}}") for name, svg in screenshots.items()}


def _write_profile(folder: str, url: str) -> str:
    path = Path(folder, "field-runner.yaml")
    path.write_text(PROFILE.format(url=url, model=MODEL, fallback=FALLBACK))
    return str(path)


def _stop_node(data_dir: Path) -> None:
    if (known := read_node_file(data_dir)) is not None:
        node = psutil.Process(known.pid)
        node.terminate()
        node.wait(WAIT_S)


def _control(session: NodeSession) -> NodeClient:
    if session.control is None:
        raise RuntimeError("a node session always has a control connection")
    return session.control


async def _capture_all(
    pilot: Pilot[None], session: NodeSession, oracle: ThinkingOracle, screenshots: dict[str, str]
) -> None:
    async def capture(name: str, *keys: str) -> None:
        for key in keys:
            await pilot.press(key)
            await pilot.pause(0.5)
        screenshots[name] = screenshot_svg(pilot.app, "agentgym-tui launch")

    await pilot.pause(1.0)
    await capture("model", "ctrl+o")
    await pilot.press("escape")
    last = await _run_episodes(pilot, session, oracle)
    await capture("live")
    await pilot.resize_terminal(SIZE[0], WORLD_HEIGHT)
    await capture("world", "W")
    await pilot.resize_terminal(*SIZE)
    await _control(session).command("pause", batch_id=last)
    await pilot.press("W")
    await capture("machine", "5")
    await capture("form", "1", "R")
    await capture("runs", "escape", "6", "enter", "G", "enter")
    await capture("episodes", "1", "x", "2")
    await capture("episode", "j", "enter")
    await _run_attempts(pilot, session)
    await capture("results", "7", "v", "j", "j", "j")
    await capture("tasks", "m", "j", "right", "right")


async def _run_episodes(pilot: Pilot[None], session: NodeSession, oracle: ThinkingOracle) -> str:
    """Run episodes of all environments until the fallback streams in the middle of an episode of the last one."""
    tasks = {env: [task for task in range(N_EPISODES) if (env, task) not in UNSOLVED] for env in ENVS}
    args = StartArgs(batch_id=str(ULID()), envs=list(ENVS), agent="tools", model=MODEL, tasks=tasks)
    last = (await _control(session).start(args))[-1].batch_id
    await _wait_until(pilot, lambda: last in session.store.batches and session.store.batches[last].n_done >= N_SHOWN)
    oracle.fails_in = 1
    await _wait_until(pilot, lambda: any(_streams_a_call(each) for each in session.store.running_episodes()))
    return last


def _streams_a_call(episode: Episode) -> bool:
    streaming = episode.streaming
    return len(episode.steps) >= N_STEPS and streaming is not None and any(call.arguments for call in streaming.calls)


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
