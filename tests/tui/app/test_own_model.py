"""From an empty folder to an episode of one's own model, by the keys of a real console with a real node."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.console.launch import CONSOLE, NODE, node_cleanup, read_episodes, select_environment
from tests.support.model_server import ModelServer
from tests.support.terminal import CTRL_P, ENTER, TAB, Terminal, terminal_environ

pytestmark = [pytest.mark.long, pytest.mark.timeout(240)]

KEY = "the-right-key-of-the-lab"


def test_an_own_model_with_a_wrong_key_plays_after_its_key_was_corrected(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"

    def console(key: str) -> Terminal:
        env = terminal_environ(XDG_CONFIG_HOME=str(tmp_path / "config"), LAB_KEY=key)
        return Terminal(CONSOLE, "launch", "--data-dir", str(data_dir), "--node", NODE, env=env, cwd=tmp_path)

    with ModelServer(models=("small",), token=KEY) as server, node_cleanup(data_dir):
        with console("a-wrong-key-of-the-lab") as terminal:
            terminal.wait_for("connected", 60)
            terminal.wait_for("model gateway down", 30)
            terminal.send(f"{CTRL_P}model server{ENTER}")
            terminal.wait_for("A model of your own")
            terminal.send(f"{server.url}{TAB}small{TAB}LAB_KEY{ENTER}{ENTER}")
            terminal.wait_for("set the variable LAB_KEY to a valid key")
            terminal.send(f"{TAB}{ENTER}")
            terminal.wait_for("This console uses the profile small")
            terminal.wait_for("agentgym-tui launch --config small")
            terminal.send("yy")
            terminal.wait_for("model 127.0.0.1 wrong", 60)
            terminal.send("q")
            assert terminal.wait_exit() == 0
        with console(KEY) as terminal:
            terminal.wait_for("LAB_KEY has another value than when the node started", 60)
            terminal.send("yy")
            terminal.wait_for("model 127.0.0.1 up", 60)
            select_environment(terminal, "Wordle")
            terminal.send("r")
            terminal.wait_for(lambda: bool(read_episodes(data_dir)), 60)
            terminal.wait_until_absent("a variable of its profile has changed")
            shown = terminal.raw
    (episode,) = read_episodes(data_dir)
    assert (episode["model"], episode["profile"], episode["outcome"]) == ("small", "small", "success")
    assert KEY.encode() not in shown
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [path for path in files if KEY.encode() in path.read_bytes()] == []
