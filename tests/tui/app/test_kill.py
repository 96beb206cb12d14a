"""The console, its node and its broker killed while a battery is played: nothing is lost, and all of it is shown."""

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

pytestmark = pytest.mark.long

pytestmark = pytest.mark.timeout(240)

ENVS = ["Maze", "BabyAI"]
REPEAT = 10

N_STEPS = 3
LOST_S = 10.0
"""Seconds within which a killed node has to be missed on a busy machine."""


def test_a_killed_console_loses_no_episode_and_the_next_one_shows_every_step(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    with node_cleanup(data_dir):
        with launch_console(data_dir) as terminal:
            battery, steps = paused_battery(terminal, data_dir)
            terminal.kill(signal.SIGKILL)
        with launch_console(data_dir) as terminal:
            terminal.wait_for("paused", 60)
            terminal.wait_for(partial(shows, terminal, steps))
            terminal.send(" ")
            until_over(terminal, data_dir, battery)
    assert {episode["outcome"] for episode in read_episodes(data_dir)} <= {"success", "failure", "truncated"}


def test_a_killed_node_is_missed_and_what_it_played_shows_as_interrupted(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    with node_cleanup(data_dir), launch_console(data_dir) as terminal:
        paused_battery(terminal, data_dir)
        n_stored = len(read_episodes(data_dir))
        os.kill(before := node_pid(data_dir), signal.SIGKILL)
        terminal.wait_for("node lost", LOST_S)
        terminal.send("N")
        terminal.wait_for(lambda: node_pid(data_dir) != before, 60)
        terminal.wait_for("● connected", 60)
        terminal.send("2")
        terminal.wait_for("interrupted")
        assert len(read_episodes(data_dir)) == n_stored + 1
        assert read_episodes(data_dir)[-1]["outcome"] == "interrupted"
        terminal.wait_for(f"{n_stored + 1} episode")


def test_a_killed_broker_comes_back_and_nothing_shows_twice(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    with node_cleanup(data_dir), launch_console(data_dir) as terminal:
        battery, steps = paused_battery(terminal, data_dir)
        node, broker = psutil.Process(node_pid(data_dir)), broker_of(data_dir)
        assert broker is not None
        node.suspend()  # until the outage is on the screen, so that the key cannot fall into it
        os.kill(broker, signal.SIGKILL)
        terminal.wait_until_absent("● connected")
        node.resume()
        terminal.wait_for("● connected", 60)
        terminal.send("s")
        terminal.wait_for(partial(stepped, data_dir, len(steps)))
        terminal.wait_for(partial(shows, terminal, journal(data_dir)))
        assert broker_of(data_dir) not in (None, broker)
        terminal.send(" ")
        until_over(terminal, data_dir, battery)
        terminal.send("2")
        terminal.wait_for(f"{len(read_episodes(data_dir))} episodes")


def paused_battery(terminal: Terminal, data_dir: Path) -> tuple[list[str], list[dict[str, Any]]]:
    """Play, once the console is there, and stop within an episode that has steps; the batches, and these steps."""
    terminal.wait_for("● connected", 60)
    batch_ids = start_paused(data_dir, *ENVS, repeat=REPEAT)
    while True:
        terminal.wait_for(partial(is_paused_at, terminal, data_dir))
        if len(steps := journal(data_dir)) >= N_STEPS:
            return batch_ids, steps
        terminal.send("s")
        terminal.wait_for(partial(stepped, data_dir, len(steps)))


def is_paused_at(terminal: Terminal, data_dir: Path) -> bool:
    """Whether the screen is as far as the journal."""
    return "‖ paused" in terminal.text and shows(terminal, journal(data_dir))


def shows(terminal: Terminal, steps: list[dict[str, Any]]) -> bool:
    return shown_steps(terminal) == [str(step["index"]) for step in steps]


def stepped(data_dir: Path, n_before: int) -> bool:
    return len(journal(data_dir)) != n_before


def journal(data_dir: Path) -> list[dict[str, Any]]:
    """The steps of the one episode that is being played."""
    found = list(data_dir.glob("runs/*/*.journal.jsonl"))
    lines = [json.loads(line) for line in found[0].read_text().splitlines()] if len(found) == 1 else []
    return [line for line in lines if "index" in line]


def shown_steps(terminal: Terminal) -> list[str]:
    """The numbers in the first column of the table of steps."""
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


def broker_of(data_dir: Path) -> int | None:
    children = psutil.Process(node_pid(data_dir)).children()
    return next((child.pid for child in children if "nats-server" in child.name()), None)


def until_over(terminal: Terminal, data_dir: Path, batch_ids: list[str]) -> None:
    """Until all episodes of some batches are stored, each once, and the console knows."""
    terminal.wait_for(lambda: len(list(data_dir.glob("runs/*/*.json"))) >= len(ENVS) * REPEAT, 120)
    terminal.wait_until_absent("▶ running")
    batches = {batch["batch_id"]: batch["status"] for batch in request_node(data_dir, "list")["batches"]}
    assert [batches[batch_id] for batch_id in batch_ids] == ["completed"] * len(ENVS)
    tasks = sorted((episode["env"], episode["task_index"]) for episode in read_episodes(data_dir))
    assert tasks == sorted((env, index) for env in ENVS for index in range(REPEAT))
