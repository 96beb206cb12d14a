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
    """Without this the interpreter would fail with what is still buffered when it ends."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)
