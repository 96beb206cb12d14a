from __future__ import annotations

import json
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentgym_tui import logs
from agentgym_tui.logs import (
    LogFile,
    LogRecord,
    LogSearch,
    find_last_time,
    find_line_at,
    line_query,
    parse_record,
)
from agentgym_tui.presenters.cells import Line
from agentgym_tui.presenters.logs import OpenedLog
from agentgym_tui.safe_text import has_unsafe_chars
from tests.support.examples import examples
from tests.tui.logs.test_log_file import expected_lines, open_log, read_to_end

START = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)
TEXT = st.lists(st.sampled_from([b"\n", b"a", b"A", b"b", b"ab ", b"\xc3\xa4", b"\0"])).map(b"".join)


def find_matches(search: LogSearch) -> list[int]:
    while search.advance():
        pass
    return [*search.matches, *([] if search.partial_match is None else [search.partial_match])]


def matching_lines(data: bytes, *words: bytes) -> list[int]:
    return [n for n, line in enumerate(expected_lines(data)) if all(word in line.lower() for word in words)]


@settings(max_examples=examples(50), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(TEXT, st.sampled_from(["a", "AB", "a b", "ä b a"]), st.integers(40, 60))
def test_a_search_finds_the_lines_that_contain_all_words(tmp_path: Path, data: bytes, text: str, piece: int) -> None:
    search = LogSearch(open_log(tmp_path / "log", data, block=7), line_query(text))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logs, "MAX_LINE_BYTES", max(piece, *map(len, data.split(b"\n"))))
        assert find_matches(search) == matching_lines(data, *text.lower().encode().split())
    assert search.is_complete and not search.is_full


@pytest.mark.parametrize(
    ("text", "found"), [("Ärger", [0, 1, 3]), ("ärger", [1]), ("ÄRGER öl", [3]), ("Öl", [2, 3]), ("Öl ärger", [])]
)
def test_letters_beyond_ascii_are_found_as_entered_and_in_lower_case(
    tmp_path: Path, text: str, found: list[int]
) -> None:
    log = open_log(tmp_path / "log", "Ärger\närger, error\nöl\nÄrger: öl".encode())
    assert find_matches(LogSearch(log, line_query(text))) == found


@settings(max_examples=examples(50), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(TEXT, max_size=4))
def test_a_search_continues_as_the_file_grows(tmp_path: Path, pieces: list[bytes]) -> None:
    log = open_log(tmp_path / "log", block=5)
    search = LogSearch(log, line_query("a b"))
    for number in range(len(pieces)):
        with log.path.open("ab") as file:
            file.write(pieces[number])
        read_to_end(log)
        assert find_matches(search) == matching_lines(b"".join(pieces[: number + 1]), b"a", b"b")


def test_only_the_beginning_of_a_huge_line_is_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "MAX_LINE_BYTES", 50)
    log = open_log(tmp_path / "log", b"x" * 100 + b" needle\nneedle\n" + b"needle" + b"y" * 100 + b"\nneedle")
    search = LogSearch(log, line_query("NEEDLE"))
    assert find_matches(search) == [1, 2, 3]
    unread = LogSearch(log, line_query("NEEDLE"))
    log.path.write_bytes(b"a")
    read_to_end(log)
    assert unread.is_stale and not unread.advance() and unread.position == 0, "it ends when the file is reloaded"


LINES = """
{"at": "2026-03-04T05:06:07Z", "level": "ERROR", "logger": "pool", "message": "worker lost", "env": "maze", "reward": 2}
{"at": "2026-03-04T05:06:08Z", "level": "info", "logger": "pool", "message": "worker back", "env": "wordle"}
2026-03-04T05:06:09Z WARNING worker slow
no record
{"items": [{"kind": "token"}, {"kind": "timestep", "env": "maze", "episode_id": "01J7"}]}
"""


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("level:error", [1]),
        ("level:error,warning worker", [1, 3]),
        ("-level:info worker", [1, 3]),
        ("env:maze", [1, 5]),
        ("env:maze reward>1", [1]),
        ("logger:none -kind:*", [0, 3, 4]),
        ("kind:token kind:timestep episode:01", [5]),
        ("since:2026-03-04T05:06:08", [2, 3]),
        ("lost OR slow", [1, 3]),
        ("worker -lost", [2, 3]),
        ('"no record"', [4]),
        ("-worker", [0, 4, 5]),
    ],
)
def test_fields_words_and_negations_select_lines(tmp_path: Path, text: str, found: list[int]) -> None:
    log = open_log(tmp_path / "log", LINES.encode())
    assert find_matches(LogSearch(log, line_query(text))) == found


def test_only_lines_with_the_required_words_are_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    query, tested = line_query("lost env:maze"), list[bytes]()
    matches = query.matches

    def counted(line: bytes) -> bool:
        tested.append(line)
        return matches(line)

    monkeypatch.setattr(query, "matches", counted)
    assert find_matches(LogSearch(open_log(tmp_path / "log", LINES.encode()), query)) == [1]
    assert len(tested) == 1


