"""The way to the terminal: everything printed here is made safe first and never read as markup."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, TextIO

import msgspec

from runner.util.text import mask, sanitize

if TYPE_CHECKING:
    from rich.console import Console
from collections.abc import Iterable, Sequence

from runner.util.text import one_line

PIPE_WIDTH = 160
"""Columns of a table when nobody says how wide the output is."""


def mend_streams() -> None:
    """Let closed standard streams lead nowhere, lest a file opened later takes their place; print what can be."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, so normally this very one
            if null != number:
                os.dup2(null, number)
                os.close(null)
            setattr(sys, name, os.fdopen(number, "r" if number == 0 else "w", encoding="utf-8", closefd=False))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


@cache
def keep_output() -> TextIO:
    """From now on only what is printed here reaches standard output; what others print there goes to standard error.

    Environments and agents are other people's code, and some of them print. There is no way back: a step that was
    given up may print at any time.
    """
    sys.stdout.flush()
    kept = os.fdopen(os.dup(1), "w", encoding=sys.stdout.encoding, errors="backslashreplace")
    os.dup2(2, 1)
    return kept


def output() -> TextIO:
    """Where results are printed."""
    return keep_output() if keep_output.cache_info().currsize else sys.stdout


def console() -> Console:
    """The console for results."""
    return _console(output())


def err_console() -> Console:
    """The console for everything beside the results."""
    return _console(sys.stderr)


@cache
def _console(stream: TextIO) -> Console:
    """A console with markup, emoji codes and highlighting off."""
    from rich.console import Console

    class Plain(Console):
        def on_broken_pipe(self) -> None:
            """Leave it to ``delivered``; by default the process would end here."""
            raise

    columns = os.environ.get("COLUMNS", "")
    width = None if columns.isdecimal() or stream.isatty() else PIPE_WIDTH
    return Plain(file=stream, markup=False, emoji=False, highlight=False, width=width)


def err(text: str) -> None:
    """Say something to the person, beside the output."""
    try:
        err_console().print(safe(text), soft_wrap=True)
    except OSError:  # nobody listens any more, which ends nothing
        _lead_nowhere(sys.stderr)


def safe(text: str) -> str:
    """A text of any origin for a terminal: no secrets, no control characters."""
    return sanitize(mask(text))


def print_json(value: object) -> None:
    """One JSON document, in ASCII as it may be looked at in a terminal as well."""
    text = json.dumps(msgspec.to_builtins(value), ensure_ascii=True, indent=2)
    output().write(text.replace("\x7f", "\\u007f") + "\n")


def delivered(code: int, show: Callable[[], object]) -> int:
    """Print a result; the exit code is then ``code``, or 1 in place of 0 when the result could not be written.

    A reader who leaves early, such as ``head``, is no failure.
    """
    try:
        show()
        output().flush()
    except BrokenPipeError:
        drop_output()
    except OSError as exc:
        drop_output()
        err(f"agentgym-runner: the result could not be written: {exc.strerror}")
        return code or 1
    return code


def drop_output() -> None:
    """Give up what is left of the output."""
    _lead_nowhere(output())


def _lead_nowhere(stream: TextIO) -> None:
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)


UNBOUNDED = 100_000
"""Columns to measure a table with that is to be as wide as it likes."""


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print rows whose first cell names them; every text may be of any origin."""
    from rich.table import Table

    names, cells = _safe(columns), [_safe(row) for row in rows]
    table = Table(*names, title=_safe([title])[0])
    for row in cells:
        table.add_row(*row)
    screen = console()
    if screen.measure(table, options=screen.options.update(max_width=UNBOUNDED)).maximum <= screen.width:
        screen.print(table)
        return
    width = max(map(len, names))
    for line in (_safe([title])[0], *_lines(names, cells, width)):
        screen.print(line, soft_wrap=True)


def _lines(names: Sequence[str], rows: Iterable[Sequence[str]], width: int) -> Iterable[str]:
    for first, *others in rows:
        yield first
        for name, cell in zip(names[1:], others, strict=True):
            yield f"  {name:<{width}}  {cell}"


def _safe(texts: Iterable[str]) -> list[str]:
    return [one_line(mask(text)) for text in texts]


def say(line: str) -> None:
    """Print that a server is ready."""
    delivered(0, lambda: output().write(f"{safe(line)}\n"))
