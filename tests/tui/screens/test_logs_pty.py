"""Logs in a real terminal: hostile lines are made safe, and a file may change while it is read."""

from __future__ import annotations

import base64
import os
from pathlib import Path

import pytest

from tests.support.command import REPOSITORY
from tests.support.console.hostile_console import TRAPS
from tests.support.console.launch import CONSOLE
from tests.support.console.log_consoles import log_lines
from tests.support.console.samples import ESCAPES, HOSTILE, HUGE
from tests.support.console.terminal_walk import check_output, terminate_and_check, walk
from tests.support.escapes import CLIPBOARD, foreign_escapes
from tests.support.terminal import ENTER, ESCAPE, TAB, Terminal, terminal_environ

pytestmark = [pytest.mark.long, pytest.mark.timeout(180)]


def open_logs(*paths: Path, cwd: Path) -> Terminal:
    return Terminal(CONSOLE, "open", *map(str, paths), cwd=cwd, env=terminal_environ(PYTHONPATH=str(REPOSITORY)))


def hostile_log() -> bytes:
    texts = [*ESCAPES, TRAPS, HOSTILE, HUGE[:2_000_000]]
    raw = [text.encode("utf-8", "replace").replace(b"\n", b"\x0b") for text in texts]
    documents = [b'{"kind": "' + line[:5_000] + b'", "at": "' + line[:50] + b'"}' for line in raw]
    return b"\r\n".join(
        [*raw, *documents, b"\x9b2J\xff\x00\x1b]0;x\x07", b'{"subject": "\\u001b[2J\\u202e", "x": 1}', b"end"]
    )


def test_hostile_lines_and_file_names_are_made_safe(tmp_path: Path) -> None:
    name = b"\x1b]0;x\x07\xe2\x80\xae[b]\x9b.log"
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name))
    path.write_bytes(hostile_log())
    (tmp_path / "other.log").write_text("other\n")
    with open_logs(path, tmp_path / "other.log", cwd=tmp_path) as terminal:
        terminal.wait_for(lambda: terminal.row_of("Hex v").endswith(" B"), 60)
        walk(terminal, "j", "j", "X", "v", "j", "v", "j", "G", "k", "v", "k", "X", TAB, "l", TAB, "z", "z")
        walk(terminal, "/")
        terminal.wait_for("words and fields, such as")
        walk(terminal, "zw", ENTER)
        terminal.wait_for("matches zw")
        walk(terminal, ESCAPE, "J", "\x1b[200~\u202e\x9b\x1b[201~", ENTER, ESCAPE)
        terminal.wait_for("not a line number")
        walk(terminal, "n", "p", "2", "4", "?", "j", ESCAPE)
        terminate_and_check(terminal)
    assert b"bytes of UTF-8" in terminal.raw


def test_a_copied_line_is_safe_unless_copied_raw(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(HOSTILE.replace("\n", " ").encode("utf-8", "replace"))
    with open_logs(path, cwd=tmp_path) as terminal:
        terminal.wait_for("line 1 · 233 B", 60)  # drawn last
        terminal.send("y")
        terminal.wait_for(lambda: len(CLIPBOARD.findall(terminal.raw)) == 1)
        terminal.send("Y")
        terminal.wait_for(lambda: len(CLIPBOARD.findall(terminal.raw)) == 2)
        terminal.wait_until_quiet()
        terminal.send("q")
        assert terminal.wait_exit() == 0
    check_output(CLIPBOARD.sub(b"", terminal.raw))
    safe, raw = (base64.b64decode(copied) for copied in CLIPBOARD.findall(terminal.raw))
    assert foreign_escapes(safe.replace(b"\t", b"")) == []
    assert foreign_escapes(raw) != []


def test_a_log_can_be_truncated_and_rewritten_while_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(log_lines(20_000))
    with open_logs(path, cwd=tmp_path) as terminal:
        terminal.wait_for("20,000 lines", 60)
        for number in range(5):
            terminal.send("Gk"[number % 2])
            os.truncate(path, number * 1_000)
            path.write_bytes(log_lines(1_000 * (number + 2)))
            terminal.wait_for(f"{1_000 * (number + 2):,} lines")
        os.truncate(path, 0)
        terminal.wait_for("0 lines")
        terminal.wait_for("Empty so far")
        terminal.send("q")
        assert terminal.wait_exit() == 0
