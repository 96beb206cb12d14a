"""A command in a real pseudo-terminal: keys in, every byte that comes out kept, and the screen they make."""

from __future__ import annotations

import contextlib
import copy
import os
import re
import signal
import subprocess
import termios
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import pyte

ENTER, TAB, BACKSPACE, CTRL_K, CTRL_P = "\r", "\t", "\x7f", "\x0b", "\x10"
ESCAPE: Final = "\x1b[27u"
"""As a terminal with the newer keyboard protocol sends it: alone, the older form waits for what may follow."""

ALTERNATE_SCREEN: Final = 1049
AT_FIRST: Final = frozenset({7, 25})
"""Private modes of a terminal nobody has used: line wrap and a visible cursor."""

_POLL_S = 0.1
"""How often a condition that is not about the screen is looked at."""

_LEFT_OUT = re.compile(rb"\x1b\[(?:[0-9;]*m|<u)")
"""Colours, which nobody looks at and which are most of what comes, and what pyte does not know and would print."""

_PRIVATE = 5
"""pyte keeps the private modes shifted by this many bits."""


class _Screen(pyte.Screen):
    """pyte's screen with the one thing it lacks: the alternate screen."""

    _main: tuple[Any, Any] | None = None
    _rows: tuple[str, ...] = ()

    def rows(self) -> tuple[str, ...]:
        """The lines without the spaces at their ends; those where nothing was drawn are as they were."""
        if len(self._rows) != self.lines:
            self._rows = ("",) * self.lines
            self.dirty.update(range(self.lines))
        if self.dirty:
            self._rows = tuple(self._row(y) if y in self.dirty else row for y, row in enumerate(self._rows))
            self.dirty.clear()
        return self._rows

    def _row(self, y: int) -> str:
        line = self.buffer[y]
        return "".join(line[x].data for x in range(self.columns)).rstrip()

    def set_mode(self, *modes: int, **kwargs: Any) -> None:  # noqa: ANN401
        if kwargs.get("private") and ALTERNATE_SCREEN in modes and self._main is None:
            self._main = copy.deepcopy(self.buffer), copy.copy(self.cursor)
            self.erase_in_display(2)
        super().set_mode(*modes, **kwargs)

    def reset_mode(self, *modes: int, **kwargs: Any) -> None:  # noqa: ANN401
        super().reset_mode(*modes, **kwargs)
        if kwargs.get("private") and ALTERNATE_SCREEN in modes and self._main is not None:
            (self.buffer, self.cursor), self._main = self._main, None
            self.dirty.update(range(self.lines))


