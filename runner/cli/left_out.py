"""What a command left out: recovered episodes, and damaged files, archives and folders."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from runner.cli.terminal import print_stderr
from runner.store import DamagedFile, EpisodeRecord
from runner.util.display_text import pluralize

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
