"""Each way in which ``agentgym-tui launch`` gives the terminal back: a shell goes on in it, with its own settings."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pyte
import pytest
from ulid import ULID

from tests.support.console.launch import CONSOLE, NODE, is_running, node_cleanup, node_pid, request_node, stop_node
from tests.support.episodes import record_episodes
from tests.support.terminal import INITIAL_MODES, Terminal, terminal_environ

pytestmark = [pytest.mark.long, pytest.mark.timeout(180)]

SCRIPT = """
stty -echoctl
echo "before $(stty -g)"
"$@"
code=$?
echo "after $(stty -g) code $code,"
read -r line
echo "read $line"
"""
"""Starts the console from a shell whose settings are not those of a new terminal, and goes on after it."""
JOBS = ("bash", "--norc", "--noprofile", "--noediting", "-i")
"""A shell with job control that leaves the settings of the terminal alone."""
CTRL_C, CTRL_Z = "\x03", "\x1a"
ENTERED, KEYBOARD = b"\x1b[?1049h", (b"\x1b[>1u", b"\x1b[<u")
_ANSWER = re.compile(rb"code (\d+) settings ([0-9a-f:]+)\r")
_STYLE = re.compile(rb"\x1b\[[0-9;]*m")
PAGER = "import sys; print('PAGER SHOWS', flush=True)\nwhile input('> ') != 'end': pass"
STAYING_PAGER = """
import os, pathlib, signal, sys, threading
signal.signal(signal.SIGHUP, signal.SIG_IGN)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
pathlib.Path(sys.argv[1]).write_text(str(os.getpid()))
print("PAGER SHOWS", flush=True)
threading.Event().wait(60)
"""
"""Does not read the terminal, and ends neither with it nor when it should."""


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A state directory with an episode; the consoles of this module share its node."""
    path = tmp_path_factory.mktemp("launch") / "data"
    record_episodes(path)
    with node_cleanup(path):
        yield path


def launch_command(data_dir: Path) -> list[str]:
    return [CONSOLE, "launch", "--data-dir", str(data_dir), "--node", NODE]


def launch_in_shell(data_dir: Path, **environ: str) -> Terminal:
    command = ["sh", "-c", SCRIPT]
    return Terminal(*command, "sh", *launch_command(data_dir), cwd=data_dir.parent, env=terminal_environ(**environ))


def console_of(terminal: Terminal) -> psutil.Process:
    """Return the process of the console below the shell, once its screen is complete."""
    terminal.wait_for("● connected", 60)
    children = psutil.Process(terminal.process.pid).children(recursive=True)
    return next(child for child in children if "launch" in child.cmdline())


def check_given_back(terminal: Terminal, code: int) -> None:
    """Check that the shell runs on the main screen, and has its settings, its cursor and the exit code."""
    terminal.wait_for(f" code {code},")
    assert terminal.modes == INITIAL_MODES
    assert terminal.lines[0].startswith("before ")
    settings = re.findall(r"(?:before|after) (\S+)", terminal.text.replace("\n", " "))
    assert len(settings) == 2 and settings[0] == settings[1]
    pushed, popped = (terminal.raw.rfind(sequence) for sequence in KEYBOARD)
    assert pushed < popped
    terminal.send("typed\n")
    terminal.wait_for("read typed")
    assert terminal.wait_exit() == 0


EXITS: dict[str | signal.Signals, int] = {
    "q": 0,
    CTRL_C: 0,
    **{number: 128 + number for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)},
}
"""Keys and signals that end the console, and its exit codes."""


@pytest.mark.parametrize("exit", EXITS, ids=["q", "ctrl+c", "SIGTERM", "SIGHUP", "SIGINT"])
def test_a_shell_gets_its_terminal_back(data_dir: Path, exit: str | signal.Signals) -> None:
    with launch_in_shell(data_dir) as terminal:
        console = console_of(terminal)
        assert {1000, 1003, 1006, 1049, 2004} <= terminal.modes and 25 not in terminal.modes
        if isinstance(exit, str):
            terminal.send(exit)
        else:
            console.send_signal(exit)
        check_given_back(terminal, EXITS[exit])
    assert is_running(node_pid(data_dir))  # the node outlives its consoles


