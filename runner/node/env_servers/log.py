"""The log that a server's output goes to: kept small, safe to read, and its last lines at hand."""

from __future__ import annotations

import hashlib
import os
import re
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import IO

from runner.util.text import masker, one_line

MAX_BYTES = 1 << 20
"""Of the log; the one before it is kept beside it."""
MAX_LINE_BYTES = 2000
N_RECENT_LINES, MAX_RECENT_CHARS = 5, 200
"""Lines that are at hand, and characters of each."""


def log_name(env: str) -> str:
    """The file name for an environment's server; a name that is not plain is not written as it is."""
    plain = re.sub(r"[^A-Za-z0-9_-]", "_", env)[:64]
    if plain != env:
        plain += "-" + hashlib.blake2b(env.encode(errors="replace"), digest_size=4).hexdigest()
    return f"server-{plain}.log"


class ServerLog:
    """Takes the lines of one server; from one thread."""

    def __init__(self, path: Path) -> None:
        """Nothing is written before the first line."""
        self.path = path
        self._recent: deque[str] = deque(maxlen=N_RECENT_LINES)
        self._mask: Callable[[str], str] = masker()
        self._size = 0

    @property
    def recent_output(self) -> str:
        """The last lines, as one; from any thread."""
        return " | ".join(self._recent.copy()) or "it said nothing"

    def drain(self, output: IO[bytes]) -> None:
        """Take what a server says to its end, and close it; a log that cannot be written does not keep it waiting."""
        with output:
            while line := output.readline(MAX_LINE_BYTES):
                shown = one_line(self._mask(line.decode(errors="replace").rstrip("\r\n")), MAX_LINE_BYTES)
                if shown.strip():
                    self._recent.append(one_line(shown, MAX_RECENT_CHARS))
                self._write(f"{shown}\n".encode())

    def _write(self, line: bytes) -> None:
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self._size + len(line) > MAX_BYTES:
                self.path.replace(self.path.with_suffix(".log.1"))
            descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "ab") as file:
                file.write(line)
                self._size = file.tell()
        except OSError:
            return
