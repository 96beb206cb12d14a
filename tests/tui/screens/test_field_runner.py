"""A watched bus to which another field runner publishes events that lack most fields."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentgym_tui.app import Console
from agentgym_tui.presenters.number_format import UNKNOWN
from agentgym_tui.sessions.bus_session import BusSession
from runner.client.node_folder import LaunchOptions
from runner.events import subjects
from tests.support.console.pilot import wait_for_widget_text, widget_text
from tests.support.nats_server import NatsAccount
from tests.support.publishing import nats_client
from tests.support.subscriptions import add_stream

EPISODES = [
    {"episode_id": f"e{n}", "env": "BabyAI", "reward": n / 4, "rounds": 3, "duration_s": 2.5} for n in (1, 2, 3, 3)
]
ORIGINAL = {"env": "Maze", "score": 0.25, "rounds": 3, "duration_sec": 2.5, "model": "qwen3:8b", "node": "4090"}
EVENTS = [
    (subjects.FIELD_STATUS, {"node": "4090", "config": "field", "status": "started"}),
    *((subjects.EPISODE_COMPLETED, fields) for fields in EPISODES),
    *((subjects.EPISODE_COMPLETED, {**ORIGINAL, "success": success}) for success in (True, True, False)),
    (subjects.BATCH_COMPLETED, {"batch_id": "b1", "env": "BabyAI", "n_episodes": 3, "mean_reward": 0.5}),
]


@pytest.mark.long
async def test_all_screens_show_what_another_field_runner_reports(bus: NatsAccount, tmp_path: Path) -> None:
    app = Console(BusSession(LaunchOptions(data_dir=str(tmp_path)), url=bus.url))
    async with nats_client(bus) as client, app.run_test(size=(120, 40), notifications=True) as pilot:
        await add_stream(client, subjects=["agentgym.>"])
        for subject, fields in EVENTS:
            await client.jetstream().publish(subject, json.dumps(fields).encode())
        await wait_for_widget_text(pilot, "#status", "node 4090 started")
        await wait_for_widget_text(pilot, "#environments", "Maze", "67% of 3", "BabyAI")
        await pilot.press("2")
        await wait_for_widget_text(pilot, "#summary", "6 episodes")
        await wait_for_widget_text(
            pilot, "#episodes", "✓ success", "✗ failure", "? unknown", "0.75", f"{UNKNOWN} qwen3:8b"
        )
        await pilot.press("G", "enter")
        await wait_for_widget_text(pilot, "#heading", f"BabyAI task {UNKNOWN}", "? unknown", f"model {UNKNOWN}")
        await pilot.press("escape", "6")
        await wait_for_widget_text(pilot, "#runs", "BabyAI", "✓ completed", "3/3")
        assert "%" not in widget_text(pilot, "#runs")
        await pilot.press("7")
        await wait_for_widget_text(pilot, "#results", "Maze", "67%", "BabyAI")
        (babyai,) = (line for line in widget_text(pilot, "#results").splitlines() if "BabyAI" in line)
        assert "baseline" not in babyai and "%" not in babyai
        await pilot.press("3")
        await wait_for_widget_text(pilot, "#messages", "BabyAI · reward 0.25", "4090")
        await wait_for_widget_text(pilot, "#summary", "0 malformed")
