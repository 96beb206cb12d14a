from __future__ import annotations

import fcntl
import os
import select
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path

import pytest

from agentgym_tui.terminal import unsupported_reason
from tests.support.terminal import INITIAL_MODES, Terminal, terminal_environ

pytestmark = pytest.mark.long

SECRET = "text-of-a-model"
APP = f"""
import sys
from pathlib import Path
from textual.app import App
from textual.widgets import Label
from agentgym_tui.sessions.session import FileSession
from agentgym_tui.terminal import run_console
from agentgym_tui.sessions.session import FileSession
from agentgym_tui.terminal import run_console

class Small(App):
    BINDINGS = [("c", "crash"), ("w", "worker"), ("g", "group"), ("p", "loud"), ("x", "seen")]
    def compose(self):
        yield Label("ready")
    def action_crash(self):
        outside = "{SECRET}"
        raise ValueError(outside)
    def action_seen(self):
        self.query_one(Label).update("seen")
    def on_key(self, event):
        if event.character == "ä":
            self.query_one(Label).update("typed")
    def action_worker(self):
        self.run_worker(self.fail())
    async def fail(self):
        outside = "{SECRET}"
        try:
            raise KeyError(outside)
        except KeyError as exc:
            raise RuntimeError(outside) from exc
    def action_group(self):
        raise ExceptionGroup("{SECRET}", [OSError("{SECRET}")])
    def action_loud(self):
        import asyncio, logging, warnings
        print("{SECRET}"); logging.getLogger("nats").error("{SECRET}"); warnings.warn("{SECRET}")
        self.lost = asyncio.get_running_loop().create_future()
        self.lost.set_exception(ValueError("{SECRET}")); del self.lost
        self.exit()

session = FileSession([])
session.data_dir = Path(sys.argv[1]) if len(sys.argv) > 1 else None
sys.exit(run_console(Small(), session))
"""


def small_app(*arguments: str, **env: str) -> Terminal:
    return Terminal(sys.executable, "-c", APP, *arguments, env=terminal_environ(**env))


def is_restored(terminal: Terminal) -> bool:
    return terminal.attributes_after == terminal.attributes_before and terminal.modes == set(INITIAL_MODES)


def test_the_terminal_is_restored_at_exit_and_library_output_is_hidden() -> None:
    with small_app() as terminal:
        terminal.wait_for("ready")
        terminal.send("p")
        assert terminal.wait_exit() == 0
        assert is_restored(terminal) and SECRET not in terminal.raw.decode()


