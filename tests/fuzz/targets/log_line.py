"""Lines of a log file of any program, read in pieces of any size and searched."""

from __future__ import annotations

from datetime import UTC, datetime

from agentgym_tui.logs import LogFile, LogSearch, find_last_time, find_line_at, line_query, parse_record
from agentgym_tui.presenters.logs import OpenedLog, empty_log_lines, log_heading
from tests.fuzz.oracles import check_displayable, scratch_folder, split_head

TOKENS = (
    b"2026-03-04T05:06:07.123Z ",
    b"[2026-03-04 05:06:07,123] ",
    b'{"at":"2026-03-04T05:06:07+23:59"}',
    b'{"ts":1772600767}',
    b'"level":"error"',
    b"+00:00",
    b"-99:99",
    b"\r\n",
)
SHARE = 2
FOLDER = scratch_folder("log_line")
PATH = FOLDER / "node.log"
AT = datetime(2026, 3, 4, 5, 6, 8, tzinfo=UTC)


def check(data: bytes) -> None:
    (words, *_), content = split_head(data)
    expected = content.removesuffix(b"\n").split(b"\n") if content else []
    for line in expected:
        record = parse_record(line)
        assert record.at is None or record.at.utcoffset() is not None
    PATH.write_bytes(content)
    log, grown = LogFile(PATH), LogFile(PATH, read_bytes=97, block=61)
    try:
        _check_lines(log, expected)
        _check_grown(grown, content, expected)
        if words.strip():
            _check_search(log, grown, words, content)
        _check_rows(log)
        assert find_line_at(log, AT) is None or expected
    finally:
        log.close()
        grown.close()


def _check_lines(log: LogFile, expected: list[bytes]) -> None:
    while log.advance(60):
        pass
    assert not log.failure and len(log.index) == len(expected)
    for number, line in enumerate(expected):
        is_complete = number < log.index.n_newlines
        assert log.line(number).head == (line.removesuffix(b"\r") if is_complete else line)


def _check_grown(log: LogFile, content: bytes, expected: list[bytes]) -> None:
    """Check that a file read while it grows has the same lines."""
    PATH.write_bytes(content[: len(content) // 3])
    log.advance(60)
    PATH.write_bytes(content)
    _check_lines(log, expected)


def _check_search(log: LogFile, grown: LogFile, text: str, content: bytes) -> None:
    query = line_query(text)
    if query.error is not None:
        return
    searches = [LogSearch(log, query), LogSearch(grown, query)]
    for search in searches:
        while search.advance(60):
            pass
    first, second = ([*search.matches, search.partial_match] for search in searches)
    assert first == second, (first, second)
    needles = [[form.encode("utf-8", "replace").lower() for form in (word, word.lower())] for word in query.words]
    lines = content.split(b"\n")
    assert {each for each in first if each is not None} == {
        number
        for number, line in enumerate(lines if lines[-1] else lines[:-1])
        if all(any(form in line.lower() for form in forms) for forms in needles)
        and query.matches(line.removesuffix(b"\r"))
    }


def _check_rows(log: LogFile) -> None:
    rows = OpenedLog(log)
    rows.refresh()
    lines = [rows.line(index, 80) for index in range(len(rows))]
    for line in (*lines, *log_heading(rows, _key, 80), *empty_log_lines(rows, _key, 80)):
        for cell in line:
            check_displayable(cell.text)
    assert find_last_time(log) is None or lines


def _key(command: str) -> str:
    return "x"
