from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentgym_tui.logs.log_file import LineIndex, LogFile, newline_offsets

BYTES = st.lists(st.sampled_from([b"\n", b"\r\n", b"a", b"bc", b"\0", b"\xff\xfe", b"{}", b"\x1b[2J"])).map(b"".join)


def lines_of(data: bytes) -> list[bytes]:
    """What is between newlines; after the last one there is no line."""
    lines = data.split(b"\n")
    return lines[:-1] if lines[-1] == b"" else lines


def shown(log: LogFile) -> list[bytes]:
    return [log.line(number).head for number in range(len(log.index))]


def expected(data: bytes) -> list[bytes]:
    """A carriage return belongs to the newline after it."""
    ended, rest = data.split(b"\n")[:-1], data.split(b"\n")[-1]
    return [*(line.removesuffix(b"\r") for line in ended), *([rest] if rest else [])]


def read(log: LogFile) -> LogFile:
    while log.advance():
        pass
    return log


def opened(path: Path, data: bytes = b"", **sizes: int) -> LogFile:
    path.write_bytes(data)
    return read(LogFile(path, **sizes))


@given(st.lists(BYTES, max_size=6), st.integers(1, 9))
def test_an_index_knows_each_line_however_it_was_read(pieces: list[bytes], block: int) -> None:
    index, data = LineIndex(block), b"".join(pieces)
    for piece in pieces:
        index.add(piece + b"more", len(piece))
    assert (index.size, len(index), index.n_newlines) == (len(data), len(lines_of(data)), data.count(b"\n"))
    for number in range(1, index.n_newlines + 1):
        at, nth = index.locate(number)
        start = at * block + newline_offsets(data[at * block : (at + 1) * block])[nth] + 1
        assert data[:start].count(b"\n") == number and data[start - 1 : start] == b"\n"


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(BYTES, st.integers(1, 7), st.integers(1, 9))
def test_a_file_is_shown_as_its_bytes_are_split(tmp_path: Path, data: bytes, at_once: int, block: int) -> None:
    log = opened(tmp_path / "log", data, read_bytes=at_once, block=block)
    assert shown(log) == expected(data)
    assert [log.line(number).n_bytes for number in range(len(log.index))] == [len(line) for line in expected(data)]
    log.close()


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(BYTES, max_size=5), st.integers(1, 7), st.integers(1, 9))
def test_a_growing_file_is_as_one_that_was_whole(tmp_path: Path, pieces: list[bytes], at_once: int, block: int) -> None:
    log, path = LogFile(tmp_path / "log", read_bytes=at_once, block=block), tmp_path / "log"
    path.write_bytes(b"")
    for number in range(len(pieces)):
        with path.open("ab") as file:
            file.write(pieces[number])
        read(log)
        assert shown(log) == expected(b"".join(pieces[: number + 1]))
    assert log.reload_reason == ""
    log.close()


def test_a_file_that_becomes_shorter_is_read_anew(tmp_path: Path) -> None:
    log = opened(tmp_path / "log", b"one\ntwo\nthree\n")
    os.truncate(log.path, 5)
    assert log.line(2).head == b""  # it is not known yet
    assert shown(read(log)) == [b"one", b"t"]
    assert (log.reload_reason, log.is_complete) == ("shorter", True)


def test_a_file_that_was_written_over_is_read_anew(tmp_path: Path) -> None:
    log = opened(tmp_path / "log", b"one\ntwo\n")
    log.path.write_bytes(b"eins\nzwei\ndrei\n")
    assert shown(read(log)) == [b"eins", b"zwei", b"drei"]
    assert log.reload_reason == "changed"


def test_a_line_that_is_gone_from_its_block_has_the_file_read_anew(tmp_path: Path) -> None:
    log = opened(tmp_path / "log", b"a\nb\nc\n")
    log.path.write_bytes(b"abcdef")
    log.line(2)
    assert shown(read(log)) == [b"abcdef"]


def test_a_file_may_shrink_while_it_is_read(tmp_path: Path) -> None:
    """A file mapped into memory would end the process here."""
    log = LogFile(tmp_path / "log")
    log.path.write_bytes(b"x" * 99 + b"\n")
    stop = threading.Event()

    def change() -> None:
        while not stop.is_set():
            os.truncate(log.path, 0)
            log.path.write_bytes((b"y" * 999 + b"\n") * 2_000)

    changing = threading.Thread(target=change)
    changing.start()
    try:
        for _ in range(200):
            log.advance(0.0)
            for number in (0, len(log.index) // 2, len(log.index)):
                assert len(log.line(number).head) <= 2_000_000
    finally:
        stop.set()
        changing.join()
    assert set(b"".join(shown(read(log)))) <= set(b"y")


def test_another_file_of_the_name_is_told_and_read_when_that_is_wanted(tmp_path: Path) -> None:
    log = opened(tmp_path / "log", b"old\n")
    log.path.rename(tmp_path / "log.1")
    read(log)
    assert (log.deleted, log.replaced) == (True, False)
    log.path.write_bytes(b"new\n")
    read(log)
    assert (log.deleted, log.replaced, shown(log)) == (False, True, [b"old"])
    log.reopen()
    assert (shown(read(log)), log.replaced) == ([b"new"], False)


def test_a_file_that_comes_later_is_read_then(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "log")
    assert not log.advance() and "No such file" in log.failure
    log.path.write_bytes(b"here")
    assert shown(read(log)) == [b"here"] and log.failure == ""


@pytest.mark.parametrize("kind", ["fifo", "folder", "device"])
def test_what_is_no_file_is_told_and_not_waited_for(tmp_path: Path, kind: str) -> None:
    path = Path(os.devnull) if kind == "device" else tmp_path / "log"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    log = LogFile(path)
    assert not log.advance()
    assert log.failure == "not a regular file"
    assert log.line(0).head == b"" and len(log.index) == 0


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_of_somebody_else_is_told(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "log")
    log.path.write_bytes(b"x")
    log.path.chmod(0)
    assert not log.advance() and "Permission denied" in log.failure


def test_of_a_huge_line_only_its_beginning_is_read(tmp_path: Path) -> None:
    log = opened(tmp_path / "log", b"short\n" + b"x" * 5_000_000 + b"\r\nlast")
    huge = log.line(1, 1_000)
    assert (huge.head, huge.n_bytes) == (b"x" * 1_000, 5_000_001)
    assert len(log.line(1).head) == 1 << 20
    assert log.line(2).head == b"last"


def test_an_empty_file_has_no_lines(tmp_path: Path) -> None:
    log = opened(tmp_path / "log")
    assert len(log.index) == 0 and log.is_complete
    assert log.line(0).head == b""
