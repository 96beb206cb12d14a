"""What is shown of a log before the framework is loaded."""

from __future__ import annotations

import signal
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from agentgym_tui.logs.log_file import LogFile
from agentgym_tui.safe_text import has_unsafe_chars
from agentgym_tui.terminal.alternate_screen import SIGNALS
from agentgym_tui.terminal.startup_preview import preview_lines
from tests.support.command import REPOSITORY
from tests.support.console.launch import CONSOLE
from tests.support.console.log_consoles import log_lines, logs_app
from tests.support.console.pilot import screen_text, wait_for_text
from tests.support.console.samples import HOSTILE
from tests.support.terminal import INITIAL_MODES, Terminal, terminal_environ

pytestmark = pytest.mark.long

SIZES = [(60, 20), (80, 24), (120, 40), (200, 50)]
ENTERED, LEFT = b"\x1b[?1049h", b"\x1b[?1049l"


def glimpsed(path: Path, columns: int, lines: int) -> list[str]:
    log = LogFile(path)
    log.advance(0.0)
    found = preview_lines(log, columns, lines)
    log.close()
    return found


@pytest.mark.parametrize("size", SIZES)
async def test_lines_are_where_the_screen_shows_them_afterwards(size: tuple[int, int], tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\n".join([*HOSTILE.replace("\n", "").encode("utf-8", "replace").split(), log_lines(500)]))
    before = glimpsed(path, *size)
    assert len(before) == size[1]
    async with logs_app(path).run_test(size=size) as pilot:
        await wait_for_text(pilot, "Hex v")
        after = screen_text(pilot.app).split("\n")
    assert after[0].startswith(before[0])
    n_same = next(row for row, text in enumerate(after) if "Hex v" in text)
    assert n_same > 5
    drawn = [text[1 : size[0] - 1].rstrip() for text in after[2:n_same]]  # between the cursor's mark and the scroll bar
    assert drawn == [text[1:].rstrip() for text in before[2:n_same]]


@settings(deadline=None)
@given(st.binary(max_size=400), st.sampled_from(SIZES))
def test_no_byte_of_a_log_is_shown_as_it_is(data: bytes, size: tuple[int, int]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "\x1b[2J.log"
        path.write_bytes(data)
        found = glimpsed(path, *size)
    assert len(found) <= size[1] and bool(found) == bool(data)
    assert not any(has_unsafe_chars(text) or {"\n", "\t", "\r"} & set(text) for text in found)
    assert all(cell_len(text) < size[0] for text in found)


def test_a_log_without_lines_or_that_is_not_there_has_none(tmp_path: Path) -> None:
    assert glimpsed(tmp_path / "none.log", 80, 24) == []


def test_the_terminal_is_taken_once_and_given_back(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(log_lines(500))
    with Terminal(
        CONSOLE, "open", str(path), cwd=tmp_path, env=terminal_environ(PYTHONPATH=str(REPOSITORY))
    ) as terminal:
        terminal.wait_for("Hex v", 60)
        first = terminal.raw.partition(ENTERED)[2]
        assert b"kind" in first[: first.index(b"\x1b[?1000h")]  # which the framework asks for at its start
        terminal.send("q")
        assert terminal.wait_exit() == 0
        assert terminal.raw.count(ENTERED) == terminal.raw.count(LEFT) == 1
        assert terminal.modes == INITIAL_MODES


def loading(framework: str, tmp_path: Path) -> Terminal:
    """The console with another framework."""
    folder, path = tmp_path / "other" / "textual", tmp_path / "a.jsonl"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text(framework)
    path.write_bytes(log_lines(500))
    env = terminal_environ(PYTHONPATH=f"{folder.parent}:{REPOSITORY}")
    return Terminal(CONSOLE, "open", str(path), cwd=tmp_path, env=env)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_before_the_framework_is_there_gives_the_terminal_back(number: signal.Signals, tmp_path: Path) -> None:
    with loading("import threading\nthreading.Event().wait(60)\n", tmp_path) as terminal:
        terminal.wait_for("kind", 60)
        terminal.wait_until_quiet()
        before = terminal.lines
        terminal.send("jj")
        terminal.wait_until_quiet()
        assert terminal.lines == before
        terminal.process.send_signal(number)
        assert terminal.wait_exit() == 128 + number
        assert terminal.raw.count(LEFT) == 1 and terminal.modes == INITIAL_MODES


def test_a_framework_that_cannot_be_loaded_gives_the_terminal_back(tmp_path: Path) -> None:
    with loading("raise ImportError('no framework')\n", tmp_path) as terminal:
        assert terminal.wait_exit() == 1
        assert terminal.raw.count(LEFT) == 1 and terminal.modes == INITIAL_MODES
        assert "no framework" in terminal.text
