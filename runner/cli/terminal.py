"""Output to the terminal: standard streams, messages, JSON and tables, always sanitized and never parsed as markup."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING, TextIO

import msgspec

from runner.util.display_text import mask, one_line, sanitize

if TYPE_CHECKING:
    from rich.console import Console

PIPE_WIDTH = 160
"""Width of a table in characters if neither a terminal nor ``COLUMNS`` defines it."""
MAX_TABLE_WIDTH = 100_000
"""Width in characters for measuring a table without wrapping."""


def repair_std_streams() -> None:
    """Open closed standard streams on the null device, and escape characters that a stream cannot encode.

    Without this, a file opened later could get the descriptor of a standard stream.
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

    Environments and agents are third-party code that may print. This is never undone: an abandoned step may print at
    any time.
    """
    sys.stdout.flush()
    reserved = os.fdopen(os.dup(1), "w", encoding=sys.stdout.encoding, errors="backslashreplace")
    os.dup2(2, 1)
    return reserved


def output_stream() -> TextIO:
    """Return the stream for results."""
    return reserve_stdout() if reserve_stdout.cache_info().currsize else sys.stdout


def output_console() -> Console:
    """Return the Rich console for results."""
    return _console(output_stream())


def stderr_console() -> Console:
    """Return the Rich console for messages."""
    return _console(sys.stderr)


@cache
def _console(stream: TextIO) -> Console:
    """Create a console without markup, emoji codes and highlighting."""
    from rich.console import Console

    class Plain(Console):
        def on_broken_pipe(self) -> None:
            """Leave it to ``write_result``; Rich would end the process here."""
            raise

    columns = os.environ.get("COLUMNS", "")
    width = None if columns.isdecimal() or stream.isatty() else PIPE_WIDTH
    return Plain(file=stream, markup=False, emoji=False, highlight=False, width=width)


def print_stderr(text: str) -> None:
    """Print a message to standard error."""
    try:
        stderr_console().print(safe_text(text), soft_wrap=True)
    except OSError:  # the reader has closed the stream; the run continues
        _redirect_to_null(sys.stderr)


def safe_text(text: str) -> str:
    """Return an untrusted text for a terminal: secrets masked, control characters visible."""
    return sanitize(mask(text))


def print_json(value: object) -> None:
    """Print a JSON document, in ASCII so that it is safe in a terminal, too."""
    text = json.dumps(msgspec.to_builtins(value), ensure_ascii=True, indent=2)
    output_stream().write(text.replace("\x7f", "\\u007f") + "\n")


def write_result(code: int, show: Callable[[], object]) -> int:
    """Print a result and return the exit code: ``code``, or 1 instead of 0 if it could not be written.

    A reader that closes the pipe early, such as ``head``, is not a failure.
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
    """Discard the rest of the output."""
    _redirect_to_null(output_stream())


def _redirect_to_null(stream: TextIO) -> None:
    # Else the interpreter fails at exit when it flushes the buffer.
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print untrusted rows as a table, or line by line if it is too wide; the first cell names the row."""
    from rich.table import Table

    names, cells = _safe_cells(columns), [_safe_cells(row) for row in rows]
    table = Table(*names, title=_safe_cells([title])[0])
    for row in cells:
        table.add_row(*row)
    screen = output_console()
    if screen.measure(table, options=screen.options.update(max_width=MAX_TABLE_WIDTH)).maximum <= screen.width:
        screen.print(table)
        return
    width = max(map(len, names))
    for line in (_safe_cells([title])[0], *_lines(names, cells, width)):
        screen.print(line, soft_wrap=True)


def _lines(names: Sequence[str], rows: Iterable[Sequence[str]], width: int) -> Iterable[str]:
    for first, *others in rows:
        yield first
        for name, cell in zip(names[1:], others, strict=True):
            yield f"  {name:<{width}}  {cell}"


def _safe_cells(texts: Iterable[str]) -> list[str]:
    return [one_line(mask(text)) for text in texts]


def print_line(line: str) -> None:
    """Print one line of output at once."""
    write_result(0, lambda: output_stream().write(f"{safe_text(line)}\n"))
