"""What a terminal gets while the console starts: one alternate screen, and each frame once."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from tests.support.command import REPOSITORY
from tests.support.console.launch import CONSOLE, launch_console, node_cleanup
from tests.support.terminal import INITIAL_MODES, Terminal, terminal_environ

pytestmark = pytest.mark.long

ENTERED, LEFT = b"\x1b[?1049h", b"\x1b[?1049l"
SYNC_SUPPORT, SYNC_REPLY = b"\x1b[?2026$p", "\x1b[?2026;2$y"
FRAME = re.compile(rb"\x1b\[\?2026h(.*?)\x1b\[\?2026l", re.DOTALL)
_ESCAPE = re.compile(rb"\x1b(?:\][^\x07]*\x07|\[[0-9;?<>$]*[a-zA-Z])")


def test_the_whole_screen_is_painted_once_and_the_alternate_screen_entered_and_left_once(tmp_path: Path) -> None:
    with node_cleanup(tmp_path / "data"), launch_console(tmp_path / "data") as terminal:
        terminal.wait_for(lambda: SYNC_SUPPORT in terminal.raw)
        terminal.send(SYNC_REPLY)  # frames are marked from now on
        terminal.wait_for("connected", 60)
        terminal.wait_until_quiet()
        frames = [_ESCAPE.sub(b"", frame).decode() for frame in FRAME.findall(terminal.raw)]
        n_cells = len(terminal.lines) * 120
        assert [len(frame) >= n_cells for frame in frames] == [True, *([False] * (len(frames) - 1))]
        terminal.send("q")
        assert terminal.wait_exit() == 0
        assert terminal.raw.count(ENTERED) == terminal.raw.count(LEFT) == 1
        assert terminal.modes == INITIAL_MODES


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_ends_the_command_quietly_while_the_framework_loads(number: signal.Signals, tmp_path: Path) -> None:
    folder = tmp_path / "other" / "textual"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("import threading\nprint('loading')\nthreading.Event().wait(60)\n")
    env = terminal_environ(PYTHONPATH=f"{folder.parent}:{REPOSITORY}")
    with Terminal(CONSOLE, "open", str(tmp_path), cwd=tmp_path, env=env) as terminal:
        terminal.wait_for("loading", 60)
        terminal.process.send_signal(number)
        assert terminal.wait_exit() == -number
        assert terminal.text.strip() == "loading" and terminal.modes == INITIAL_MODES
