"""Log file of an environment server: limited in size, secrets masked, the most recent lines kept in memory."""

from __future__ import annotations

import hashlib
import os
import re
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import IO

from runner.util.display_text import masker, one_line

MAX_BYTES = 1 << 20
"""Maximum bytes of the log file; a full log file is renamed to ``….log.1`` and replaces the one of that name."""
MAX_LINE_BYTES = 2000
N_RECENT_LINES, MAX_RECENT_CHARS = 5, 200
"""Number of recent lines in memory, and maximum length of each."""


def log_name(env: str) -> str:
    """Return the log file name of an environment: its name without special characters, plus a hash of the name."""
    plain = re.sub(r"[^A-Za-z0-9_-]", "_", env)[:64]
    if plain != env:
        plain += "-" + hashlib.blake2b(env.encode(errors="replace"), digest_size=4).hexdigest()
    return f"server-{plain}.log"


class ServerLog:
    """Only one thread may write to it."""

    def __init__(self, path: Path, max_bytes: int = MAX_BYTES, mask: Callable[[str], str] | None = None) -> None:
        """The first line creates the file. ``mask`` hides secrets, by default this process's."""
        self.path = path
        self._max_bytes = max_bytes
        self._recent: deque[str] = deque(maxlen=N_RECENT_LINES)
        self._mask = mask or masker()
        self._size = 0

    @property
    def recent_output(self) -> str:
        """The most recent lines as one text; thread-safe."""
        return " | ".join(self._recent.copy()) or "no output"

    def drain(self, output: IO[bytes]) -> None:
        """Write a server's output to the log until the output ends; keep reading even if the log cannot be written."""
        with output:
            while line := output.readline(MAX_LINE_BYTES):
                text = one_line(self._mask(line.decode(errors="replace").rstrip("\r\n")), MAX_LINE_BYTES)
                if text.strip():
                    self._recent.append(one_line(text, MAX_RECENT_CHARS))
                self._write(f"{text}\n".encode())

    def _write(self, line: bytes) -> None:
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self._size + len(line) > self._max_bytes:
                self.path.replace(self.path.with_suffix(".log.1"))
            descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "ab") as file:
                file.write(line)
                self._size = file.tell()
        except OSError:
            return
