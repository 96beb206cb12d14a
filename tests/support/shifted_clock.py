"""The wall clock of a child process, which a test can set while the process runs."""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("clock_shift.c")


class ShiftedClock:
    """Environment variables that give a process a wall clock of its own, and the file that shifts it."""

    def __init__(self, folder: Path) -> None:
        compiler = shutil.which("cc")
        if compiler is None:
            pytest.skip("install a C compiler (cc) to shift the clock of a process")
        library = folder / "clock_shift.so"
        command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(SOURCE), "-ldl"]
        subprocess.run(command, check=True, timeout=60)
        self._file = folder / "clock_shift"
        self._file.write_bytes(struct.pack("q", 0))
        self.environ = {"LD_PRELOAD": str(library), "CLOCK_SHIFT": str(self._file)}

    def set(self, shift_s: int) -> None:
        """Shift the clock from the right time by this number of seconds."""
        with self._file.open("r+b") as file:
            file.write(struct.pack("q", shift_s))
