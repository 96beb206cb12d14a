from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from agentgym_tui import cli
from runner.client.node_folder import (
    LaunchOptions,
    NodeStartError,
    StateLocation,
    StateLocator,
    ensure_node,
    read_node_file,
)
from runner.errors import ConfigError
from runner.node.logs import read_last_lines
from runner.node.state_lock import StateLock, is_node_alive
from tests.support.node_process import clean_environ

CONSOLE = str(Path(sys.executable).with_name("agentgym-tui"))


def state_location(data_dir: Path, **options: str) -> StateLocation:
    return StateLocator(LaunchOptions(data_dir=str(data_dir), **{"node": "n1", **options}), environ={}).find()


def run_console(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [CONSOLE, *arguments],
        env=clean_environ(**env),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        stdin=subprocess.DEVNULL,
    )


@pytest.mark.long
async def test_two_consoles_at_once_share_one_node_of_the_installed_package(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "runner").mkdir()
    (tmp_path / "runner" / "__init__.py").write_text("raise SystemExit('the wrong package')")
    location = state_location(data_dir)
    monkeypatch.chdir(tmp_path)
    await asyncio.gather(ensure_node(location, None), ensure_node(location, None))
    first = read_node_file(data_dir)
    assert first is not None and first.node == "n1" and is_node_alive(data_dir)
    await ensure_node(location, None)
    second = read_node_file(data_dir)
    assert second is not None and second.boot == first.boot
    assert "--idle-exit" in psutil.Process(first.pid).cmdline()


@pytest.mark.long
async def test_the_error_of_a_node_that_fails_to_start_is_reported(data_dir: Path, tmp_path: Path) -> None:
    location = state_location(data_dir)
    with pytest.raises(NodeStartError, match="missing"):
        await ensure_node(location, str(tmp_path / "missing.yaml"))


async def test_a_locked_directory_starts_no_second_node(data_dir: Path) -> None:
    lock = StateLock(data_dir)
    try:
        await ensure_node(state_location(data_dir), None)
        assert not (data_dir / "logs").exists()
    finally:
        lock.release()


def test_the_state_directory_is_located_as_in_the_runner(tmp_path: Path) -> None:
    locator = StateLocator(LaunchOptions(), environ={"AGENTGYM_DATA_DIR": "here", "AGENTGYM_NODE": "n7"}, cwd=tmp_path)
    assert (locator.find().data_dir, locator.find().node) == (tmp_path / "here", "n7")
    assert locator.find() is locator.find()
    with pytest.raises(ConfigError, match="--node"):
        StateLocator(LaunchOptions(node="a b"), environ={}, cwd=tmp_path).find()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"node": 1}', b"\xff", b"[" * 50_000])
def test_a_damaged_node_file_is_ignored(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "node.json").write_bytes(content)
    assert read_node_file(tmp_path) is None
    assert read_node_file(tmp_path / "nothing") is None


def test_only_the_last_lines_of_a_log_are_read(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert read_last_lines(log, 6) == []
    log.write_bytes(b"x" * 100_000 + b"\n" + b"\n".join(b"line %d\xff" % n for n in range(20)))
    assert read_last_lines(log, 6) == [f"line {n}\ufffd" for n in range(14, 20)]


@pytest.mark.long
def test_help_and_version_need_no_terminal_and_wrong_arguments_print_the_usage() -> None:
    assert run_console("--version").stdout.startswith("agentgym-tui ")
    for arguments in ((), ("--help",), ("launch", "--help"), ("watch", "--help"), ("open", "--help")):
        done = run_console(*arguments)
        assert (done.returncode, done.stderr) == (0, "") and "usage: agentgym-tui" in done.stdout
    wrong = (("nonsense",), ("open",), ("watch", "--since", "yesterday"), ("launch", "--nats", "x"), ("--data-dir",))
    for each in wrong:
        done = run_console(*each)
        assert done.returncode == 2 and "usage:" in done.stderr


@pytest.mark.long
@pytest.mark.parametrize("arguments", [("launch",), ("watch",), ("open", ".")])
def test_without_a_terminal_one_line_explains_the_error(arguments: tuple[str, ...], tmp_path: Path) -> None:
    done = run_console(*arguments, TERM="xterm", AGENTGYM_DATA_DIR=str(tmp_path / "state"))
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.count("\n") == 1 and "terminal" in done.stderr
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize(
    ("imported", "slow"),
    [
        (
            "agentgym_tui.cli, agentgym_tui.terminal, agentgym_tui.app, agentgym_tui.screens.live\n"
            "from agentgym_tui.sessions.bus_session import BusSession, NodeSession\n"
            "from runner.client.node_folder import LaunchOptions\n"
            "BusSession(LaunchOptions()); NodeSession(LaunchOptions(), 'N')",
            "nats aiohttp httpx sqlite3 yaml hydra ulid runner.config runner.store runner.events.codec",
        ),
        (
            "runner.bus.address, runner.bus.connection, runner.bus.rpc, runner.node.state_lock",
            "aiohttp sqlite3 yaml runner.config runner.store",
        ),
    ],
    ids=["the first paint", "a running node is shown"],
)
def test_no_slow_module_is_imported_before(imported: str, slow: str) -> None:
    code = f"import sys, {imported}\nprint([name for name in {slow.split()} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n", os.fsdecode(done.stdout)


def test_a_running_node_is_found_without_its_profile(data_dir: Path) -> None:
    named, unnamed = LaunchOptions(data_dir=str(data_dir), config="no such profile"), LaunchOptions()
    assert StateLocator(named, environ={}).running_folder() is None
    lock = StateLock(data_dir)
    assert StateLocator(named, environ={}).running_folder() == data_dir
    assert StateLocator(unnamed, environ={"AGENTGYM_DATA_DIR": "~/state"}).running_folder() is None
    home = {"AGENTGYM_DATA_DIR": f"~/{data_dir.name}", "HOME": str(data_dir.parent)}
    assert StateLocator(unnamed, environ=home).running_folder() == data_dir
    assert StateLocator(unnamed, environ={}, cwd=data_dir.parent).running_folder() is None
    lock.release()


@pytest.mark.parametrize(("text", "seconds"), [("30s", 30), ("10m", 600), ("1h", 3600), ("2d", 172_800)])
def test_since_is_parsed_with_its_unit(text: str, seconds: int) -> None:
    ago = cli.parse_since(text)
    assert ago != "all" and ago.total_seconds() == seconds
    assert cli.parse_since("all") == "all"
