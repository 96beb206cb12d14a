"""A locale without UTF-8: the console draws ASCII in the columns that its own characters have."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from agentgym_tui.terminal import replace_unknown_characters
from tests.support.console.launch import CONSOLE
from tests.support.terminal import Terminal, terminal_environ

ASCII = {"LANG": "C", "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
"""A locale with ASCII only; by default Python takes UTF-8 in its place."""


@pytest.mark.long
def test_the_console_has_the_same_columns_without_utf_8(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text('{"kind": "step", "text": "✗ 你好 é"}\n' * 9, "utf-8")
    screens = []
    for locale in ({}, ASCII):
        with Terminal(CONSOLE, "open", str(path), cwd=tmp_path, env=terminal_environ(**locale)) as terminal:
            terminal.wait_for("Quit", 60)
            terminal.wait_until_quiet()
            screens.append(terminal.lines)
            terminal.send("q")
            assert terminal.wait_exit() == 0
            raw = terminal.raw
    assert raw.isascii()
    assert b"\\u" not in raw and b"\\x" not in raw
    assert any("✗ 你好 é" in line for line in screens[0])
    assert any("x ???? e" in line for line in screens[1])
    for usual, plain in zip(*screens, strict=True):
        columns = "".join(char if char.isascii() else "\0" * cell_len(char) for char in usual)
        assert len(plain) == len(columns)
        assert all(after == before for before, after in zip(columns, plain, strict=True) if before != "\0")


@given(st.text())
def test_every_text_keeps_its_width(text: str) -> None:
    replace_unknown_characters()
    shown = text.encode("ascii", "agentgym-same-width").decode()
    assert cell_len(shown) == cell_len(text)
