from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from agentgym_tui.app.console import Console
from agentgym_tui.sessions.curation import ExportJob, ExportStopped
from agentgym_tui.sessions.file_export import FileExporter
from agentgym_tui.sessions.file_library import FileLibrary
from agentgym_tui.sessions.file_session import FileSession
from runner.formats.format import find_format
from runner.store import EpisodeStore, open_index
from tests.support.console.pilot import screen_text, wait_for_text, wait_for_widget_text
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


async def test_a_selection_of_opened_files_is_exported_by_keyboard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record_episodes(tmp_path / "data", 3)
    monkeypatch.chdir(tmp_path)
    async with Console(FileSession([tmp_path / "data"])).run_test(size=(120, 40)) as pilot:
        await wait_for_widget_text(pilot, "#summary", "3 episodes")
        await pilot.press("space", "space", "e")
        await wait_for_text(pilot, "Export 2 episodes")
        while "ATIF" not in screen_text(pilot.app):
            await pilot.press("right")
        await pilot.press("enter")
        await wait_for_text(pilot, "✓", "2 episodes as ATIF")
    found = msgspec.json.decode(await asyncio.to_thread((tmp_path / "episodes/manifest.json").read_bytes))
    assert found["n_written"] == 2
