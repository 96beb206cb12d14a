from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from agentgym_tui.app import Console
from agentgym_tui.sessions.file_library import FileLibrary
from agentgym_tui.sessions.library import ExportJob, ExportStopped, FileExporter
from agentgym_tui.sessions.session import FileSession
from runner.errors import StoreError
from runner.formats.format import find_format
from runner.store import EpisodeStore, open_index
from runner.store.archive import read_directory, tokens_member
from tests.support.console.pilot import screen_text, toast_text, wait_for_text, wait_for_widget_text, wait_until
from tests.support.episodes import RecordedEpisode, make_step, record_episodes
from tests.tui.sessions.test_episode_library import file_of, modification_times, scan_library


def job(library: FileLibrary, output: Path) -> ExportJob:
    return ExportJob([row.episode_id for row in library.rows()], find_format("atif"), output, [], "the query")


async def test_opened_episodes_are_exported_and_their_files_stay(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    records = record_episodes(data_dir, 3)
    file_of(data_dir, records[0]).rename(data_dir / "renamed.json")
    store = EpisodeStore(data_dir)
    index = open_index(store)
    unfinished = RecordedEpisode(store, index)
    unfinished.start()
    unfinished.play(make_step(0))
    index.close()
    library = scan_library(data_dir / "runs", data_dir / "renamed.json")
    chosen = job(library, tmp_path / "out")
    file_of(data_dir, records[1]).unlink()
    before = modification_times(data_dir)
    manifest = await FileExporter(library).export(chosen)
    assert (manifest.n_selected, manifest.n_written, chosen.n_done) == (4, 3, 3)
    assert [n for reason, n in manifest.left_out.items() if "cannot be read" in reason] == [1]
    assert manifest.query == "the query"
    assert modification_times(data_dir) == before
    with pytest.raises(ExportStopped):
        chosen.stop()
        await FileExporter(library).export(chosen)


async def test_opened_episodes_are_audited_and_nothing_is_written(tmp_path: Path) -> None:
    records = record_episodes(tmp_path / "data", 3)
    library = scan_library(tmp_path / "data")
    chosen = job(library, tmp_path / "out")
    file_of(tmp_path / "data", records[1]).unlink()
    audit = await FileExporter(library).audit(chosen)
    assert (audit.n_episodes, chosen.n_done) == (2, 2)
    assert [n for reason, n in audit.left_out.items() if "cannot be read" in reason] == [1]
    assert not (tmp_path / "out").exists()


async def test_a_selection_of_opened_files_is_exported_and_archived_by_keyboard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = record_episodes(tmp_path / "data", 3)
    file_of(tmp_path / "data", records[2]).with_suffix(".tokens").write_bytes(b"token ids")
    monkeypatch.chdir(tmp_path)
    before = modification_times(tmp_path / "data")
    async with Console(FileSession([tmp_path / "data"])).run_test(size=(120, 40), notifications=True) as pilot:
        await wait_for_widget_text(pilot, "#summary", "3 episodes")
        await pilot.press("space", "space", "A")
        await wait_until(pilot, lambda: "2 episodes copied into" in toast_text(pilot))
        await pilot.press("e")
        await wait_for_text(pilot, "Export 2 episodes")
        while "ATIF" not in screen_text(pilot.app):
            await pilot.press("right")
        await pilot.press("enter", "enter")
        await wait_for_text(pilot, "✓", "2 episodes as ATIF")
    assert modification_times(tmp_path / "data") == before
    found = msgspec.json.decode(await asyncio.to_thread((tmp_path / "episodes/manifest.json").read_bytes))
    assert found["n_written"] == 2
    [archive] = await asyncio.to_thread(lambda: [*tmp_path.glob("episodes-*.zip")])
    copied = scan_library(archive)
    assert [row.episode_id for row in copied.rows()] == [record.episode_id for record in reversed(records[1:])]
    assert copied.read(records[2].episode_id) == file_of(tmp_path / "data", records[2]).read_bytes()
    assert tokens_member(records[2].batch_id, records[2].episode_id) in read_directory(archive)


async def test_an_archive_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    [record] = record_episodes(tmp_path / "data")
    library = scan_library(tmp_path / "data")
    exporter, archive = FileExporter(library), tmp_path / "x.zip"
    archive.write_bytes(b"mine")
    with pytest.raises(StoreError, match="exists"):
        await exporter.archive([record.episode_id], archive)
    assert archive.read_bytes() == b"mine"
    file_of(tmp_path / "data", record).unlink()
    with pytest.raises(StoreError, match="no episode can be read"):
        await exporter.archive([record.episode_id], tmp_path / "y.zip")
    assert not (tmp_path / "y.zip").exists()


async def test_a_link_beside_an_opened_episode_is_not_followed(tmp_path: Path) -> None:
    records = record_episodes(tmp_path / "data", 2)
    (tmp_path / "secret").write_bytes(b"of another folder")
    file_of(tmp_path / "data", records[0]).with_suffix(".tokens").symlink_to(tmp_path / "secret")
    exporter = FileExporter(scan_library(tmp_path / "data"))
    n_copied, unreadable = await exporter.archive([each.episode_id for each in records], tmp_path / "x.zip")
    assert (n_copied, unreadable.total()) == (1, 1) and "symbolic link" in next(iter(unreadable))
    assert [name for name in read_directory(tmp_path / "x.zip") if records[0].episode_id in name] == []
