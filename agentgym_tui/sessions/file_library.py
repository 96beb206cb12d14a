"""Episode files anywhere: found in files and folders that somebody names, read without writing anything there."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

from agentgym_tui.logs.file_types import is_folder
from agentgym_tui.sessions.episode_library import episode_of_record, record_of_bytes
from agentgym_tui.sessions.protocols import Unusable
from agentgym_tui.state.models import Episode, Progress

if TYPE_CHECKING:
    from agentgym_tui.sessions.episode_summary import BriefReader
    from runner.store import EpisodeRow

DEPTH: Final = 2
"""Folders below a folder of runs that are looked into."""

MAX_FILES: Final = 200_000
AT_ONCE: Final = 50
MORE_AT_ONCE: Final = 400
"""Files that are read before somebody is told, the first time and later."""


class FilesLibrary:
    """The episodes among some files and folders; see ``Library``. ``scan`` finds them, from one thread.

    Attributes:
        progress: how far that is.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        """Nothing is looked at yet."""
        self._refused: list[Unusable] = []
        self.unusable: Sequence[Unusable] = self._refused
        self.progress = Progress(0, 0)
        self._given = paths
        self._lock = threading.Lock()
        self._rows: dict[str, EpisodeRow] = {}
        self._paths: dict[str, Path] = {}

    def rows(self) -> list[EpisodeRow]:
        """What was read so far, the newest first."""
        with self._lock:
            return [self._rows[episode_id] for episode_id in sorted(self._rows, reverse=True)]

    def load(self, episode_id: str) -> tuple[Episode, bytes]:
        """An episode and its file; raises ``StoreError``."""
        from runner.errors import StoreError
        from runner.store.files import read

        with self._lock:
            path = self._paths.get(episode_id)
        if path is None:
            raise StoreError(f"there is no episode {episode_id!r} among the opened files")
        data = read(path)
        return episode_of_record(record_of_bytes(data, path)), data

    def scan(self) -> Iterator[list[EpisodeRow]]:
        """Read the files, the newest first by their names; gives what was read, part by part."""
        from agentgym_tui.sessions.episode_summary import BriefReader

        paths = sorted(set(islice(self._candidates(), MAX_FILES)), key=os.path.basename, reverse=True)
        reader, first, n = BriefReader(), 0, AT_ONCE
        while first < len(paths):
            some = paths[first : first + n]
            first, n = first + len(some), MORE_AT_ONCE
            rows = [row for path in some if (row := self._read(Path(path), reader)) is not None]
            self.progress = Progress(first, len(paths))
            yield rows

    def _candidates(self) -> Iterator[str]:
        for path in self._given:
            place = Path(os.path.realpath(path))
            if is_folder(place):
                yield from self._below(str(place / "runs" if is_folder(place / "runs") else place), DEPTH)
            else:
                yield str(place)

    def _below(self, folder: str, depth: int) -> Iterator[str]:
        """Files of a folder that may be episodes, as texts, which takes a fifth; links are not followed."""
        try:
            with os.scandir(folder) as entries:
                listed = [(entry.path, entry.is_dir(follow_symlinks=False)) for entry in entries]
        except OSError as exc:
            self._refuse(Path(folder), exc.strerror or str(exc))
            return
        for path, is_below in listed:
            if is_below and depth > 1:
                yield from self._below(path, depth - 1)
            elif not is_below and path.endswith(".json"):
                yield path
            elif path.endswith(".journal.jsonl"):
                self._refuse(
                    Path(path), "it is being played, or its node died; that node makes an episode of it when it starts"
                )

    def _read(self, path: Path, reader: BriefReader) -> EpisodeRow | None:
        from runner.errors import StoreError
        from runner.store.files import read

        try:
            row = reader.row(read(path), path)
        except StoreError as exc:
            self._refuse(path, str(exc))
            return None
        with self._lock:
            if row.episode_id in self._paths:
                return None
            self._rows[row.episode_id], self._paths[row.episode_id] = row, path
        return row

    def _refuse(self, path: Path, reason: str) -> None:
        self._refused.append(Unusable(path, reason))