@pytest.mark.parametrize("key", ["c", "w", "g"])
def test_a_crash_report_contains_no_values(key: str, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    with small_app(str(tmp_path)) as terminal:
        terminal.wait_for("ready")
        terminal.send(key)
        assert terminal.wait_exit() == 1
        assert is_restored(terminal)
        output = terminal.raw.decode()
    [report] = logs.iterdir()
    assert report.stat().st_mode & 0o777 == 0o600
    assert str(report) in output.replace("\r\n", "") and SECRET not in output and "Traceback" not in output
    text = report.read_text()
    assert SECRET not in text and "outside" not in text
    assert "textual " in text and "size 120x40" in text and "TERM xterm-256color" in text and "episodes" in text
    kinds = {"c": ["builtins.ValueError"], "w": ["RuntimeError", "builtins.KeyError"], "g": ["OSError"]}
    assert all(kind in text for kind in kinds[key]) and "<string>:" in text


def test_a_crash_report_without_a_state_directory_is_a_temporary_file(tmp_path: Path) -> None:
    with small_app(str(tmp_path / "missing"), TMPDIR=str(tmp_path)) as terminal:
        terminal.wait_for("ready")
        terminal.send("c")
        assert terminal.wait_exit() == 1
    [report] = tmp_path.iterdir()
    assert report.stat().st_mode & 0o777 == 0o600


REPAINTING_APP = APP.replace(
    "    def action_crash(self):",
    """    def on_mount(self):
        self.n = 0
        self.set_interval(0.01, self.paint)
    def paint(self):
        self.n += 1
        self.query_one(Label).update("ready " + str(self.n) * 400)
    def action_crash(self):""",
)


@pytest.mark.parametrize("attempt", range(2))
def test_a_closed_terminal_ends_the_app_while_it_paints(attempt: int) -> None:
    controller, process = start_in_terminal(REPAINTING_APP)
    with killed_at_exit(process):
        os.close(controller)
        assert process.wait(20) == 128 + signal.SIGHUP


def test_a_signal_ends_the_app_while_its_output_is_blocked() -> None:
    controller, process = start_in_terminal(REPAINTING_APP)
    with killed_at_exit(process):
        wait_until_full(controller)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 128 + signal.SIGTERM
    os.close(controller)


def test_invalid_utf8_input_is_ignored() -> None:
    with small_app() as terminal:
        terminal.wait_for("ready")
        terminal.send("\udcff\udcfe\udc80\x1b[\udcff")

        def is_key_handled() -> bool:
            terminal.send("x")  # repeated: keys read together with invalid bytes are lost
            return "seen" in terminal.text

        terminal.wait_for(is_key_handled)
        terminal.send("p")
        assert terminal.wait_exit() == 0 and is_restored(terminal)


def test_a_character_whose_bytes_arrive_one_by_one_is_typed() -> None:
    with small_app() as terminal:
        terminal.wait_for("ready")
        parts = cycle(("\udcc3", "\udca4"))

        def is_typed() -> bool:
            terminal.send(next(parts))
            return "typed" in terminal.text

        terminal.wait_for(is_typed)


def start_in_terminal(program: str) -> tuple[int, subprocess.Popen[bytes]]:
    """Start a program in a new terminal, wait for its first paint and return the terminal's controlling side."""
    controller, other = os.openpty()
    termios.tcsetwinsize(other, (40, 120))
    command = ["setsid", "--ctty", sys.executable, "-c", program]
    process = subprocess.Popen(command, stdin=other, stdout=other, stderr=other, env=terminal_environ())
    os.close(other)
    output = b""
    while b"ready" not in output:
        output += os.read(controller, 1 << 16)
    return controller, process


def wait_until_full(controller: int) -> None:
    """Wait until the terminal's unread output fills its buffer."""
    n_waiting, before = 0, -1
    while n_waiting != before:
        select.select([], [], [], 0.3)
        before, n_waiting = (
            n_waiting,
            int.from_bytes(fcntl.ioctl(controller, termios.FIONREAD, b"\0" * 4), sys.byteorder),
        )


@contextmanager
def killed_at_exit(process: subprocess.Popen[bytes]) -> Iterator[None]:
    try:
        yield
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(("columns", "rows"), [(59, 40), (120, 19), (1, 1)])
def test_a_small_terminal_is_rejected_with_its_size(columns: int, rows: int) -> None:
    with Terminal(
        str(Path(sys.executable).with_name("agentgym-tui")), "launch", columns=columns, rows=rows
    ) as terminal:
        assert terminal.wait_exit() == 2
        assert is_restored(terminal)
        output = terminal.raw.decode()
    assert f"{columns}x{rows}" in output and "60x20" in output and output.count("\n") == 1


@pytest.mark.parametrize("term", ["", "dumb", "unknown"])
def test_a_dumb_terminal_is_rejected(term: str) -> None:
    with Terminal(
        str(Path(sys.executable).with_name("agentgym-tui")), "launch", env=terminal_environ(TERM=term)
    ) as terminal:
        assert terminal.wait_exit() == 2
        assert "TERM" in terminal.raw.decode() and b"\x1b" not in terminal.raw


def test_output_to_a_file_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "isatty", lambda number: number != 2)
    assert "terminal" in (unsupported_reason({"TERM": "xterm"}) or "")


@pytest.mark.parametrize(("configured", "frames_per_second"), [({}, "240"), ({"TEXTUAL_FPS": "30"}, "30")])
def test_the_frame_rate_is_240_unless_it_is_configured(configured: dict[str, str], frames_per_second: str) -> None:
    code = "import agentgym_tui.app, textual.constants; print(textual.constants.MAX_FPS)"
    command = [sys.executable, "-c", code]
    result = subprocess.run(
        command, env=terminal_environ(**configured), capture_output=True, text=True, timeout=60, check=True
    )
    assert result.stdout.strip() == frames_per_second
