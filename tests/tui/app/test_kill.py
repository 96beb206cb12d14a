"""Kill the console, its node or its broker during a battery: no episode is lost and all steps are shown."""

from __future__ import annotations

import json
import os
import re
import signal
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.console.launch import (
    launch_console,
    node_cleanup,
    node_pid,
    read_episodes,
    request_node,
    start_paused,
)
from tests.support.terminal import Terminal

pytestmark = [pytest.mark.long, pytest.mark.timeout(240)]

ENVS = ["Maze", "BabyAI"]
REPEAT = 10

N_STEPS = 3
NODE_LOST_TIMEOUT_S = 10.0
"""Seconds within which a killed node must be shown as lost on a busy machine."""


def test_a_console_started_after_a_kill_shows_every_step(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    with node_cleanup(data_dir):
        with launch_console(data_dir) as terminal:
            battery, steps = run_paused_battery(terminal, data_dir)
            terminal.kill(signal.SIGKILL)
        with launch_console(data_dir) as terminal:
            terminal.wait_for("paused", 60)
            terminal.wait_for(partial(shows_steps, terminal, steps))
            terminal.send(" ")
            wait_until_completed(terminal, data_dir, battery)
    assert {episode["outcome"] for episode in read_episodes(data_dir)} <= {"success", "failure", "truncated"}


def test_a_killed_node_is_shown_as_lost_and_its_episode_as_interrupted(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    with node_cleanup(data_dir), launch_console(data_dir) as terminal:
        run_paused_battery(terminal, data_dir)
        n_stored = len(read_episodes(data_dir))
        os.kill(before := node_pid(data_dir), signal.SIGKILL)
        terminal.wait_for("node lost", NODE_LOST_TIMEOUT_S)
        terminal.send("\x0e")  # ctrl+n
        terminal.wait_for(lambda: node_pid(data_dir) != before, 60)
        terminal.wait_for("● connected", 60)
        terminal.send("2")
        terminal.wait_for("interrupted")
        assert len(read_episodes(data_dir)) == n_stored + 1
        assert read_episodes(data_dir)[-1]["outcome"] == "interrupted"
        terminal.wait_for(f"{n_stored + 1} episode")


def test_a_killed_broker_is_restarted_and_no_step_is_shown_twice(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    with node_cleanup(data_dir), launch_console(data_dir) as terminal:
        battery, steps = run_paused_battery(terminal, data_dir)
        node, broker = psutil.Process(node_pid(data_dir)), broker_pid(data_dir)
        assert broker is not None
        node.suspend()  # until the console shows the outage: a key sent before would be lost
        os.kill(broker, signal.SIGKILL)
        terminal.wait_until_absent("● connected")
        node.resume()
        terminal.wait_for("● connected", 60)
        terminal.send("s")
        terminal.wait_for(partial(has_new_step, data_dir, len(steps)))
        terminal.wait_for(partial(shows_steps, terminal, journal_steps(data_dir)))
        assert broker_pid(data_dir) not in (None, broker)
        terminal.send(" ")
        wait_until_completed(terminal, data_dir, battery)
        terminal.send("2")
        terminal.wait_for(f"{len(read_episodes(data_dir))} episodes")


def run_paused_battery(terminal: Terminal, data_dir: Path) -> tuple[list[str], list[dict[str, Any]]]:
    """Start a battery and pause inside an episode with ``N_STEPS`` steps; return the batch ids and the steps."""
    terminal.wait_for("● connected", 60)
    batch_ids = start_paused(data_dir, *ENVS, repeat=REPEAT)
    while True:
        terminal.wait_for(partial(is_paused_at, terminal, data_dir))
        if len(steps := journal_steps(data_dir)) >= N_STEPS:
            return batch_ids, steps
        terminal.send("s")
        terminal.wait_for(partial(has_new_step, data_dir, len(steps)))


def is_paused_at(terminal: Terminal, data_dir: Path) -> bool:
    """Return whether the console is paused and shows all steps of the journal."""
    return "‖ paused" in terminal.text and shows_steps(terminal, journal_steps(data_dir))


def shows_steps(terminal: Terminal, steps: list[dict[str, Any]]) -> bool:
    return shown_steps(terminal) == [str(step["index"]) for step in steps]


def has_new_step(data_dir: Path, n_before: int) -> bool:
    return len(journal_steps(data_dir)) != n_before


def journal_steps(data_dir: Path) -> list[dict[str, Any]]:
    """Return the steps of the one running episode."""
    paths = list(data_dir.glob("runs/*/*.journal.jsonl"))
    lines = [json.loads(line) for line in paths[0].read_text().splitlines()] if len(paths) == 1 else []
    return [line for line in lines if "index" in line]


def shown_steps(terminal: Terminal) -> list[str]:
    """Return the first column of the table of steps."""
    lines = terminal.lines
    top = next((row for row, line in enumerate(lines) if re.search(r"#  action", line)), len(lines))
    column = lines[top].index("#") if top < len(lines) else 0
    rows = [re.match(r"[▸ ]+(\d+) ", line[max(column - 4, 0) :]) for line in lines[top + 1 :]]
    numbers = []
    for row in rows:
        if row is None:
            break
        numbers.append(row[1])
    return numbers


def broker_pid(data_dir: Path) -> int | None:
    children = psutil.Process(node_pid(data_dir)).children()
    return next((child.pid for child in children if "nats-server" in child.name()), None)


def wait_until_completed(terminal: Terminal, data_dir: Path, batch_ids: list[str]) -> None:
    """Wait until all episodes of the batches are stored once and the console shows none as running."""
    terminal.wait_for(lambda: len(list(data_dir.glob("runs/*/*.json"))) >= len(ENVS) * REPEAT, 120)
    terminal.wait_until_absent("▶ running")
    batches = {batch["batch_id"]: batch["status"] for batch in request_node(data_dir, "list")["batches"]}
    assert [batches[batch_id] for batch_id in batch_ids] == ["completed"] * len(ENVS)
    tasks = sorted((episode["env"], episode["task_index"]) for episode in read_episodes(data_dir))
    assert tasks == sorted((env, index) for env in ENVS for index in range(REPEAT))
