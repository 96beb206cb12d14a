"""Settings and what is kept, in a real terminal and from one start to the next."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from tests.command import REPOSITORY
from tests.escapes import foreign
from tests.terminal import AT_FIRST, Terminal, environ

CONSOLE = "import sys; from agentgym_tui.cli import main; sys.exit(main())"
COLOUR = re.compile(rb"\x1b\[(?:\d+;)*(?:3[0-8]|4[0-8]|9[0-7]|10[0-7])(?:;\d+)*m")


def started(folder: Path, **more: str) -> Terminal:
    own = {"XDG_CONFIG_HOME": str(folder), "XDG_STATE_HOME": str(folder), "PYTHONPATH": str(REPOSITORY)}
    return Terminal(sys.executable, "-c", CONSOLE, "open", str(folder), cwd=folder, env=environ(**own, **more))


def test_own_keys_work_and_the_next_start_is_as_this_one_was_left(tmp_path: Path) -> None:
    home = tmp_path / "agentgym-console"
    home.mkdir()
    (home / "console.yaml").write_text("keymap: {app.quit: Q, table.sort: m, run.cancel: s, nothing: x}\ntheme: nord\n")
    with started(tmp_path) as terminal:
        terminal.wait_for("started ▼")
        terminal.wait_for("keymap: there is no command nothing")
        terminal.wait_for("run.cancel: s is the key of run.step")
        terminal.send("qm")
        terminal.wait_for("by environment ▲")
        terminal.send("/")
        terminal.wait_for("words it must hold")
        terminal.wait_quiet()
        terminal.send("maze")
        terminal.wait_for("match maze")
        terminal.send("\r")
        terminal.wait_for("Q Quit")
        terminal.wait_quiet()
        assert COLOUR.search(terminal.raw)
        terminal.send("Q")
        assert terminal.wait_exit() == 0
        assert terminal.modes == AT_FIRST and foreign(terminal.raw) == []
    kept = home / "console.json"
    assert kept.stat().st_mode & 0o777 == 0o600
    with started(tmp_path, NO_COLOR="1") as terminal:
        terminal.wait_for("match maze")
        terminal.wait_for("by environment ▲")
        terminal.send("Q")
        assert terminal.wait_exit() == 0
        assert not COLOUR.search(terminal.raw)
    kept.write_bytes(b'{"filters": {"episodes": "\x1b[2J\xff')
    with started(tmp_path) as terminal:
        terminal.wait_for("started ▼")
        assert "match" not in terminal.text
