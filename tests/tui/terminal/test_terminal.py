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
from pathlib import Path

import pytest

from agentgym_tui.terminal.run import unsupported_reason
from tests.support.terminal import INITIAL_MODES, Terminal, terminal_environ

pytestmark = pytest.mark.long

SECRET = "text-of-a-model"
APP = f"""
import sys
from pathlib import Path
from textual.app import App
from textual.widgets import Label
from agentgym_tui.sessions.file_session import FileSession
from agentgym_tui.terminal.run import run_console

class Small(App):
    BINDINGS = [("c", "crash"), ("w", "worker"), ("g", "group"), ("p", "loud"), ("x", "seen")]
    def compose(self):
        yield Label("ready")
    def action_crash(self):
        outside = "{SECRET}"
        raise ValueError(outside)
    def action_seen(self):
        self.query_one(Label).update("seen")
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


def small(*arguments: str, **env: str) -> Terminal:
    return Terminal(sys.executable, "-c", APP, *arguments, env=terminal_environ(**env))


def as_it_was(terminal: Terminal) -> bool:
    return terminal.attributes_after == terminal.attributes_before and terminal.modes == set(INITIAL_MODES)


def test_it_leaves_the_terminal_as_it_was() -> None:
    with small() as terminal:
        terminal.wait_for("ready")
        terminal.send("p")
        assert terminal.wait_exit() == 0
        assert as_it_was(terminal) and SECRET not in terminal.raw.decode()


@pytest.mark.parametrize("key", ["c", "w", "g"])
def test_a_crash_leaves_a_report_without_texts(key: str, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    with small(str(tmp_path)) as terminal:
        terminal.wait_for("ready")
        terminal.send(key)
        assert terminal.wait_exit() == 1
        assert as_it_was(terminal)
        said = terminal.raw.decode()
    [report] = logs.iterdir()
    assert report.stat().st_mode & 0o777 == 0o600
    assert str(report) in said.replace("\r\n", "") and SECRET not in said and "Traceback" not in said
    text = report.read_text()
    assert SECRET not in text and "outside" not in text
    assert "textual " in text and "size 120x40" in text and "TERM xterm-256color" in text and "episodes" in text
    kinds = {"c": ["builtins.ValueError"], "w": ["RuntimeError", "builtins.KeyError"], "g": ["OSError"]}
    assert all(kind in text for kind in kinds[key]) and "<string>:" in text


def test_without_a_state_directory_the_report_is_a_temporary_file(tmp_path: Path) -> None:
    with small(str(tmp_path / "missing"), TMPDIR=str(tmp_path)) as terminal:
        terminal.wait_for("ready")
        terminal.send("c")
        assert terminal.wait_exit() == 1
    [report] = tmp_path.iterdir()
    assert report.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_ends_it_with_the_terminal_restored(number: signal.Signals) -> None:
    with small() as terminal:
        terminal.wait_for("ready")
        terminal.process.send_signal(number)
        assert terminal.wait_exit() == 128 + number
        assert as_it_was(terminal)


BUSY = APP.replace(
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
def test_it_ends_with_its_terminal_in_the_middle_of_painting(attempt: int) -> None:
    controller, process = started(BUSY)
    with ended(process):
        os.close(controller)
        assert process.wait(20) == 128 + signal.SIGHUP


def test_it_ends_though_nobody_reads_what_it_writes() -> None:
    controller, process = started(BUSY)
    with ended(process):
        until_full(controller)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 128 + signal.SIGTERM
    os.close(controller)


def test_bytes_that_are_no_text_are_passed_over() -> None:
    with small() as terminal:
        terminal.wait_for("ready")
        terminal.send("\udcff\udcfe\udc80\x1b[\udcff")

        def seen() -> bool:
            terminal.send("x")  # again, as what is read along with such bytes is lost
            return "seen" in terminal.text

        terminal.wait_for(seen)
        terminal.send("p")
        assert terminal.wait_exit() == 0 and as_it_was(terminal)


def started(program: str) -> tuple[int, subprocess.Popen[bytes]]:
    """A program in a terminal of its own, once it has painted; and the terminal's other side."""
    controller, other = os.openpty()
    termios.tcsetwinsize(other, (40, 120))
    command = ["setsid", "--ctty", sys.executable, "-c", program]
    process = subprocess.Popen(command, stdin=other, stdout=other, stderr=other, env=terminal_environ())
    os.close(other)
    said = b""
    while b"ready" not in said:
        said += os.read(controller, 1 << 16)
    return controller, process


def until_full(controller: int) -> None:
    """Wait until a terminal takes no more of what is written to it, as nobody reads it."""
    n_waiting, before = 0, -1
    while n_waiting != before:
        select.select([], [], [], 0.3)
        before, n_waiting = (
            n_waiting,
            int.from_bytes(fcntl.ioctl(controller, termios.FIONREAD, b"\0" * 4), sys.byteorder),
        )


@contextmanager
def ended(process: subprocess.Popen[bytes]) -> Iterator[None]:
    try:
        yield
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(("columns", "rows"), [(59, 40), (120, 19), (1, 1)])
def test_a_small_terminal_is_refused_with_its_size(columns: int, rows: int) -> None:
    with Terminal(
        str(Path(sys.executable).with_name("agentgym-tui")), "launch", columns=columns, rows=rows
    ) as terminal:
        assert terminal.wait_exit() == 2
        assert as_it_was(terminal)
        said = terminal.raw.decode()
    assert f"{columns}x{rows}" in said and "60x20" in said and said.count("\n") == 1


@pytest.mark.parametrize("term", ["", "dumb", "unknown"])
def test_a_dumb_terminal_is_refused(term: str) -> None:
    with Terminal(
        str(Path(sys.executable).with_name("agentgym-tui")), "launch", env=terminal_environ(TERM=term)
    ) as terminal:
        assert terminal.wait_exit() == 2
        assert "TERM" in terminal.raw.decode() and b"\x1b" not in terminal.raw


def test_what_is_no_terminal_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "isatty", lambda number: number != 2)
    assert "terminal" in (unsupported_reason({"TERM": "xterm"}) or "")


@pytest.mark.parametrize(("set_by_person", "per_second"), [({}, "240"), ({"TEXTUAL_FPS": "30"}, "30")])
def test_the_next_drawing_may_come_at_once_unless_the_person_says_otherwise(
    set_by_person: dict[str, str], per_second: str
) -> None:
    code = "import agentgym_tui.app.console, textual.constants; print(textual.constants.MAX_FPS)"
    command = [sys.executable, "-c", code]
    told = subprocess.run(
        command, env=terminal_environ(**set_by_person), capture_output=True, text=True, timeout=60, check=True
    )
    assert told.stdout.strip() == per_second
