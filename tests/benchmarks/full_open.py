"""What opening big things takes: a folder of ten thousand episodes, and a log of 500 MB against ``toolong``."""

from __future__ import annotations

import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from runner.batch.batch import Batch
from runner.batch.spec import BatchSpec
from runner.batch.state_dir import Workspace
from runner.types import Limits
from tests.benchmarks.measure import PAIRS, Ratio, Row, quartiles, ratio_of
from tests.support.command import REPOSITORY
from tests.support.episodes import new_id
from tests.support.terminal import Terminal, terminal_environ

CONSOLE = str(Path(sys.executable).with_name("agentgym-tui"))
N_EPISODES, EPISODE_BYTES = 10_000, 11_400
N_FOLDERS: Final = 5
MAX_USABLE_S, MAX_MB = 1.0, 150

LOG_BYTES: Final = 500_000_000
MAX_FIRST, MAX_INDEXED = 0.3, 0.6
PEER: Final = "toolong==1.5.0"
PEER_TELLS: Final = """
import os
from toolong.cli import run
from toolong.log_lines import LogLines

follow = LogLines.start_tail

def tell(self):
    os.write(2, b"\\x1b]0;indexed\\x07")
    follow(self)

LogLines.start_tail = tell
run()
"""
"""It begins to follow a file once its index is whole, and says so only by what it shows no longer."""


class Opened(NamedTuple):
    """Seconds until lines were shown, until our whole screen was, and until all of them could be gone to."""

    first_s: float
    drawn_s: float
    indexed_s: float


def run() -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        return [*_folder(Path(folder)), *_log(Path(folder))]


def _folder(folder: Path) -> list[Row]:
    runs = _episodes(folder)
    usable, whole, megabytes = zip(*(_open_folder(runs) for _ in range(N_FOLDERS)), strict=True)
    q1, usable_s, q3 = quartiles(usable)
    name = f"open of {N_EPISODES:,} episodes, {N_EPISODES * EPISODE_BYTES / 1e6:.0f} MB"
    return [
        _row(f"{name}: usable ({q1:.2f}-{q3:.2f}), wall", usable_s, MAX_USABLE_S, "{:.2f} s"),
        Row(f"{name}: all read, wall", f"{statistics.median(whole):.2f} s"),
        _row(f"{name}: memory at most", max(megabytes), MAX_MB, "{:.0f} MB"),
    ]


def _terminal(*command: str) -> Terminal:
    here = {"PYTHONPATH": str(REPOSITORY)} if command[0] == CONSOLE else {}
    return Terminal(*command, columns=200, rows=50, env=terminal_environ(**here))


def _open_folder(runs: Path) -> tuple[float, float, float]:
    """Seconds until a key moves among the listed episodes, seconds until all are listed, and the most memory in MB."""
    with _terminal(CONSOLE, "open", str(runs)) as terminal:
        terminal.wait_for(lambda: b"Maze" in terminal.raw, 60)
        before = _cursor(terminal)
        terminal.send("j")
        terminal.wait_for(lambda: _cursor(terminal) > before, 60)
        usable_s = time.perf_counter() - terminal.started
        terminal.wait_for(lambda: f"{N_EPISODES:,} episodes".encode() in terminal.raw, 120)
        whole_s = time.perf_counter() - terminal.started
        terminal.wait_until_absent("reading", 60)
        return usable_s, whole_s, _peak(terminal.process.pid)


def _cursor(terminal: Terminal) -> int:
    return next((row for row, line in enumerate(terminal.lines) if line.startswith("▸")), 0)


