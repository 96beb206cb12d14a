from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentgym_tui.logs import LineIndex, LogFile
from tests.support.examples import examples

BYTES = st.lists(st.sampled_from([b"\n", b"\r\n", b"a", b"bc", b"\0", b"\xff\xfe", b"{}", b"\x1b[2J"])).map(b"".join)


def split_lines(data: bytes) -> list[bytes]:
    """Split at newlines; a trailing newline starts no line."""
    lines = data.split(b"\n")
    return lines[:-1] if lines[-1] == b"" else lines


def shown_lines(log: LogFile) -> list[bytes]:
    return [log.line(number).head for number in range(len(log.index))]


def expected_lines(data: bytes) -> list[bytes]:
    """Split at newlines and drop the carriage return before each."""
    ended, rest = data.split(b"\n")[:-1], data.split(b"\n")[-1]
    return [*(line.removesuffix(b"\r") for line in ended), *([rest] if rest else [])]


def read_to_end(log: LogFile) -> LogFile:
    while log.advance():
        pass
    return log


def open_log(path: Path, data: bytes = b"", **sizes: int) -> LogFile:
    path.write_bytes(data)
    return read_to_end(LogFile(path, **sizes))


@given(st.lists(BYTES, max_size=6), st.integers(1, 9))
def test_an_index_locates_every_line_for_any_block_size(pieces: list[bytes], block: int) -> None:
    index, data = LineIndex(block), b"".join(pieces)
    for piece in pieces:
        index.add(piece)
    assert (index.size, len(index), index.n_newlines) == (len(data), len(split_lines(data)), data.count(b"\n"))
    for number in range(1, index.n_newlines + 1):
        at, nth = index.locate(number)
        newlines = [at * block + n for n, byte in enumerate(data[at * block : (at + 1) * block]) if byte == ord("\n")]
        start = newlines[nth] + 1
        assert data[:start].count(b"\n") == number and data[start - 1 : start] == b"\n"


@settings(max_examples=examples(50), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(BYTES, st.integers(1, 7), st.integers(1, 9))
def test_lines_of_a_file_equal_its_bytes_split_at_newlines(
    tmp_path: Path, data: bytes, read_bytes: int, block: int
) -> None:
    log = open_log(tmp_path / "log", data, read_bytes=read_bytes, block=block)
    assert shown_lines(log) == expected_lines(data)
    assert [log.line(number).n_bytes for number in range(len(log.index))] == [
        len(line) for line in expected_lines(data)
    ]
    log.close()


@settings(max_examples=examples(50), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(BYTES, max_size=5), st.integers(1, 7), st.integers(1, 9))
def test_a_growing_file_reads_like_a_complete_one(
    tmp_path: Path, pieces: list[bytes], read_bytes: int, block: int
) -> None:
    log, path = LogFile(tmp_path / "log", read_bytes=read_bytes, block=block), tmp_path / "log"
    path.write_bytes(b"")
    for number in range(len(pieces)):
        with path.open("ab") as file:
            file.write(pieces[number])
        read_to_end(log)
        assert shown_lines(log) == expected_lines(b"".join(pieces[: number + 1]))
    assert log.reload_reason == ""
    log.close()


def test_a_truncated_or_overwritten_file_is_reloaded(tmp_path: Path) -> None:
    log = open_log(tmp_path / "log", b"one\ntwo\nthree\n")
    os.truncate(log.path, 5)
    assert log.line(2).head == b""  # the truncation is not noticed yet
    assert shown_lines(read_to_end(log)) == [b"one", b"t"]
    assert (log.reload_reason, log.is_complete) == ("shorter", True)
    log = open_log(tmp_path / "log", b"one\ntwo\n")
    log.path.write_bytes(b"eins\nzwei\ndrei\n")
    assert shown_lines(read_to_end(log)) == [b"eins", b"zwei", b"drei"]
    assert log.reload_reason == "changed"
    log = open_log(tmp_path / "log", b"a\nb\nc\n")
    log.path.write_bytes(b"abcdef")
    log.line(2)  # it is missing from its block
    assert shown_lines(read_to_end(log)) == [b"abcdef"]


def test_a_file_may_shrink_while_it_is_read(tmp_path: Path) -> None:
    """A memory-mapped file would crash the process here."""
    log = LogFile(tmp_path / "log")
    log.path.write_bytes(b"x" * 99 + b"\n")
    stop = threading.Event()

    def rewrite() -> None:
        while not stop.is_set():
            os.truncate(log.path, 0)
            log.path.write_bytes((b"y" * 999 + b"\n") * 2_000)

    writer = threading.Thread(target=rewrite)
    writer.start()
    try:
        for _ in range(200):
            log.advance(0.0)
            for number in (0, len(log.index) // 2, len(log.index)):
                assert len(log.line(number).head) <= 2_000_000
    finally:
        stop.set()
        writer.join()
    assert set(b"".join(shown_lines(read_to_end(log)))) <= set(b"y")


def test_a_replaced_file_is_reported_and_read_after_reopen(tmp_path: Path) -> None:
    log = open_log(tmp_path / "log", b"old\n")
    log.path.rename(tmp_path / "log.1")
    read_to_end(log)
    assert (log.deleted, log.replaced) == (True, False)
    log.path.write_bytes(b"new\n")
    read_to_end(log)
    assert (log.deleted, log.replaced, shown_lines(log)) == (False, True, [b"old"])
    log.reopen()
    assert (shown_lines(read_to_end(log)), log.replaced) == ([b"new"], False)


def test_a_file_created_later_is_read(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "log")
    assert not log.advance() and "No such file" in log.failure
    log.path.touch()
    read_to_end(log)
    assert (len(log.index), log.is_complete, log.line(0).head) == (0, True, b"")
    log.path.write_bytes(b"here")
    assert shown_lines(read_to_end(log)) == [b"here"] and log.failure == ""


@pytest.mark.parametrize("kind", ["fifo", "folder", "device"])
def test_a_path_that_is_no_regular_file_is_reported_without_blocking(tmp_path: Path, kind: str) -> None:
    path = Path(os.devnull) if kind == "device" else tmp_path / "log"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    log = LogFile(path)
    assert not log.advance()
    assert log.failure == "not a regular file"
    assert log.line(0).head == b"" and len(log.index) == 0


@pytest.mark.skipif(os.geteuid() == 0, reason="run as a user other than root, who may read everything")
def test_an_unreadable_file_is_reported(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "log")
    log.path.write_bytes(b"x")
    log.path.chmod(0)
    assert not log.advance() and "Permission denied" in log.failure


def test_only_the_beginning_of_a_huge_line_is_read(tmp_path: Path) -> None:
    log = open_log(tmp_path / "log", b"short\n" + b"x" * 5_000_000 + b"\r\nlast")
    huge = log.line(1, 1_000)
    assert (huge.head, huge.n_bytes) == (b"x" * 1_000, 5_000_001)
    assert len(log.line(1).head) == 1 << 20
    assert log.line(2).head == b"last"