OWN = ("setsid", "--ctty")
LEADERS = {
    "the console": OWN,
    "a shell that waits, as make does": (*OWN, "sh", "-c", 'trap : HUP; "$@"', "sh"),
    "a shell that ignores the signal": (*OWN, "sh", "-c", 'trap "" HUP; "$@"; exit $?', "sh"),
    "no process of this terminal": ("setsid",),
}
"""Leaders of the session; only the first one passes the signal of a hang-up on to the console."""
END_S, QUIET_START_S = 2.0, 1.0
"""Seconds in which a console ends with its terminal, on a machine on which it connects in so many seconds or less. On a
busy one both take longer, and the limit of a test is as much longer as its console took to connect."""


@contextmanager
def opened(
    command: tuple[str, ...], *steps: tuple[str, str], **environ: str
) -> Iterator[tuple[int, subprocess.Popen[bytes], float]]:
    """Start a command in a terminal, type the key of each step once its text is shown; yield the other side.

    The seconds that are yielded are those in which the command has to end after a hang-up.
    """
    controller, other = os.openpty()
    termios.tcsetwinsize(other, (40, 120))
    env, started, limit_s = terminal_environ(**environ), time.monotonic(), END_S
    screen = pyte.Screen(120, 40)
    stream = pyte.ByteStream(screen)
    with subprocess.Popen(command, stdin=other, stdout=other, stderr=other, env=env) as process:
        os.close(other)
        try:
            for text, key in steps:
                while text not in "\n".join(screen.display):  # a changed text is drawn in pieces
                    stream.feed(_STYLE.sub(b"", os.read(controller, 1 << 16)))
                if text == "connected":
                    limit_s = END_S * max((time.monotonic() - started) / QUIET_START_S, 1.0)
                os.write(controller, key.encode())
            yield controller, process, limit_s
        finally:
            process.kill()


@pytest.mark.parametrize("leader", LEADERS.values(), ids=LEADERS)
def test_a_closed_terminal_ends_the_console_and_not_its_node(data_dir: Path, leader: tuple[str, ...]) -> None:
    with opened((*leader, *launch_command(data_dir)), ("connected", "")) as (controller, process, limit_s):
        os.close(controller)
        assert process.wait(limit_s) == 128 + signal.SIGHUP
    assert is_running(node_pid(data_dir))  # the node outlives its consoles


@pytest.mark.parametrize("leader", LEADERS.values(), ids=LEADERS)
def test_a_closed_terminal_ends_a_console_whose_pager_stays(
    data_dir: Path, leader: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "pager.py").write_text(STAYING_PAGER)
    pager = f"{sys.executable} {tmp_path / 'pager.py'} {tmp_path / 'pid'}"
    command = (*leader, *launch_command(data_dir))
    steps = ("connected", "2"), ("Episodes · 1 episode", "P"), ("PAGER SHOWS", "")
    with opened(command, *steps, PAGER=pager) as (controller, process, limit_s):
        os.close(controller)
        try:
            assert process.wait(limit_s) == 128 + signal.SIGHUP
        finally:
            with suppress(ProcessLookupError):  # asyncio kills a child that it still has when it is collected
                os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    assert is_running(node_pid(data_dir))


@pytest.mark.parametrize(("key", "parent"), [("", "{}"), (CTRL_Z, "{}"), (CTRL_Z, "sh -c '{}; exit $?'")])
def test_a_console_that_is_stopped_gives_the_terminal_back_until_it_continues(
    data_dir: Path, key: str, parent: str
) -> None:
    """``parent``: a process of the same job that waits for the console, as make does."""
    with job_shell(data_dir) as terminal:
        before = settings_of(terminal)
        console = start_job(terminal, data_dir, parent)
        if key:
            terminal.send(key)
        else:
            console.send_signal(signal.SIGTSTP)
        wait_until_stopped(terminal, console)
        assert terminal.modes == INITIAL_MODES and settings_of(terminal) == before
        n_raw = terminal.n_raw
        terminal.send("fg\n")
        terminal.wait_for(lambda: ENTERED in terminal.raw_from(n_raw) and "● connected" in terminal.text)
        assert {1000, 1003, 1006, 1049, 2004} <= terminal.modes and 25 not in terminal.modes
        terminal.send("q")
        end_job(terminal, console, before, 0)


