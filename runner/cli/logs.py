"""Warnings go to the person and to ``logs/runner.log`` of the state directory, made safe and without secrets.

What libraries log goes to the file alone, without tracebacks: what matters of it is said by us.
"""

from __future__ import annotations

import logging
from logging.handlers import RotatingFileHandler
from pathlib import Path
from types import TracebackType
from typing import TypeAlias

from runner.cli.terminal import err, safe

MAX_BYTES = 4 * 1024 * 1024
LIBRARIES = ("asyncio", "httpcore", "httpx", "nats")

_ExcInfo: TypeAlias = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]


class _Safe(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return safe(super().format(record)).replace("\n", "\n  ")

    def formatException(self, ei: _ExcInfo) -> str:
        return f"{type(ei[1]).__name__}: {ei[1]}"


class _ToFile(RotatingFileHandler):
    def handleError(self, record: logging.LogRecord) -> None:
        """A full disk is said by whoever plays; it need not be said once more for every line of the log."""


class _ToPerson(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        err(self.format(record))


def log_to_person() -> None:
    """Send the runner's warnings to standard error, and those of libraries nowhere."""
    to_person = _ToPerson()
    to_person.setFormatter(_Safe("%(levelname)s: %(message)s"))
    logging.getLogger("runner").handlers = [to_person]
    for name in LIBRARIES:
        library = logging.getLogger(name)
        library.handlers, library.propagate = [logging.NullHandler()], False


def log_to(data_dir: Path) -> None:
    """Send the runner's warnings to standard error and, where that is possible, to a log file that is kept small.

    To be called before the state directory is opened: what is found there is worth a warning, too.
    """
    log_to_person()
    logger = logging.getLogger("runner")
    folder = data_dir / "logs"
    try:
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as exc:
        logger.warning("No log is kept: %s cannot be created: %s", folder, exc.strerror)
        return
    to_file = _ToFile(folder / "runner.log", maxBytes=MAX_BYTES, backupCount=1, encoding="utf-8", delay=True)
    to_file.setFormatter(_Safe("%(asctime)s %(levelname)s %(name)s %(message)s"))
    for name in ("runner", *LIBRARIES):
        logging.getLogger(name).addHandler(to_file)
