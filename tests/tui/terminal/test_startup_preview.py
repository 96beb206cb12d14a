"""The preview of a log or of episodes that is shown before the framework is loaded."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from agentgym_tui.app.console import Console
from agentgym_tui.config.ui_state import UiState
from agentgym_tui.logs.log_file import LogFile
from agentgym_tui.safe_text import has_unsafe_chars
from agentgym_tui.sessions import row_cache
from agentgym_tui.sessions.file_library import FileLibrary
from agentgym_tui.state.episode_list import LIST_KEY
from agentgym_tui.state.sorting import Sorting
from agentgym_tui.terminal.alternate_screen import SIGNALS
from agentgym_tui.terminal.startup_preview import episode_preview, launch_preview, log_preview
from tests.support.command import REPOSITORY
from tests.support.console.fake_session import files_session
from tests.support.console.launch import CONSOLE, launch_console, node_cleanup
from tests.support.console.log_consoles import log_lines, logs_app
from tests.support.console.pilot import screen_text, wait_for_text
from tests.support.console.samples import HOSTILE, row
from tests.support.episodes import record_episodes
from tests.support.terminal import INITIAL_MODES, Terminal, terminal_environ

pytestmark = pytest.mark.long

SIZES = [(60, 20), (80, 24), (120, 40), (200, 50)]
ENTERED, LEFT = b"\x1b[?1049h", b"\x1b[?1049l"


def read_preview(path: Path, columns: int, lines: int) -> list[str]:
    log = LogFile(path)
    log.advance(0.0)
    rows = log_preview(log, columns, lines)
    log.close()
    return rows


@pytest.mark.parametrize("size", SIZES)
async def test_the_preview_has_the_lines_where_the_screen_draws_them(size: tuple[int, int], tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\n".join([*HOSTILE.replace("\n", "").encode("utf-8", "replace").split(), log_lines(500)]))
    before = read_preview(path, *size)
    assert len(before) == size[1]
    async with logs_app(path).run_test(size=size) as pilot:
        await wait_for_text(pilot, "Hex v")
        after = screen_text(pilot.app).split("\n")
    assert after[0].startswith(before[0])
    n_same = next(row for row, text in enumerate(after) if "Hex v" in text)
    assert n_same > 5
    drawn = [text[1 : size[0] - 1].rstrip() for text in after[2:n_same]]  # without cursor mark and scroll bar
    assert drawn == [text[1:].rstrip() for text in before[2:n_same]]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("sorting", [None, Sorting("task")])
async def test_the_preview_has_the_episodes_where_the_screen_draws_them(
    size: tuple[int, int], sorting: Sorting | None
) -> None:
    session = files_session(0)
    session.fake_library.first_rows = [row(60, env=HOSTILE), *(row(number) for number in reversed(range(60)))]
    before = episode_preview(session.fake_library.first_rows, sorting, *size)
    assert len(before) == size[1] - 2  # without status and key bar
    ui_state = UiState(sorting={} if sorting is None else {LIST_KEY: sorting})
    async with Console(session, ui_state=ui_state).run_test(size=size) as pilot:
        await wait_for_text(pilot, "q Quit")
        after = screen_text(pilot.app).split("\n")
    assert after[0].rstrip() == before[0].rstrip()
    drawn = [text[1 : size[0] - 1].rstrip() for text in after[1:-2]]  # without cursor mark and scroll bar
    assert drawn == [text[1:].rstrip() for text in before[1:]]


def test_without_cached_episodes_there_is_no_preview() -> None:
    assert episode_preview([], None, 80, 24) == []


PREVIEW_MODULES = (
    *("terminal.startup_preview", "presenters.log_rows", "presenters.episode_rows", "sessions.row_cache"),
    *("sessions.file_library", "config.ui_state"),
)


@pytest.mark.parametrize("module", PREVIEW_MODULES)
def test_the_preview_imports_no_slow_module(module: str) -> None:
    code = f"import sys, agentgym_tui.{module}; print(*{{'asyncio', 'ssl', 'textual'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == ""


@settings(deadline=None)
@given(st.binary(max_size=400), st.sampled_from(SIZES))
def test_the_preview_is_safe_and_fits_for_any_bytes(data: bytes, size: tuple[int, int]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "\x1b[2J.log"
        path.write_bytes(data)
        rows = read_preview(path, *size)
    assert len(rows) <= size[1] and bool(rows) == bool(data)
    assert not any(has_unsafe_chars(text) or {"\n", "\t", "\r"} & set(text) for text in rows)
    assert all(cell_len(text) < size[0] for text in rows)


@given(st.text(max_size=400), st.sampled_from(SIZES))
def test_the_first_line_of_live_is_safe_and_fits_for_any_folder(folder: str, size: tuple[int, int]) -> None:
    (line,) = launch_preview(folder, size[0])
    assert not has_unsafe_chars(line) and not {"\n", "\t", "\r"} & set(line)
    assert cell_len(line) < size[0]


def test_launch_names_the_state_directory_before_the_framework_is_loaded(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    with node_cleanup(data_dir), launch_console(data_dir) as terminal:
        terminal.wait_for("connected", 60)
        first = terminal.raw.partition(ENTERED)[2]
        preview = first[: first.index(b"\x1b[?1000h")].decode()  # the framework enables the mouse as it starts
        assert f"Live · starting · {data_dir}" in preview
        terminal.wait_until_absent("starting")
        terminal.send("q")
        assert terminal.wait_exit() == 0
        assert terminal.raw.count(ENTERED) == terminal.raw.count(LEFT) == 1
        assert terminal.modes == INITIAL_MODES


def test_a_missing_log_has_no_preview(tmp_path: Path) -> None:
    assert read_preview(tmp_path / "none.log", 80, 24) == []


def test_the_alternate_screen_is_entered_and_left_once(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(log_lines(500))
    with Terminal(
        CONSOLE, "open", str(path), cwd=tmp_path, env=terminal_environ(PYTHONPATH=str(REPOSITORY))
    ) as terminal:
        terminal.wait_for("Hex v", 60)
        first = terminal.raw.partition(ENTERED)[2]
        assert b"kind" in first[: first.index(b"\x1b[?1000h")]  # the framework enables the mouse as it starts
        terminal.send("q")
        assert terminal.wait_exit() == 0
        assert terminal.raw.count(ENTERED) == terminal.raw.count(LEFT) == 1
        assert terminal.modes == INITIAL_MODES


def test_cached_episodes_are_shown_at_once_and_those_without_a_file_disappear(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_cache, "MIN_FILES", 1)
    deleted, *_ = record_episodes(tmp_path / "data", 4)
    for _ in FileLibrary([tmp_path / "data"], tmp_path / "agentgym-console").scan():
        pass
    (tmp_path / "data" / "runs" / deleted.batch_id / f"{deleted.episode_id}.json").unlink()
    env = terminal_environ(PYTHONPATH=str(REPOSITORY), XDG_CACHE_HOME=str(tmp_path))
    with Terminal(CONSOLE, "open", str(tmp_path / "data"), columns=200, env=env) as terminal:
        terminal.wait_for("3 episodes", 60)
        terminal.wait_until_absent(deleted.episode_id)
        preview = terminal.raw.partition(ENTERED)[2]
        assert deleted.episode_id.encode() in preview[: preview.index(b"\x1b[?1000h")]
        terminal.send("q")
        assert terminal.wait_exit() == 0
        assert terminal.raw.count(ENTERED) == terminal.raw.count(LEFT) == 1


def console_with_framework(framework: str, tmp_path: Path) -> Terminal:
    """Return a console that imports ``framework`` as Textual."""
    folder, path = tmp_path / "other" / "textual", tmp_path / "a.jsonl"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text(framework)
    path.write_bytes(log_lines(500))
    env = terminal_environ(PYTHONPATH=f"{folder.parent}:{REPOSITORY}")
    return Terminal(CONSOLE, "open", str(path), cwd=tmp_path, env=env)


@pytest.mark.parametrize("number", SIGNALS)
def test_the_terminal_is_restored_after_a_signal_while_the_framework_loads(
    number: signal.Signals, tmp_path: Path
) -> None:
    with console_with_framework("import threading\nthreading.Event().wait(60)\n", tmp_path) as terminal:
        terminal.wait_for("kind", 60)
        terminal.wait_until_quiet()
        before = terminal.lines
        terminal.send("jj")
        terminal.wait_until_quiet()
        assert terminal.lines == before
        terminal.process.send_signal(number)
        assert terminal.wait_exit() == 128 + number
        assert terminal.raw.count(LEFT) == 1 and terminal.modes == INITIAL_MODES


def test_the_terminal_is_restored_when_the_framework_fails_to_load(tmp_path: Path) -> None:
    with console_with_framework("raise ImportError('no framework')\n", tmp_path) as terminal:
        assert terminal.wait_exit() == 1
        assert terminal.raw.count(LEFT) == 1 and terminal.modes == INITIAL_MODES
        assert "no framework" in terminal.text
