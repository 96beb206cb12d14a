"""Set up a virtual environment from a lock file, and report progress; needs nothing but Python and its pip.

    python scripts/set_up.py .venv requirements.lock --editable .

The first line appears at once and names the extent. On a terminal, a running counter follows; elsewhere a line every
``REPORT_S`` seconds. A failure shows pip's cause and the next step; the whole output of pip is in ``setup.log`` of the
virtual environment.
"""

from __future__ import annotations

import argparse
import os
import queue
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

MIN_PYTHON = (3, 11)
LOG_NAME = "setup.log"
REPORT_S = 20.0
"""Seconds between two reports where the output is no terminal."""
MAX_CAUSE_LINES = 10
MAX_RETRIES_SHOWN = 5
MAX_CHARS = 160

DOWNLOAD_MB = {"requirements.lock": 125, "tests/ray/requirements.lock": 80}
"""Megabytes that pip downloads for a lock, measured on Linux with Python 3.11."""

ADVICE = (
    ("No space left", "Free some disk space"),
    (
        "DO NOT MATCH THE HASHES",
        "The index sent another file than the lock names: use another index, or report it",
    ),
    (
        "No matching distribution",
        "The index has no such file for this Python and platform, or did not answer: check the network, the proxy and "
        "pip's index (`pip config list`, PIP_INDEX_URL), or try another Python (`make PYTHON=/path/to/python3`)",
    ),
    (
        "ensurepip",
        "Install the package python3-venv (Debian and Ubuntu), or use another Python (`make PYTHON=/path/to/python3`)",
    ),
    ("Permission denied", "Make the folder writable"),
)
DEFAULT_ADVICE = "Check the network, the proxy and pip's index (`pip config list`, PIP_INDEX_URL)"

_EXIT = "\0exit code "  # no line of a command starts with it
_REQUIREMENT = re.compile(r"^([\w.-]+)==[^;\\\n]*(?:;([^\\\n]*))?", re.MULTILINE)
_COLLECTED = re.compile(
    r"(?:Collecting|Processing|Requirement already satisfied:) (?:\S*/)?([\w.]+(?:-[A-Za-z][\w.]*)*)"
)
_DOWNLOADED = re.compile(r"\s+(?:Downloading|Using cached) (?:\S*/)?([\w.]+?)-\d\S*(?<!\.metadata) (\([^)]*\))")


class SetUpFailed(Exception):
    """A command failed; the text has its cause."""


class Reporter:
    """Writes lasting lines, and a status that replaces itself on a terminal and is rare elsewhere."""

    def __init__(self) -> None:
        """Start the clock."""
        self.started = self._reported = time.monotonic()
        self._is_terminal = sys.stdout.isatty()
        self._has_status = False

    def line(self, text: str) -> None:
        """Write a line."""
        self._write(f"{self._clear()}{text}\n")
        self._has_status = False

    def status(self, text: str) -> None:
        """Show the current state with the seconds since the start."""
        now = time.monotonic()
        shown = f"  {text[:60]}, {now - self.started:.0f} s"
        if self._is_terminal:
            self._write(f"{self._clear()}{shown}")
            self._has_status = True
        elif now - self._reported >= REPORT_S:
            self._reported = now
            self._write(f"{shown}\n")

    def _clear(self) -> str:
        return "\r\033[K" if self._has_status else ""

    def _write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()


class PipProgress:
    """What pip has done so far, from its output and the folder that it installs into."""

    def __init__(self, venv: Path, total: int) -> None:
        """Count the packages that are there already."""
        self._venv, self._total = venv, total
        self._n_before = self._n_installed()
        self._n_collected = self._n_downloaded = 0
        self._n_to_install = 0
        self._text = "starting pip"

    def read(self, line: str) -> None:
        """Take in a line of pip's output."""
        if line.startswith("Installing collected packages"):
            self._n_to_install = line.count(",") + 1
        elif match := _COLLECTED.match(line):
            self._n_collected += 1
            self._text = f"found {self._n_collected}/{self._total} {match[1]}"
        elif match := _DOWNLOADED.match(line):
            self._n_downloaded += 1
            self._text = f"downloading {self._n_downloaded}/{self._total} {match[1]} {match[2]}"

    def text(self) -> str:
        """Describe the current state."""
        if self._n_to_install:
            return f"installing {self._n_installed() - self._n_before}/{self._n_to_install}"
        return self._text

    def _n_installed(self) -> int:
        return sum(1 for _ in self._venv.glob("lib/python*/site-packages/*.dist-info"))


def count_packages(lock: str) -> int:
    """Return the number of packages that a lock has for this platform."""
    requirements = _REQUIREMENT.findall(lock)
    return len({name for name, marker in requirements if sys.platform == "win32" or "'win32'" not in marker})


def announcement(venv: Path, lock: Path) -> str:
    """Return the first line: what is set up, how much it is, and how long it takes."""
    size = DOWNLOAD_MB.get(lock.as_posix())
    extent = f"{count_packages(lock.read_text('utf-8'))} packages{f', about {size} MB' if size else ''}"
    return f"Setting up {venv}: {extent}, usually under a minute; once"


