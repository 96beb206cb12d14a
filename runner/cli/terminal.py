"""The terminal of a command: messages, JSON and tables without markup, made safe, and the signals that end a run."""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from types import FrameType
from typing import TYPE_CHECKING, TextIO

from runner.util.display_text import mask, masker, one_line, sanitize

if TYPE_CHECKING:
    from rich.console import Console

    from runner.batch.batch import Batch
    from runner.node.session import BatchSession

INTERRUPTED = 130
DEFAULT_WIDTH = 80
"""Width in characters of a terminal that does not report its own."""


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


def write_result(code: int, show: Callable[[], object], document: object = None) -> int:
    """Print a result with ``show``, or its ``document`` as JSON; return ``code``, or 1 if there is no room for output.

    It is not a failure if the reader of a pipe, such as ``head``, closes the pipe early.
    """
    try:
        if document is None:
            show()
        else:
            print_json(document)
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
    """Print untrusted rows as a table; on a narrow terminal, one line per cell, below the first one."""
    from rich.box import ASCII2, HEAVY_HEAD
    from rich.console import Console
    from rich.table import Table

    mask_text = masker()
    (title, *names), *cells = [[one_line(mask_text(text)) for text in row] for row in ([title, *columns], *rows)]
    stream = output_stream()
    table = Table(*names, box=HEAVY_HEAD if "utf" in stream.encoding.lower() else ASCII2, header_style="")
    for row in cells:
        table.add_row(*row)
    drawn = Console(file=io.StringIO(), width=sys.maxsize, color_system=None, markup=False, emoji=False)
    with drawn.capture() as capture:
        drawn.print(table)
    lines = capture.get().splitlines()
    if (width := len(lines[0])) <= _terminal_width(stream):
        if stream.isatty() and os.environ.get("TERM") != "dumb":
            lines[1] = f"\x1b[1m{lines[1]}\x1b[0m"
        lines.insert(0, title.center(width).rstrip())
    else:
        lines, width = [title], max(map(len, names))
        for first, *others in cells:
            lines += [first, *(f"  {name:<{width}}  {cell}" for name, cell in zip(names[1:], others, strict=True))]
    stream.write("".join(f"{line}\n" for line in lines))


def _terminal_width(stream: TextIO) -> int:
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns):
        return int(columns)
    return os.get_terminal_size(stream.fileno()).columns or DEFAULT_WIDTH if stream.isatty() else sys.maxsize


def print_line(line: str) -> None:
    write_result(0, lambda: print_text(line))


EPISODE_THREAD = "episode"
"""Name of the threads of ``EpisodeThread``, which is not imported here: every command needs this module."""
THREAD_EXIT_TIMEOUT_S = 1.0
"""Seconds that threads have to end after the run is complete."""
MESSAGE_TIMEOUT_S = 1.0
"""Maximum seconds that the end of a run waits for a blocked terminal to print a message."""


class SignalHandler:
    """Handles SIGINT and SIGTERM: the first signal ends the run after the current steps, the second immediately.

    Before the first batch, even the first signal ends the run immediately, because there is nothing to store.
    """

    def __init__(self, message_timeout_s: float = MESSAGE_TIMEOUT_S) -> None:
        self._message_timeout_s = message_timeout_s
        self._n_received = 0
        self._batch: Batch | BatchSession | None = None
        self._batch_started = False
        self._message_thread: threading.Thread | None = None

    @property
    def received(self) -> bool:
        return self._n_received > 0

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Handle the signals in the ``with`` block; at its end, wait until the signal message is printed."""
        previous = {number: signal.signal(number, self._receive) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
            if self._message_thread is not None:
                self._message_thread.join(self._message_timeout_s)

    @contextmanager
    def forwarding_to(self, batch: Batch | BatchSession) -> Iterator[None]:
        """Forward signals to a batch in the ``with`` block, including a signal that was received earlier."""
        self._batch, self._batch_started = batch, True
        if self._n_received:
            batch.command("cancel")
        try:
            yield
        finally:
            self._batch = None

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self._n_received += 1
        is_repeated = self._n_received > 1
        if self._batch is not None:
            self._batch.command("abort" if is_repeated else "cancel")
        elif is_repeated or not self._batch_started:
            raise KeyboardInterrupt
        if not is_repeated:
            # On a separate thread: the interrupted thread may hold the lock of the stream.
            text = "Stopping after the current steps; press Ctrl-C again to stop immediately."
            self._message_thread = threading.Thread(target=print_stderr, args=(text,), daemon=True)
            self._message_thread.start()


def exit_despite_stuck_threads(code: int) -> None:
    """Exit the process with this code if threads still run after ``THREAD_EXIT_TIMEOUT_S`` seconds; else return.

    At its normal exit, the interpreter would wait for executor threads that an environment keeps busy, and it would
    crash if an abandoned worker prints at that moment.
    """
    deadline = time.monotonic() + THREAD_EXIT_TIMEOUT_S
    for thread in threading.enumerate():
        if thread is not threading.main_thread() and (not thread.daemon or thread.name == EPISODE_THREAD):
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                import logging

                logging.shutdown()
                with suppress(OSError):
                    sys.stdout.flush()
                    sys.stderr.flush()
                os._exit(code)
