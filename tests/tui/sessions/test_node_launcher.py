from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from agentgym_tui import cli
from agentgym_tui.sessions.node_launcher import (
    LaunchOptions,
    NodeStartError,
    StateLocation,
    StateLocator,
    ensure_node,
    read_last_lines,
    read_node_file,
)
from runner.errors import ConfigError, StoreError
from runner.node.state_lock import StateLock, is_node_alive
from tests.support.node_process import clean_environ

TUI = str(Path(sys.executable).with_name("agentgym-tui"))


@pytest.fixture
def data_dir(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "state"
    yield place
    if is_node_alive(place) and (known := read_node_file(place)) is not None:
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(known.pid)
            process.kill()
            process.wait(20)


def state_location(data_dir: Path, **wanted: str) -> StateLocation:
    return StateLocator(LaunchOptions(data_dir=str(data_dir), **{"node": "n1", **wanted}), environ={}).find()


def command(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [TUI, *arguments],
        env=clean_environ(**env),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        stdin=subprocess.DEVNULL,
    )


async def test_two_consoles_at_once_share_one_node(data_dir: Path) -> None:
    place = state_location(data_dir)
    await asyncio.gather(ensure_node(place, None), ensure_node(place, None))
    known = read_node_file(data_dir)
    assert known is not None and known.node == "n1" and is_node_alive(data_dir)
    await ensure_node(place, None)
    again = read_node_file(data_dir)
    assert again is not None and again.boot == known.boot
    assert "--idle-exit" in psutil.Process(known.pid).cmdline()


async def test_a_package_named_runner_in_the_working_directory_is_not_started(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "runner").mkdir()
    (tmp_path / "runner" / "__init__.py").write_text("raise SystemExit('the wrong one')")
    place = state_location(data_dir)
    monkeypatch.chdir(tmp_path)
    await ensure_node(place, None)
    assert is_node_alive(data_dir)


async def test_a_node_that_ends_at_once_says_its_last(data_dir: Path, tmp_path: Path) -> None:
    place = state_location(data_dir)
    with pytest.raises(NodeStartError, match="missing"):
        await ensure_node(place, str(tmp_path / "missing.yaml"))


async def test_a_locked_directory_is_attached_to(data_dir: Path) -> None:
    lock = StateLock(data_dir)
    try:
        await ensure_node(state_location(data_dir), None)
        assert not (data_dir / "logs").exists()
    finally:
        lock.release()


async def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="another folder with --data-dir"):
        await ensure_node(state_location(tmp_path / "file" / "state"), None)


def test_the_place_is_found_as_the_runner_finds_it(tmp_path: Path) -> None:
    finder = StateLocator(LaunchOptions(), environ={"AGENTGYM_DATA_DIR": "here", "AGENTGYM_NODE": "n7"}, cwd=tmp_path)
    assert (finder.find().data_dir, finder.find().node) == (tmp_path / "here", "n7")
    assert finder.find() is finder.find()
    with pytest.raises(ConfigError, match="--node"):
        StateLocator(LaunchOptions(node="a b"), environ={}, cwd=tmp_path).find()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"node": 1}', b"\xff", b"[" * 50_000])
def test_a_damaged_node_file_is_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "node.json").write_bytes(content)
    assert read_node_file(tmp_path) is None
    assert read_node_file(tmp_path / "nothing") is None


def test_the_end_of_a_log_is_short(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert read_last_lines(log) == ""
    log.write_bytes(b"x" * 100_000 + b"\n" + b"\n".join(b"line %d\xff" % n for n in range(20)))
    assert read_last_lines(log).split("\n") == [f"line {n}\ufffd" for n in range(14, 20)]


def test_help_and_version_need_no_terminal() -> None:
    assert command("--version").stdout.startswith("agentgym-tui ")
    for arguments in ((), ("--help",), ("launch", "--help"), ("watch", "--help"), ("open", "--help")):
        done = command(*arguments)
        assert (done.returncode, done.stderr) == (0, "") and "usage: agentgym-tui" in done.stdout


@pytest.mark.parametrize(
    "arguments",
    [("nonsense",), ("open",), ("watch", "--since", "yesterday"), ("launch", "--nats", "x"), ("--data-dir",)],
)
def test_misuse_is_said(arguments: tuple[str, ...]) -> None:
    done = command(*arguments)
    assert done.returncode == 2 and "usage:" in done.stderr


@pytest.mark.parametrize("arguments", [("launch",), ("watch",), ("open", ".")])
def test_what_is_no_terminal_gets_one_line(arguments: tuple[str, ...], tmp_path: Path) -> None:
    done = command(*arguments, TERM="xterm", AGENTGYM_DATA_DIR=str(tmp_path / "state"))
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.count("\n") == 1 and "terminal" in done.stderr
    assert not (tmp_path / "state").exists()


def test_nothing_slow_is_imported_before_the_first_paint() -> None:
    slow = ("nats", "httpx", "sqlite3", "yaml", "hydra", "ulid", "runner.config", "runner.store")
    code = (
        "import sys; from agentgym_tui import cli; from agentgym_tui.terminal import run as terminal;"
        "from agentgym_tui.sessions.bus_session import BusSession;"
        "from agentgym_tui.sessions.node_session import NodeSession;"
        "from agentgym_tui.sessions.node_launcher import LaunchOptions;"
        "BusSession(LaunchOptions()); NodeSession(LaunchOptions());"
        f"print([name for name in {slow} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n", os.fsdecode(done.stdout)


@pytest.mark.parametrize(("text", "seconds"), [("30s", 30), ("10m", 600), ("1h", 3600), ("2d", 172_800)])
def test_history_is_asked_for_in_units(text: str, seconds: int) -> None:
    ago = cli.parse_since(text)
    assert ago != "all" and ago.total_seconds() == seconds
    assert cli.parse_since("all") == "all"
