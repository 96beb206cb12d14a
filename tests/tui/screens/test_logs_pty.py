"""Logs in a real terminal: hostile lines are made safe, and a file may change while it is read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.command import REPOSITORY
from tests.support.console.hostile_console import TRAPS
from tests.support.console.launch import CONSOLE
from tests.support.console.samples import ESCAPES, HOSTILE, HUGE
from tests.support.console.terminal_walk import terminate_and_check, walk
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