class Terminal:
    """A command in a terminal of its own; killed at the end of the block.

    The command is the leader of its session and the terminal controls it, so that it gets SIGWINCH and SIGHUP.
    """

    def __init__(
        self,
        *command: str,
        columns: int = 120,
        rows: int = 40,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        self._command = ["setsid", "--ctty", *command]
        self._size = (rows, columns)
        self._env = environ() if env is None else dict(env)
        self._cwd = cwd
        self._news = threading.Condition()
        self._raw = bytearray()
        self._n_drawn = 0
        self._closed = False
        self._screen = _Screen(columns, rows)
        self._stream = pyte.ByteStream(self._screen)
        self.attributes_before: list[Any] = []
        self.attributes_after: list[Any] = []

    def __enter__(self) -> Self:
        self._controller, self._terminal = os.openpty()
        termios.tcsetwinsize(self._terminal, self._size)
        self.attributes_before = termios.tcgetattr(self._terminal)
        self.started = time.perf_counter()
        self.process = subprocess.Popen(
            self._command,
            stdin=self._terminal,
            stdout=self._terminal,
            stderr=self._terminal,
            env=self._env,
            cwd=self._cwd,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        os.close(self._controller)

    @property
    def raw(self) -> bytes:
        """Every byte that was written so far."""
        with self._news:
            return bytes(self._raw)

    @property
    def n_raw(self) -> int:
        """How many bytes that are."""
        with self._news:
            return len(self._raw)

    def raw_from(self, start: int) -> bytes:
        """What was written after the first ``start`` bytes."""
        with self._news:
            return bytes(self._raw[start:])

    @property
    def lines(self) -> list[str]:
        """The rows of the screen, without the spaces at their ends."""
        with self._news:
            fresh, self._n_drawn = bytes(self._raw[self._n_drawn :]), len(self._raw)
            self._stream.feed(_LEFT_OUT.sub(b"", fresh))
            return list(self._screen.rows())

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    @property
    def modes(self) -> set[int]:
        """The private modes that are set."""
        self.lines  # noqa: B018 - draws what has come
        return {mode >> _PRIVATE for mode in self._screen.mode if mode >> _PRIVATE}

    def row_of(self, wanted: str) -> str:
        """The first row of the screen that holds a text."""
        return next((line for line in self.lines if wanted in line), "")

    def send(self, keys: str) -> None:
        data = keys.encode("utf-8", "surrogateescape")
        while data:
            data = data[os.write(self._controller, data) :]

    def resize(self, columns: int, rows: int) -> None:
        with self._news:
            self._screen.resize(rows, columns)
        termios.tcsetwinsize(self._controller, (rows, columns))

    def wait_for(self, wanted: str | Callable[[], bool], timeout_s: float = 20.0) -> None:
        """Until the screen shows a text, or until a condition holds; it is looked at whenever something is written."""
        holds: Callable[[], bool] = (lambda: wanted in self.text) if isinstance(wanted, str) else wanted
        deadline = time.monotonic() + timeout_s
        with self._news:
            while not holds():
                ended = self.process.poll() is not None
                self._news.wait(_POLL_S)  # also after its end: its last words may be on their way
                if (ended or time.monotonic() > deadline) and not holds():
                    why = f"it ended ({self.process.returncode})" if ended else f"not within {timeout_s:g} s"
                    raise AssertionError(f"{wanted!r}: {why}\n{self.text}")

    def wait_gone(self, unwanted: str, timeout_s: float = 20.0) -> None:
        self.wait_for(lambda: unwanted not in self.text, timeout_s)

    def wait_quiet(self, quiet_s: float = 0.3, timeout_s: float = 20.0) -> None:
        """Until nothing was written for a while, at the latest after ``timeout_s``."""
        deadline = time.monotonic() + timeout_s
        with self._news:
            while self._news.wait(quiet_s) and not self._closed and time.monotonic() < deadline:
                pass

    def wait_exit(self, timeout_s: float = 20.0) -> int:
        """The exit status; everything was read and the attributes it left are kept when this returns."""
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {timeout_s:g} s\n{self.text}") from None
        self._let_go()
        return self.process.returncode

    def kill(self, how: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal, unless it has ended, and wait for its end."""
        if self.process.poll() is None:
            self.process.send_signal(how)
        self.wait_exit()

    def _let_go(self) -> None:
        if not self.attributes_after:
            self.attributes_after = termios.tcgetattr(self._terminal)
            os.close(self._terminal)
        self._reader.join(10)
        assert not self._reader.is_alive(), "something the command has started keeps the terminal open"

    def _read(self) -> None:
        # With nobody left on the other side reading fails; that is a terminal's end of file.
        with contextlib.suppress(OSError):
            while data := os.read(self._controller, 1 << 16):
                with self._news:
                    self._raw += data
                    self._news.notify_all()
        with self._news:
            self._closed = True
            self._news.notify_all()


def environ(**more: str) -> dict[str, str]:
    """What a shell in a usual terminal would pass on."""
    known = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "LANG": "C.UTF-8", "TERM": "xterm-256color"}
    nowhere = {"XDG_CONFIG_HOME": os.devnull, "XDG_STATE_HOME": os.devnull}  # nobody's settings, and none are left
    code = {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}  # the one under test
    return {**known, **code, **nowhere, "COLORTERM": "truecolor", "TEXTUAL_ANIMATIONS": "none", **more}
