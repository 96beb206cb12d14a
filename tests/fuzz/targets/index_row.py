"""Rows of the index of episodes with any values: in the console's list, and in the printed results.

The input is one JSON list of column values per line; a list with one text stands for the bytes of the text.
"""

from __future__ import annotations

import io
import sqlite3
from contextlib import closing, redirect_stdout
from pathlib import Path

import msgspec

from agentgym_tui.presenters.episode import episode_heading, error_text
from agentgym_tui.presenters.episode_rows import EpisodeRows, list_summary
from agentgym_tui.state.episode_list import EpisodeList
from agentgym_tui.state.run_store import RunStore
from runner.cli.results import print_results
from runner.config import Profile
from runner.errors import StoreError
from runner.results.summary import summarize_results
from runner.store import EpisodeIndex, EpisodeRow, EpisodeStore
from runner.store.index_schema import SCHEMA
from runner.util.sqlite import Database
from tests.fuzz.oracles import check_displayable, outcome
from tests.support.console.store_lines import all_lines
from tests.support.episodes import newest_rows

TOKENS = (b'"Maze"', b'"success"', b'"2026-03-04T05:06:07+00:00"', b'["bytes"]', b"null", b"1e308")
N_COLUMNS = len(EpisodeRow.__struct_fields__) + 2
METRICS = Profile(id="p").metrics
MAX_ROWS = 4


def check(data: bytes) -> None:
    rows = [row for line in data.split(b"\n")[:MAX_ROWS] if (row := _values(line)) is not None]
    with closing(Database(None, SCHEMA)) as database:
        with database.session() as connection:
            for row in rows:
                try:
                    connection.execute(f"INSERT INTO episodes VALUES ({', '.join('?' * N_COLUMNS)}, 0)", row)
                except (sqlite3.Error, OverflowError, UnicodeEncodeError):  # not what a file can hold
                    return
        index = EpisodeIndex(EpisodeStore(Path("/nonexistent")), database)
        episodes = outcome(lambda: newest_rows(index), StoreError)
        if isinstance(episodes, list):
            _check_list(episodes)
        _check_results(index)


def _values(line: bytes) -> list[object] | None:
    try:
        values = msgspec.json.decode(line, type=list[str | bool | int | float | list[str] | None])
    except (ValueError, RecursionError):
        return None
    plain = [each[0].encode("utf-8", "replace") if isinstance(each, list) and each else each for each in values]
    return [None if isinstance(each, list) else each for each in plain] if len(plain) == N_COLUMNS else None


def _check_list(episodes: list[EpisodeRow]) -> None:
    listed, store = EpisodeList(), RunStore(now=lambda: 1.0)
    listed.set_stored(episodes)
    listed.search("maze")
    listed.search("")
    store.apply_stored(episodes)
    rows = EpisodeRows(listed)
    lines = [rows.line(index, 100) for index in range(len(rows))]
    for episode in episodes:
        lines += episode_heading(episode, "x", "y", 80)
        check_displayable(error_text(episode), lines=True)
    for line in (*lines, list_summary(listed, "x", "esc", 80), *all_lines(store, (80,))):
        for cell in line:
            check_displayable(cell.text)


def _check_results(index: EpisodeIndex) -> None:
    results = outcome(lambda: summarize_results(index), StoreError)
    if isinstance(results, list):
        with redirect_stdout(io.StringIO()) as printed:
            print_results(results, METRICS)
        check_displayable(printed.getvalue(), lines=True)
        msgspec.json.encode(results)
