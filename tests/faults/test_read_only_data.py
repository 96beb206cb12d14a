"""Stored episodes can be read where nothing can be written: on a read-only or full disk, or without permission."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TypeAlias

import pytest

from agentgym_tui.services import export_episode
from agentgym_tui.sessions import file_library
from agentgym_tui.sessions.file_library import FileLibrary
from agentgym_tui.sessions.library import StateDirLibrary
from runner.client.node_folder import StateLocation, ensure_node
from runner.config import load_profile
from runner.errors import StoreError
from runner.store import EpisodeStore
from tests.support.command import run_agentgym
from tests.support.full_disk import mount_small_disk
from tests.support.node_process import NodeProcess

pytestmark = [pytest.mark.long, pytest.mark.timeout(120)]

N_EPISODES = 4
WITHOUT_OVERRIDE = ("--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-dac_override,-dac_read_search")
"""Options of ``setpriv`` that make permissions count for root, too."""

Locked: TypeAlias = Callable[[Path], AbstractContextManager[tuple[Path, list[str]]]]


def play(data_dir: Path) -> None:
    options = ["--run", "Maze", "--agent", "oracle", "--repeat", str(N_EPISODES), "--data-dir", str(data_dir)]
    completed = run_agentgym(data_dir.parent, *options)
    assert completed.returncode == 0, completed.stderr


@contextmanager
def read_only_disk(tmp_path: Path) -> Iterator[tuple[Path, list[str]]]:
    """Yield a data directory on a read-only disk, and the prefix of commands that read it."""
    with mount_small_disk(tmp_path / "disk", 24) as disk:
        play(disk.folder / "data")
        disk.make_read_only()
        yield disk.folder / "data", []


@contextmanager
def folder_without_permission(tmp_path: Path) -> Iterator[tuple[Path, list[str]]]:
    prefix: list[str] = []
    if os.geteuid() == 0:
        if shutil.which("setpriv") is None:
            pytest.skip("install setpriv (util-linux), or run as a user other than root, who may write everywhere")
        prefix = ["setpriv", *WITHOUT_OVERRIDE]
    play(tmp_path / "data")
    folders = [Path(folder) for folder, _, _ in os.walk(tmp_path / "data")]
    for folder in folders:
        folder.chmod(0o500)
    try:
        yield tmp_path / "data", prefix
    finally:
        for folder in folders:
            folder.chmod(0o700)


@contextmanager
def full_disk(tmp_path: Path) -> Iterator[tuple[Path, list[str]]]:
    with mount_small_disk(tmp_path / "disk", 24) as disk:
        play(disk.folder / "data")
        disk.fill()
        yield disk.folder / "data", []


LOCKED = pytest.mark.parametrize("locked", [read_only_disk, folder_without_permission, full_disk])


def show_results(data_dir: Path, prefix: list[str]) -> subprocess.CompletedProcess[str]:
    return run_agentgym(data_dir.parent, "--results", "--json", prefix=prefix)


@LOCKED
@pytest.mark.parametrize("index", ["as it is", "missing"])
def test_results_are_shown(tmp_path: Path, locked: Locked, index: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if index == "missing":
        monkeypatch.setitem(globals(), "play", play_without_index(play))
    with locked(tmp_path) as (data_dir, prefix):
        before = sorted(path for path in data_dir.rglob("*"))
        completed = show_results(data_dir, prefix)
        if locked is not full_disk:
            assert sorted(path for path in data_dir.rglob("*")) == before
    assert completed.returncode == 0, completed.stderr
    document = json.loads(completed.stdout)
    assert [(row["env"], row["n"]) for row in document["results"]] == [("Maze", N_EPISODES)]
    assert document["damaged"] == []
    assert "Traceback" not in completed.stderr


def play_without_index(play_first: Callable[[Path], None]) -> Callable[[Path], None]:
    def play_and_remove(data_dir: Path) -> None:
        play_first(data_dir)
        for path in data_dir.glob("index.sqlite*"):
            path.unlink()

    return play_and_remove


def test_a_journal_on_a_read_only_disk_is_left_alone(tmp_path: Path) -> None:
    with mount_small_disk(tmp_path / "disk", 24) as disk:
        data_dir = disk.folder / "data"
        play(data_dir)
        (stored, *_) = data_dir.glob("runs/*/*.json")
        header = json.loads(stored.read_bytes())
        journal = stored.with_name("01ARZ3NDEKTSV4RRFFQ69G5FAV.journal.jsonl")
        journal.write_text(json.dumps({**header, "episode_id": journal.name.partition(".")[0]}) + "\n")
        disk.make_read_only()
        completed = show_results(data_dir, [])
        assert journal.exists()
    assert completed.returncode == 0, completed.stderr
    assert json.loads(completed.stdout)["damaged"] == []


@pytest.mark.parametrize("locked", [read_only_disk, full_disk])
def test_the_console_lists_opens_and_exports_episodes(
    tmp_path: Path, locked: Locked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_library, "MIN_FILES", 1)
    target = tmp_path / "exported"
    target.mkdir()
    with locked(tmp_path) as (data_dir, _):
        library = StateDirLibrary(lambda: data_dir)
        assert len(library.rows()) == N_EPISODES
        library.close()
        opened = FileLibrary([data_dir], data_dir.parent / "cache")
        assert sum(len(part) for part in opened.scan()) == N_EPISODES
        episode_id = opened.rows()[0].episode_id
        _, data = opened.load(episode_id)
        exported = export_episode(episode_id, data, target)
        assert exported.read_bytes() == EpisodeStore(data_dir).read_bytes(episode_id)


def test_a_node_does_not_start_on_a_read_only_disk(tmp_path: Path) -> None:
    with read_only_disk(tmp_path) as (data_dir, _):
        completed = run_agentgym(data_dir.parent, "node", "--data-dir", str(data_dir))
    assert completed.returncode == 2
    assert f"nothing can be stored in {data_dir}: Read-only file system" in completed.stderr
    assert "make it writable, or choose another folder with --data-dir" in completed.stderr


@pytest.mark.parametrize("locked", [read_only_disk, full_disk])
async def test_the_console_gives_path_and_advice_where_no_node_can_start(tmp_path: Path, locked: Locked) -> None:
    profile = load_profile(None, environ={}, cwd=tmp_path)
    with locked(tmp_path) as (data_dir, _):
        problem = f"nothing can be stored in {re.escape(str(data_dir))}: .*"
        advice = "free disk space there or make it writable, or choose another folder with --data-dir"
        with pytest.raises(StoreError, match=f"^{problem}; {advice}$"):
            await ensure_node(StateLocation(data_dir, "n1", profile), None)


@pytest.mark.parametrize("mode", [0o000, 0o400])
async def test_a_batch_folder_that_cannot_be_read_costs_only_that_batch(tmp_path: Path, mode: int) -> None:
    if os.geteuid() == 0 and shutil.which("setpriv") is None:
        pytest.skip("install setpriv (util-linux), or run as a user other than root, who may read everything")
    prefix = ["setpriv", *WITHOUT_OVERRIDE] if os.geteuid() == 0 else []
    data_dir = tmp_path / "data"
    play(data_dir)
    play(data_dir)
    for path in data_dir.glob("index.sqlite*"):
        path.unlink()
    folder = min((data_dir / "runs").iterdir())
    folder.chmod(mode)
    try:
        with NodeProcess(data_dir, prefix=prefix) as node:
            async with await node.connect() as connection:
                batch_id = await node.start_batch(connection, "Maze")
                await node.wait_for_batch(connection, batch_id, "completed", n_done=1)
            assert (await asyncio.to_thread(node.terminate))[0] == 0
        document = json.loads(show_results(data_dir, prefix).stdout)
        pruned = await asyncio.to_thread(run_agentgym, tmp_path, "prune", "--older", "1h", prefix=prefix)
    finally:
        folder.chmod(0o700)
    assert sum(row["n"] for row in document["results"]) == N_EPISODES + 1
    assert folder.name in str(document["damaged"])
    assert (pruned.returncode, f"{folder} cannot be read" in pruned.stderr) == (1, True), pruned.stderr


def test_episodes_are_pruned_on_a_full_disk(tmp_path: Path) -> None:
    with full_disk(tmp_path) as (data_dir, _):
        options = ["prune", "--max-bytes", "1K", "--undelivered", "--data-dir", str(data_dir)]
        archiving = run_agentgym(tmp_path, *options)
        assert archiving.returncode == 1
        assert f"{data_dir}/runs/" in archiving.stderr and "--delete needs none" in archiving.stderr
        assert len([*data_dir.glob("runs/*/*.json")]) == N_EPISODES
        deleting = run_agentgym(tmp_path, *options, "--delete", "--json")
        assert (deleting.returncode, json.loads(deleting.stdout)["n_deleted"]) == (0, N_EPISODES), deleting.stderr
        assert [*data_dir.glob("runs/*/*.json")] == []
