"""Any file that the console opens: its kind, its row and its episode; the input is the suffix, a line, and the rest."""

from __future__ import annotations

from functools import partial

from agentgym_tui.safe_text import sanitize_message
from agentgym_tui.sessions.episode_files import is_log
from agentgym_tui.sessions.file_library import FileLibrary
from runner.errors import StoreError
from runner.util.clock import is_ulid
from tests.fuzz.oracles import check_displayable, outcome, scratch_folder
from tests.fuzz.targets.episode_file import BATCH, EPISODE

TOKENS = (b".json\n", b".journal.jsonl\n", b".jsonl\n", b".log\n", b'{"schema":1', b"}\n{")
FOLDER = scratch_folder("opened_file")
RUNS = FOLDER / "runs" / BATCH
RUNS.mkdir(parents=True)
SUFFIXES = (b".json", b".journal.jsonl", b".jsonl", b".log", b".txt")


def check(data: bytes) -> None:
    suffix, _, content = data.partition(b"\n")
    path = RUNS / f"{EPISODE}{suffix.decode() if suffix in SUFFIXES else ''}"
    path.write_bytes(content)
    try:
        is_log(path)
        for library in (FileLibrary([path]), FileLibrary([FOLDER])):
            _check_library(library)
    finally:
        path.unlink()


def _check_library(library: FileLibrary) -> None:
    rows = [row for part in library.scan() for row in part]
    assert library.rows() == rows
    for row in rows:
        assert is_ulid(row.episode_id)
        outcome(partial(library.load, row.episode_id), StoreError)
    for unreadable in library.unreadable:
        check_displayable(sanitize_message(f"{unreadable.path}\n{unreadable.reason}"), lines=True)
