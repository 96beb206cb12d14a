"""Settings and stored UI state in a real terminal, across restarts."""

from __future__ import annotations

import re
import signal
import sys
from pathlib import Path

import pytest

from agentgym_tui.notifications import OSC_9
from tests.support.command import REPOSITORY
from tests.support.escapes import foreign_escapes
from tests.support.terminal import ENTER, ESCAPE, INITIAL_MODES, Terminal, terminal_environ

pytestmark = pytest.mark.long

CONSOLE = "import sys; from agentgym_tui.cli import main; sys.exit(main())"
ENDING_BATCH = """
import os, sys
from agentgym_tui.app import Console
from agentgym_tui.config import config_path, read_settings
from agentgym_tui.terminal import run_console
from tests.support.console.fake_session import busy_session
from tests.support.console.samples import batch_state, node_list

async def end(*_, **__):
    session.store.apply_list(node_list(batch_state(0, "completed")))

session = busy_session()
session.fake_control.command = end
sys.exit(run_console(Console(session, read_settings(config_path(os.environ))), session))
"""
"""A console whose batch ends as soon as a command is sent."""

STATE_SYMBOLS = ("●", "✗", "▸", "▌", "⚠", "▾", "‖ paused", "○")
"""Symbols that show state and focus without colors."""

COLOR = re.compile(rb"\x1b\[(?:\d+;)*(?:3[0-8]|4[0-8]|9[0-7]|10[0-7])(?:;\d+)*m")


def start_console(folder: Path, **more: str) -> Terminal:
    variables = {"XDG_CONFIG_HOME": str(folder), "XDG_STATE_HOME": str(folder), "PYTHONPATH": str(REPOSITORY)}
    return Terminal(
        sys.executable, "-c", CONSOLE, "open", str(folder), cwd=folder, env=terminal_environ(**variables, **more)
    )


def test_control_keys_are_recognized_by_the_characters_that_they_send(tmp_path: Path) -> None:
    home = tmp_path / "agentgym-console"
    home.mkdir()
    keys = "app.quit: 'ctrl+]', app.help: 'ctrl+_', table.sort: 'ctrl+^', episodes.filter: 'ctrl+K'"
    (home / "console.yaml").write_text(f"keymap: {{{keys}}}\n")
    with start_console(tmp_path) as terminal:
        terminal.wait_for("^] Quit")
        terminal.send("\x1e")
        terminal.wait_for("by environment ▲")
        terminal.send("\x1f")
        terminal.wait_for("╭─ Help")
        terminal.send(ESCAPE)
        terminal.wait_for("^k Filter")
        terminal.send("\x0b")
        terminal.wait_for("words and fields, such as")
        terminal.send(ESCAPE)
        terminal.wait_for("^k Filter")
        terminal.send("\x1d")
        assert terminal.wait_exit() == 0


def test_custom_keys_work_and_the_next_start_restores_the_ui_state(tmp_path: Path) -> None:
    home = tmp_path / "agentgym-console"
    home.mkdir()
    (home / "console.yaml").write_text("keymap: {app.quit: Z, table.sort: U, run.cancel: s, nothing: x}\ntheme: nord\n")
    with start_console(tmp_path) as terminal:
        terminal.wait_for("started ▼")
        terminal.wait_for("keymap: unknown command nothing")
        terminal.wait_for("run.cancel: s is already the key of run.step")
        terminal.send("qU")
        terminal.wait_for("by environment ▲")
        terminal.send("/")
        terminal.wait_for("words and fields, such as")
        terminal.wait_until_quiet()
        terminal.send("maze")
        terminal.wait_for("match maze")
        terminal.send("\r")
        terminal.wait_for("Z Quit")
        terminal.wait_until_quiet()
        assert COLOR.search(terminal.raw)
        terminal.send("Z")
        assert terminal.wait_exit() == 0
        assert terminal.modes == INITIAL_MODES and foreign_escapes(terminal.raw) == []
    ui_state_file = home / "console.json"
    assert ui_state_file.stat().st_mode & 0o777 == 0o600
    with start_console(tmp_path, NO_COLOR="1") as terminal:
        terminal.wait_for("match maze")
        terminal.wait_for("by environment ▲")
        terminal.send("Z")
        assert terminal.wait_exit() == 0
        assert not COLOR.search(terminal.raw)
    ui_state_file.write_bytes(b'{"filters": {"episodes": "\x1b[2J\xff')
    with start_console(tmp_path) as terminal:
        terminal.wait_for("started ▼")
        assert "match" not in terminal.text


KEYS_AND_TEXTS = (
    *(("R", "╭─ Run"), (ESCAPE, "Environments"), ("?", "╭─ Help"), (ESCAPE, "Environments"), ("2", "✗ unreadable")),
    *(("gj", "▸"), (ENTER, "● Transcript"), ("w", "● Trace"), ("d", "● Data"), (ESCAPE, "✗ unreadable")),
    *(("3", "● Formatted"), (" ", "‖ paused"), ("t", "▾"), ("q", "╭─")),
)  # fmt: skip


def test_symbols_replace_colors_on_every_screen(tmp_path: Path) -> None:
    command = (sys.executable, "-m", "tests.support.console.hostile_console", "0")
    env = terminal_environ(PYTHONPATH=str(REPOSITORY), NO_COLOR="1")
    screen_texts = ""
    with Terminal(*command, cwd=tmp_path, env=env) as terminal:
        terminal.wait_for("▌Environments", 60)
        for key, text in KEYS_AND_TEXTS:
            terminal.send(key)
            terminal.wait_for(text)
            terminal.wait_until_quiet(0.1, 5)
            screen_texts += terminal.text
        terminal.kill(signal.SIGTERM)
    assert [symbol for symbol in STATE_SYMBOLS if symbol not in screen_texts] == []
    assert COLOR.search(terminal.raw) is None


@pytest.mark.parametrize(("notify", "n_expected"), [("bell: true, desktop: true", 1), ("toast: true", 0)])
def test_the_end_of_a_batch_rings_the_bell_and_notifies_the_desktop(
    tmp_path: Path, notify: str, n_expected: int
) -> None:
    home = tmp_path / "agentgym-console"
    home.mkdir()
    (home / "console.yaml").write_text(f"notify: {{{notify}}}\n")
    env = terminal_environ(XDG_CONFIG_HOME=str(tmp_path), PYTHONPATH=str(REPOSITORY))
    with Terminal(sys.executable, "-c", ENDING_BATCH, cwd=tmp_path, env=env) as terminal:
        terminal.wait_for("task 3", 60)
        terminal.wait_until_quiet(0.3, 5)  # a batch counts as ended if the console has seen it run
        before = terminal.raw.count(b"\x07")
        terminal.send(" ")
        terminal.wait_for("Wordle completed")
        terminal.wait_until_quiet(0.2, 5)
        n_notifications = terminal.raw.count(OSC_9.encode())
        assert (terminal.raw.count(b"\x07") - before - n_notifications, n_notifications) == (n_expected, n_expected)
        terminal.kill(signal.SIGTERM)