def _log(folder: Path) -> list[Row]:
    path, n_lines = folder / "events.jsonl", 0
    with path.open("wb") as file:
        while file.tell() < LOG_BYTES:
            n_lines += 1
            file.write(_event(n_lines))
    path.read_bytes()  # into the memory of the system, so that no disk is measured
    peer = _peer(folder / "peer")
    if peer is None:
        ours = [_open_log([CONSOLE, "open", str(path)], f"{n_lines:,} lines") for _ in range(3)]
        shown = f"{statistics.median(opened.indexed_s for opened in ours):.2f} s"
        why = f"; against toolong not measured: {PEER} could not be installed"
        return [Row("open of a log of 500 MB, indexed, wall", shown + why)]
    pairs: list[tuple[Opened, Opened]] = []
    for number in range(PAIRS + 1):
        theirs = _open_log([*peer, str(path)], "0;indexed") if number % 2 else None
        ours_ = _open_log([CONSOLE, "open", str(path)], f"{n_lines:,} lines")
        pairs.append((ours_, theirs or _open_log([*peer, str(path)], "0;indexed")))
    first = ratio_of(*zip(*((ours.first_s, theirs.first_s) for ours, theirs in pairs[1:]), strict=True))
    indexed = ratio_of(*zip(*((ours.indexed_s, theirs.indexed_s) for ours, theirs in pairs[1:]), strict=True))
    _, drawn_s, _ = quartiles([ours.drawn_s for ours, _ in pairs[1:]])
    return [
        Row.of_ratio(_against("first lines of a log of 500 MB", first), first, at_most=MAX_FIRST),
        Row("the same, the whole screen with its keys, wall", f"{drawn_s:.2f} s"),
        Row.of_ratio(_against(f"the same, all {n_lines:,} lines indexed", indexed), indexed, at_most=MAX_INDEXED),
    ]


def _against(what: str, measured: Ratio) -> str:
    return f"{what} ({measured.a_median:.2f} s) / with toolong ({measured.b_median:.2f} s), wall"


def _open_log(command: Sequence[str], indexed: str) -> Opened:
    with _terminal(*command) as terminal:
        terminal.wait_for(lambda: b"episode_id" in terminal.raw, 60)
        first_s = time.perf_counter() - terminal.started
        terminal.wait_for(lambda: command[0] != CONSOLE or b"Quit" in terminal.raw, 60)
        drawn_s = time.perf_counter() - terminal.started
        terminal.wait_for(lambda: indexed.encode() in terminal.raw, 60)
        return Opened(first_s, drawn_s, time.perf_counter() - terminal.started)


def _peer(folder: Path) -> list[str] | None:
    """What starts toolong, installed for this benchmark alone; None where it cannot be, as without a network."""
    python = str(folder / "bin" / "python")
    pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", PEER]
    try:
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, capture_output=True, timeout=120)
        subprocess.run([python, *pip], check=True, capture_output=True, timeout=240)
    except (subprocess.SubprocessError, OSError):
        return None
    started = folder / "tells.py"
    started.write_text(PEER_TELLS)
    return [python, str(started)]


def _event(number: int) -> bytes:
    at = f"2026-03-04T{number // 3_600_000 % 24:02}:{number // 60_000 % 60:02}:{number // 1_000 % 60:02}"
    kind, text = ("timestep", "token", "span")[number % 3], "x" * (100 + number * 7_919 % 560)
    return (
        f'{{"at":"{at}.{number % 1_000:03}Z","kind":"{kind}","episode_id":"01KA{number // 50:022}",'
        f'"seq":{number % 50},"text":"{text}"}}\n'
    ).encode()


def _episodes(folder: Path) -> Path:
    """Copies of a played episode, each of ``EPISODE_BYTES`` or a little more."""
    workspace = Workspace(folder / "state", node="bench", profile="bench")
    Batch(
        BatchSpec(env="Maze", agent="oracle", limits=Limits(max_rounds=15), tracing="off").validated(), workspace
    ).run()
    workspace.close()
    (played,) = folder.glob("state/runs/*/*.json")
    content = played.read_bytes()
    said = b'"reset_observation":[{"role":"user","content":"'
    content = content.replace(said, said + b"a maze " * max((EPISODE_BYTES - len(content)) // 7, 0), 1)
    for episode_id in {new_id() for _ in range(N_EPISODES - 1)}:
        played.with_stem(episode_id).write_bytes(content.replace(played.stem.encode(), episode_id.encode()))
    return played.parent


def _row(name: str, value: float, bound: float, shown: str) -> Row:
    return Row(name, shown.format(value), f"<= {shown.format(bound)}", value <= bound)


def _peak(pid: int) -> float:
    """The most memory a process ever had, in MB."""
    (line,) = re.findall(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(line) / 1024
