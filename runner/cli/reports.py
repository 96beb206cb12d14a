"""What commands print: cells of their tables, log records, recovered episodes, and files that are left out.

The runner's warnings go to standard error and ``logs/runner.log``, sanitized and without secrets. Log records of
libraries, and what worker processes write, go only to the file, without tracebacks; the runner reports the relevant
errors itself.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from logging.handlers import RotatingFileHandler
from pathlib import Path
from types import TracebackType
from typing import TypeAlias

from runner.cli.terminal import print_stderr, safe_text
from runner.store import DamagedFile, EpisodeRecord
from runner.types import Tokens
from runner.types.time_shares import percent_text
from runner.util.amounts import format_amount
from runner.util.display_text import pluralize
from runner.util.files import make_folder

MAX_BYTES = 4 * 1024 * 1024
FILE_ONLY = ("aiohttp", "asyncio", "httpcore", "httpx", "nats", "runner.worker.output")

_ExcInfo: TypeAlias = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]


class _SafeFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return safe_text(super().format(record)).replace("\n", "\n  ")

    def formatException(self, ei: _ExcInfo) -> str:
        return f"{type(ei[1]).__name__}: {ei[1]}"


class _LogFileHandler(RotatingFileHandler):
    def handleError(self, record: logging.LogRecord) -> None:
        """Ignore errors of writing the log file; if the disk is full, the run reports it."""


class _StderrHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        print_stderr(self.format(record))


def log_to_stderr() -> None:
    """Send the runner's warnings to standard error; discard the log records of libraries and of worker processes."""
    stderr_handler = _StderrHandler()
    stderr_handler.setFormatter(_SafeFormatter("%(levelname)s: %(message)s"))
    logging.getLogger("runner").handlers = [stderr_handler]
    for name in FILE_ONLY:
        other = logging.getLogger(name)
        other.handlers, other.propagate = [logging.NullHandler()], False


def log_to_file(data_dir: Path) -> None:
    """Send the runner's warnings to standard error and, if possible, to a rotating log file.

    Call this function before the state directory is opened, because opening it may log warnings.
    """
    log_to_stderr()
    logger = logging.getLogger("runner")
    folder = data_dir / "logs"
    try:
        make_folder(folder)
    except OSError as exc:
        logger.warning("Logging to a file is off: %s cannot be created: %s", folder, exc.strerror)
        return
    path = folder / "runner.log"
    file_handler = _LogFileHandler(path, maxBytes=MAX_BYTES, backupCount=1, encoding="utf-8", delay=True)
    file_handler.setFormatter(_SafeFormatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    for name in ("runner", *FILE_ONLY):
        logging.getLogger(name).addHandler(file_handler)


MAX_DAMAGED = 20
"""Largest number of damaged files that are printed."""


def report_recovered(records: list[EpisodeRecord]) -> None:
    for record in records:
        episode = f"{record.env} episode {record.episode_id}"
        print_stderr(f"Recovered {episode} of a killed run: {pluralize(record.rounds, 'round')}, interrupted.")


def report_damaged(files: Sequence[DamagedFile]) -> int:
    """Print which files, archives and folders of the state directory are left out; return 1, or 0 if there are none."""
    for file in files[:MAX_DAMAGED]:
        print_stderr(f"Skipped {file.path}: {file.reason}")
    if (more := len(files) - MAX_DAMAGED) > 0:
        print_stderr(f"Skipped {more:,} more; all are listed by: agentgym-runner --results --json")
    return 1 if files else 0


def damaged_json(files: Iterable[DamagedFile]) -> list[dict[str, str]]:
    return [{"path": str(file.path), "reason": file.reason} for file in files]


USAGE_COLUMNS = ("tokens", "latency", "cost")
"""Names of the cells of ``usage_cells``."""


def environment_cell(env: str, mode: str, data_label: str, shape: str = "", limits: str = "") -> str:
    labels = mode if mode != "strict" else "", data_label, shape, limits
    return " · ".join(filter(None, (env, *labels)))


def outcomes_cell(outcomes: Mapping[str, int], n_unscored: int = 0) -> str:
    counts = [f"{count} {outcome}" for outcome, count in outcomes.items()]
    reasons = "idle play can succeed, or an import has no result"
    return ", ".join([*counts, f"{n_unscored} unscored: {reasons}"] if n_unscored else counts)


def usage_cells(
    tokens: Tokens, latency_s: float | None, cost: float | None, currency: str = ""
) -> tuple[str, str, str]:
    parts = [
        f"{tokens.prompt} in" + (f" ({tokens.cached} cached)" if tokens.cached else ""),
        f"{tokens.completion} out" + (f" ({tokens.reasoning} reasoning)" if tokens.reasoning else ""),
    ]
    latency = "-" if latency_s is None else f"{latency_s:.3g} s"
    return ", ".join(parts) if tokens.total else "-", latency, "-" if cost is None else format_amount(cost, currency)


def format_success(rate: float | None, n_rated: int, n_episodes: int) -> str:
    """Format a success rate (0 to 1), with the number of scored episodes if not all are; None becomes ``-``."""
    if rate is None:
        return "-"
    return percent_text(rate, 1) if n_rated == n_episodes else f"{percent_text(rate, 1)} of {n_rated}"


def format_interval(bounds: tuple[float, float] | None) -> str:
    return "-" if bounds is None else f"{percent_text(bounds[0], 1)} to {percent_text(bounds[1], 1)}"


def format_number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}".rstrip("0").rstrip(".")
