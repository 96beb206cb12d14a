"""Output on standard output and standard error: messages, JSON and tables, sanitized and without markup."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, TextIO

from runner.util.display_text import mask, masker, one_line, sanitize

if TYPE_CHECKING:
    from rich.console import Console

PIPE_WIDTH = 160
"""Width of tables in characters if neither a terminal nor the variable ``COLUMNS`` defines it."""
DEFAULT_WIDTH = 80
"""Width in characters of a terminal that does not report its own."""
_GRID = ("┏━┳┓", "┃", "┡━╇┩", "│", "└─┴┘")
_ASCII_GRID = ("+-++", "|", "+-++", "|", "+-++")


def repair_std_streams() -> None:
    """Connect closed standard streams to the null device; make output escape characters that it cannot encode.

    Otherwise, a file that is opened later could get the descriptor of a closed standard stream.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDWR)  # gets the lowest free descriptor, normally this one
            if null != number:
                os.dup2(null, number)
                os.close(null)
            setattr(sys, name, os.fdopen(number, "r" if number == 0 else "w", encoding="utf-8", closefd=False))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


@cache
def reserve_stdout() -> TextIO:
    """Reserve standard output for this module; everything else printed there goes to standard error.

    Environments and agents are third-party code that may print. The reservation is never undone, because an abandoned
    step may print at any time.
    """
    sys.stdout.flush()
    reserved = os.fdopen(os.dup(1), "w", encoding=sys.stdout.encoding, errors="backslashreplace")
    os.dup2(2, 1)
    return reserved


def output_stream() -> TextIO:
    return reserve_stdout() if reserve_stdout.cache_info().currsize else sys.stdout


@cache
def stderr_console() -> Console:
    """It interprets neither markup nor emoji codes."""
    from rich.console import Console

    class Plain(Console):
        def on_broken_pipe(self) -> None:
            raise

    return Plain(file=sys.stderr, markup=False, emoji=False, highlight=False)


def print_stderr(text: str) -> None:
    """Print a sanitized message to standard error; do nothing if the stream is closed."""
    try:
        if stderr_console.cache_info().currsize:  # it keeps its progress bar below the message
            stderr_console().print(safe_text(text), soft_wrap=True)
        else:
            sys.stderr.write(f"{safe_text(text)}\n")
            sys.stderr.flush()
    except OSError:  # the reader has closed the stream; the run continues
        _redirect_to_null(sys.stderr)


def print_text(text: str) -> None:
    output_stream().write(f"{safe_text(text)}\n")


def safe_text(text: str) -> str:
    return sanitize(mask(text))


def print_json(value: object) -> None:
    """Print a JSON document in ASCII, so that no control character reaches a terminal."""
    output_stream().write(ascii_json(value, indent=2) + "\n")


def ascii_json(value: object, indent: int | None = None) -> str:
    import json

    import msgspec

    return json.dumps(msgspec.to_builtins(value), ensure_ascii=True, indent=indent).replace("\x7f", "\\u007f")


def write_result(code: int, show: Callable[[], object]) -> int:
    """Print a result with ``show`` and return ``code``; return 1 instead of 0 if the output cannot be written.

    It is not a failure if the reader of a pipe, such as ``head``, closes the pipe early.
    """
    try:
        show()
        output_stream().flush()
    except BrokenPipeError:
        discard_output()
    except OSError as exc:
        discard_output()
        print_stderr(f"agentgym-runner: the result could not be written: {exc.strerror}")
        return code or 1
    return code


def discard_output() -> None:
    _redirect_to_null(output_stream())


def _redirect_to_null(stream: TextIO) -> None:
    # Else the interpreter fails at exit when it flushes the buffer.
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print untrusted rows as a table; if it is too wide, print one line per cell, below the first cell of the row."""
    mask_text = masker()
    title, *names = _safe_cells([title, *columns], mask_text)
    cells = [_safe_cells(row, mask_text) for row in rows]
    widths = [max(map(_width, column)) for column in zip(names, *cells, strict=True)]
    stream = output_stream()
    if sum(widths) + 3 * len(widths) + 1 <= _terminal_width(stream):
        lines = list(_grid(title, names, cells, widths, _GRID if "utf" in stream.encoding.lower() else _ASCII_GRID))
        if stream.isatty() and os.environ.get("TERM") != "dumb":
            lines[2] = f"\x1b[1m{lines[2]}\x1b[0m"
    else:
        lines = [title, *_lines(names, cells, max(map(len, names)))]
    stream.write("".join(f"{line}\n" for line in lines))


def _grid(
    title: str, names: Sequence[str], rows: Iterable[Sequence[str]], widths: Sequence[int], grid: Sequence[str]
) -> Iterator[str]:
    top, head, middle, edge, bottom = grid
    line = _rule(top, widths)
    yield title.center(len(line)).rstrip()
    yield line
    yield _cells(names, widths, head)
    yield _rule(middle, widths)
    for row in rows:
        yield _cells(row, widths, edge)
    yield _rule(bottom, widths)


def _rule(corners: str, widths: Iterable[int]) -> str:
    left, line, cross, right = tuple(corners)
    return left + cross.join(line * (width + 2) for width in widths) + right


def _cells(texts: Iterable[str], widths: Iterable[int], edge: str) -> str:
    padded = (text + " " * (width - _width(text)) for text, width in zip(texts, widths, strict=True))
    return f"{edge} {f' {edge} '.join(padded)} {edge}"


def _width(text: str) -> int:
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def _terminal_width(stream: TextIO) -> int:
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns):
        return int(columns)
    return os.get_terminal_size(stream.fileno()).columns or DEFAULT_WIDTH if stream.isatty() else PIPE_WIDTH


def _lines(names: Sequence[str], rows: Iterable[Sequence[str]], width: int) -> Iterable[str]:
    for first, *others in rows:
        yield first
        for name, cell in zip(names[1:], others, strict=True):
            yield f"  {name:<{width}}  {cell}"


def _safe_cells(texts: Iterable[str], mask_text: Callable[[str], str]) -> list[str]:
    return [one_line(mask_text(text)) for text in texts]


def print_line(line: str) -> None:
    write_result(0, lambda: print_text(line))