@pytest.mark.parametrize(
    ("line", "record"),
    [
        (b'{"at": "2026-03-04T05:06:07Z", "kind": "token"}', LogRecord(START, "token")),
        (b'{"ts": 1772600767, "level": "ERROR"}', LogRecord(START, "ERROR")),
        (b'{"time": 1772600767000, "subject": "orders.new"}', LogRecord(START, "orders.new")),
        (b'{"timestamp": 1772600767000000000.0}', LogRecord(START, "")),
        (b'{"@timestamp": "2026-03-04 06:06:07+01:00", "type": ""}', LogRecord(START, "")),
        (b'{"at": {"x": 1}, "time": "2026-03-04T05:06:07.000Z", "kind": ["a"], "event": "e"}', LogRecord(START, "e")),
        (b'{"at": true, "kind": 7}', LogRecord()),
        (b'{"at": 1e999, "kind": "a"}', LogRecord(None, "a")),
        (b'{"at": 12, "kind": "\\ud800"}', LogRecord()),
        (b"2026-03-04T05:06:07Z INFO started", LogRecord(START, "INFO", "started")),
        (b"[2026-03-04 05:06:07,000Z] INFO started", LogRecord(START, "INFO", "started")),
        (b"2026-03-04 05:06:07Z - warning - disk full", LogRecord(START, "warning", "disk full")),
        (b"2026-03-04T05:06:07Z information", LogRecord(START)),
        (
            b'{"at": "2026-03-04T05:06:07Z", "level": "info", "logger": "a.b", "message": "hi", "n": 3, "x": {"y": 1}}',
            LogRecord(START, "info", "hi", "a.b", ("n=3", "x={\u2026}")),
        ),
        (
            b'{"event": "logged in", "level": "warn", "user": "eu"}',
            LogRecord(None, "warn", "logged in", "", ("user=eu",)),
        ),
        (b'{"event": "e", "message": "m"}', LogRecord(None, "e", "m", "", ("event=e",))),
        (b'{"message": {"role": "user"}, "level": ["x"]}', LogRecord()),
        (b'{"message": 7, "level": 30, "msg": ""}', LogRecord()),
        (b"2026-02-30 05:06:07Z never", LogRecord()),
        (b"9999-12-31T23:59:59-23:59", LogRecord()),
        (b"INFO no time", LogRecord()),
        (b"[" * 100_000, LogRecord()),
        (b'{"a":' * 5_000, LogRecord()),
        (b"", LogRecord()),
    ],
)
def test_time_and_kind_of_a_line_are_parsed(line: bytes, record: LogRecord) -> None:
    assert parse_record(line) == record


LOG_RECORDS = st.dictionaries(
    st.sampled_from(["time", "level", "message", "msg", "event", "logger"]) | st.text(max_size=3),
    st.recursive(st.none() | st.booleans() | st.floats() | st.text(max_size=9), st.lists, max_leaves=3),
    max_size=6,
)


@given(
    st.binary(max_size=200)
    | st.builds(lambda data: b'{"at":' + data + b"}", st.binary(max_size=60))
    | st.builds(lambda text: b"2026-03-04T05:06:07Z error " + text, st.binary(max_size=60))
    | LOG_RECORDS.map(lambda record: json.dumps(record).encode())
)
def test_any_line_parses_without_an_error(line: bytes) -> None:
    record = parse_record(line)
    assert record.at is None or record.at.tzinfo is not None
    assert record.message is None or record.kind or line.startswith(b"{")
    for cell in record_cells(line):
        assert not has_unsafe_chars(cell.text) and "\n" not in cell.text


def record_cells(line: bytes) -> Line:
    """Return the cells of a row that shows one line."""
    with tempfile.TemporaryDirectory() as folder:
        rows = OpenedLog(open_log(Path(folder) / "a.jsonl", line.replace(b"\n", b" ") + b"\n"))
        rows.refresh()
        return rows.line(0, 80)


def test_a_row_of_a_log_record_shows_logger_message_and_fields() -> None:
    record = {"time": "2026-03-04T05:06:07Z", "level": "info", "logger": "a.b", "message": "hi\x1b[2J", "n": 3}
    _, _, kind, message = record_cells(json.dumps(record).encode())
    assert (kind.text, message.text) == ("info", "⚠ a.b: hi␛[2J  n=3")
    assert record_cells(b'{"kind": "token", "text": "x"}')[3].text == '{"kind": "token", "text": "x"}'


def timed_log(path: Path, *seconds: float | None) -> LogFile:
    lines = (
        f'{{"at": "{(START + timedelta(seconds=s)).isoformat()}"}}' if s is not None else "no time" for s in seconds
    )
    return open_log(path, "\n".join(lines).encode())


@given(st.lists(st.none() | st.integers(0, 50), max_size=30), st.integers(-1, 51))
@settings(max_examples=examples(50), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_time_is_found_among_lines_without_times(tmp_path: Path, seconds: list[int | None], target: int) -> None:
    ordered_seconds = iter(sorted(second for second in seconds if second is not None))
    ordered = [None if second is None else next(ordered_seconds) for second in seconds]
    log = timed_log(tmp_path / "log", *ordered)
    at_or_after = [n for n, second in enumerate(ordered) if second is not None and second >= target]
    fallback = None if all(second is None for second in ordered) else len(ordered) - 1
    assert find_line_at(log, START + timedelta(seconds=target)) == (at_or_after[0] if at_or_after else fallback)
    all_seconds = [second for second in ordered if second is not None]
    assert find_last_time(log) == (START + timedelta(seconds=all_seconds[-1]) if all_seconds else None)
