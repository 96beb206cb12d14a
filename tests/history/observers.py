"""Observers of files and processes: episode files as they appear and change, journals, and resources."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import psutil

from tests.history.records import EpisodeFile, Journal, Probe, Recorder

SCAN_S, PROBE_S = 0.5, 1.0
INDEXING: Final = "runner.node.text_indexing"
"""Module of the process that an idle node starts now and then to add the texts of new episodes to its index."""


class FileScanner:
    """Records the episode files of a state directory when they appear, change or vanish."""

    def __init__(self, data_dir: Path, recorder: Recorder) -> None:
        self._runs = data_dir / "runs"
        self._recorder = recorder
        self._known: dict[Path, tuple[int, int]] = {}

    @property
    def episode_ids(self) -> set[str]:
        """Ids of the files that existed at the last scan."""
        return {path.stem for path in self._known}

    async def run(self) -> None:
        while True:
            await asyncio.to_thread(self.scan)
            await asyncio.sleep(SCAN_S)

    def scan(self, *, every: bool = False) -> None:
        """Record what has changed, or with ``every`` all files."""
        found = {path: status for path in self._runs.glob("*/*.json") if (status := _status(path)) is not None}
        for path, status in found.items():
            if every or self._known.get(path) != status:
                self._recorder.write(_read_episode(path))
        for path in self._known.keys() - found:
            self._recorder.write(EpisodeFile(path=str(path), sha256=None, document=None))
        self._known = found

    def scan_journals(self) -> None:
        for path in self._runs.glob("*/*.journal.jsonl"):
            self._recorder.write(Journal(path=str(path)))


def _status(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns


def _read_episode(path: Path) -> EpisodeFile:
    try:
        content = path.read_bytes()
    except OSError:
        return EpisodeFile(path=str(path), sha256=None, document=None)
    try:
        document: dict[str, Any] | None = json.loads(content)
    except ValueError:
        document = None
    if document is not None:
        document.pop("spans", None)  # no promise is about them, and they are most of the file
    return EpisodeFile(path=str(path), sha256=hashlib.sha256(content).hexdigest(), document=document)


class ResourceProbe:
    """Records memory, open files and threads of processes.

    Attributes:
        n_idle: number of probes since the processes became idle.

    Args:
        processes: returns the process ids by name.
        is_idle: whether no batch is running or queued, and no fault is in progress.
    """

    def __init__(
        self, processes: Callable[[], Mapping[str, int]], is_idle: Callable[[], bool], recorder: Recorder
    ) -> None:
        self._processes = processes
        self._is_idle = is_idle
        self._recorder = recorder
        self.n_idle = 0

    async def run(self) -> None:
        while True:
            self.probe()
            await asyncio.sleep(PROBE_S)

    def probe(self) -> None:
        self.n_idle = self.n_idle + 1 if self._is_idle() else 0
        for name, pid in self._processes().items():
            if (record := _probe(name, pid, self._is_idle())) is not None:
                self._recorder.write(record)


def _probe(name: str, pid: int, idle: bool) -> Probe | None:
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            rss, n_files, n_threads = process.memory_info().rss, process.num_fds(), process.num_threads()
        n_children = count_children(process)
    except psutil.Error:
        return None
    return Probe(
        process=name, pid=pid, rss_bytes=rss, n_files=n_files, n_threads=n_threads, n_children=n_children, idle=idle
    )


def count_children(process: psutil.Process) -> int:
    """Count the child processes, except one that adds to the full-text index; one that was not reaped counts."""
    commands = [command for child in process.children() if (command := _command(child)) is not None]
    return len(commands) - any(INDEXING in command for command in commands)


def _command(process: psutil.Process) -> list[str] | None:
    """Return the command line of a process: [] if it was not reaped, None if it has vanished."""
    try:
        return process.cmdline()
    except psutil.ZombieProcess:
        return []
    except psutil.NoSuchProcess:
        return None
