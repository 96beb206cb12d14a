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
from ulid import ULID

from tests.terminal import Terminal
from tests.tui.consoles import ask_node, launched, node_of, node_pid, stored

pytestmark = pytest.mark.timeout(240)

REPEAT = 150
"""Enough for some seconds, so that a key gets there in time."""

LOST_S = 10.0
"""Seconds within which a killed node has to be missed on a busy machine."""


def test_a_killed_console_loses_no_episode_and_the_next_one_shows_every_step(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    with node_of(data_dir):
        with launched(data_dir) as terminal:
            battery = start_battery(terminal, data_dir)
            steps = pause_within_an_episode(terminal, data_dir)
            terminal.kill(signal.SIGKILL)
        with launched(data_dir) as terminal:
            terminal.wait_for("paused", 60)
            terminal.wait_for(lambda: shown_steps(terminal) == [str(step["index"]) for step in steps])
            terminal.send(" ")
            until_over(terminal, data_dir, battery)
    assert {episode["outcome"] for episode in stored(data_dir)} <= {"success", "failure", "truncated"}


def test_a_killed_node_is_missed_and_what_it_played_shows_as_interrupted(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    with node_of(data_dir), launched(data_dir) as terminal:
        start_battery(terminal, data_dir)
        pause_within_an_episode(terminal, data_dir)
        n_stored = len(stored(data_dir))
        os.kill(before := node_pid(data_dir), signal.SIGKILL)
        terminal.wait_for("node lost", LOST_S)
        terminal.send("N")
        terminal.wait_for(lambda: node_pid(data_dir) != before, 60)
        terminal.wait_for("● connected", 60)
        terminal.send("2")
        terminal.wait_for("interrupted")
        assert len(stored(data_dir)) == n_stored + 1
        assert stored(data_dir)[-1]["outcome"] == "interrupted"
        terminal.wait_for(f"{n_stored + 1} episode")


@pytest.mark.skipif(os.environ.get("AGENTGYM_FAULTS") != "full", reason="in the long form: make faults")
def test_a_killed_broker_comes_back_and_nothing_shows_twice(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    with node_of(data_dir), launched(data_dir) as terminal:
        battery = start_battery(terminal, data_dir)
        pause_within_an_episode(terminal, data_dir)
        n_shown = len(shown_steps(terminal))
        broker = broker_of(data_dir)
        assert broker is not None
        os.kill(broker, signal.SIGKILL)
        terminal.wait_for(lambda: broker_of(data_dir) not in (None, broker), 60)
        terminal.wait_for("● connected", 60)
        terminal.send("s")
        terminal.wait_for(lambda: shown_steps(terminal) == [str(index) for index in range(n_shown + 1)])
        terminal.send(" ")
        until_over(terminal, data_dir, battery)
        terminal.send("2")
        terminal.wait_for(f"{len(stored(data_dir))} episodes")


def start_battery(terminal: Terminal, data_dir: Path) -> list[str]:
    """Maze and BabyAI, once the console is there; the ids of its batches."""
    terminal.wait_for("● connected", 60)
    started = ask_node(data_dir, "start", batch_id=str(ULID()), envs=["Maze", "BabyAI"], repeat=REPEAT)
    terminal.wait_for("▶ running")
    return [batch["batch_id"] for batch in started]


def pause_within_an_episode(terminal: Terminal, data_dir: Path) -> list[dict[str, Any]]:
    """Pause by keyboard, and step until the episode has some steps; they are shown, and returned from its journal."""
    terminal.send(" ")
    terminal.wait_for("‖ paused")
    terminal.wait_quiet()
    while len(steps := journal(data_dir)) < 3:
        terminal.send("s")
        terminal.wait_for(partial(stepped, data_dir, len(steps)))
    terminal.wait_for(lambda: shown_steps(terminal) == [str(step["index"]) for step in steps])
    return steps


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

    def over() -> bool:
        batches = {batch["batch_id"]: batch for batch in ask_node(data_dir, "list")["batches"]}
        return all(batches[batch_id]["status"] == "completed" for batch_id in batch_ids)

    terminal.wait_for(over, 120)
    tasks = sorted((episode["env"], episode["task_index"]) for episode in stored(data_dir))
    assert tasks == sorted((env, index) for env in ("Maze", "BabyAI") for index in range(REPEAT))
    terminal.wait_gone("▶ running")
