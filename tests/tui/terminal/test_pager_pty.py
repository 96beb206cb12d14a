"""The file of an episode in a pager and in an editor, which use the console's terminal."""

from __future__ import annotations

import json
import os
import stat
import sys
from pathlib import Path

import pytest

from agentgym_tui.safe_text import has_unsafe_chars
from runner.store import EpisodeStore, open_index
from tests.support.console.launch import CONSOLE
from tests.support.console.samples import HOSTILE
from tests.support.episodes import RecordedEpisode, as_json
from tests.support.escapes import foreign_escapes
from tests.support.terminal import INITIAL_MODES, Terminal, terminal_environ

pytestmark = [pytest.mark.long, pytest.mark.timeout(120)]

PAGER = """
import os, pathlib, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)  # input() would miss a signal that comes just before it reads
path = pathlib.Path(sys.argv[-1])
pathlib.Path("seen").write_text(f"{sys.argv[1]} {path} {oct(path.stat().st_mode & 0o777)}")
pathlib.Path("copy").write_bytes(path.read_bytes())
print("PAGER SHOWS", path.read_text()[:40])
while (line := input("> ")) != "end":
    if line == "change":
        path.write_text("changed")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    store = EpisodeStore(tmp_path / "data")
    index = open_index(store)
    record = RecordedEpisode(store, index).record_episode()
    index.close()
    [path] = (tmp_path / "data" / "runs").glob("*/*.json")
    document = {**as_json(record), "agent": HOSTILE.replace("\ud800", "")}
    path.write_text(json.dumps(document, ensure_ascii=False))
    (tmp_path / "pager.py").write_text(PAGER)
    return tmp_path


def open_console(folder: Path, **environ: str) -> Terminal:
    env = terminal_environ(**environ)
    return Terminal(CONSOLE, "open", str(folder / "data"), columns=100, rows=30, cwd=folder, env=env)


@pytest.mark.parametrize(("key", "variable"), [("P", "PAGER"), ("E", "EDITOR")])
def test_a_sanitized_private_copy_is_shown_and_removed(folder: Path, key: str, variable: str) -> None:
    command = f"{sys.executable} {folder / 'pager.py'} --flag"
    with open_console(folder, **{variable: command, "VISUAL": command}) as terminal:
        terminal.wait_for("✓ success")
        terminal.send(key)
        terminal.wait_for("PAGER SHOWS")
        terminal.send("\x03")  # ctrl+c reaches the program and not the console
        terminal.wait_for("not opened")
        terminal.send(key)
        terminal.wait_for(lambda: terminal.text.count("PAGER SHOWS") == 2)  # its first output is there again
        terminal.resize(120, 40)
        terminal.send("change\nend\n")
        terminal.wait_for("changes were made to a copy")
        terminal.wait_for(lambda: "Quit" in terminal.lines[39])  # drawn again, for the new size
        terminal.send("q")
        assert terminal.wait_exit() == 0
        assert terminal.modes == INITIAL_MODES and terminal.attributes_after == terminal.attributes_before
    flag, path, mode = (folder / "seen").read_text().split()
    assert (flag, mode) == ("--flag", "0o600") and not Path(path).exists() and not Path(path).parent.exists()
    copy = (folder / "copy").read_text()
    assert copy.startswith("{\n") and not has_unsafe_chars(copy)
    assert foreign_escapes(terminal.raw) == []
    [stored] = (folder / "data" / "runs").glob("*/*.json")
    assert stat.S_ISREG(stored.stat().st_mode) and stored.read_bytes().startswith(b"{")


def test_a_terminated_console_ends_the_program_and_removes_the_copy(folder: Path) -> None:
    with open_console(folder, PAGER=f"{sys.executable} {folder / 'pager.py'} x") as terminal:
        terminal.wait_for("✓ success")
        terminal.send("P")
        terminal.wait_for("PAGER SHOWS")
        os.kill(terminal.process.pid, 15)
        assert terminal.wait_exit() == 128 + 15
        assert terminal.modes == INITIAL_MODES and terminal.attributes_after == terminal.attributes_before
    assert not Path((folder / "seen").read_text().split()[1]).exists()


def test_a_pager_that_is_not_installed_is_named(folder: Path) -> None:
    with open_console(folder, PAGER="no-such-pager") as terminal:
        terminal.wait_for("✓ success")
        terminal.send("P")
        terminal.wait_for("not opened: PAGER='no-such-pager'")