def test_a_stopped_console_that_is_terminated_leaves_the_terminal_to_the_shell(data_dir: Path) -> None:
    with job_shell(data_dir) as terminal:
        before = settings_of(terminal)
        console = start_job(terminal, data_dir)
        console.send_signal(signal.SIGTSTP)
        wait_until_stopped(terminal, console)
        console.send_signal(signal.SIGTERM)
        terminal.send("fg\n")
        end_job(terminal, console, before, 128 + signal.SIGTERM)


def test_ctrl_z_in_a_pager_stops_both_and_fg_continues_both(data_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "pager.py").write_text(PAGER)
    with job_shell(data_dir, PAGER=f"{sys.executable} {tmp_path / 'pager.py'}") as terminal:
        before = settings_of(terminal)
        console = start_job(terminal, data_dir)
        terminal.send("2")
        terminal.wait_for("Episodes · 1 episode")
        terminal.send("P")
        terminal.wait_for("PAGER SHOWS")
        assert terminal.modes == INITIAL_MODES
        terminal.send(CTRL_Z)
        wait_until_stopped(terminal, console)
        assert terminal.modes == INITIAL_MODES and settings_of(terminal) == before
        terminal.send("fg\n")
        terminal.wait_for(lambda: console.status() != psutil.STATUS_STOPPED)
        terminal.send("end\n")
        terminal.wait_for("Episodes · 1 episode")
        terminal.send("q")
        end_job(terminal, console, before, 0)


def job_shell(data_dir: Path, **environ: str) -> Terminal:
    env = terminal_environ(PS1="$ ", **environ)
    return Terminal(*JOBS, cwd=data_dir.parent, env=env)


def start_job(terminal: Terminal, data_dir: Path, parent: str = "{}") -> psutil.Process:
    terminal.send(parent.format(" ".join(launch_command(data_dir))) + "\n")
    return console_of(terminal)


def settings_of(terminal: Terminal) -> str:
    """Ask the shell for the settings of the terminal."""
    return _ask_shell(terminal)[1]


def _ask_shell(terminal: Terminal) -> tuple[int, str]:
    """Ask the shell for the exit code of its last command and the settings of the terminal."""
    n_raw = terminal.n_raw
    terminal.send('echo "code $? settings $(stty -g)"\n')
    terminal.wait_for(lambda: _ANSWER.search(terminal.raw_from(n_raw)) is not None)
    match = _ANSWER.search(terminal.raw_from(n_raw))
    assert match is not None
    return int(match[1]), match[2].decode()


def wait_until_stopped(terminal: Terminal, console: psutil.Process) -> None:
    terminal.wait_for(lambda: console.status() == psutil.STATUS_STOPPED)
    terminal.wait_for("Stopped")


def end_job(terminal: Terminal, console: psutil.Process, settings: str, code: int) -> None:
    """Wait for the end of the console; check its exit code and that the shell has its terminal; end the shell."""
    terminal.wait_for(lambda: not is_running(console.pid))
    assert _ask_shell(terminal) == (code, settings)
    assert terminal.modes == INITIAL_MODES
    terminal.send("exit\n")
    terminal.wait_exit()


def test_no_process_of_a_run_outlives_the_node_of_a_terminated_console(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    with node_cleanup(data_dir), launch_in_shell(data_dir) as terminal:
        console = console_of(terminal)
        request = {"batch_id": str(ULID()), "envs": ["BabyAI"], "agent": "oracle", "repeat": 5000, "workers": 2}
        request_node(data_dir, "start", **request)
        terminal.wait_for(lambda: len(list(data_dir.glob("runs/*/*.json"))) > 0, 60)
        node = psutil.Process(node_pid(data_dir))
        children = [child for child in console.children(recursive=True) if child != node]
        started = [*node.children(recursive=True), *children]
        assert len(started) > 2  # the broker and the workers
        console.send_signal(signal.SIGTERM)
        check_given_back(terminal, 128 + signal.SIGTERM)
        assert node.is_running()
        stop_node(data_dir)
        assert psutil.wait_procs([node, *started], timeout=30)[1] == []
