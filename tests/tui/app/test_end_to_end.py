"""Run, open and export episodes in a real terminal, starting from an empty folder."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.support.console.launch import (
    CONSOLE,
    NODE,
    is_running,
    node_cleanup,
    node_pid,
    read_episodes,
    select_environment,
    stop_node,
)
from tests.support.terminal import ENTER, ESCAPE, INITIAL_MODES, Terminal, terminal_environ

pytestmark = [pytest.mark.long, pytest.mark.timeout(180)]


def test_run_open_and_export_episodes_by_keyboard_and_restore_the_terminal(tmp_path: Path) -> None:
    data_dir, working_dir = tmp_path / "data", tmp_path / "folder"
    working_dir.mkdir()
    command = ["sh", "-c", 'echo "a prompt"; exec "$@"', "sh", CONSOLE, "launch"]
    with (
        node_cleanup(data_dir),
        Terminal(
            *command, "--data-dir", str(data_dir), "--node", NODE, cwd=working_dir, env=terminal_environ()
        ) as terminal,
    ):
        terminal.wait_for("connected", 60)
        assert terminal.modes != INITIAL_MODES
        terminal.wait_for("choose the oracle agent: no model needed")
        terminal.wait_until_absent("no model checked yet")
        terminal.wait_for("model gateway down", 30)
        select_environment(terminal, "Wordle")
        terminal.send("R")
        terminal.wait_for("◂ oracle ▸")  # the default while no model is reachable
        terminal.send(ENTER + ENTER)  # to the button, and on it
        terminal.wait_for(partial(has_stored, data_dir, 1), 60)
        select_environment(terminal, "BabyAI")
        terminal.send("r")
        terminal.wait_for(partial(has_stored, data_dir, 2), 60)
        assert [episode["env"] for episode in read_episodes(data_dir)] == ["Wordle", "BabyAI"]
        terminal.wait_for("success")
        terminal.send("2")
        terminal.wait_for("2 episodes")
        assert "BabyAI" in terminal.row_of("▸")  # newest first
        terminal.send(ENTER)
        terminal.wait_for("1 of 2")
        newest = read_episodes(data_dir)[-1]
        terminal.wait_for(newest["episode_id"])
        terminal.wait_for("■ action")  # the transcript
        terminal.send("e")
        exported = working_dir / f"{newest['episode_id']}.json"
        terminal.wait_for("exported to")
        assert exported.read_bytes() == next(data_dir.glob(f"runs/*/{exported.name}")).read_bytes()
        assert exported.stat().st_mode & 0o777 == 0o600
        terminal.send("B")
        terminal.wait_for("Events · ● live")
        terminal.wait_for(f"episode {newest['episode_id']}")
        terminal.wait_for("agentgym.episode.completed.v1")
        terminal.wait_for("BabyAI success")
        terminal.send(ESCAPE)
        terminal.wait_until_absent(f"episode {newest['episode_id']}")
        terminal.wait_for("▾ agentgym")
        terminal.wait_for("0 malformed")
        terminal.send("q")
        assert terminal.wait_exit() == 0
        assert terminal.modes == INITIAL_MODES
        assert terminal.attributes_after == terminal.attributes_before
        assert terminal.lines[0] == "a prompt"
        assert not any(terminal.lines[1:])
        assert is_running(pid := node_pid(data_dir))  # the node outlives the console
        stop_node(data_dir)
        assert not is_running(pid)


def has_stored(data_dir: Path, n: int) -> bool:
    return len(read_episodes(data_dir)) == n
