"""A command in a real pseudo-terminal: sends keys, records every byte of output, and emulates the screen."""

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

ENTER, TAB, BACKSPACE, CTRL_P = "\r", "\t", "\x7f", "\x10"
ESCAPE: Final = "\x1b[27u"
"""Escape in the kitty keyboard protocol; a bare escape byte would wait for the rest of a sequence."""

ALTERNATE_SCREEN: Final = 1049
INITIAL_MODES: Final = frozenset({7, 25})
"""Private modes of a new terminal: line wrap and a visible cursor."""

_POLL_S = 0.1
"""Seconds between checks of a condition that does not depend on the screen."""

_IGNORED = re.compile(rb"\x1b\[(?:[0-9;]*m|<u)")
"""Colors, which no test reads, and a sequence that pyte would print."""

_PRIVATE_MODE_SHIFT = 5
"""pyte stores private modes shifted by this many bits."""


class _Screen(pyte.Screen):
    """pyte's screen with an alternate screen."""

    _main: tuple[Any, Any] | None = None
    _rows: tuple[str, ...] = ()

    def rows(self) -> tuple[str, ...]:
        """Return the lines without trailing spaces; only changed lines are read again."""
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
    """A command in its own terminal; killed at the end of the block.

    The command leads the terminal's session, so it receives SIGWINCH and SIGHUP.
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
        self._env = terminal_environ() if env is None else dict(env)
        self._cwd = cwd
        self._output = threading.Condition()
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
        """All output so far."""
        with self._output:
            return bytes(self._raw)

    @property
    def n_raw(self) -> int:
        """Number of bytes of output so far."""
        with self._output:
            return len(self._raw)

    def raw_from(self, start: int) -> bytes:
        """Return the output after the first ``start`` bytes."""
        with self._output:
            return bytes(self._raw[start:])

    @property
    def lines(self) -> list[str]:
        """Rows of the screen, without trailing spaces."""
        with self._output:
            new, self._n_drawn = bytes(self._raw[self._n_drawn :]), len(self._raw)
            self._stream.feed(_IGNORED.sub(b"", new))
            return list(self._screen.rows())

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    @property
    def modes(self) -> set[int]:
        """Private modes that are set."""
        self.lines  # noqa: B018 - draws the new output
        return {mode >> _PRIVATE_MODE_SHIFT for mode in self._screen.mode if mode >> _PRIVATE_MODE_SHIFT}

    def row_of(self, text: str) -> str:
        """Return the first row of the screen that contains ``text``, or an empty text."""
        return next((line for line in self.lines if text in line), "")

    def send(self, keys: str) -> None:
        data = keys.encode("utf-8", "surrogateescape")
        while data:
            data = data[os.write(self._controller, data) :]

    def resize(self, columns: int, rows: int) -> None:
        with self._output:
            self._screen.resize(rows, columns)
        termios.tcsetwinsize(self._controller, (rows, columns))

    def wait_for(self, expected: str | Callable[[], bool], timeout_s: float = 20.0) -> None:
        """Wait until the screen shows a text, or until a condition holds; each output triggers a check."""
        holds: Callable[[], bool] = (lambda: expected in self.text) if isinstance(expected, str) else expected
        deadline = time.monotonic() + timeout_s
        with self._output:
            while not holds():
                ended = self.process.poll() is not None
                self._output.wait(_POLL_S)  # also after the process has ended: its last output may still arrive
                if (ended or time.monotonic() > deadline) and not holds():
                    reason = (
                        f"the process ended ({self.process.returncode})" if ended else f"not within {timeout_s:g} s"
                    )
                    raise AssertionError(f"{expected!r}: {reason}\n{self.text}")

    def wait_until_absent(self, text: str, timeout_s: float = 20.0) -> None:
        self.wait_for(lambda: text not in self.text, timeout_s)

    def wait_until_quiet(self, quiet_s: float = 0.3, timeout_s: float = 20.0) -> None:
        """Wait until there was no output for ``quiet_s``, at most ``timeout_s``."""
        deadline = time.monotonic() + timeout_s
        with self._output:
            while self._output.wait(quiet_s) and not self._closed and time.monotonic() < deadline:
                pass

    def wait_exit(self, timeout_s: float = 20.0) -> int:
        """Return the exit status, after all output was read and the final terminal attributes were stored."""
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {timeout_s:g} s\n{self.text}") from None
        self._close_terminal()
        return self.process.returncode

    def kill(self, kill_signal: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal unless the process has ended, then wait for its end."""
        if self.process.poll() is None:
            self.process.send_signal(kill_signal)
        self.wait_exit()

    def _close_terminal(self) -> None:
        if not self.attributes_after:
            self.attributes_after = termios.tcgetattr(self._terminal)
            os.close(self._terminal)
        self._reader.join(10)
        assert not self._reader.is_alive(), "a child of the command keeps the terminal open"

    def _read(self) -> None:
        # Reading fails once the other side is closed: a terminal's end of file.
        with contextlib.suppress(OSError):
            while data := os.read(self._controller, 1 << 16):
                with self._output:
                    self._raw += data
                    self._output.notify_all()
        with self._output:
            self._closed = True
            self._output.notify_all()


def terminal_environ(**more: str) -> dict[str, str]:
    """Return the environment that a shell in a usual terminal passes on."""
    known = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "LANG": "C.UTF-8", "TERM": "xterm-256color"}
    # no settings, no state and no cache are read or written
    nowhere = {f"XDG_{kind}_HOME": os.devnull for kind in ("CONFIG", "STATE", "CACHE")}
    code = {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}  # the code under test
    return {**known, **code, **nowhere, "COLORTERM": "truecolor", "TEXTUAL_ANIMATIONS": "none", **more}