def run(command: Sequence[str], reporter: Reporter, text: Callable[[], str], read: Callable[[str], object]) -> None:
    """Run a command.

    Args:
        command: the command.
        reporter: shows the progress.
        text: returns what the command does now.
        read: called with each line of its output.

    Raises:
        SetUpFailed: the command failed.
    """
    lines: list[str] = []
    n_retries = 0
    for line in _output(command):
        if line:
            lines.append(line)
            read(line)
            if line.startswith("WARNING: Retrying") and (n_retries := n_retries + 1) <= MAX_RETRIES_SHOWN:
                reporter.line(f"  pip tries again after {printable(line.partition(' after ')[2])}")
        reporter.status(printable(text()))
    if lines.pop() != f"{_EXIT}0\n":
        raise SetUpFailed("\n".join(cause_of(lines)))


def _output(command: Sequence[str]) -> Iterator[str]:
    """Yield the lines of a command, an empty text after each second without one, and at last its exit code."""
    received: queue.SimpleQueue[str] = queue.SimpleQueue()
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        encoding="utf-8",
        errors="replace",
    ) as process:
        threading.Thread(target=_read_output, args=(process, received.put), daemon=True).start()
        line = ""
        while not line.startswith(_EXIT):
            try:
                line = received.get(timeout=1.0)
            except queue.Empty:
                line = ""
            yield line


def _read_output(process: subprocess.Popen[str], put: Callable[[str], None]) -> None:
    for line in process.stdout or ():
        put(line)
    put(f"{_EXIT}{process.wait()}\n")


def cause_of(lines: Sequence[str]) -> list[str]:
    """Return the lines that explain a failure: from the first error on, else the last ones."""
    shown = [printable(line) for line in lines if line.strip() and not line.startswith(("WARNING:", "[notice]"))]
    errors = [n for n, line in enumerate(shown) if line.lower().startswith("error:")]
    return shown[errors[0] :][:MAX_CAUSE_LINES] if errors else shown[-MAX_CAUSE_LINES:]


def printable(text: str) -> str:
    """Return outside text as one line without control characters."""
    return "".join(char if char.isprintable() else " " for char in text.rstrip())[:MAX_CHARS]


def install_command(venv: Path, *options: str) -> list[str]:
    """Return the command that installs packages without their dependencies."""
    python = next(path for path in (venv / "Scripts" / "python.exe", venv / "bin" / "python") if path.exists())
    pip = [str(python), "-m", "pip", "install", "--disable-pip-version-check", "--no-input", "--progress-bar", "off"]
    return [*pip, "--no-deps", *options]


def set_up(venv: Path, lock: Path, editable: str | None, options: Sequence[str], reporter: Reporter) -> None:
    """Create the environment, install the packages of the lock, and install and compile that of ``editable``."""
    if Path(sys.prefix).resolve() != venv.resolve():
        run([sys.executable, "-m", "venv", str(venv)], reporter, lambda: f"creating {venv}", lambda line: None)
    progress = PipProgress(venv, count_packages(lock.read_text("utf-8")))
    with (venv / LOG_NAME).open("w", encoding="utf-8") as log:

        def read(line: str) -> None:
            log.write(line)
            log.flush()
            progress.read(line)

        run(install_command(venv, "--require-hashes", "-r", str(lock), *options), reporter, progress.text, read)
        if editable is not None:
            command = install_command(venv, "--no-build-isolation", "-e", editable)
            run(command, reporter, lambda: "installing this package", log.write)
            # where Python writes no caches, each start would compile them again
            packages = [str(each.parent) for each in Path(editable).glob("*/__init__.py")]
            compile_command = [command[0], "-m", "compileall", "-q", "-j", "0", *packages]
            run(compile_command, reporter, lambda: "compiling this package", log.write)


def main(arguments: Sequence[str]) -> int:
    """Set up an environment; return the exit code."""
    parser = argparse.ArgumentParser(description="set up a virtual environment from a lock file")
    parser.add_argument("venv", type=Path, help="folder of the virtual environment")
    parser.add_argument("lock", type=Path, help="lock file with hashes")
    parser.add_argument("--editable", metavar="DIR", help="then install the package of this folder, editable")
    parser.add_argument("--no-compile", action="store_true", help="do not compile the installed modules")
    options = parser.parse_args(arguments)
    if sys.version_info < MIN_PYTHON:
        sys.stderr.write(f"Python 3.11 or newer is needed; {sys.executable} is {sys.version.split()[0]}\n")
        return 1
    reporter = Reporter()
    reporter.line(announcement(options.venv, options.lock))
    try:
        pip_options = ["--no-compile"] if options.no_compile else []
        set_up(options.venv, options.lock, options.editable, pip_options, reporter)
    except (SetUpFailed, OSError) as exc:
        reporter.line(f"Setting up {options.venv} failed:\n{exc}")
        reporter.line(next_step(str(exc), options.venv))
        return 1
    except KeyboardInterrupt:
        reporter.line(f"Interrupted; the same command goes on with what pip has downloaded ({options.venv}).")
        return 130
    reporter.line(f"{options.venv} is ready after {time.monotonic() - reporter.started:.0f} s")
    return 0


def next_step(cause: str, venv: Path) -> str:
    """Return what to do about a failure."""
    advice = next((advice for sign, advice in ADVICE if sign in cause), DEFAULT_ADVICE)
    output = f" The whole output of pip: {log}" if (log := venv / LOG_NAME).exists() else ""
    return f"{advice}; then run the same command again.{output}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
