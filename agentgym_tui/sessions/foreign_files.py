"""Episodes in files of other tools: their rows while the files are read, and each episode again by its place."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from agentgym_tui.state.episode_list import UnreadableFile

if TYPE_CHECKING:
    from runner.formats.drafts import Attempts
    from runner.formats.format import Format
    from runner.formats.importing import ReadEpisode
    from runner.formats.reading import Place
    from runner.store import EpisodeRecord, EpisodeRow

FIRST_PART_S, PART_S = 0.02, 0.25
"""Seconds for which rows are collected before they are shown, the first ones of a file and later ones."""
MAX_ROWS: Final = 200_000
"""Largest number of episodes listed of all files of other tools."""
MAX_PROBLEMS: Final = 200
"""Largest number of malformed items that are listed; a last line has the number of the others."""


class _Found(NamedTuple):
    form: Format
    place: Place
    batch_id: str
    attempt: int


class ForeignFiles:
    """Reads files of other tools; only one thread at a time may run ``scan``.

    Args:
        unreadable: receives the malformed items, which cost only themselves.
    """

    def __init__(self, unreadable: list[UnreadableFile]) -> None:
        self._found: dict[str, _Found] = {}
        self._unreadable = unreadable
        self._n_problems = 0

    def scan(self, paths: Sequence[tuple[Path, Format]]) -> Iterator[list[EpisodeRow]]:
        """Read the files in turn, and yield the new rows of each part of a second."""
        from runner.formats.drafts import Attempts

        attempts = Attempts()
        for path, form in paths:
            rows: list[EpisodeRow] = []
            shown_at, part_s = time.monotonic(), FIRST_PART_S
            for row in self._read(path, form, attempts):
                rows.append(row)
                if time.monotonic() - shown_at > part_s:
                    yield rows
                    rows, shown_at, part_s = [], time.monotonic(), PART_S
            yield rows
        if self._n_problems > MAX_PROBLEMS:
            text = f"{self._n_problems - MAX_PROBLEMS:,} further items cannot be read"
            self._unreadable.append(UnreadableFile(paths[-1][0], text))

    def load(self, episode_id: str) -> EpisodeRecord | None:
        """Return an episode without token ids, read again; None if none has this id.

        Raises:
            StoreError: its file has changed or cannot be read.
        """
        from runner.errors import StoreError
        from runner.formats.importing import ReadEpisode, episodes_of, modified_time
        from runner.formats.reading import LIMITS, Item
        from runner.store.token_file import without_tokens

        if (known := self._found.get(episode_id)) is None:
            return None
        item = Item(known.place, known.form.read(known.place, LIMITS))
        for each in episodes_of(item, known.form, LIMITS, modified_time(known.place.path)):
            if isinstance(each, ReadEpisode) and each.record.episode_id == episode_id:
                each.record.attempt, each.record.batch_id = known.attempt, known.batch_id
                return without_tokens(each.record)
        raise StoreError(f"{known.place.path} has changed; reload it")

    def path(self, episode_id: str) -> Path | None:
        """Return the file that has an episode; None if none has it."""
        known = self._found.get(episode_id)
        return None if known is None else known.place.path

    def _read(self, path: Path, form: Format, attempts: Attempts) -> Iterator[EpisodeRow]:
        from runner.errors import StoreError
        from runner.formats.format import Source
        from runner.formats.importing import read_episodes
        from runner.formats.reading import Malformed
        from runner.store.index_schema import episode_row

        try:
            batch_id = _batch_id(path)
            for found in read_episodes(Source(path, form)):
                if isinstance(found, Malformed):
                    self._add_problem(found.place.path, f"{found.place.unit} {found.place.number}: {found.reason}")
                elif len(self._found) < MAX_ROWS and found.record.episode_id not in self._found:
                    attempts.number(found.record, found.draft)
                    found.record.batch_id = batch_id
                    self._keep(found, form)
                    yield episode_row(found.record)
        except StoreError as exc:
            self._add_problem(path, str(exc))

    def _keep(self, found: ReadEpisode, form: Format) -> None:
        record = found.record
        self._found[record.episode_id] = _Found(form, found.place, record.batch_id, record.attempt)

    def _add_problem(self, path: Path, reason: str) -> None:
        self._n_problems += 1
        if self._n_problems <= MAX_PROBLEMS:
            self._unreadable.append(UnreadableFile(path, reason))


def _batch_id(path: Path) -> str:
    """Return the id under which the episodes of a file are one batch; raises a ``StoreError`` if there is no file."""
    from runner.formats.importing import modified_time
    from runner.util.clock import digest_ulid

    milliseconds = max(0, round(modified_time(path).timestamp() * 1000))
    return digest_ulid(milliseconds, hashlib.sha256(os.fsencode(path)).digest()[:10])
